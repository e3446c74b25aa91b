"""Browsers: which pages may use the gateway (Fetch, 3.2: CORS), and which must not without their user's knowledge.

A page of any site can send requests to the machine it is shown on. What it says of its origin is checked by
`check_origin`. It can also let a name of its own lead to this machine (DNS rebinding): then the gateway is its origin.
Such a name is what `check_host` finds.
"""

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from adapters.http.credentials import Credentials
from adapters.http.options import HttpOptions
from adapters.http.request import HttpError, Request
from adapters.http.response import Response

__all__ = ["check_host", "check_origin", "shared", "with_preflight"]

EXPOSED: Final = b"etag, link, location, retry-after, x-create-revision, x-expires-at-ms, x-version"
METHODS: Final = b"DELETE, GET, HEAD, POST, PUT"
PREFLIGHT_S: Final = b"600"  # how long a browser may remember the answer
# What browsers send with their requests, and a page cannot keep them from sending, at least one of them; the tools that
# send none of these are no browsers. Sec-Fetch-Site alone is not enough: it is sent to trustworthy origins only.
_BROWSERS: Final = (b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"referer", b"accept-language")
_WELL_KNOWN: Final = frozenset({"guest"})  # users whose password every page knows
_PORT: Final = re.compile(r":[0-9]*\Z")
_TOKENS: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z, \t]*")


def check_origin(request: Request, options: HttpOptions) -> None:
    """Raise `HttpError` (403) where a page of an origin that is not allowed sends something to be stored.

    A browser asks first only for requests that no form could send; a gateway that admits clients without a name on
    its own machine must not take what any page there posts to it.
    """
    if request.safe:
        return
    origin = request.get(b"origin")
    if origin is None or _allowed(origin, options) or _same(origin, request.get(b"host")):
        return
    raise HttpError(403, f"origin: {origin[:128]} is not allowed", attribute="origin")


def check_host(request: Request, credentials: Credentials, options: HttpOptions) -> None:
    """Raise `HttpError` (403) where somebody without a password of his own calls this machine by an unknown name.

    To be called for connections from this machine itself, which are let in without a password. Requests that change
    something need a right Host (RFC 9110, 7.2), others where a browser sends them.
    """
    if credentials is not None and credentials[0] not in _WELL_KNOWN:
        return
    host = request.get(b"host")
    if host is None or (request.safe and all(request.get(name) is None for name in _BROWSERS)):
        return
    name = _PORT.sub("", host).lower()
    if name == "localhost" or _is_address(name) or name in {known.lower() for known in options.allowed_hosts}:
        return
    raise HttpError(403, f"host: {host[:128]} is not one of adapters.http.allowed_hosts", attribute="host")


def _is_address(name: str) -> bool:
    """Whether a host is an address itself, an IPv6 one in brackets (RFC 3986, 3.2.2)."""
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def _allowed(origin: str, options: HttpOptions) -> bool:
    return origin in options.cors_origins or "*" in options.cors_origins


def _same(origin: str, host: str | None) -> bool:
    try:
        return host is not None and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False


def shared(request: Request, response: Response, options: HttpOptions) -> Response:
    """The response with the headers that let an allowed origin's page read it."""
    if not options.cors_origins:
        return response
    headers = [(b"vary", b"origin"), *response.headers]
    origin = request.get(b"origin")
    if origin is not None and _allowed(origin, options):
        headers.append((b"access-control-allow-origin", origin.encode("latin-1")))
        headers.append((b"access-control-expose-headers", EXPOSED))
    return msgspec.structs.replace(response, headers=headers)


def with_preflight(request: Request, response: Response, options: HttpOptions) -> Response:
    """The response to OPTIONS, with what a preflight request asks for (Fetch, 4.8)."""
    origin, method = request.get(b"origin"), request.get(b"access-control-request-method")
    if origin is None or method is None or not _allowed(origin, options):
        return response
    asked = request.get(b"access-control-request-headers") or ""
    headers = [*response.headers, (b"access-control-allow-methods", METHODS), (b"access-control-max-age", PREFLIGHT_S)]
    if asked and _TOKENS.fullmatch(asked) is not None:
        headers.append((b"access-control-allow-headers", asked.encode()))
    return msgspec.structs.replace(response, headers=headers)
