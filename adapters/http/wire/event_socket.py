"""A WebSocket that carries CloudEvents (WebSockets Protocol Binding 1.0.2), in the place of HTTP/1.1.

The request that it begins with is answered like any other: a refusal in HTTP, an event stream by the opening of the
WebSocket (RFC 6455, 4.2). From then on each text message of the client is a request that publishes it, and each event
of the stream is a text message. The binding has no acknowledgement: an event that is refused ends the connection, with
the reason. `websockets` reads and writes the frames.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as Opening
from websockets.http11 import Response as Accepted
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from adapters.http.wire.abuse import DATA_BYTES_MIN, AbuseLimiter, SmallFrames
from adapters.http.wire.body import ArrivingBody
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response, date_header, problem, reason_phrase
from adapters.http.wire.transport import Arrived, Drained, Event, Exchange, Gone
from adapters.websocket.library import QUIET, RefusedHandshake, close_frame_of, judged, output_of

MQTT_PATH, COAP_PATH = b"/mqtt", b"/.well-known/coap"  # where other adapters go on
SOCKETS: Final = frozenset({b"/subscribe", MQTT_PATH, COAP_PATH})
SUBPROTOCOL: Final = Subprotocol("cloudevents.json")
PING: Final = b"\x89\x00"
READ_BYTES: Final = 4 * 1024  # of frames that are taken at a time
OUTPUT_BYTES_MAX: Final = 256 * 1024  # of events that wait to be written
CLOSING_MS: Final = 2_000  # that the client's close frame is waited for
_STREAM: Final = Exchange(1)  # the request that the connection begins with
_GOING_AWAY, _UNSUPPORTED, _INVALID, _POLICY, _TOO_BIG, _TRY_AGAIN = 1001, 1003, 1007, 1008, 1009, 1013
_CODES: Final = {400: _INVALID, 401: _POLICY, 403: _POLICY, 413: _TOO_BIG, 422: _INVALID}
_MESSAGES: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONT})
_EVENT: Final = (b"content-type", b"application/cloudevents+json")
_NOT_OF_EVENTS: Final = frozenset(
    {b"connection", b"upgrade", b"last-event-id", b"prefer", b"idempotency-key", b"expect"}
)


def text_frame(payload: bytes) -> bytes:
    """Returns a text message to a client, in one frame."""
    return Frame(Opcode.TEXT, payload).serialize(mask=False)


class EventSocket:
    """The transport of one WebSocket (`adapters.http.wire.transport.Transport`)."""

    ordered = True

    def __init__(
        self, request: HttpRequest, options: HttpOptions, small: SmallFrames | None = None, *, now_ms: int
    ) -> None:
        self._options = options
        self._small = small or SmallFrames()
        self._request = request
        self._protocol = ServerProtocol(subprotocols=[SUBPROTOCOL], max_size=options.max_body_bytes, logger=QUIET)
        self._headers = [
            (name, value)
            for name, value in request.headers
            if name not in _NOT_OF_EVENTS and not name.startswith((b"sec-websocket-", b"content-", b"ce-"))
        ]
        self._out = bytearray()
        self._held = b""  # bytes that came before it was open, or are to be taken later
        self._slow = False  # a small frame was taken: the next ones may have to wait
        self._events: list[Event] = []
        self._message = ArrivingBody()  # a message whose last frame has not come
        self._exchanges = int(_STREAM)
        self._unanswered = 0  # events that are not stored yet
        self._open = self._ended = self._closing = self._starved = False
        self._close_by_ms: int | None = None
        self._now_ms = now_ms
        self._abuse = AbuseLimiter()
        self._handshake()

    def _handshake(self) -> None:
        """Judges the request (RFC 6455, 4.2.1). Its refusal is in HTTP."""
        request, protocol = self._request, self._protocol
        lines = b"".join([b"%b: %b\r\n" % header for header in request.headers])
        protocol.receive_data(b"GET %b HTTP/1.1\r\n%b\r\n" % (request.target, lines))
        found = protocol.events_received()
        answer: Accepted | RefusedHandshake = RefusedHandshake(400, "the request is no handshake of a WebSocket")
        if found and isinstance(found[0], Opening):
            answer = judged(protocol, found[0])
        if isinstance(answer, RefusedHandshake):
            headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
            self._respond(problem(answer.status, answer.detail, *headers))
            return
        self._answer = answer
        self._events.append(Arrived(_STREAM, request))

    # ---- Transport

    @property
    def wants_data(self) -> bool:
        """Returns whether more is read: not before it is open, nor while too much waits here, or for its answer."""
        return self._open and not self._held and self._unanswered < self._options.max_pipelined and not self.full

    @property
    def full(self) -> bool:
        """Returns whether the client does not read."""
        return len(self._out) >= OUTPUT_BYTES_MAX

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes that wait to be written."""
        return len(self._out)

    @property
    def arriving_bytes(self) -> int:
        """Returns the bytes held of a message that is not all there."""
        return len(self._message) + len(self._protocol.reader.buffer) + len(self._held)

    @property
    def busy(self) -> bool:
        """Returns whether it is open: a heartbeat finds out whether the client is there."""
        return not self._ended

    @property
    def finished(self) -> bool:
        """Returns whether all output is queued."""
        return self._ended

    def receive(self, data: bytes, *, now_ms: int) -> Sequence[Event]:
        """Takes frames of the client."""
        self._now_ms = now_ms
        self._held += data
        if self._open:
            self._take_held()
        events, self._events = self._events, []
        return events

    def respond(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Refuses to open; or notes that an event is stored, or ends the connection where it is not."""
        self._now_ms = now_ms
        if exchange == _STREAM:
            if not self._open and not self._ended:
                self._respond(response)
            return
        self._unanswered -= 1
        if response.status >= 400:
            self._fail(_CODES.get(response.status, _TRY_AGAIN), _detail(response))

    def begin(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Opens the WebSocket."""
        if self._open or self._ended:
            return
        self._open = True
        self._protocol.send_response(self._answer)
        self._take()
        self._take_held()

    def send(self, exchange: Exchange, data: bytes, *, now_ms: int) -> None:
        """Writes whole frames."""
        if self._open and not self._closing and not self._ended:
            self._out += data

    def finish(self, exchange: Exchange, *, now_ms: int) -> None:
        """Ends the connection: its stream is all that it has."""
        if exchange == _STREAM:
            self._fail(_GOING_AWAY, "the stream ends")

    def awaits(self, exchange: Exchange) -> bool:
        """Returns whether the response to a request is not sent yet, and its peer has not given it up."""
        return exchange == _STREAM and not self._ended

    def room(self, exchange: Exchange) -> int:
        """Returns the bytes left of its share."""
        free = OUTPUT_BYTES_MAX - len(self._out)
        self._starved = self._starved or free <= 0
        return free

    def refuse_arriving(self) -> None:
        """Ends the connection: there is no room for the message that arrives."""
        if self.arriving_bytes:
            self._fail(_TRY_AGAIN, "too much arrives at this time")

    def begin_shutdown(self) -> None:
        """Takes no more events."""
        self._fail(_GOING_AWAY, "the gateway is going down")

    def tick(self, *, now_ms: int) -> Sequence[Event]:
        """Ends a connection that is not closed in time; goes on with a stream that had no room."""
        self._now_ms = now_ms
        if self._open:
            self._take_held()
        if self._close_by_ms is not None and now_ms >= self._close_by_ms:
            self._end()
        if self._starved and len(self._out) < OUTPUT_BYTES_MAX:
            self._starved = False
            self._events.append(Drained(_STREAM))
        events, self._events = self._events, []
        return events

    def deadline_ms(self) -> int | None:
        """Returns when `tick` does something."""
        if self._events or (self._starved and len(self._out) < OUTPUT_BYTES_MAX):
            return 0
        if self._ended:
            return None
        times = [self._close_by_ms] if self._close_by_ms is not None else []
        if self._open and self._held:
            times.append(self._small.resumes_ms(self._now_ms))
        return min(times, default=None)

    def take_output(self) -> bytes:
        """Returns the bytes to write now."""
        out, self._out = bytes(self._out), bytearray()
        return out

    def release(self) -> None:
        """Holds nothing."""
        self._message, self._held, self._events = ArrivingBody(), b"", []
        self._out, self._ended = bytearray(), True

    # ---- frames

    def _take_held(self) -> None:
        """Takes frames until their small ones have to wait."""
        data, at = self._held, 0
        while at < len(data) and not self._ended:
            if self._slow and self._small.resumes_ms(self._now_ms) > self._now_ms:
                break
            self._slow = False
            self._protocol.receive_data(data[at : at + READ_BYTES])
            self._take()
            at += READ_BYTES
        self._held = b"" if self._ended else data[at:]

    def _take(self) -> None:
        """Takes the frames' payload, and the frames that `websockets` answers by itself: pongs, and the close frame."""
        for frame in self._protocol.events_received():
            if not isinstance(frame, Frame):
                continue
            if len(frame.data) < DATA_BYTES_MIN and not (frame.fin and frame.opcode in _MESSAGES):
                if frame.data and frame.opcode in _MESSAGES:
                    self._small.count(self._now_ms)
                    self._slow = True
                else:
                    self._check(allowed=self._abuse.control(self._now_ms))
            if self._closing:
                continue
            if frame.opcode is Opcode.BINARY:
                self._fail(_UNSUPPORTED, "cloudevents.json is in text messages")
            elif frame.opcode in {Opcode.TEXT, Opcode.CONT}:
                self._message.add(bytes(frame.data))
                if frame.fin:
                    self._publish(self._message.take())
        self._out += output_of(self._protocol)
        if self._protocol.close_rcvd is not None or self._protocol.parser_exc is not None:
            self._end()

    def _check(self, *, allowed: bool) -> None:
        """Ends the connection of a peer that floods it, and waits for no word of it."""
        if not allowed and not self._ended:
            self._fail(_POLICY, "too many frames that bring nothing")
            self._end()

    def _publish(self, body: bytes) -> None:
        self._exchanges += 1
        self._unanswered += 1
        request = HttpRequest(method="POST", target=b"/events", headers=[*self._headers, _EVENT], body=body)
        self._events.append(Arrived(Exchange(self._exchanges), request))

    def _respond(self, response: Response) -> None:
        """Answers in HTTP: there is no WebSocket."""
        lines = [
            b"HTTP/1.1 %d %b\r\n" % (response.status, reason_phrase(response.status).encode()),
            b"date: %b\r\n" % date_header(self._now_ms // 1000),
        ]
        lines += [b"%b: %b\r\n" % header for header in response.headers]
        if all(name != b"connection" for name, _ in response.headers):
            lines.append(b"connection: close\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(response.body))
        self._out += b"".join([*lines, response.body])
        self._end()

    def _fail(self, code: int, reason: str) -> None:
        """Closes the WebSocket, with a reason; before it is open it cannot be."""
        if self._ended or self._closing:
            return
        if not self._open:
            self._end()
            return
        self._out += close_frame_of(self._protocol, code, reason)
        self._closing = True
        self._message = ArrivingBody()
        self._close_by_ms = self._now_ms + CLOSING_MS

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._events.append(Gone(_STREAM))


def _detail(response: Response) -> str:
    try:
        return str(msgspec.json.decode(response.body)["detail"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return reason_phrase(response.status)
