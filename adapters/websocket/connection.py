"""A connection that speaks through a WebSocket: the stages of the WebSocket, its end, and who is behind a proxy.

All the payload of a read goes to the connection in one piece. That the WebSocket is closed, by either side, is to the
connection the loss of its network connection.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, Protocol

from msgspec.structs import replace

from gateway.domain.forwarding import ForwardingSettings
from gateway.port.adapter import Adapter, Authenticate, Call, Close, Deliverable, Effect, Outcome, Token

CLOSING_MS: Final = 1_000  # that the client's close frame is awaited which answers ours
NORMAL, GOING_AWAY, POLICY_VIOLATION = 1000, 1001, 1008


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


class Handshake(Protocol):
    """The HTTP request that a WebSocket begins with, and its answer: `output`, once `accepted` is not None."""

    accepted: bool | None
    output: bytes
    reason: str  # why it was refused

    def receive(self, data: bytes) -> bytes:
        """Takes bytes of the client; returns those behind the request, once it is accepted."""

    def refuse(self, status: int, detail: str) -> None:
        """Refuses a request that is not all there."""

    def header(self, name: str) -> str:
        """Returns a header of the request, all its lines together."""


class Framing(Protocol):
    """The frames of one WebSocket. The attributes hold the parts of a read besides payload."""

    answers: bytes  # frames of ours that answer the client's; emptied by the reader
    ended: str | None  # "": the client has closed the WebSocket; or the rule that it has broken. Later input is dropped
    mistake: tuple[int, str] | None  # the code and the reason to close the WebSocket with; its frames can still be read
    refusal_code: int  # of a connection that ends with a reason

    def receive(self, data: bytes) -> bytes:
        """Returns the payload in a read."""

    def data(self, payload: bytes) -> bytes:
        """Returns frames with a connection's output; none behind a close frame."""

    def close(self, code: int, reason: str) -> bytes:
        """Returns a close frame, unless there was one; the reason is cut to fit."""

    def release(self) -> None:
        """Gives back the bytes held of incomplete messages."""


