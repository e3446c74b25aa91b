"""HTTP/1.1 (RFC 9112): requests parsed by llhttp, responses in the order of their requests."""

import re
from collections import deque
from collections.abc import Sequence
from typing import Final

import httptools

from adapters.http.wire.event_socket import SOCKETS
from adapters.http.wire.h1_slot import Slot
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.receive_budget import CROWDED
from adapters.http.wire.request import METHODS, HttpRequest
from adapters.http.wire.response import EMPTY_STATUSES, Response, date_header, problem, reason_phrase
from adapters.http.wire.transport import Arrived, Drained, Event, Exchange, Upgrade

OUTPUT_BYTES_MAX: Final = 256 * 1024  # of event streams: what a connection may have waiting to be written
LINGER_MS: Final = 1_000  # how long the rest of a refused body is read: closing at once would destroy the answer
LINGER_BYTES_MAX: Final = 64 * 1024 * 1024
_HEADER_OVERHEAD: Final = 4  # ": " and CRLF
_METHOD_FIRST: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32} [!-~]")  # a line that may be a request's
_UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings", b"connection"})


class _Refused(Exception):
    """Raised in a callback of the parser to stop it: `response` is the answer, and the last one."""

    def __init__(self, response: Response, *, linger: bool = False) -> None:
        super().__init__()
        self.response = response
        self.linger = linger


