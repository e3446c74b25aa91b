"""MQTT over WebSocket (MQTT 5.0, 6): the frames and the handshake around an MQTT connection."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from adapters.mqtt.messages.options import Options
from adapters.mqtt.websocket.frames import CloseCode, Fault, Frames, Opcode, close_frame, data_frames, frame
from adapters.mqtt.websocket.upgrade import AllowedPages, Upgrade
from gateway.port.adapter import Adapter, Authenticate, Call, Close, ConnectionInfo, Deliverable, Effect, Outcome, Token

LISTENER = "mqtt-ws"
CLOSING_MS = 1_000  # how long the client's close frame is awaited that answers ours


class Stage(Enum):
    """The stages of a WebSocket."""

    UPGRADING = "awaiting the HTTP request"
    OPEN = "open"
    CLOSING = "awaiting the client's close frame"
    CLOSED = "closed"


class ClosableAdapter(Adapter, Protocol):
    """A connection that says when it has ended, so that its WebSocket ends too."""

    @property
    def closed(self) -> bool:
        """Returns whether the connection has ended, by whichever side."""


class WebSocket:
    """An MQTT connection that speaks through a WebSocket (`gateway.port.adapter.Adapter`).

    All the payload of a read goes to the connection in one piece, and all it has to say leaves in one frame. That
    the WebSocket is closed, by either side, is to the connection the loss of its network connection.
    """

    __slots__ = ("_address", "_by_ms", "_close", "_connection", "_frames", "_out", "_stage", "_upgrade", "info")

    def __init__(self, connection: ClosableAdapter, info: ConnectionInfo, options: Options) -> None:
        self.info = info
        self._connection = connection
        self._frames = Frames()
        self._stage = Stage.UPGRADING
        pages = AllowedPages(origins=options.websocket_origins, hosts=options.websocket_hosts, local=info.loopback)
        self._upgrade: Upgrade | None = Upgrade(pages)  # None: it is done
        self._address = ""  # of who is behind a proxy of ours
        self._out: list[bytes] = []  # to be written before what the connection has to say
        self._close = Close()  # for when the client has answered our close frame
        self._by_ms: int | None = None  # when it is not waited for any more

    # ---- the port

    @property
    def wants_data(self) -> bool:
        """Returns whether more may be read. While it is closing, what comes is read and dropped."""
        return self._stage is not Stage.OPEN or self._connection.wants_data

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Bytes from the client."""
        if not isinstance(data, bytes):
            data = bytes(data)
        if self._upgrade is not None:
            data = self._upgrade.receive(data)
            if self._upgrade.accepted is not None:
                self._answer(self._upgrade)
            if self._stage is Stage.CLOSED:
                return (self._close,)
        if self._stage is Stage.CLOSED:
            return ()
        frames = self._frames
        payload = frames.receive(data)
        effects: Sequence[Effect] = ()
        if (payload or not data) and self._stage is Stage.OPEN:
            effects = self._with_close(self._connection.receive(payload, now_ms=now_ms), now_ms)
        if frames.ping is not None and self._stage is Stage.OPEN:
            self._out.append(frame(Opcode.PONG, frames.ping))
        frames.ping = None
        if frames.closed is None and frames.fault is None:
            return effects
        return (*effects, self._closed_by_client(frames.closed, frames.fault))

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """The gateway has done, or refused, what an effect asked."""
        return self._with_close(self._connection.completed(token, outcome, now_ms=now_ms), now_ms)

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Messages for this client."""
        return self._connection.deliver(deliveries, now_ms=now_ms) if self._stage is Stage.OPEN else 0

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """A deadline has come."""
        if self._stage is not Stage.CLOSING:
            return self._with_close(self._connection.tick(now_ms=now_ms), now_ms)
        return (self._end(),) if self._by_ms is not None and now_ms >= self._by_ms else ()

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due next; 0: at once."""
        if self._stage is Stage.CLOSED:
            return None
        return self._by_ms if self._stage is Stage.CLOSING else self._connection.deadline_ms()

    def superseded(self, *, now_ms: int) -> Sequence[Effect]:
        """The client has connected again, and waits there for this connection to end."""
        return self._at_once(self._with_close(self._connection.superseded(now_ms=now_ms), now_ms))

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """The gateway is going down, or this client is to go."""
        effects = self._connection.shutdown(now_ms=now_ms, dismissed=dismissed)
        code = CloseCode.POLICY_VIOLATION if dismissed else CloseCode.GOING_AWAY
        return self._at_once(self._with_close(effects, now_ms, code=code, status=503))

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """The connection is gone."""
        self._stage = Stage.CLOSED
        return self._connection.lost(now_ms=now_ms)

    def take_output(self) -> bytes:
        """Returns the bytes to write to the client now."""
        out, self._out = self._out, []
        if self._stage is Stage.OPEN and (said := self._connection.take_output()):
            out.append(data_frames(said))
        return out[0] if len(out) == 1 else b"".join(out)

    # ---- the way in

    def _answer(self, upgrade: Upgrade) -> None:
        """The HTTP request has its answer."""
        if (proxy := self.info.forwarding) is not None:
            self._address = proxy.client(upgrade.header(proxy.header))
        self._out.append(upgrade.output)
        self._upgrade = None
        self._stage = Stage.OPEN if upgrade.accepted else Stage.CLOSED
        self._close = Close(reason=upgrade.reason)

    # ---- the way out

    def _with_close(
        self, effects: Sequence[Effect], now_ms: int, *, code: CloseCode | None = None, status: int = 408
    ) -> Sequence[Effect]:
        """Returns the connection's effects. If it has closed, ends the WebSocket (or refuses its upgrade) first."""
        if self._address:
            effects = [_from(self._address, effect) for effect in effects]
        if not self._connection.closed or self._stage in {Stage.CLOSING, Stage.CLOSED}:
            return effects
        close = next((effect for effect in effects if type(effect) is Close), Close())
        if self._upgrade is not None:
            self._upgrade.refuse(status, close.reason)
            self._answer(self._upgrade)
            return effects
        self._close = close
        self._queue_output()
        self._out.append(close_frame(code or _code(close.reason), close.reason))
        self._stage = Stage.CLOSING
        self._by_ms = now_ms + CLOSING_MS
        return [effect for effect in effects if effect is not close]

    def _closed_by_client(self, code: int | None, fault: Fault | None) -> Close:
        """The client has sent a close frame, or something that is none of its frames."""
        if self._stage is Stage.OPEN:
            self._queue_output()
            if fault is not None:
                self._out.append(close_frame(fault.code, fault.detail))
                self._close = Close(reason=fault.detail)
            elif code is not None:
                self._out.append(close_frame(code))
        return self._end()

    def _queue_output(self) -> None:
        """Queues the connection's remaining output, which comes before any close frame."""
        if said := self._connection.take_output():
            self._out.append(data_frames(said))

    def _at_once(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        """The client's close frame is not waited for."""
        return (*effects, self._end()) if self._stage is Stage.CLOSING else effects

    def _end(self) -> Close:
        self._stage = Stage.CLOSED
        return self._close


def _from(address: str, effect: Effect) -> Effect:
    """An effect of a client that is behind a proxy: the endpoint at its address says who it is."""
    if type(effect) is not Call or not isinstance(effect.request, Authenticate):
        return effect
    return replace(effect, request=replace(effect.request, address=address, sole=True))


def _code(reason: str) -> CloseCode:
    return CloseCode.POLICY_VIOLATION if reason else CloseCode.NORMAL
