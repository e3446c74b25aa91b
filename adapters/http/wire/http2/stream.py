"""One stream of HTTP/2, as the transport keeps it."""

from typing import Final

from adapters.http.wire.abuse import DATA_BYTES_MIN
from adapters.http.wire.body import ArrivingBody
from adapters.http.wire.http2.head import H2Head
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
        self.arrived = False  # the whole request is there
        self.refused = False  # the rest of the request is dropped as it comes
        self.answered = False  # the whole response is sent
        self.out = bytearray()  # body that no window takes yet
        self.ended = False  # `out` is complete
        self.since_ms = now_ms  # the last progress
        self.moved_bytes = 0  # since then
        self.small_count = 0  # frames of DATA that bring little

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


def brings_little(stream: H2Stream | None, data: bytes) -> bool:
    """Returns whether a frame of DATA, in the midst of a body, counts as one that brings nothing."""
    if stream is None or not data:
        return len(data) < DATA_BYTES_MIN
    stream.small_count += len(data) < DATA_BYTES_MIN
    return len(data) < DATA_BYTES_MIN and stream.small_count > SMALL_FREE_COUNT
