"""The streams of a connection of HTTP/2 that have not ended, and the responses that wait for their windows."""

from collections.abc import Iterator
from typing import Final

from h2.exceptions import H2Error

from adapters.http.wire.abuse import AbuseLimiter
from adapters.http.wire.http2.head import H2Head
from adapters.http.wire.http2.stream import H2Stream
from adapters.http.wire.http2.strict import StrictConnection
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.transport import Drained, Event, Exchange

STREAM_BUFFER_BYTES: Final = 256 * 1024  # of one event stream, beyond its window
FRAME_BYTES_MIN: Final = 1024  # of DATA that a window cuts: shorter frames are as much work as they are use


class Streams:
    """The open streams of a connection; `events` tells which have room again."""

    def __init__(self, h2: StrictConnection, options: HttpOptions, abuse: AbuseLimiter) -> None:
        self._h2, self._options, self._abuse = h2, options, abuse
        self._open: dict[Exchange, H2Stream] = {}
        self._blocked: dict[Exchange, None] = {}  # responses with bytes that no window takes, longest first
        self._starved: dict[Exchange, None] = {}  # event streams that found no room
        self.held_in_bytes = 0  # of requests that arrive
        self.held_out_bytes = 0  # of responses that no window takes
        self.unwritten_bytes = 0  # of bodies, in h2's output
        self.events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def __contains__(self, exchange: object) -> bool:
        return exchange in self._open

    def __iter__(self) -> Iterator[tuple[Exchange, H2Stream]]:
        """Iterates over those that are open now; any may end meanwhile."""
        return iter(list(self._open.items()))

    def get(self, exchange: Exchange) -> H2Stream | None:
        """Returns a stream that is open."""
        return self._open.get(exchange)

    def open(self, exchange: Exchange, head: H2Head, now_ms: int) -> H2Stream:
        """Opens a stream."""
        stream = self._open[exchange] = H2Stream(head, now_ms)
        return stream

    def hold(self, stream: H2Stream, size_bytes: int) -> None:
        """Counts bytes of a request that arrives."""
        stream.held_bytes += size_bytes
        self.held_in_bytes += size_bytes

    def release(self, stream: H2Stream) -> None:
        """Notes that a request is all there, or dropped."""
        self.held_in_bytes -= stream.held_bytes
        stream.held_bytes = 0

    @property
    def crowded(self) -> bool:
        """Returns whether the requests that arrive hold more than they may."""
        return self.held_in_bytes > self._options.max_held_bytes

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes held of whole responses that no window takes."""
        waiting = [self._open[exchange] for exchange in self._blocked]
        return sum([len(stream.out) for stream in waiting if stream.ended])

    # ---- responses

    def room(self, exchange: Exchange) -> int:
        """Returns the free bytes of the stream's buffer, within those that the connection may hold."""
        stream = self._open.get(exchange)
        if stream is None:
            return STREAM_BUFFER_BYTES  # output to it is dropped
        free = min(STREAM_BUFFER_BYTES - len(stream.out), self._options.max_held_bytes - self.held_out_bytes)
        if free <= 0:
            self._starved[exchange] = None
        return free

    def add(self, exchange: Exchange, stream: H2Stream, data: bytes, now_ms: int) -> None:
        """Sends some of a response's body as far as the windows allow, and holds the rest."""
        if not stream.out:
            stream.begin_wait(now_ms)
        stream.out += data
        self.held_out_bytes += len(data)
        self._pump([exchange], now_ms)

    def window_opened(self, exchange: Exchange, now_ms: int) -> None:
        """Goes on with a response that waits for a window: with any of them for that of the connection, stream 0."""
        if exchange in self._blocked:
            self._pump([exchange], now_ms)
        elif not exchange:
            self._pump(list(self._blocked), now_ms)

    def _pump(self, exchanges: list[Exchange], now_ms: int) -> None:
        """Sends data as far as the windows allow, a frame a stream in turn."""
        while exchanges:
            exchanges = [exchange for exchange in exchanges if self._pump_one(exchange, now_ms)]

    def _pump_one(self, exchange: Exchange, now_ms: int) -> bool:
        """Sends one frame; returns whether there may be another."""
        stream = self._open.get(exchange)
        if stream is None:
            return False
        out = stream.out
        try:
            size = min(len(out), self._h2.local_flow_control_window(exchange), self._h2.max_outbound_frame_size)
            if out and size <= 0:
                self._blocked[exchange] = None
                return False
            end = stream.ended and size == len(out)
            if out or end:
                self._h2.send_data(exchange, bytes(out[:size]), end_stream=end)
        except H2Error:  # it has ended, or h2 has sent GOAWAY, behind which it sends nothing
            self.forget(exchange)
            return False
        if size > 0:
            if size == len(out) or size >= FRAME_BYTES_MIN:
                self._abuse.progress()
            del out[:size]
            self.held_out_bytes -= size
            self.unwritten_bytes += size
            stream.moved(size, now_ms)
        if end:
            self.end(exchange, stream)
            return False
        self._wake()
        if not out:
            self._blocked.pop(exchange, None)
            return False
        return True

    def _wake(self) -> None:
        """Tells event streams that there is room again, once half of their limit is free."""
        if not self._starved or self.held_out_bytes * 2 > self._options.max_held_bytes:
            return
        for exchange in list(self._starved):
            stream = self._open.get(exchange)
            if stream is None or len(stream.out) * 2 <= STREAM_BUFFER_BYTES:
                del self._starved[exchange]
                self.events.append(Drained(exchange))

    # ---- ends

    def end(self, exchange: Exchange, stream: H2Stream) -> None:
        """Ends a stream whose response is sent. Where the request is not all there, the stream stays until it is."""
        stream.answered = True
        if stream.arrived:
            self.forget(exchange)

    def forget(self, exchange: Exchange) -> bool:
        """Drops a stream and what it holds; returns whether it was open."""
        stream = self._open.pop(exchange, None)
        if stream is None:
            return False
        self.held_out_bytes -= len(stream.out)
        self.release(stream)
        self._blocked.pop(exchange, None)
        self._starved.pop(exchange, None)
        self._wake()
        return True

    def clear(self) -> None:
        """Drops all of them."""
        self._open.clear()
        self._blocked.clear()
        self._starved.clear()
        self.events = []