class Http1:
    """The transport of an HTTP/1.1 or HTTP/1.0 connection."""

    ordered = True

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._parser = httptools.HttpRequestParser(self)
        self._slots: deque[Slot] = deque()
        self._by_exchange: dict[Exchange, Slot] = {}
        self._out = bytearray()
        self._held_bytes = 0  # in slots: responses that wait for earlier ones
        self._events: list[Event] = []
        self._exchanges = 0
        self._now_ms = 0
        self._ended = False  # no more requests are read
        self._lingering_until_ms: int | None = None
        self._lingered_bytes = 0
        self._full = False
        self._starved: dict[Exchange, None] = {}  # event streams that found no room
        self._clear()

    def _clear(self) -> None:
        """Forgets the request before, between two requests."""
        self._target = bytearray()
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._unseen_bytes = 0  # fed without any callback: a header that does not end
        self._head_done = False
        self._started_ms: int | None = None  # when the request in flight began

    # ---- Transport

    @property
    def wants_data(self) -> bool:
        """False while too many requests wait for their answers, or too many bytes of answers for earlier ones.

        Behind the last request, bytes are read and dropped.
        """
        if self._ended:
            return self._lingered_bytes < LINGER_BYTES_MAX
        return len(self._slots) < self._options.max_pipelined and not self.full

    @property
    def full(self) -> bool:
        """Returns whether responses that wait, for their turn or the peer to read, take all the bytes they may."""
        return self.unread_bytes >= self._options.max_held_bytes

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes of responses that wait for their turn, or to be written."""
        return self._held_bytes + len(self._out)

    @property
    def arriving_bytes(self) -> int:
        """Returns the bytes held of the request that arrives."""
        return self._body_bytes

    @property
    def busy(self) -> bool:
        """Returns whether a request or a response is in progress."""
        return bool(self._slots) or self._started_ms is not None or self._lingering_until_ms is not None

    @property
    def quiet(self) -> bool:
        """Returns whether the next byte begins a request, and nothing waits to be answered or written."""
        return not (self._slots or self._ended or self._out or self._starved) and self._started_ms is None

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
        self._unseen_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._unseen_bytes > self._options.max_header_bytes:
                raise _Refused(self._head_too_large(), linger=True)
        except httptools.HttpParserUpgrade as upgrade:
            return self._upgrade(bytes(data[upgrade.args[0] :]))
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _Refused):
                self._refuse(cause)
            elif not self._ended:
                self._refuse(_Refused(_parse_problem(error, data)))
        except _Refused as refusal:
            self._refuse(refusal)
        return None

    def respond(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Writes a response, or keeps it until it is its turn."""
        slot = self._by_exchange.get(exchange)
        if slot is None or slot.complete:
            return
        lines = self._head(slot, response, now_ms)
        if response.status not in EMPTY_STATUSES:
            lines.append(b"content-length: %d\r\n" % len(response.body))
        lines.append(b"\r\n")
        if not slot.head_only and response.status not in EMPTY_STATUSES:
            lines.append(response.body)
        self._add(slot, b"".join(lines))
        slot.complete = True
        self._write()

    def begin(self, exchange: Exchange, response: Response, *, now_ms: int) -> None:
        """Writes a head whose body follows: chunked, or to HTTP/1.0 until the connection ends (RFC 9112, 6.3)."""
        slot = self._by_exchange.get(exchange)
        if slot is None:
            return
        slot.chunked = slot.http_1_1
        slot.keep_alive = slot.keep_alive and slot.chunked
        lines = self._head(slot, response, now_ms)
        if slot.chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        self._add(slot, b"".join(lines) + b"\r\n")
        self.send(exchange, response.body, now_ms=now_ms)

    def send(self, exchange: Exchange, data: bytes, *, now_ms: int) -> None:
        """Sends one chunk."""
        slot = self._by_exchange.get(exchange)
        if slot is None or slot.complete:
            return
        if data and not slot.head_only:
            self._add(slot, b"%x\r\n%b\r\n" % (len(data), data) if slot.chunked else data)
        self._write()

    def finish(self, exchange: Exchange) -> None:
        """Sends the last chunk."""
        slot = self._by_exchange.get(exchange)
        if slot is None or slot.complete:
            return
        if slot.chunked and not slot.head_only:
            self._add(slot, b"0\r\n\r\n")
        slot.complete = True
        self._write()

    def room(self, exchange: Exchange) -> int:
        """Returns the bytes left of its share.

        The socket's buffer, and a peer that takes nothing, are the shell's to watch.
        """
        slot = self._by_exchange.get(exchange)
        if slot is None:
            return OUTPUT_BYTES_MAX  # output to it is dropped
        free = OUTPUT_BYTES_MAX - len(self._out) - len(slot.out)
        if free <= 0:
            self._starved[exchange] = None
        return free

    def refuse_arriving(self) -> None:
        """Answers the request that arrives with 503, and reads no more."""
        if self._body_bytes:
            self._refuse(_Refused(problem(503, CROWDED, (b"retry-after", b"1")), linger=True))

    def begin_shutdown(self) -> None:
        """Reads no more; the last response says so."""
        self._ended = True
        self._clear()
        if self._slots:
            self._slots[-1].keep_alive = False

    def tick(self, *, now_ms: int) -> Sequence[Event]:
        """Ends a request that takes too long, ends lingering, and goes on with starved streams."""
        self._now_ms = now_ms
        if self._lingering_until_ms is not None and now_ms >= self._lingering_until_ms:
            self._lingering_until_ms = None
        timeout_ms = self._options.request_timeout_s * 1000
        if self._started_ms is not None and now_ms >= self._started_ms + timeout_ms:
            self._refuse(_Refused(problem(408, f"the request took more than {self._options.request_timeout_s} s")))
        events: list[Event] = []
        if self._starved and len(self._out) < OUTPUT_BYTES_MAX:
            events += [Drained(exchange) for exchange in self._starved]
            self._starved.clear()
        return events

    def deadline_ms(self) -> int | None:
        """Returns the next thing that `tick` would do."""
        if self._starved and len(self._out) < OUTPUT_BYTES_MAX:
            return 0
        if self._lingering_until_ms is not None:
            return self._lingering_until_ms
        if self._started_ms is None:
            return None
        return self._started_ms + self._options.request_timeout_s * 1000

    def take_output(self) -> bytes:
        """Returns the responses that are due."""
        if not self._out:
            return b""
        out, self._out = bytes(self._out), bytearray()
        return out

    def release(self) -> None:
        """Breaks the ring of the parser and this, which would keep what has arrived of a body."""
        del self._parser
        self._stop()
        self._out, self._events = bytearray(), []

    # ---- the parser's callbacks

    def on_message_begin(self) -> None:
        """Begins a request."""
        self._clear()
        self._started_ms = self._now_ms

    def on_url(self, part: bytes) -> None:
        """Takes a part of the request target."""
        self._target += part
        self._seen(len(part))

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Takes a header; passes over a trailer, behind the body."""
        value = value or b""
        self._seen(len(name) + len(value) + _HEADER_OVERHEAD)
        if not self._head_done:
            self._headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """Checks, as the head is complete, what says where the body ends (RFC 9112, 6.3), and whether it may come."""
        self._head_done = True
        self._seen(0)
        version = self._parser.get_http_version()
        if version not in {"1.0", "1.1"}:
            raise _Refused(problem(505, f"HTTP/{version} is not spoken here; 1.1 and 2 are"))
        if self._method() not in METHODS:
            raise _Refused(problem(501, f"the method {self._method()} is not known"))
        hosts = [value for name, value in self._headers if name == b"host"]
        if len(hosts) > 1 or (version == "1.1" and not hosts):
            raise _Refused(problem(400, "host: must be given once", attribute="host"))
        codings = [value.lower() for name, value in self._headers if name == b"transfer-encoding"]
        if codings and version == "1.0":
            raise _Refused(problem(400, "transfer-encoding: has no meaning in HTTP/1.0", attribute="transfer-encoding"))
        if codings and codings != [b"chunked"]:
            raise _Refused(problem(501, "transfer-encoding: only chunked is known", attribute="transfer-encoding"))
        for name, value in self._headers:
            if name == b"content-length" and int(value) > self._options.max_body_bytes:
                raise _Refused(self._body_too_large(), linger=True)
        self._expect(version)

    def on_body(self, part: bytes) -> None:
        """Takes a part of the body."""
        self._unseen_bytes = 0
        self._body_bytes += len(part)
        if self._body_bytes > self._options.max_body_bytes:
            raise _Refused(self._body_too_large(), linger=True)
        self._body.append(part)

    def on_chunk_header(self) -> None:
        """Notes the beginning of a chunk."""
        self._unseen_bytes = 0

    def on_message_complete(self) -> None:
        """Takes a whole request."""
        if self._parser.should_upgrade():
            return  # `HttpParserUpgrade` follows
        slot = self._open_slot(keep_alive=self._parser.should_keep_alive())
        self._events.append(Arrived(slot.exchange, self._request()))
        self._clear()

    # ---- inside

    def _method(self) -> str:
        method: bytes = self._parser.get_method()
        return method.decode("ascii")

    def _request(self) -> HttpRequest:
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        return HttpRequest(method=self._method(), target=bytes(self._target), headers=self._headers, body=body)

    def _open_slot(self, *, keep_alive: bool) -> Slot:
        self._exchanges += 1
        slot = Slot(
            Exchange(self._exchanges),
            head_only=self._head_done and self._method() == "HEAD",
            keep_alive=keep_alive and not self._ended,
            http_1_1=not self._head_done or self._parser.get_http_version() == "1.1",
        )
        self._ended = self._ended or not slot.keep_alive
        self._slots.append(slot)
        self._by_exchange[slot.exchange] = slot
        return slot

    def _seen(self, size: int) -> None:
        self._unseen_bytes = 0
        self._head_bytes += size
        if self._head_bytes > self._options.max_header_bytes:
            raise _Refused(self._head_too_large(), linger=True)

    def _head_too_large(self) -> Response:
        return problem(431, f"the head is larger than {self._options.max_header_bytes} bytes")

    def _body_too_large(self) -> Response:
        return problem(413, f"the body is larger than {self._options.max_body_bytes} bytes")

    def _expect(self, version: str) -> None:
        """Tells a client that waits for it to go on (RFC 9110, 10.1.1)."""
        for name, value in self._headers:
            if name == b"expect" and version == "1.1":
                if value.lower() != b"100-continue":
                    raise _Refused(problem(417, "expect: only 100-continue is known", attribute="expect"))
                if not self._slots:  # behind other answers it would come too late to be of use
                    self._out += b"HTTP/1.1 100 Continue\r\n\r\n"

    def _refuse(self, refusal: _Refused) -> None:
        """Answers what is no request, behind the answers that are due before it, and reads no more."""
        slot = self._open_slot(keep_alive=False)
        self._clear()
        self._ended = True
        if refusal.linger:
            self._lingering_until_ms = self._now_ms + LINGER_MS
        self.respond(slot.exchange, refusal.response, now_ms=self._now_ms)

    def _upgrade(self, rest: bytes) -> bytes | None:
        """Answers a request with an Upgrade header: the parser has stopped behind its head, whatever its body."""
        if self._method() == "CONNECT":
            self._refuse(_Refused(problem(501, "this server is not a proxy")))
            return None
        settings = [value for name, value in self._headers if name == b"http2-settings"]
        offers = b",".join(value for name, value in self._headers if name == b"upgrade").lower()
        bodiless = not any(name in {b"content-length", b"transfer-encoding"} for name, _ in self._headers)
        if b"h2c" in offers.replace(b" ", b"").split(b",") and len(settings) == 1 and bodiless and not self._slots:
            self._events.append(Upgrade(self._request(), settings[0], rest))
            return None
        path = bytes(self._target).partition(b"?")[0]
        if (
            path in SOCKETS
            and self._method() == "GET"
            and offers.strip() == b"websocket"
            and bodiless
            and not self._slots
        ):
            self._events.append(Upgrade(self._request(), None, rest))
            return None
        return self.decline(self._request(), rest)

    def decline(self, request: HttpRequest, rest: bytes) -> bytes:
        """Returns the bytes to feed, to go on in HTTP/1.1 as if no other protocol had been offered (RFC 9110, 7.8)."""
        kept = b"".join(b"%b: %b\r\n" % item for item in request.headers if item[0] not in _UPGRADE_HEADERS)
        if not self._parser.should_keep_alive():
            kept += b"connection: close\r\n"
        version = self._parser.get_http_version().encode()
        self._parser = httptools.HttpRequestParser(self)
        return b"%b %b HTTP/%b\r\n%b\r\n%b" % (request.method.encode(), request.target, version, kept, rest)

    def _head(self, slot: Slot, response: Response, now_ms: int) -> list[bytes]:
        status = response.status
        lines = [
            b"HTTP/1.1 %d %b\r\n" % (status, reason_phrase(status).encode()),
            b"date: %b\r\n" % date_header(now_ms // 1000),
        ]
        lines += [b"%b: %b\r\n" % header for header in response.headers]
        if not slot.keep_alive:
            lines.append(b"connection: close\r\n")
        elif not slot.http_1_1:
            lines.append(b"connection: keep-alive\r\n")
        return lines

    def _add(self, slot: Slot, data: bytes) -> None:
        slot.out += data
        self._held_bytes += len(data)

    def _write(self) -> None:
        """Moves to the output what is due: all of the first response, and of those behind it when it is complete."""
        slots = self._slots
        while slots:
            slot = slots[0]
            if slot.out:
                self._out += slot.out
                self._held_bytes -= len(slot.out)
                slot.out = bytearray()
            if not slot.complete:
                break
            slots.popleft()
            del self._by_exchange[slot.exchange]
            if not slot.keep_alive:
                self._stop()

    def _stop(self) -> None:
        """Stops reading and writing."""
        self._ended = True
        self._held_bytes = 0
        self._slots.clear()
        self._by_exchange.clear()
        self._clear()


def _parse_problem(error: Exception, data: bytes) -> Response:
    detail = str(error) or "this is not HTTP"
    if detail == "Invalid method encountered" and _METHOD_FIRST.match(data) is not None:
        method = data.partition(b" ")[0].decode()
        if method not in METHODS:  # else the fault is behind a request that was whole
            return problem(501, f"the method {method} is not known")
    if detail == "Invalid HTTP version":
        return problem(505, "this version of HTTP is not spoken here; 1.1 and 2 are")
    return problem(400, f"not an HTTP request: {detail}")
