"""HTTP/2 (RFC 9113) on the h2 library: streams, flow control in both directions, and limits on each peer."""

import re
from binascii import Error as Base64Error
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, ClassVar, Final

import h2.events
from h2.errors import ErrorCodes
from h2.exceptions import H2Error, ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import GoAwayFrame

from adapters.http.wire.abuse import DATA_BYTES_MIN, LARGE_HEAD_COUNT, AbuseLimiter, SmallFrames
from adapters.http.wire.body import ArrivingBody
from adapters.http.wire.cors import readable
from adapters.http.wire.http2.guard import STREAM_ID_MAX, FrameHeaders
from adapters.http.wire.http2.head import NO_HEAD, H2Head, RepeatedHeads, response_fields, whole_request
from adapters.http.wire.http2.stream import H2Stream, is_small
from adapters.http.wire.http2.streams import Streams
from adapters.http.wire.http2.strict import StrictConnection
from adapters.http.wire.limits import HEADS_PASSED, body_refusal
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.receive_budget import CROWDED
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import EMPTY_STATUSES, Response, problem
from adapters.http.wire.transport import Arrived, Event, Exchange, Gone, Judge, undecided

WINDOW_BYTES: Final = 1024 * 1024  # bytes that a peer may send before we acknowledge some
DRAIN_BYTES_MAX: Final = 64 * 1024 * 1024  # of a refused body, before its stream is reset
RETRY_AFTER: Final = (b"retry-after", b"1")
_CROWDED: Final = problem(503, "too many requests arrive on this connection at once", RETRY_AFTER)

_BASE64URL: Final = re.compile(b"[A-Za-z0-9_-]*")


