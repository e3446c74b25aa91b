"""One stream of HTTP/2, as the transport keeps it."""

from collections.abc import Sequence
from typing import Final

from adapters.http.wire.body import ArrivingBody
from adapters.http.wire.limits import head_refusal
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.response import Response

FIELD_OVERHEAD_BYTES: Final = 32  # as SETTINGS_MAX_HEADER_LIST_SIZE counts a field (RFC 9113, 6.5.2)
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
        self.body = ArrivingBody()
        self.body_bytes = 0
        self.arrived = False  # the whole request is there
        self.refused = False  # the rest of the request is dropped as it comes
        self.answered = False  # the whole response is sent
        self.out = bytearray()  # body that no window takes yet
        self.ended = False  # `out` is complete
        self.since_ms = now_ms  # the last progress
        self.moved_bytes = 0  # since then

    def head_refusal(self, options: HttpOptions) -> Response | None:
        """Returns the refusal of a request whose head is too large."""
        fields = self.headers
        size_bytes = sum([len(name) + len(value) for name, value in fields]) + FIELD_OVERHEAD_BYTES * len(fields)
        return head_refusal(
            options,
            target_bytes=len(self.target),
            size_bytes=size_bytes + len(self.target),
            fields_count=len(fields),
        )

    @property
    def expects_continue(self) -> bool:
        """Returns whether the client waits to be told that the body may come (RFC 9110, 10.1.1)."""
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.headers)

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
