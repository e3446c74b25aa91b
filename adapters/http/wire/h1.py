"""HTTP/1.1 (RFC 9112): requests parsed by llhttp, responses in the order of their requests."""

from collections.abc import Callable, Sequence
from typing import Final

import httptools

from adapters.http.wire.body import ArrivingBody
from adapters.http.wire.chunks import EXTENSION_BYTES_MAX, ChunkFraming
from adapters.http.wire.cors import readable
from adapters.http.wire.event_socket import SOCKETS
from adapters.http.wire.h1_head import Http1Head, Refused, head_end, malformed, without_offer
from adapters.http.wire.h1_slot import Slot, Slots
from adapters.http.wire.limits import body_refusal
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.receive_budget import CROWDED
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response, problem
from adapters.http.wire.transport import Arrived, Drained, Event, Exchange, Judge, Upgrade, undecided

OUTPUT_BYTES_MAX: Final = 256 * 1024  # of event streams: a connection's output that waits to be written
LINGER_MS: Final = 1_000  # how long the rest of a refused body is read: closing at once would destroy the answer
LINGER_BYTES_MAX: Final = 64 * 1024 * 1024
EMPTY_LINES_BYTES_MAX: Final = 256  # before a request; some clients send one empty line (RFC 9112, 2.2)


class Http1:
    """The transport of an HTTP/1.1 or HTTP/1.0 connection."""

    ordered = True

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self.refusal_of: Judge = undecided
        self._arriving = Http1Head(options)
        self.on_url, self.on_header = self._arriving.add_target, self._arriving.add_field
        self._parser = self._new_parser()
        self._slots = Slots()
        self._out = bytearray()
        self._events: list[Event] = []
        self._exchanges = 0
        self._now_ms = 0
        self._ended = False  # no more requests are read
        self._lingering_until_ms: int | None = None
        self._lingered_bytes = 0
        self._starved: dict[Exchange, None] = {}  # event streams that found no room
        self._clear()

    def _clear(self) -> None:
        """Forgets the request before, between two requests."""
        self._arriving.clear()
        self._body = ArrivingBody()
        self._framing: ChunkFraming | None = None  # of a chunked body
        self._expecting = False  # its client waits for 100 (Continue) before it sends the body
        self._empty_bytes = 0  # of empty lines before the request
        self._started_ms: int | None = None  # when the request in flight began

    # ---- Transport

    @property
    def wants_data(self) -> bool:
        """False while too many requests wait for their answers, or too many bytes of answers for earlier ones.

        Behind the last request, bytes are read and dropped.
        """
        if self._ended:
            return self._lingered_bytes < LINGER_BYTES_MAX
        return self._slots.requests < self._options.max_pipelined and not self.full

    @property
    def full(self) -> bool:
        """Returns whether responses that wait, for their turn or the peer to read, take all the bytes they may."""
        return self.unread_bytes >= self._options.max_held_bytes

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes of responses that wait for their turn, or to be written."""
        return self._slots.held_bytes + len(self._out)

    @property
    def arriving_bytes(self) -> int:
        """Returns the bytes held of the request that arrives."""
        return len(self._body)

    @property
    def busy(self) -> bool:
        """Returns whether a request or a response is in progress."""
        return bool(self._slots) or self._started_ms is not None or self._lingering_until_ms is not None

    @property
    def quiet(self) -> bool:
        """Returns whether the next byte begins a request, and nothing waits to be answered or written."""
        return not (self._slots or self._ended or self._out or self._starved) and self._started_ms is None

    @property
    def between_requests(self) -> bool:
        """Returns whether the next byte begins a request."""
        return self._started_ms is None and not self._ended

    @property
    def next_exchange(self) -> Exchange:
        """Returns the exchange of the next request."""
        return Exchange(self._exchanges + 1)

    @property
    def finished(self) -> bool:
        """Returns whether the last response is written."""
        return self._ended and not self._slots and self._lingering_until_ms is None

    def receive(self, data: bytes, *, now_ms: int) -> Sequence[Event]:
        """Feeds the parser; requests that are complete come as events."""
        self._now_ms = now_ms
        if self._ended:
            self._lingered_bytes += len(data)
            return ()
        remaining: bytes | None = data
        while remaining:
            remaining = self._feed(remaining)
        events, self._events = self._events, []
        return events

    def _feed(self, data: bytes) -> bytes | None:
        """Feeds the parser, and returns the bytes to be fed again, if any."""
        at = 0
        try:
            if self._started_ms is None:
                data = self._behind_empty_lines(data)
                if not data:
                    return None
            if not self._may_be_chunked(data):
                self._parse(data)
                return None
            view = memoryview(data)
            while at < len(data) and not self._ended:
                end = self._piece_end(data, at)
                self._parse(view[at:end])
                at = end
        except httptools.HttpParserUpgrade as upgrade:
            return self._upgrade(data[at + upgrade.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, Refused):
                self._refuse(cause)
            elif not self._ended:
                self._refuse(Refused(malformed(error, data[at:])))
        except Refused as refusal:
            self._refuse(refusal)
        return None

    def _parse(self, data: bytes | memoryview) -> None:
        head, framing = self._arriving, self._framing
        head.unseen_bytes += len(data)
        self._parser.feed_data(data)
        if framing is not None and framing.ended == (framing is self._framing):  # llhttp and we do not agree
            raise Refused(problem(400, "not an HTTP request: the chunks of its body are malformed"))
        if head.unseen_bytes and (framing is None or framing.trailers):
            head.check_size(more_bytes=head.unseen_bytes)

    def _behind_empty_lines(self, data: bytes) -> bytes:
        """Returns the bytes behind empty lines before a request. Raises `Refused` where there are too many."""
        rest = data.lstrip(b"\r\n")
        self._empty_bytes += len(data) - len(rest)
        if self._empty_bytes > EMPTY_LINES_BYTES_MAX:
            raise Refused(problem(400, f"more than {EMPTY_LINES_BYTES_MAX} bytes of empty lines before a request"))
        return rest

    def _may_be_chunked(self, data: bytes) -> bool:
        """Returns whether bytes may belong to a body whose chunks have to be followed."""
        head = self._arriving
        if head.done and not head.chunked and head.length_bytes - len(self._body) >= len(data):
            return False
        return self._started_ms is not None or b"chunked" in data.lower()

    def _piece_end(self, data: bytes, at: int) -> int:
        """Returns up to where to feed, so that a piece ends where a head or a body does."""
        if self._framing is not None:
            end = self._framing.end(data, at)
            if self._framing.too_much:
                raise Refused(problem(400, f"the chunk extensions are larger than {EXTENSION_BYTES_MAX} bytes"))
            return end
        if (head := self._arriving).done:
            return min(len(data), at + head.length_bytes - len(self._body))
        return head_end(data, at)

    def respond(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Writes a response, or keeps it until it is its turn."""
        self._now_ms = now_ms
        slot = self._slots.get(exchange)
        if slot is None or slot.complete:
            return
        self._complete(slot, slot.whole(response, now_ms))

    def passed(self) -> None:
        """Notes that requests have come which the parser does not see."""
        self._empty_bytes = 0

    def open_run(self, requests: int) -> Exchange:
        """Returns one exchange for so many requests that the parser does not see: `respond_to_run` answers them."""
        self.passed()
        self._exchanges += 1
        exchange = Exchange(self._exchanges)
        self._slots.append(Slot(exchange, head_only=False, keep_alive=True, http_1_1=True, requests=requests))
        return exchange

    def respond_to_run(
        self, exchange: Exchange, encoded: bytes | None, responses: Callable[[], Sequence[Response]], *, now_ms: int
    ) -> None:
        """Writes the responses to a run of requests.

        They are made where they are not encoded, or the connection ends behind them.
        """
        self._now_ms = now_ms
        slot = self._slots.get(exchange)
        if slot is None:
            return
        if encoded is None or not slot.keep_alive:
            encoded = slot.run(responses(), now_ms)
        self._complete(slot, encoded)

    def begin(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Writes a head whose body follows: chunked, or to HTTP/1.0 until the connection ends (RFC 9112, 6.3)."""
        slot = self._slots.get(exchange)
        if slot is None:
            return
        slot.chunked = slot.http_1_1
        slot.keep_alive = slot.keep_alive and slot.chunked
        head = slot.head(response, now_ms)
        self._slots.add(slot, head + (b"transfer-encoding: chunked\r\n\r\n" if slot.chunked else b"\r\n"))
        self.send(exchange, response.body, now_ms=now_ms)

    def send(self, exchange: Exchange, data: bytes, *, now_ms: int) -> None:
        """Sends one chunk."""
        self._now_ms = now_ms
        slot = self._slots.get(exchange)
        if slot is None or slot.complete:
            return
        if data and not slot.head_only:
            self._slots.add(slot, b"%x\r\n%b\r\n" % (len(data), data) if slot.chunked else data)
        self._write()

    def finish(self, exchange: Exchange, *, now_ms: int) -> None:
        """Sends the last chunk."""
        self._now_ms = now_ms
        slot = self._slots.get(exchange)
        if slot is None or slot.complete:
            return
        if slot.chunked and not slot.head_only:
            self._slots.add(slot, b"0\r\n\r\n")
        slot.complete = True
        self._write()

    def awaits(self, exchange: Exchange) -> bool:
        """Returns whether the response to a request is not sent yet, and its peer has not given it up."""
        return exchange in self._slots

    def room(self, exchange: Exchange) -> int:
        """Returns the bytes left of its share.

        The socket's buffer, and a peer that takes nothing, are the shell's to watch.
        """
        free = self._free(exchange)
        if free <= 0:
            self._starved[exchange] = None
        return free

    def _free(self, exchange: Exchange) -> int:
        slot = self._slots.get(exchange)
        if slot is None:
            return OUTPUT_BYTES_MAX  # output to it is dropped
        return OUTPUT_BYTES_MAX - len(self._out) - len(slot.out)  # the latter stays while a stream before it lasts

    def _drained(self) -> list[Exchange]:
        """Returns the event streams that found no room and have some now."""
        return [exchange for exchange in self._starved if self._free(exchange) > 0]

    def refuse_arriving(self) -> None:
        """Answers the request that arrives with 503, and reads no more."""
        if self._body:
            self._refuse(Refused(problem(503, CROWDED, (b"retry-after", b"1")), linger=True))

    def begin_shutdown(self) -> None:
        """Reads no more; the last response says so."""
        self._ended = True
        self._clear()
        self._slots.end_with_last()

    def tick(self, *, now_ms: int) -> Sequence[Event]:
        """Ends a request that takes too long, ends lingering, and goes on with starved streams."""
        self._now_ms = now_ms
        if self._lingering_until_ms is not None and now_ms >= self._lingering_until_ms:
            self._lingering_until_ms = None
        if (late_ms := self._late_ms()) is not None and now_ms >= late_ms:
            late = problem(408, f"the request took more than {self._options.request_timeout_s} s")
            self._refuse(Refused(self._arriving.refusal or late))
        drained = self._drained()
        for exchange in drained:
            del self._starved[exchange]
        return [Drained(exchange) for exchange in drained]

    def deadline_ms(self) -> int | None:
        """Returns the next thing that `tick` would do."""
        if self._drained():
            return 0
        return self._late_ms() if self._lingering_until_ms is None else self._lingering_until_ms

    def _late_ms(self) -> int | None:
        """Returns when the request that arrives takes too long; None: none arrives, or it has to wait for our word."""
        if self._started_ms is None or (self._expecting and self._slots):
            return None
        return self._started_ms + self._options.request_timeout_s * 1000

    def take_output(self) -> bytes:
        """Returns the responses that are due."""
        if not self._out:
            return b""
        out, self._out = bytes(self._out), bytearray()
        return out

    def release(self) -> None:
        """Breaks the ring of the parser and this, which would keep the received part of a body."""
        del self._parser
        self._stop()
        self._out, self._events = bytearray(), []

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        """Begins a request."""
        self._started_ms, self._empty_bytes = self._now_ms, 0

    def on_headers_complete(self) -> None:
        """Checks the head as it is complete."""
        head = self._arriving
        head.unseen_bytes = 0
        head.end(self._parser.get_method().decode("ascii"), self._parser.get_http_version())
        self._framing = ChunkFraming() if head.chunked else None
        self._expecting = head.expects_continue
        if (refusal := self._continued()) is not None:
            raise Refused(refusal, linger=True)

    def on_body(self, part: bytes) -> None:
        """Takes a part of the body."""
        self._arriving.unseen_bytes = 0
        self._expecting = False
        self._body.add(part)
        if len(self._body) > self._options.max_body_bytes:
            raise Refused(body_refusal(self._options), linger=True)

    def on_chunk_header(self) -> None:
        """Notes the beginning of a chunk."""
        self._arriving.unseen_bytes = 0

    def on_message_complete(self) -> None:
        """Takes a whole request."""
        if self._parser.should_upgrade():
            return  # `HttpParserUpgrade` follows
        slot = self._open_slot(keep_alive=self._parser.should_keep_alive())
        self._events.append(Arrived(slot.exchange, self._request()))
        self._clear()

    # ---- inside

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_version=True)  # HTTP/1.2 is read as HTTP/1.1 (RFC 9110, 2.5)
        return parser

    def _request(self) -> HttpRequest:
        head = self._arriving
        return HttpRequest(method=head.method, target=bytes(head.target), headers=head.headers, body=self._body.take())

    def _open_slot(self, *, keep_alive: bool) -> Slot:
        self._exchanges += 1
        head = self._arriving
        slot = Slot(
            Exchange(self._exchanges),
            head_only=head.method == "HEAD",
            keep_alive=keep_alive and not self._ended,
            http_1_1=head.version != "1.0",
        )
        self._ended = self._ended or not slot.keep_alive
        self._slots.append(slot)
        return slot

    def _refuse(self, refusal: Refused) -> None:
        """Answers bytes that are no request, behind the answers that are due before, and reads no more."""
        head = self._arriving
        response = readable(head.headers, refusal.response, self._options, whole=head.done)
        slot = self._open_slot(keep_alive=False)
        self._clear()
        self._ended = True
        if refusal.linger:
            self._lingering_until_ms = self._now_ms + LINGER_MS
        self.respond(slot.exchange, response, now_ms=self._now_ms)

    def _upgrade(self, rest: bytes) -> bytes | None:
        """Answers a request with an Upgrade header: the parser has stopped behind its head, whatever its body."""
        headers, target = self._arriving.headers, self._arriving.target
        if self._arriving.method == "CONNECT":
            self._refuse(Refused(problem(501, "this server is not a proxy")))
            return None
        settings = [value for name, value in headers if name == b"http2-settings"]
        offered = b",".join(value for name, value in headers if name == b"upgrade").lower()
        offers = offered if self._parser.get_http_version() != "1.0" else b""  # RFC 9110, 7.8
        bodiless = not any(name in {b"content-length", b"transfer-encoding"} for name, _ in headers)
        alone = bodiless and not self._slots
        if b"h2c" in offers.replace(b" ", b"").split(b",") and len(settings) == 1 and alone:
            self._events.append(Upgrade(self._request(), settings[0], rest))
            return None
        path = bytes(target).partition(b"?")[0]
        if path in SOCKETS and self._arriving.method == "GET" and offers.strip() == b"websocket" and alone:
            self._events.append(Upgrade(self._request(), None, rest))
            return None
        return self.decline(self._request(), rest)

    def decline(self, request: HttpRequest, rest: bytes) -> bytes:
        """Returns the bytes to feed, to go on in HTTP/1.1 as if no other protocol had been offered (RFC 9110, 7.8)."""
        self._clear()
        version, keep_alive = self._parser.get_http_version(), self._parser.should_keep_alive()
        self._parser = self._new_parser()
        return without_offer(request, version, keep_alive=keep_alive) + rest

    def _complete(self, slot: Slot, data: bytes) -> None:
        """Adds the last output of a response."""
        self._slots.add(slot, data)
        slot.complete = True
        self._write()

    def _write(self) -> None:
        """Moves the responses that are due to the output."""
        if not self._slots.write(self._out):
            self._stop()
        elif (refusal := self._continued()) is not None:
            self._refuse(Refused(refusal, linger=True))

    def _continued(self) -> Response | None:
        """Lets a body come, behind all answers (RFC 9110, 10.1.1), or returns the refusal that its head decides."""
        if not self._expecting or self._slots:
            return None
        self._expecting = False
        if (refusal := self.refusal_of(self._request())) is None:
            self._out += b"HTTP/1.1 100 Continue\r\n\r\n"
            self._started_ms = self._now_ms  # its body may come from now on
        return refusal

    def _stop(self) -> None:
        """Stops reading and writing."""
        self._ended = True
        self._slots.clear()
        self._clear()