class WebSocketConnection:
    """The `Adapter` of a connection inside a WebSocket; its effects are those of the connection."""

    __slots__ = (
        "_address",
        "_close",
        "_close_by_ms",
        "_connection",
        "_forwarding",
        "_framing",
        "_handshake",
        "_out",
        "_stage",
    )

    def __init__(
        self, connection: ClosableAdapter, handshake: Handshake, framing: Framing, forwarding: ForwardingSettings | None
    ) -> None:
        self._connection = connection
        self._handshake: Handshake | None = handshake  # None: it is done
        self._framing = framing
        self._forwarding = forwarding
        self._stage = Stage.UPGRADING
        self._address = ""  # of the client behind a proxy of ours
        self._out: list[bytes] = []  # to be written before the connection's output
        self._close = Close()  # for when the client has answered our close frame
        self._close_by_ms = 0  # when it is not waited for any more

    @property
    def connection(self) -> ClosableAdapter:
        """Returns the connection inside the WebSocket."""
        return self._connection

    # ---- the port

    @property
    def wants_data(self) -> bool:
        """Returns whether more may be read. While it is closing, input is read and dropped."""
        return self._stage is not Stage.OPEN or self._connection.wants_data

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Takes bytes from the client."""
        if not isinstance(data, bytes):
            data = bytes(data)
        if self._handshake is not None:
            data = self._handshake.receive(data)
            if self._handshake.accepted is None:
                return ()
            self._answer(self._handshake)
            if self._stage is Stage.CLOSED:
                return (self._close,)
        if self._stage is Stage.CLOSED:
            return ()
        framing = self._framing
        payload = framing.receive(data)
        if framing.answers and framing.ended is None:
            self._take_answers()
        effects: Sequence[Effect] = ()
        if (payload or not data) and self._stage is Stage.OPEN:
            effects = self._with_close(self._connection.receive(payload, now_ms=now_ms), now_ms)
        if framing.mistake is not None:
            code, reason = framing.mistake
            self._begin_close(code, Close(reason=reason), now_ms)
        if framing.ended is None:
            return effects
        self._queue_output()
        self._take_answers()
        if self._stage is Stage.OPEN:
            self._close = Close(reason=framing.ended)
        return (*effects, self._end())

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of an effect, done or refused."""
        return self._with_close(self._connection.completed(token, outcome, now_ms=now_ms), now_ms)

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Takes messages for this client."""
        return self._connection.deliver(deliveries, now_ms=now_ms) if self._stage is Stage.OPEN else 0

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Handles the timers due, as a deadline has come."""
        if self._stage is not Stage.CLOSING:
            return self._with_close(self._connection.tick(now_ms=now_ms), now_ms)
        return (self._end(),) if now_ms >= self._close_by_ms else ()

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due next; 0: at once."""
        if self._stage is Stage.CLOSED:
            return None
        return self._close_by_ms if self._stage is Stage.CLOSING else self._connection.deadline_ms()

    def superseded(self, *, now_ms: int) -> Sequence[Effect]:
        """Closes, as the client has connected again, and waits there for this connection to end."""
        return self._at_once(self._with_close(self._connection.superseded(now_ms=now_ms), now_ms))

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """Closes: the gateway is going down, or this client is to go."""
        effects = self._connection.shutdown(now_ms=now_ms, dismissed=dismissed)
        code = POLICY_VIOLATION if dismissed else GOING_AWAY
        return self._at_once(self._with_close(effects, now_ms, code=code, status=503))

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """Ends, as the connection is gone."""
        self._end()
        return self._connection.lost(now_ms=now_ms)

    def take_output(self) -> bytes:
        """Returns the bytes to write to the client now."""
        if self._stage is Stage.OPEN and (said := self._connection.take_output()):
            self._out.append(self._framing.data(said))
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    # ---- the way in

    def _answer(self, handshake: Handshake) -> None:
        """Opens the WebSocket, or ends where it is refused."""
        if (proxy := self._forwarding) is not None:
            self._address = proxy.client(handshake.header(proxy.header))
        self._out.append(handshake.output)
        self._handshake = None
        self._stage = Stage.OPEN if handshake.accepted else Stage.CLOSED
        self._close = Close(reason=handshake.reason)

    # ---- the way out

    def _with_close(
        self, effects: Sequence[Effect], now_ms: int, *, code: int | None = None, status: int = 408
    ) -> Sequence[Effect]:
        """Returns the connection's effects. If it has closed, ends the WebSocket (or refuses its upgrade) first."""
        if self._address:
            effects = [_from(self._address, effect) for effect in effects]
        if not self._connection.closed or self._stage in {Stage.CLOSING, Stage.CLOSED}:
            return effects
        close = next((effect for effect in effects if type(effect) is Close), Close())
        if self._handshake is not None:
            self._handshake.refuse(status, close.reason)
            self._answer(self._handshake)
            return effects
        self._begin_close(code or (self._framing.refusal_code if close.reason else NORMAL), close, now_ms)
        return [effect for effect in effects if effect is not close]

    def _begin_close(self, code: int, close: Close, now_ms: int) -> None:
        """Sends a close frame, behind all other output; `close` is for when the client has answered it."""
        if self._stage is not Stage.OPEN:
            return
        self._queue_output()
        self._out.append(self._framing.close(code, close.reason))
        self._close = close
        self._stage, self._close_by_ms = Stage.CLOSING, now_ms + CLOSING_MS

    def _queue_output(self) -> None:
        """Queues the connection's output, which comes before any close frame."""
        if self._stage is Stage.OPEN and (said := self._connection.take_output()):
            self._out.append(self._framing.data(said))

    def _take_answers(self) -> None:
        """Queues the answers to the client's frames."""
        self._out.append(self._framing.answers)
        self._framing.answers = b""

    def _at_once(self, effects: Sequence[Effect]) -> Sequence[Effect]:
        """Ends a WebSocket whose client's close frame is not waited for."""
        return (*effects, self._end()) if self._stage is Stage.CLOSING else effects

    def _end(self) -> Close:
        self._stage = Stage.CLOSED
        self._framing.release()
        return self._close


def _from(address: str, effect: Effect) -> Effect:
    """Returns an effect of a client that is behind a proxy: the endpoint at its address says who it is."""
    if type(effect) is not Call or not isinstance(effect.request, Authenticate):
        return effect
    return replace(effect, request=replace(effect.request, address=address, sole=True))
