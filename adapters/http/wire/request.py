"""One HTTP request, the same for both versions."""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from gateway.domain.errors import ProtocolError

SINGLE: Final = frozenset(
    {b"authorization", b"content-type", b"content-length", b"host", b"idempotency-key", b"last-event-id", b"origin"}
)
_BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_ABSOLUTE_FORM = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
# RFC 9112, 3.2: a path or a URI, without a fragment. In a query "#" is taken as it is: filters of topics end with it,
# and clients that send it raw mean it. Targets that `split_target` refuses by itself are let pass.
_TARGET = re.compile(
    rb"(?:/|https?://[^/:#?\x00-\x20\x7f])[^#?\x00-\x20\x7f]*(?:\?[^\x00-\x20\x7f]*)?|\*", re.IGNORECASE
)
# RFC 9110, 7.2: a host of RFC 3986, 3.2.2, and a port; empty where the target has no authority.
_HOST = re.compile(r"(?:\[[\w\-.~!$&'()*+,;=:]+\]|(?:[\w\-.~!$&'()*+,;=]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?", re.ASCII)
_METHOD = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 9.1
CONTINUE: Final = b"100-continue"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "QUERY", "TRACE", "CONNECT"})


class HttpError(ProtocolError):
    """A request that HTTP has an answer for: `code` is the status, `members` those of the problem document."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        **members: object,
    ) -> None:
        super().__init__(status, detail)
        self.headers = headers
        self.members = members


class HttpRequest:
    """A whole request: its body has arrived. Header names are in lower case."""

    __slots__ = ("_values", "body", "headers", "method", "target")

    def __init__(
        self, *, method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes = b""
    ) -> None:
        self.method = method
        self.target = target  # as on the wire: origin-form, absolute-form or "*" (RFC 9112, 3.2)
        self.headers = headers
        self.body = body
        self._values = dict(headers)  # of repeats, the last one

    @property
    def safe(self) -> bool:
        """Returns whether it changes nothing (RFC 9110, 9.2.1)."""
        return self.method in {"GET", "HEAD", "OPTIONS"}

    def get(self, name: bytes) -> str | None:
        """Returns a header's value, repeats joined by a comma (RFC 9110, 5.3). Raises `HttpError` for some repeats."""
        value = self._values.get(name)
        if value is None:
            return None
        if len(self._values) < len(self.headers):
            found = [value for key, value in self.headers if key == name]
            if len(found) > 1 and name in SINGLE:
                raise HttpError(400, f"{name.decode()}: is given more than once", attribute=name.decode())
            value = b", ".join(found)
        return value.decode("latin-1").strip()

    def split_target(self) -> tuple[str, str]:
        """Returns path and query, both still percent-encoded. Raises `HttpError`."""
        target = self.target
        if not target.startswith(b"/") and (origin := _ABSOLUTE_FORM.match(target)) is not None:
            if b"@" in origin[0]:
                raise HttpError(400, "the request target names a user (RFC 9110, 4.2.4)")
            target = target[origin.end() :] or (b"*" if self.method == "OPTIONS" else b"/")  # RFC 9110, 4.2.3
            if target.startswith(b"?"):
                target = b"/" + target
        try:
            path, _, query = target.decode("ascii").partition("?")
        except UnicodeDecodeError as error:
            raise HttpError(400, "the request target is not ASCII") from error
        return path, query

    @property
    def host(self) -> str | None:
        """Returns the host that is asked, and its port: that of an absolute target, else Host (RFC 9112, 3.2.2)."""
        if not self.target.startswith(b"/") and (absolute := _ABSOLUTE_FORM.match(self.target)) is not None:
            return absolute[0].partition(b"//")[2].decode("latin-1")
        return self.get(b"host")

    def check(self) -> None:
        """Raises `HttpError` for a target or Host that is none (RFC 9112, 3.2), and an unknown method."""
        for host in {self.get(b"host"), self.host}:
            if host is not None and _HOST.fullmatch(host) is None:
                raise HttpError(400, f"host: {host[:64]!r} is not a host and a port", attribute="host")
        if _METHOD.fullmatch(self.method) is None:
            raise HttpError(400, "the method is no token")
        if self.method not in METHODS:
            raise HttpError(501, f"the method {self.method[:32]!r} is not known")
        if self.method == "CONNECT":
            raise HttpError(501, "this server is not a proxy")
        if _TARGET.fullmatch(self.target) is None or (self.target == b"*" and self.method != "OPTIONS"):
            raise HttpError(400, "the request target is no path, nor a URI of http or https")

    def query(self) -> list[tuple[str, str]]:
        """Returns the query's items, decoded. Raises `HttpError`."""
        text = self.split_target()[1]
        items: list[tuple[str, str]] = []
        for item in text.split("&"):
            if item:
                name, _, value = item.partition("=")
                items.append((percent_decode(name), percent_decode(value)))
        return items


def percent_decode(text: str) -> str:
    """Returns a part of a URI, decoded (RFC 3986, 2.1). A plus sign is itself: it is a wildcard in filters."""
    if "%" not in text:
        return text
    if _BAD_ESCAPE.search(text) is not None:
        raise HttpError(400, f"{text[:64]!r} is not percent-encoded (RFC 3986, 2.1)")
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise HttpError(400, f"{text[:64]!r} is not UTF-8") from error


def media_type(value: str) -> tuple[str, dict[str, str]]:
    """Returns a media type in lower case and its parameters (RFC 9110, 8.3.1)."""
    essence, *parameters = value.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    return essence.strip().lower(), {name.strip().lower(): text.strip().strip('"') for name, _, text in pairs}


def qualities(value: str) -> dict[str, float]:
    """Returns an Accept header's media types and their weights (RFC 9110, 12.5.1); an unreadable weight is 0."""
    weights: dict[str, float] = {}
    for item in value.split(","):
        essence, parameters = media_type(item)
        try:
            weights[essence] = float(parameters.get("q", "1"))
        except ValueError:
            weights[essence] = 0.0
    return weights


def expectations(headers: Sequence[tuple[bytes, bytes]]) -> set[bytes]:
    """Returns the members of all Expect fields, which are one list, in lower case (RFC 9110, 5.3 and 10.1.1)."""
    members = b",".join([value for name, value in headers if name == b"expect"]).lower().split(b",")
    return {member.strip(b" \t") for member in members} - {b""}
