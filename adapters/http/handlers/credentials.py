"""The sender of a request: name and password (RFC 7617: Basic), or a token (RFC 6750: Bearer)."""

from base64 import b64decode
from collections import OrderedDict
from typing import Final, NamedTuple, TypeAlias

import msgspec

from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import CHALLENGE, Response, refused
from adapters.http.wire.transport import Exchange
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate

PRINCIPALS_COUNT_MAX: Final = 16  # identities remembered on one connection
TOKEN_BYTES_MAX: Final = 16_384  # more than any gateway takes
INVALID_TOKEN: Final = (b"www-authenticate", b'Bearer realm="headgate", error="invalid_token"')  # RFC 6750, 3


class Offered(NamedTuple):
    """The credentials that a request offers."""

    username: str  # "" with a token
    secret: bytes
    mechanism: str = "password"  # or "bearer"; "anonymous" of a client behind a proxy that offers nothing
    address: str = ""  # of the client behind a proxy; "": at the other end of the connection

    def __repr__(self) -> str:
        return f"Offered({self.username!r}, ***, {self.mechanism!r}, {self.address!r})"


Credentials: TypeAlias = Offered | None  # None: none are offered


def read_credentials(request: HttpRequest) -> Credentials:
    """Returns a request's credentials, None where it has no Authorization. Raises `HttpError` and `Refusal`."""
    header = request.get(b"authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() == "bearer":
        token = token.strip()
        if not token or len(token) > TOKEN_BYTES_MAX or not token.isascii():
            raise HttpError(401, "authorization: no token behind Bearer", headers=(CHALLENGE, INVALID_TOKEN))
        return Offered("", token.encode(), "bearer")
    if scheme.lower() != "basic":
        raise HttpError(401, "authorization: only the schemes Basic and Bearer are known", headers=(CHALLENGE,))
    try:
        name, colon, password = b64decode(token.strip(), validate=True).partition(b":")
        username = name.decode()
    except ValueError as error:
        raise HttpError(400, "authorization: not Basic credentials", attribute="authorization") from error
    if not colon:
        raise Refusal(Cause.UNAUTHENTICATED, "authorization: there is no colon between name and password")
    return Offered(username, password)


def behind(credentials: Credentials, address: str) -> Credentials:
    """Returns the same for a client behind a proxy, at an address."""
    return (credentials or Offered("", b"", "anonymous"))._replace(address=address) if address else credentials


def authentication(credentials: Credentials) -> Authenticate:
    """Returns the question who this is."""
    if credentials is None:
        return Authenticate(mechanism="anonymous")
    username, secret, mechanism, address = credentials
    return Authenticate(mechanism=mechanism, username=username, password=secret, address=address)


def denied(credentials: Credentials, refusal: Refusal) -> Response:
    """Returns the response to a request whose credentials are wrong, or missing."""
    response = refused(refusal)
    if response.status == 401 and credentials is not None and credentials.mechanism == "bearer":
        return msgspec.structs.replace(response, headers=[*response.headers, INVALID_TOKEN])
    return response


class Identities:
    """The senders on one connection, by the credentials they offer, and until when these hold."""

    def __init__(self) -> None:
        self._principals: OrderedDict[Credentials, Principal] = OrderedDict()
        self._streams: dict[Exchange, int] = {}  # when streams end whose receivers are not known forever

    @property
    def anybody(self) -> bool:
        """Returns whether a client has been authenticated."""
        return bool(self._principals)

    def known(self, credentials: Credentials, *, now_ms: int) -> Principal | None:
        """Returns who offered this before; None where it has to be asked, again or for the first time."""
        principal = self._principals.get(credentials)
        if principal is not None and principal.expires_at_ms is not None and principal.expires_at_ms <= now_ms:
            del self._principals[credentials]
            return None
        return principal

    def learn(self, credentials: Credentials, principal: Principal) -> None:
        """Remembers the principal that the gateway has found for credentials."""
        self._principals[credentials] = principal
        if len(self._principals) > PRINCIPALS_COUNT_MAX:
            self._principals.popitem(last=False)

    def streams_to(self, principal: Principal, exchange: Exchange) -> None:
        """Notes a response that begins and has no end of its own."""
        if principal.expires_at_ms is not None:
            self._streams[exchange] = principal.expires_at_ms

    def gone(self, exchange: Exchange) -> None:
        """Forgets a response that has ended."""
        self._streams.pop(exchange, None)

    def expired(self, now_ms: int) -> list[Exchange]:
        """Returns the streams that have to end now."""
        return [exchange for exchange, at_ms in self._streams.items() if at_ms <= now_ms]

    def deadline_ms(self) -> int | None:
        """Returns when the next stream has to end."""
        return min(self._streams.values(), default=None)
