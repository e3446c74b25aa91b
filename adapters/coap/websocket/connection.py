"""A WebSocket around a connection of CoAP: each binary message is one message of CoAP (RFC 8323, 4.2).

The handshake comes whole, from the adapter that has read it. `websockets` judges it, and reads and writes the frames.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from msgspec.structs import replace
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from adapters.coap.stream import CoapConnection, StreamsContext
from adapters.coap.stream.frames import FrameError
from adapters.coap.websocket.messages import to_frame, to_messages
from gateway.port.adapter import Authenticate, Call, Close, ConnectionInfo, Deliverable, Effect, Outcome, Token
from store.base.browsers import page_mistake

SUBPROTOCOL: Final = Subprotocol("coap")
FREE_BYTES: Final = 65_536  # of a message that needs no credit: about a read
CLOSING_MS: Final = 1_000  # that the client's close frame is waited for
REASON_BYTES_MAX: Final = 123  # of a close frame (RFC 6455, 5.5)
_DATA: Final = frozenset({Opcode.BINARY, Opcode.TEXT, Opcode.CONT})
_NORMAL, _GOING_AWAY, _PROTOCOL, _UNSUPPORTED, _POLICY, _TRY_AGAIN = 1000, 1001, 1002, 1003, 1008, 1013


class _Stage(Enum):
    """The stages of a WebSocket."""

    UPGRADING = "awaiting the HTTP request"
    OPEN = "open"
    CLOSING = "awaiting the client's close frame"
    CLOSED = "closed"


class CoapWebSocket:
    """The `Adapter` of CoAP over WebSocket."""

    def __init__(self, connection: CoapConnection, info: ConnectionInfo, context: StreamsContext) -> None:
        self._connection = connection
        self._info = info
        self._options = context.settings
        self._context = context
        self._protocol = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=context.message_bytes_max)
        self._stage = _Stage.UPGRADING
        self._address = ""  # of who is behind a proxy of ours
        self._parts: list[bytes] = []  # of a message whose last frame has not come
        self._reserved_bytes = 0  # of the message that arrives
        self._out = bytearray()
        self._close = Close()  # for when the client has answered our close frame
        self._close_by_ms = 0

    # ---- the port

    @property
    def wants_data(self) -> bool:
        """Returns whether more may be read. While it is closing, what comes is read and dropped."""
        return self._stage is not _Stage.OPEN or self._connection.wants_data

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Takes bytes of the client; the first ones are the whole handshake."""
        if self._stage is _Stage.CLOSED:
            return ()
        data = bytes(data)
        if self._stage is _Stage.UPGRADING:
            head, _, data = data.partition(b"\r\n\r\n")
            if not self._upgraded(head + b"\r\n\r\n"):
                return self._end()
        return self._take(data, now_ms) if data else ()

    def _take(self, data: bytes, now_ms: int) -> Sequence[Effect]:
        protocol, effects = self._protocol, list[Effect]()
        protocol.receive_data(data)
        frames, fault = self._frames()
        if frames and self._stage is _Stage.OPEN:
            effects += self._watched(self._connection.receive(frames, now_ms=now_ms), now_ms)
        if fault is not None:
            self._fail(*fault, now_ms)
        self._out += b"".join(protocol.data_to_send())
        if protocol.close_rcvd is not None or protocol.parser_exc is not None:
            if self._stage is _Stage.OPEN and protocol.parser_exc is not None:
                self._close = Close(reason=str(protocol.parser_exc))
            return [*effects, *self._end()]
        if not self._reserve(sum(map(len, self._parts)) + len(protocol.reader.buffer)):
            self._fail(_TRY_AGAIN, "too many large messages arrive at once", now_ms)
        return effects

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of an effect."""
        return self._watched(self._connection.completed(token, outcome, now_ms=now_ms), now_ms)

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Notifies observers."""
        return self._connection.deliver(deliveries, now_ms=now_ms) if self._stage is _Stage.OPEN else 0

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Runs what is due."""
        if self._stage is not _Stage.CLOSING:
            return self._watched(self._connection.tick(now_ms=now_ms), now_ms)
        return self._end() if now_ms >= self._close_by_ms else ()

    def deadline_ms(self) -> int | None:
        """Returns when `tick` is due next; 0: at once."""
        if self._stage is _Stage.CLOSED:
            return None
        return self._close_by_ms if self._stage is _Stage.CLOSING else self._connection.deadline_ms()

    def superseded(self, *, now_ms: int) -> Sequence[Effect]:
        """Connections of CoAP have no sessions."""
        return ()

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """Releases the connection (RFC 8323, 5.5), and does not wait for the client's close frame."""
        effects = self._watched(
            self._connection.shutdown(now_ms=now_ms, dismissed=dismissed),
            now_ms,
            code=_POLICY if dismissed else _GOING_AWAY,
        )
        return [*effects, *self._end()] if self._stage is _Stage.CLOSING else effects

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """Gives back what the connection held."""
        self._stage = _Stage.CLOSED
        self._reserve(0)
        return self._connection.lost(now_ms=now_ms)

    def take_output(self) -> bytes:
        """Returns the bytes to write to the client now."""
        if self._stage is _Stage.OPEN:
            self._send()
        out, self._out = bytes(self._out), bytearray()
        return out

    # ---- the way in

    def _upgraded(self, head: bytes) -> bool:
        """Judges the handshake (RFC 6455, 4.2; RFC 8323, 4.1), and answers it; returns whether there is a WebSocket."""
        protocol, options = self._protocol, self._options
        protocol.receive_data(head)
        found = protocol.events_received()
        request = found[0] if found else None
        if not isinstance(request, Request):
            answer = protocol.reject(400, "the request is no handshake of a WebSocket\n")
            self._out += answer.serialize()
        else:
            mistake = page_mistake(
                request.headers.get_all("origin"),
                request.headers.get_all("host"),
                allowed=options.websocket_origins,
                known=options.websocket_hosts,
                local=self._info.loopback,
                settings="adapters.coap",
            )
            answer = protocol.accept(request) if mistake is None else protocol.reject(mistake[0], f"{mistake[1]}\n")
            if (proxy := self._info.forwarding) is not None:
                self._address = proxy.client(", ".join(request.headers.get_all(proxy.header)))
            protocol.send_response(answer)
        self._out += b"".join(protocol.data_to_send())
        if protocol.state is OPEN:
            self._stage = _Stage.OPEN
            return True
        self._close = Close(reason=answer.body.decode().strip())
        return False

    def _frames(self) -> tuple[bytes, tuple[int, str] | None]:
        """Returns the messages that have come, as frames of CoAP over TCP, and why the WebSocket is to be closed."""
        frames: list[bytes] = []
        for frame in self._protocol.events_received():
            if self._stage is not _Stage.OPEN or not isinstance(frame, Frame) or frame.opcode not in _DATA:
                continue  # `websockets` has answered it
            if frame.opcode is Opcode.TEXT:
                return b"".join(frames), (_UNSUPPORTED, "CoAP is in binary messages")
            self._parts.append(bytes(frame.data))
            if frame.fin:
                try:
                    frames.append(to_frame(b"".join(self._parts)))
                except FrameError as error:
                    return b"".join(frames), (_PROTOCOL, str(error))
                self._parts = []
        return b"".join(frames), None

    def _reserve(self, held_bytes: int) -> bool:
        """Counts what is held of a message that is not whole; returns whether there is room for it."""
        held_bytes = held_bytes if held_bytes > FREE_BYTES else 0
        context, grown = self._context, held_bytes > self._reserved_bytes
        context.arriving_bytes += held_bytes - self._reserved_bytes
        self._reserved_bytes = held_bytes
        return not grown or context.arriving_bytes <= context.arriving_bytes_max

    # ---- the way out

    def _send(self) -> None:
        """Turns what the connection has to say into WebSocket messages."""
        protocol = self._protocol
        for message in to_messages(self._connection.take_output()):
            protocol.send_binary(message)
        self._out += b"".join(protocol.data_to_send())

    def _watched(self, effects: Sequence[Effect], now_ms: int, *, code: int | None = None) -> Sequence[Effect]:
        """Returns the connection's effects, and closes the WebSocket first if the connection has closed."""
        if self._address:
            effects = [_from(self._address, effect) for effect in effects]
        if self._stage is not _Stage.OPEN:
            return effects
        close = next((effect for effect in effects if isinstance(effect, Close)), None)
        if close is None:
            return effects
        rest = [effect for effect in effects if effect is not close]
        self._fail(code or (_PROTOCOL if close.reason else _NORMAL), close.reason, now_ms)
        return rest

    def _fail(self, code: int, reason: str, now_ms: int) -> None:
        """Closes the WebSocket, with a reason, behind all that was said."""
        if self._stage is not _Stage.OPEN:
            return
        self._send()
        if self._protocol.state is OPEN:
            text = reason.encode("utf-8", "replace")[:REASON_BYTES_MAX].decode("utf-8", "ignore")
            self._protocol.send_close(code, text)
            self._out += b"".join(self._protocol.data_to_send())
        self._close = Close(reason=reason)
        self._stage, self._close_by_ms = _Stage.CLOSING, now_ms + CLOSING_MS
        self._parts = []

    def _end(self) -> Sequence[Effect]:
        self._stage = _Stage.CLOSED
        self._reserve(0)
        return (self._close,)


def _from(address: str, effect: Effect) -> Effect:
    """Returns an effect of a client that is behind a proxy: the endpoint at its address says who it is."""
    if not isinstance(effect, Call) or not isinstance(effect.request, Authenticate):
        return effect
    return replace(effect, request=replace(effect.request, address=address, sole=True))