class Http2:
    """The transport of an HTTP/2 connection."""

    ordered = False

    def __init__(self, options: HttpOptions, small: SmallFrames | None = None) -> None:
        self._options = options
        self._small = small or SmallFrames()
        self.refusal_of: Judge = undecided
        settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: options.max_concurrent_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: options.max_header_bytes,
            SettingCodes.INITIAL_WINDOW_SIZE: WINDOW_BYTES,
        }
        self._h2 = StrictConnection(
            Settings(client=False, initial_values=settings),
            header_list_bytes_max=HEADS_PASSED * options.max_header_bytes,
        )
        self._frames = FrameHeaders()
        self._held, self._slow = b"", False  # bytes to be taken later; a small frame was taken, so more may wait
        self.heads = RepeatedHeads(self._h2.decoder, options)
        self._upgraded: HttpRequest | None = None  # stream 1, until the peer's preface is here
        self._now_ms = 0
        self._abuse = AbuseLimiter()
        self._streams = Streams(self._h2, options, self._abuse)
        self._leaving = False  # we have sent GOAWAY
        self._deserted = False  # the peer has
        self._failed = False
        self._goaway = b""

    def open(self) -> None:
        """Begins with our SETTINGS: the peer's preface is fed by `receive`."""
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(WINDOW_BYTES)

    def upgrade(self, request: HttpRequest, settings: bytes, *, now_ms: int) -> bool:
        """Begins behind an upgrade from HTTP/1.1, its request being stream 1; False when its settings are malformed.

        The request counts as arrived when the peer's preface has: curl cannot take more than 32 KiB behind the 101.
        """
        if _BASE64URL.fullmatch(settings) is None:
            return False
        try:
            self._h2.initiate_upgrade_connection(settings + b"=" * (-len(settings) % 4))
        except (H2Error, HyperframeError, Base64Error, ValueError):
            return False
        self._h2.increment_flow_control_window(WINDOW_BYTES)
        stream = self._streams.open(Exchange(1), H2Head(request.headers), now_ms)
        stream.head_only = request.method == "HEAD"
        self._upgraded = request
        return True

    # ---- Transport

    @property
    def wants_data(self) -> bool:
        """True until the end, as flow control holds a peer back; False while its small frames have to wait."""
        return not (self.finished or self._held)

    @property
    def full(self) -> bool:
        """Returns whether responses that wait, for a window or the peer to read, take all the bytes they may."""
        return self._streams.held_out_bytes + self._streams.unwritten_bytes >= self._options.max_held_bytes

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes held of whole responses that no window takes."""
        return self._streams.unread_bytes

    @property
    def arriving_bytes(self) -> int:
        """Returns the bytes held of requests that arrive."""
        return self._streams.held_in_bytes + len(self._held)

    @property
    def busy(self) -> bool:
        """Returns whether a stream is open."""
        return bool(self._streams)

    @property
    def finished(self) -> bool:
        """Returns whether GOAWAY is sent, by either side, and no stream is left."""
        return self._failed or ((self._leaving or self._deserted) and not self._streams)

    def receive(self, data: bytes, *, now_ms: int) -> Sequence[Event]:
        """Takes whole requests that are like others, and feeds h2 with all else. GOAWAY answers a connection error."""
        self._now_ms = now_ms
        data, self._held, at = self._held + data, b"", 0
        while at < len(data) and not self._failed:
            if self._slow and self._small.resumes_ms(now_ms) > now_ms:
                self._held = data[at:]
                break
            self._slow = False
            begins, at = at, self._repeated(data, at)
            if at == begins:
                at = self._frames.next_request(data, at)
                self._feed(data if at - begins == len(data) else data[begins:at])
                if self._frames.fault is not None:
                    self._fail(self._frames.fault)
        return self._take_events()

    def _feed(self, data: bytes) -> None:
        try:
            for event in self._h2.receive_data(data):
                handler = self._handlers.get(type(event))
                if handler is not None:
                    handler(self, event)
                if self._failed:
                    break
        except ProtocolError:
            self._failed = True  # h2 has put the GOAWAY into its output
        except (H2Error, HyperframeError, ValueError):
            self._fail(ErrorCodes.PROTOCOL_ERROR)

    def _repeated(self, data: bytes, at: int) -> int:
        """Takes a request that is all there and like one before it; returns the place behind it, or where it was."""
        whole = whole_request(data, at) if self._frames.at_border else None
        if whole is None or self._leaving or self._streams.held_out_bytes > self._options.max_held_bytes:
            return at
        head, size_bytes = self.heads.find(whole.block), len(whole.body)
        if (
            head is None
            or head.length_bytes not in {None, size_bytes}
            or size_bytes > self._options.max_body_bytes
            or not self._h2.take(whole.stream_id, size_bytes)
        ):
            return at
        self._h2.decoder.taken()
        exchange = Exchange(whole.stream_id)
        stream = self._streams.open(exchange, head, self._now_ms)
        stream.arrived, stream.body_bytes = True, size_bytes
        self._streams.events.append(Arrived(exchange, head.request(whole.body)))
        return whole.end

    def respond(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Sends a whole response, as much of its body as the windows take."""
        length = () if response.status in EMPTY_STATUSES else ((b"content-length", b"%d" % len(response.body)),)
        stream = self._streams.get(exchange)
        if stream is not None and not self._failed:
            body = b"" if stream.head_only or response.status in EMPTY_STATUSES else response.body
            if self._h2.answer(exchange, response_fields(response, length, now_ms), body):
                if body:
                    self._abuse.progress()
                    self._streams.unwritten_bytes += len(body)
                self._streams.forget(exchange)
                return
        empty = response.status in EMPTY_STATUSES or not response.body
        stream = self._send_head(exchange, response, length, now_ms, end=empty)
        if stream is not None:
            stream.ended = True
            self._add(exchange, stream, response.body)

    def begin(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Sends a head whose body follows."""
        stream = self._send_head(exchange, response, (), now_ms, end=False)
        if stream is not None:
            self._add(exchange, stream, response.body)

    def send(self, exchange: Exchange, data: bytes, *, now_ms: int) -> None:
        """Sends some of the body, or holds it until a window opens."""
        self._now_ms = now_ms
        stream = self._streams.get(exchange)
        if stream is not None:
            self._add(exchange, stream, data)

    def finish(self, exchange: Exchange, *, now_ms: int) -> None:
        """Sends END_STREAM behind the held data."""
        self._now_ms = now_ms
        stream = self._streams.get(exchange)
        if stream is not None:
            stream.ended = True
            self._add(exchange, stream, b"")

    def awaits(self, exchange: Exchange) -> bool:
        """Returns whether the response to a request is not sent yet, and its peer has not given it up."""
        return exchange in self._streams

    def room(self, exchange: Exchange) -> int:
        """Returns the free bytes of the stream's buffer, within those that the connection may hold."""
        return self._streams.room(exchange)

    def refuse_arriving(self) -> None:
        """Answers the requests that arrive with 503."""
        for exchange, stream in self._streams:
            if stream.held_bytes:
                self._refuse(exchange, problem(503, CROWDED, RETRY_AFTER))

    def begin_shutdown(self) -> None:
        """Sends GOAWAY: streams that are open may end, no others begin."""
        if self._leaving or self._failed:
            return
        self._leaving = True
        # h2 lets nothing follow its own GOAWAY, so that streams could not end.
        goaway = GoAwayFrame(0, last_stream_id=self._h2.highest_inbound_stream_id, error_code=ErrorCodes.NO_ERROR)
        self._goaway = goaway.serialize()

    def tick(self, *, now_ms: int) -> Sequence[Event]:
        """Ends streams without progress: requests that do not arrive, responses and event streams that are not read."""
        taken = self.receive(b"", now_ms=now_ms)
        late = [one for one in self._streams if one[1].waits and one[1].late_ms(self._options) <= now_ms]
        for exchange, stream in late:
            if not stream.arrived and not stream.refused:
                detail = f"the request took more than {self._options.request_timeout_s} s"
                self.respond(
                    exchange, readable(stream.head.headers, problem(408, detail), self._options), now_ms=now_ms
                )
            self._reset(exchange, ErrorCodes.NO_ERROR if stream.answered else ErrorCodes.CANCEL)
        return [*taken, *self._take_events(), *(Gone(exchange) for exchange, _ in late)]

    def deadline_ms(self) -> int | None:
        """Returns when the first stream that waits for its peer has waited too long."""
        if self._streams.events:
            return 0
        times = [self._small.resumes_ms(self._now_ms)] if self._held else []
        times += [stream.late_ms(self._options) for _, stream in self._streams if stream.waits]
        return min(times, default=None)

    def take_output(self) -> bytes:
        """Returns the frames to write."""
        out: bytes = self._h2.data_to_send()
        self._streams.unwritten_bytes = 0
        if self._goaway:
            out += self._goaway
            self._goaway = b""
        return out

    def release(self) -> None:
        """Lets h2's own rings keep no more than a frame and the unwritten output."""
        self._streams.clear()
        self.heads.clear()
        self._h2.encoder.forget()

    def _take_events(self) -> list[Event]:
        events, self._streams.events = self._streams.events, []
        return events

    # ---- events of h2

    def _on_request(self, event: h2.events.RequestReceived) -> None:
        exchange = Exchange(event.stream_id)
        if self._leaving:
            self._rst(exchange, ErrorCodes.REFUSED_STREAM)
            return
        head = H2Head(event.headers)
        stream = self._streams.open(exchange, head, self._now_ms)
        if (refusal := head.refusal(self._options)) is not None:
            self._refuse(exchange, refusal)
            if refusal.status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
                self._check(allowed=self._abuse.control(self._now_ms, LARGE_HEAD_COUNT))
            return
        self.heads.learn(head)
        if event.stream_ended is None:
            self._streams.hold(stream, head.size_bytes)
        if self._streams.held_out_bytes > self._options.max_held_bytes:
            self._refuse(exchange, problem(503, "the responses to earlier requests are not read", RETRY_AFTER))
        elif self._streams.crowded:
            self._refuse(exchange, _CROWDED)
        elif event.stream_ended is None and head.expects_continue:
            if (early := self.refusal_of(head.request(b""))) is not None:
                self._refuse(exchange, early)
            else:
                with suppress(H2Error):  # its client has reset it in the same read
                    self._h2.send_headers(exchange, [(b":status", b"100")])

    def _on_data(self, event: h2.events.DataReceived) -> None:
        exchange = Exchange(event.stream_id)
        stream = self._streams.get(exchange)
        if event.flow_controlled_length:
            with suppress(StreamClosedError):  # the connection's window is given back; the stream's is of no use
                self._h2.acknowledge_received_data(event.flow_controlled_length, exchange)
        if event.stream_ended is None:
            if not event.data or (stream is None and len(event.data) < DATA_BYTES_MIN):
                self._check(allowed=self._abuse.control(self._now_ms))
            elif stream is not None and is_small(stream, event.data, self._small, self._now_ms):
                self._slow = True
        if stream is None:
            return
        stream.body_bytes += len(event.data)
        if stream.refused:
            if stream.body_bytes > DRAIN_BYTES_MAX:
                self._reset(exchange, ErrorCodes.NO_ERROR)
            return
        stream.body.add(event.data)
        stream.moved(len(event.data), self._now_ms)
        self._streams.hold(stream, len(event.data))
        if stream.body_bytes > self._options.max_body_bytes:
            self._refuse(exchange, body_refusal(self._options))
        elif self._streams.crowded:
            self._refuse(exchange, _CROWDED)

    def _on_end(self, event: h2.events.StreamEnded) -> None:
        exchange = Exchange(event.stream_id)
        stream = self._streams.get(exchange)
        if stream is None:
            return
        stream.arrived = True
        if stream.refused:
            if stream.answered:
                self._streams.forget(exchange)
            return
        if stream.head.length_bytes not in {None, stream.body_bytes}:
            stream.arrived = False
            self._reset(exchange, ErrorCodes.PROTOCOL_ERROR)  # malformed (RFC 9113, 8.1.1): h2 looks at DATA alone
            self._check(allowed=self._abuse.reset(self._now_ms))
            return
        self._streams.release(stream)
        self._streams.events.append(Arrived(exchange, stream.request()))

    def _on_reset(self, event: h2.events.StreamReset) -> None:
        exchange = Exchange(event.stream_id)
        if self._streams.forget(exchange):
            self._streams.events.append(Gone(exchange))
        self._check(allowed=self._abuse.reset(self._now_ms))

    def _on_window(self, event: h2.events.WindowUpdated) -> None:
        self._check(allowed=self._abuse.control(self._now_ms))
        self._streams.window_opened(Exchange(event.stream_id), self._now_ms)

    def _on_settings(self, _event: h2.events.RemoteSettingsChanged) -> None:
        request, self._upgraded = self._upgraded, None
        first = self._streams.get(Exchange(1))
        if request is not None and first is not None and not first.answered:
            first.arrived = True
            self._streams.events.append(Arrived(Exchange(1), request))
        self._check(allowed=self._abuse.control(self._now_ms))
        self._streams.window_opened(Exchange(0), self._now_ms)

    def _on_nothing(self, _event: h2.events.Event) -> None:
        self._check(allowed=self._abuse.control(self._now_ms))

    def _on_goaway(self, event: h2.events.ConnectionTerminated) -> None:
        """Ends once the peer's streams are answered; until then it may open more (RFC 9113, 6.8)."""
        self._check(allowed=self._abuse.control(self._now_ms))
        if event.error_code != ErrorCodes.NO_ERROR:
            self._failed = True  # it has closed the connection (RFC 9113, 5.4.1)
        elif not (self._leaving or self._deserted):
            self._deserted = True
            self._goaway = GoAwayFrame(0, last_stream_id=STREAM_ID_MAX).serialize()

    # ---- sending

    def _send_head(
        self, exchange: Exchange, response: Response, extra: Sequence[tuple[bytes, bytes]], now_ms: int, *, end: bool
    ) -> H2Stream | None:
        """Sends HEADERS; the stream, unless it is gone or this was all."""
        self._now_ms = now_ms
        stream = self._streams.get(exchange)
        if stream is None or self._failed or stream.answered:
            return None
        end = end or stream.head_only
        stream.begin_wait(now_ms)
        try:
            self._h2.send_headers(exchange, response_fields(response, extra, now_ms), end_stream=end)
        except H2Error:
            self._streams.forget(exchange)
            return None
        if end:
            self._streams.end(exchange, stream)
            return None
        return stream

    def _add(self, exchange: Exchange, stream: H2Stream, data: bytes) -> None:
        if not self._failed:
            self._streams.add(exchange, stream, data, self._now_ms)

    # ---- the end of streams

    def _reset(self, exchange: Exchange, code: ErrorCodes) -> None:
        if self._streams.forget(exchange):
            self._rst(exchange, code)

    def _rst(self, exchange: Exchange, code: ErrorCodes) -> None:
        with suppress(H2Error):  # it has ended on both sides meanwhile
            self._h2.reset_stream(exchange, code)

    def _refuse(self, exchange: Exchange, refusal: Response) -> None:
        """Answers now, and drops the rest of the request: some clients miss an answer that RST_STREAM follows."""
        stream = self._streams.get(exchange)
        assert stream is not None
        self._streams.release(stream)
        stream.body, stream.refused = ArrivingBody(), True
        self.respond(exchange, readable(stream.head.headers, refusal, self._options), now_ms=self._now_ms)
        stream.head = NO_HEAD

    # ---- faults

    def _check(self, *, allowed: bool) -> None:
        if not allowed:
            self._fail(ErrorCodes.ENHANCE_YOUR_CALM)

    def _fail(self, code: ErrorCodes) -> None:
        """Sends GOAWAY with an error; nothing is sent behind it."""
        if not self._failed:
            self._failed = True
            with suppress(H2Error):  # the peer has said GOAWAY before
                self._h2.close_connection(code)

    _handlers: ClassVar[dict[type, Callable[["Http2", Any], None]]] = {
        h2.events.RequestReceived: _on_request,
        h2.events.DataReceived: _on_data,
        h2.events.StreamEnded: _on_end,
        h2.events.StreamReset: _on_reset,
        h2.events.WindowUpdated: _on_window,
        h2.events.RemoteSettingsChanged: _on_settings,
        h2.events.SettingsAcknowledged: _on_nothing,
        h2.events.PingReceived: _on_nothing,
        h2.events.PingAckReceived: _on_nothing,
        h2.events.PriorityUpdated: _on_nothing,
        h2.events.UnknownFrameReceived: _on_nothing,
        h2.events.ConnectionTerminated: _on_goaway,
    }
