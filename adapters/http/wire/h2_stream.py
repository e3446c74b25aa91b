"""One stream of HTTP/2, as the transport keeps it."""

from collections.abc import Sequence
from typing import Final

PROGRESS_BYTES_MIN: Final = 4096  # that pass within a peer's time, or it makes none: byte by byte nothing ends


class H2Stream:
    """One request and its response."""

    __slots__ = (
        "answered",
        "arrived",
        "body",
        "body_bytes",
        "ended",
        "head_only",
        "headers",
        "length_bytes",
        "method",
        "moved_bytes",
        "out",
        "refused",
        "since_ms",
        "target",
    )

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], now_ms: int) -> None:
        pseudo = dict(headers)
        length = pseudo.get(b"content-length")
        self.length_bytes = int(length) if length is not None else None  # h2 has checked that it is a number
        self.method = pseudo.get(b":method", b"").decode("latin-1")
        self.target = pseudo.get(b":path", b"")
        self.headers = [header for header in headers if not header[0].startswith(b":")]
        if b":authority" in pseudo and b"host" not in pseudo:
            self.headers.append((b"host", pseudo[b":authority"]))
        self.head_only = self.method == "HEAD"
        self.body: list[bytes] = []
        self.body_bytes = 0
        self.arrived = False  # the whole request is there
        self.refused = False  # the rest of the request is dropped as it comes
        self.answered = False  # the whole response is sent
        self.out = bytearray()  # body that no window takes yet
        self.ended = False  # `out` is complete
        self.since_ms = now_ms  # the last progress
        self.moved_bytes = 0  # since then

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
