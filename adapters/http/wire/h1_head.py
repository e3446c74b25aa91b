"""The head of a request of HTTP/1.1 while it arrives (RFC 9112, 3 and 5), and the trailers behind its body."""

import re
from typing import Final

from adapters.http.wire.cors import ORIGIN, origin_wanted
from adapters.http.wire.limits import FIELDS_COUNT_MAX, HEADS_PASSED, body_refusal, head_refusal
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import CONTINUE, METHODS, HttpRequest, expectations
from adapters.http.wire.response import Response, problem

FIELD_OVERHEAD_BYTES: Final = 4  # ": " and CRLF
_UPGRADE_HEADERS: Final = frozenset({b"upgrade", b"http2-settings", b"connection"})
_ONE_HOST: Final = problem(400, "host: must be given once", attribute="host")
_METHOD_FIRST: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32} [!-~]")  # a line that may be a request's


class Refused(Exception):
    """Raised in a callback of the parser to stop it: `response` is the answer, and the last one."""

    def __init__(self, response: Response, *, linger: bool = False) -> None:
        super().__init__()
        self.response = response
        self.linger = linger


class Http1Head:
    """Target and fields of one request, as far as they have come.

    It is used again for each request: the parser calls `add_target` and `add_field` directly, as there are many fields.
    A head that is too large is refused at once; where pages of some origins may read the refusal, when its Origin is
    known, its end has come, or `HEADS_PASSED` times a head's limit. Nothing else of it is held.
    """

    __slots__ = (
        "_fields_count",
        "_options",
        "_size_bytes",
        "chunked",
        "done",
        "expects_continue",
        "headers",
        "length_bytes",
        "method",
        "refusal",
        "target",
        "unseen_bytes",
        "version",
    )

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self.clear()

    def clear(self) -> None:
        """Forgets the request before."""
        self.target = bytearray()
        self.headers: list[tuple[bytes, bytes]] = []
        self.done = False
        self.method = self.version = ""  # once the head is `done`
        self.chunked = False  # the body is, once the head is `done`
        self.expects_continue = False  # the client waits to be told that the body may come
        self.length_bytes = 0  # of a body that is not
        self.refusal: Response | None = None  # of a head that is too large and goes on
        self.unseen_bytes = 0  # fed without any callback: a field that does not end
        self._size_bytes = 0
        self._fields_count = 0

    def add_target(self, part: bytes) -> None:
        """Takes a part of the request target. Raises `Refused`."""
        self.unseen_bytes = 0
        self._size_bytes += len(part)
        if self.refusal is None:
            self.target += part
        if self._size_bytes > self._options.max_header_bytes:
            self.check_size()

    def add_field(self, name: bytes, value: bytes | None) -> None:
        """Takes a header; passes over a trailer, behind the body. Raises `Refused`."""
        value = value or b""
        self.unseen_bytes = 0
        self._size_bytes += len(name) + len(value) + FIELD_OVERHEAD_BYTES
        self._fields_count += 1
        name = name.lower()
        if not self.done and (self.refusal is None or name == ORIGIN):
            self.headers.append((name, value.strip(b" \t")))
        if self._size_bytes > self._options.max_header_bytes or self._fields_count > FIELDS_COUNT_MAX:
            self.check_size()

    def check_size(self, *, more_bytes: int = 0) -> None:
        """Raises `Refused` where the head is too large; `more_bytes` have come of a field that goes on."""
        size_bytes = self._size_bytes + more_bytes
        if self.refusal is None:
            self.refusal = head_refusal(
                self._options,
                target_bytes=len(self.target),
                size_bytes=size_bytes,
                fields_count=self._fields_count,
            )
        if self.refusal is None:
            return
        passed = size_bytes > HEADS_PASSED * self._options.max_header_bytes
        if passed or self.done or not origin_wanted(self.headers, self._options):
            raise Refused(self.refusal, linger=True)

    def end(self, method: str, version: str) -> None:
        """Checks the headers that delimit the body (RFC 9112, 6.3), and whether it may come. Raises `Refused`."""
        self.done, self.method, self.version = True, method, version
        if self.refusal is not None:
            raise Refused(self.refusal, linger=True)
        if not version.startswith("1."):
            raise Refused(problem(505, f"HTTP/{version} is not spoken here; 1.1 and 2 are"))
        if method not in METHODS:
            raise Refused(problem(501, f"the method {method} is not known"))
        fields = dict(self.headers)
        if b"host" not in fields and version != "1.0":
            raise Refused(_ONE_HOST)
        if len(fields) < len(self.headers) and len(self._values(b"host")) > 1:
            raise Refused(_ONE_HOST)
        if b"transfer-encoding" in fields:
            self._check_coding(version)
            self.chunked = True
        self.length_bytes = int(fields.get(b"content-length", 0))
        if self.length_bytes > self._options.max_body_bytes:
            raise Refused(body_refusal(self._options), linger=True)
        if b"expect" in fields and version != "1.0":  # HTTP/1.0's is passed over (RFC 9110, 10.1.1)
            expected = expectations(self.headers)
            if not expected <= {CONTINUE}:
                raise Refused(problem(417, "expect: only 100-continue is known", attribute="expect"))
            content = self.chunked or self.length_bytes > 0
            self.expects_continue = content and CONTINUE in expected

    def _check_coding(self, version: str) -> None:
        if version == "1.0":
            raise Refused(problem(400, "transfer-encoding: has no meaning in HTTP/1.0", attribute="transfer-encoding"))
        if self._values(b"transfer-encoding") != [b"chunked"]:
            raise Refused(problem(501, "transfer-encoding: only chunked is known", attribute="transfer-encoding"))

    def _values(self, name: bytes) -> list[bytes]:
        """Returns the values of a field that may be repeated, in lower case."""
        return [value.lower() for key, value in self.headers if key == name]


def head_end(data: bytes, at: int) -> int:
    """Returns the place behind the empty line that ends a head, or the end of a read that has none."""
    for begun in (b"\n", b"\r\n"):  # of an empty line that began in an earlier read; else it does no harm
        if data.startswith(begun, at):
            return at + len(begun)
    found = data.find(b"\n\r\n", at)
    return len(data) if found < 0 else found + len(b"\n\r\n")


def malformed(error: Exception, data: bytes) -> Response:
    """Returns the refusal of bytes that are no request, by the error of llhttp."""
    detail = str(error) or "this is not HTTP"
    if detail == "Invalid method encountered" and _METHOD_FIRST.match(data) is not None:
        method = data.partition(b" ")[0].decode()
        if method not in METHODS:  # else the fault is behind a request that was whole
            return problem(501, f"the method {method} is not known")
    return problem(400, f"not an HTTP request: {detail}")


def without_offer(request: HttpRequest, version: str, *, keep_alive: bool) -> bytes:
    """Returns a request's head as it would be without its offer of another protocol (RFC 9110, 7.8)."""
    kept = b"".join(b"%b: %b\r\n" % item for item in request.headers if item[0] not in _UPGRADE_HEADERS)
    if not keep_alive:
        kept += b"connection: close\r\n"
    return b"%b %b HTTP/%b\r\n%b\r\n" % (request.method.encode(), request.target, version.encode(), kept)
