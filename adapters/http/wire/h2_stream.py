"""One stream of HTTP/2, as the transport keeps it."""

from collections.abc import Sequence
from typing import Final

from adapters.http.wire.body import ArrivingBody
from adapters.http.wire.limits import head_refusal
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import CONTINUE, HttpRequest, expectations
from adapters.http.wire.response import Response, problem

FIELD_OVERHEAD_BYTES: Final = 32  # as SETTINGS_MAX_HEADER_LIST_SIZE counts a field (RFC 9113, 6.5.2)
PROGRESS_BYTES_MIN: Final = 4096  # that pass within a peer's time, or it makes none: byte by byte nothing ends
_PATHS: Final = (b"/", b"*")  # "*" is for OPTIONS, which `HttpRequest.check` looks at
_SCHEMES: Final = frozenset({b"http", b"https"})


class H2Stream:
    """One request and its response."""

    __slots__ = (
        "answered",
        "arrived",
        "body",
        "body_bytes",
        "ended",
        "expected",
        "head_only",
        "headers",
        "length_bytes",
        "method",
        "moved_bytes",
        "out",
        "refused",
        "scheme",
        "since_ms",
        "target",
    )

    def __init__(self, headers: Sequence[tuple[bytes, bytes]], now_ms: int) -> None:
        pseudo = dict(headers)
        length = pseudo.get(b"content-length")
        self.length_bytes = int(length) if length is not None else None  # h2 has checked that it is a number
        self.method = pseudo.get(b":method", b"").decode("latin-1")
        self.target = pseudo.get(b":path", b"")
        self.scheme = pseudo.get(b":scheme", b"").lower()
        self.expected = expectations(headers) if b"expect" in pseudo else frozenset()
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
        """Returns the refusal of a request whose head is too large, or one that HTTP/1.1 would refuse, too."""
        fields = self.headers
        size_bytes = sum([len(name) + len(value) for name, value in fields]) + FIELD_OVERHEAD_BYTES * len(fields)
        too_large = head_refusal(
            options,
            target_bytes=len(self.target),
            size_bytes=size_bytes + len(self.target),
            fields_count=len(fields),
        )
        return too_large or self._target_refusal() or self._expectation_refusal()

    def _target_refusal(self) -> Response | None:
        """Returns the refusal of a path that is none (RFC 9113, 8.3.1), and of a scheme that is not spoken."""
        if self.method == "CONNECT" or (self.target.startswith(_PATHS) and self.scheme in _SCHEMES):
            return None
        return problem(400, "the request target is no path, nor a URI of http or https")

    def _expectation_refusal(self) -> Response | None:
        if self.expected <= {CONTINUE}:
            return None
        return problem(417, "expect: only 100-continue is known", attribute="expect")

    def request(self) -> HttpRequest:
        """Returns the request, and forgets its body."""
        return HttpRequest(method=self.method, target=self.target, headers=self.headers, body=self.body.take())

    @property
    def expects_continue(self) -> bool:
        """Returns whether the client waits to be told that the body may come (RFC 9110, 10.1.1)."""
        return CONTINUE in self.expected

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
