"""The opening handshake of a WebSocket (RFC 6455, 4.2): the one HTTP request that may come, and its answer.

llhttp reads the request, `websockets` negotiates; this file decides who may connect, and the form of a refusal.
"""

from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Final

import httptools
import msgspec
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHandshake, InvalidUpgrade, NegotiationError
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from adapters.websocket.library import UPGRADE, VERSION, RefusedHandshake, refusing
from store.base.browsers import page_mistake

HEAD_BYTES_MAX: Final = 16 * 1024  # of the request; browsers add the cookies of their site
PATH: Final = b"/mqtt"
# The one of the specification (MQTT-6.0.0-4), and the one of clients older than it.
SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
_DETAIL_CHARS_MAX: Final = 128  # of the error text of `websockets`: it quotes the client


class AllowedPages(msgspec.Struct, frozen=True, kw_only=True):
    """The pages that may connect, by origin and host.

    `local`: this connection is from this machine, and may be let in without a name.
    """

    origins: Collection[str]
    hosts: Collection[str]
    local: bool


class _Refused(Exception):
    """Raised when the upgrade to a WebSocket is refused: `status` and `detail` give the reason."""

    def __init__(self, status: int, detail: str, *headers: tuple[str, str]) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


class Upgrade:
    """The request, as its bytes come. `output` is its answer once `accepted` is not None."""

    def __init__(self, pages: AllowedPages) -> None:
        self.accepted: bool | None = None  # None: the request is not all there
        self.output = b""
        self.reason = ""  # why it was refused
        self._pages = pages
        self._parser = httptools.HttpRequestParser(self)
        self._fed_bytes = 0
        self._complete = False
        self._target = b""
        self._headers = Headers()

    def receive(self, data: bytes) -> bytes:
        """Takes bytes from the client; returns those that came behind the request."""
        self._fed_bytes += len(data)
        try:
            rest = self._feed(data)
        except _Refused as refusal:
            rest = b""
            self.refuse(refusal.status, refusal.detail, *refusal.headers)
        if self._complete and self.accepted is None:
            self._judge()
        return rest if self.accepted else b""

    def _feed(self, data: bytes) -> bytes:
        """Feeds the parser; returns the bytes behind the request. Raises `_Refused`."""
        rest = b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            raise _Refused(400, f"this port speaks WebSocket; {error}") from error
        if self._fed_bytes - len(rest) > HEAD_BYTES_MAX:
            raise _Refused(431, f"the head is larger than {HEAD_BYTES_MAX} bytes")
        return rest

    def _judge(self) -> None:
        method = self._parser.get_method().decode("ascii")
        version = self._parser.get_http_version()
        try:
            headers = answer(method, self._target, version, self._headers, self._pages)
        except _Refused as refusal:
            self.refuse(refusal.status, refusal.detail, *refusal.headers)
        else:
            self.accepted = True
            self.output = _head(101, headers)

    def refuse(self, status: int, detail: str, *headers: tuple[str, str]) -> None:
        """Answers with a problem document (RFC 9457)."""
        refused = RefusedHandshake(status, detail, tuple({"Connection": "close", **dict(headers)}.items()))
        self.accepted, self.reason = False, detail
        self.output = refusing(refused).serialize()

    def header(self, name: str) -> str:
        """Returns a header of the request, all its lines together."""
        return ", ".join(self._headers.get_all(name))

    # ---- called by the parser

    def on_url(self, part: bytes) -> None:
        """Takes a part of the request target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes | None) -> None:
        """Takes a header."""
        self._headers[name.decode("latin-1")] = (value or b"").decode("latin-1")

    def on_headers_complete(self) -> None:
        """Ends the request, which has no body."""
        self._complete = True


def answer(method: str, target: bytes, version: str, headers: Headers, pages: AllowedPages) -> list[tuple[str, str]]:
    """Returns the headers that accept a request (4.2.2). Raises `_Refused`."""
    if target.partition(b"?")[0] != PATH:
        raise _Refused(404, f"MQTT is at {PATH.decode()}")
    if method != "GET":
        raise _Refused(405, "a WebSocket begins with GET", ("Allow", "GET"))
    if version != "1.1" or "transfer-encoding" in headers or headers.get_all("content-length") not in ([], ["0"]):
        raise _Refused(400, "a WebSocket begins with a request of HTTP/1.1 without a body")
    try:
        accept, _, chosen = ServerProtocol(subprotocols=SUBPROTOCOLS).process_request(Request(PATH.decode(), headers))
    except InvalidUpgrade as error:
        raise _Refused(426, "this port speaks WebSocket", *UPGRADE) from error
    except NegotiationError as error:
        raise _Refused(400, "sec-websocket-protocol: mqtt is to be offered (MQTT-6.0.0-3)") from error
    except InvalidHandshake as error:
        if headers.get_all("sec-websocket-version") != [VERSION]:  # which has to be named (4.4)
            raise _Refused(426, f"sec-websocket-version: only {VERSION} is known", *UPGRADE) from error
        raise _Refused(400, str(error)[:_DETAIL_CHARS_MAX]) from error
    mistake = page_mistake(
        headers.get_all("origin"),
        headers.get_all("host"),
        allowed=pages.origins,
        known=pages.hosts,
        local=pages.local,
        settings="adapters.mqtt",
    )
    if mistake is not None:
        raise _Refused(*mistake)
    return [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", accept),
        ("Sec-WebSocket-Protocol", chosen or ""),
    ]


def _head(status: int, headers: Sequence[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *[f"{name}: {value}" for name, value in headers], "", ""]
    return "\r\n".join(lines).encode("latin-1")
