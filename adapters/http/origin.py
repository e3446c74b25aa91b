"""Browsers: which pages may use the gateway (Fetch, 3.2: CORS), and which must not without their user's knowledge."""

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

from adapters.http.options import HttpOptions
from adapters.http.request import HttpError, Request
from adapters.http.response import Response

__all__ = ["check_origin", "shared", "with_preflight"]

EXPOSED: Final = b"etag, location, retry-after"
METHODS: Final = b"DELETE, GET, HEAD, POST"
PREFLIGHT_S: Final = b"600"  # how long a browser may remember the answer
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
