"""CoAP in a WebSocket: each binary message is one message of CoAP (RFC 8323, 4.2).

The handshake comes whole, from the adapter that has read it. `websockets` judges it, and reads and writes the frames.
"""

from typing import Final

from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from adapters.coap.messages.settings import CoapOptions
from adapters.coap.stream import FREE_BYTES, IDLE_FRAMES_MAX, CoapConnection, StreamsContext
from adapters.coap.stream.frames import FrameError
from adapters.coap.websocket.messages import to_frame, to_messages
from adapters.websocket.library import QUIET, RefusedHandshake, close_frame_of, judged, output_of, refusing
from store.base.browsers import page_mistake

SUBPROTOCOL: Final = Subprotocol("coap")
_DATA: Final = frozenset({Opcode.BINARY, Opcode.TEXT, Opcode.CONT})
_PROTOCOL, _UNSUPPORTED, _POLICY, _TRY_AGAIN = 1002, 1003, 1008, 1013
READ_BYTES: Final = 4 * 1024  # of frames that are taken at a time
FRAGMENT_BYTES_MIN: Final = 16  # of a frame that is not the last one of its message, and brings something


def server_protocol(context: StreamsContext) -> ServerProtocol:
    """Returns the protocol layer of one WebSocket, which its handshake and its framing share."""
    return ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=context.message_bytes_max, logger=QUIET)


class CoapHandshake:
    """See `adapters.websocket.connection.Handshake` (RFC 6455, 4.2; RFC 8323, 4.1)."""

    def __init__(self, protocol: ServerProtocol, options: CoapOptions, *, local: bool) -> None:
        self.accepted: bool | None = None
        self.output = b""
        self.reason = ""
        self._protocol = protocol
        self._options = options
        self._local = local
        self._request: Request | None = None

    def receive(self, data: bytes) -> bytes:
        """See `Handshake`: the first bytes are the whole request."""
        head, _, rest = data.partition(b"\r\n\r\n")
        protocol = self._protocol
        protocol.receive_data(head + b"\r\n\r\n")
        found = protocol.events_received()
        if found and isinstance(found[0], Request):
            self._request = found[0]
            self._send(self._judge(found[0]))
        else:
            self.reason = "the request is no handshake of a WebSocket"
            answer = refusing(RefusedHandshake(400, self.reason))
            self.output, self.accepted = answer.serialize() + output_of(protocol), False
        return rest if self.accepted else b""

    def refuse(self, status: int, detail: str) -> None:
        """See `Handshake`."""
        self._send(RefusedHandshake(status, detail))

    def header(self, name: str) -> str:
        """See `Handshake`."""
        return "" if self._request is None else ", ".join(self._request.headers.get_all(name))

    def _judge(self, request: Request) -> Response | RefusedHandshake:
        mistake = page_mistake(
            request.headers.get_all("origin"),
            request.headers.get_all("host"),
            allowed=self._options.websocket_origins,
            known=self._options.websocket_hosts,
            local=self._local,
            settings="adapters.coap",
        )
        if mistake is not None:
            return RefusedHandshake(*mistake)
        return judged(self._protocol, request)

    def _send(self, answer: Response | RefusedHandshake) -> None:
        if isinstance(answer, RefusedHandshake):
            self.reason, answer = answer.detail, refusing(answer)
        self._protocol.send_response(answer)
        self.output = output_of(self._protocol)
        self.accepted = self._protocol.state is OPEN


class CoapFraming:
    """See `adapters.websocket.connection.Framing`; its payload are frames of CoAP over TCP."""

    def __init__(self, protocol: ServerProtocol, context: StreamsContext, connection: CoapConnection) -> None:
        self.refusal_code: int = _PROTOCOL
        self.answers = b""
        self.ended: str | None = None
        self.mistake: tuple[int, str] | None = None
        self._protocol = protocol
        self._context = context
        self._connection = connection
        self._message = bytearray()  # the frames that have come of a message whose last one has not
        self._arriving_bytes = 0  # of a message that is not whole, which count
        self._idle_frames = 0  # of this read
        self._closing = False  # a close frame of ours was made: messages are dropped

    def receive(self, data: bytes) -> bytes:
        """See `Framing`."""
        protocol = self._protocol
        self._idle_frames = 0
        payload = b""
        for at in range(0, len(data), READ_BYTES):
            protocol.receive_data(data[at : at + READ_BYTES])
            payload += self._messages()
            if self._idle_frames > IDLE_FRAMES_MAX:
                self.mistake = self.mistake or (_POLICY, "too many frames that bring nothing")
                break
        self.answers = output_of(protocol)  # pongs, and the answer to a close frame or to a malformed frame
        if protocol.parser_exc is not None:
            self.ended = str(protocol.parser_exc)
        elif protocol.close_rcvd is not None:
            self.ended = ""
        elif not self._hold(len(self._message) + len(protocol.reader.buffer)):
            self.mistake = self.mistake or (_TRY_AGAIN, "too many large messages arrive at once")
        return payload

    def _messages(self) -> bytes:
        """Returns the messages that have come, as frames of CoAP over TCP, up to a mistake."""
        found: list[bytes] = []
        for frame in self._protocol.events_received():
            if isinstance(frame, Frame) and (
                frame.opcode not in _DATA or not (frame.fin or len(frame.data) >= FRAGMENT_BYTES_MIN)
            ):
                self._idle_frames += 1
            if self._closing or self.mistake or not isinstance(frame, Frame) or frame.opcode not in _DATA:
                continue  # `websockets` has answered it
            if frame.opcode is Opcode.TEXT:
                self.mistake = (_UNSUPPORTED, "CoAP is in binary messages")
                continue
            self._message += frame.data
            if frame.fin:
                try:
                    found.append(to_frame(bytes(self._message)))
                except FrameError as error:
                    self.mistake = (_PROTOCOL, str(error))
                self._message.clear()
        return b"".join(found)

    def data(self, payload: bytes) -> bytes:
        """See `Framing`."""
        if self._protocol.state is OPEN:
            for message in to_messages(payload):
                self._protocol.send_binary(message)
        return output_of(self._protocol)

    def close(self, code: int, reason: str) -> bytes:
        """See `Framing`."""
        self._closing = True
        self._message.clear()
        return close_frame_of(self._protocol, code, reason)

    def release(self) -> None:
        """See `Framing`."""
        self._hold(0)

    def _hold(self, held_bytes: int) -> bool:
        """Counts the bytes held of an incomplete message; returns whether there is room for them."""
        held_bytes = held_bytes if held_bytes > FREE_BYTES else 0
        before_bytes, self._arriving_bytes = self._arriving_bytes, held_bytes
        return self._context.hold(before_bytes, held_bytes, known=self._connection.known)
