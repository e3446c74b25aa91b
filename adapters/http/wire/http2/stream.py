"""One stream of HTTP/2, as the transport keeps it."""

from typing import Final

from adapters.http.wire.abuse import DATA_BYTES_MIN, SmallFrames
from adapters.http.wire.body import ArrivingBody
from adapters.http.wire.http2.head import H2Head
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpRequest

PROGRESS_BYTES_MIN: Final = 4096  # that pass within a peer's time, or it makes none: byte by byte nothing ends

SMALL_FREE_COUNT: Final = 8  # small frames of DATA of a stream that do not count: most bodies are small


class H2Stream:
    """One request and its response."""

    __slots__ = (
        "answered",
        "arrived",
        "body",
        "body_bytes",
        "ended",
        "head",
        "head_only",
        "held_bytes",
        "moved_bytes",
        "out",
        "refused",
        "since_ms",
        "small_count",
    )

    def __init__(self, head: H2Head, now_ms: int) -> None:
        self.head = head
        self.head_only = head.method == "HEAD"
        self.body = ArrivingBody()
        self.body_bytes = 0
        self.held_bytes = 0  # of the request while it arrives, its head included
        self.arrived = False  # the whole request is there
        self.refused = False  # the rest of the request is dropped as it comes
        self.answered = False  # the whole response is sent
        self.out = bytearray()  # body that no window takes yet
        self.ended = False  # `out` is complete
        self.since_ms = now_ms  # the last progress
        self.moved_bytes = 0  # since then
        self.small_count = 0  # small frames of DATA

    def request(self) -> HttpRequest:
        """Returns the request, and forgets its body."""
        return self.head.request(self.body.take())

    def begin_wait(self, now_ms: int) -> None:
        """Notes that it is the peer's turn from now on."""
        self.since_ms, self.moved_bytes = now_ms, 0

    def moved(self, size_bytes: int, now_ms: int) -> None:
        """Notes that bytes have come or gone."""
        self.moved_bytes += size_bytes
        if self.moved_bytes >= PROGRESS_BYTES_MIN:
            self.begin_wait(now_ms)

    @property
    def waits(self) -> bool:
        """True when it is the peer's turn: to send the request, or to read the response."""
        return not self.arrived or bool(self.out)

    def late_ms(self, options: HttpOptions) -> int:
        """Returns when a peer whose turn it is has let it wait for too long: a window of events may be shut longer."""
        streaming = self.arrived and not self.ended
        return self.since_ms + 1000 * (options.sse_stall_s if streaming else options.request_timeout_s)


def is_small(stream: H2Stream, data: bytes, small: SmallFrames, now_ms: int) -> bool:
    """Counts a frame of DATA, in the midst of a body, if it is a small one that counts; returns whether it is."""
    stream.small_count += len(data) < DATA_BYTES_MIN
    if len(data) >= DATA_BYTES_MIN or stream.small_count <= SMALL_FREE_COUNT:
        return False
    small.count(now_ms)
    return True
