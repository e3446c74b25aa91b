"""Browsers: which pages may use the gateway (Fetch, 3.2: CORS), and which must not without their user's knowledge.

A page of any site can send requests to the machine it is shown on. `check_origin` checks the origin that it names. It
can also let a name of its own lead to this machine (DNS rebinding): then the gateway is its origin. `check_host` finds
such a name.
"""

import re
from typing import Final

import msgspec

from adapters.http.handlers.credentials import Credentials
from adapters.http.wire.coding import compressed
from adapters.http.wire.cors import readable
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response
from store.base.browsers import BROWSERS, allows_origin, knows_host, same_origin

METHODS: Final = b"DELETE, GET, HEAD, POST, PUT"
PREFLIGHT_S: Final = b"600"  # how long a browser may remember the answer
_BROWSERS: Final = tuple([name.encode() for name in BROWSERS])
_WELL_KNOWN: Final = frozenset({"guest"})  # users whose password every page knows
_HOST: Final = re.compile(r"[A-Za-z0-9.*:_-]{1,255}")
_TOKENS: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z, \t]*")


def check_origin(request: HttpRequest, options: HttpOptions, *, page: bool = False) -> None:
    """Raises `HttpError` (403) where a page of an origin that is not allowed sends something to be stored.

    With `page` whatever it asks for: a browser lets every page read a WebSocket (RFC 6455, 10.2).

    A browser asks first only for requests that no form could send; a gateway that admits clients without a name on
    its own machine must not take the posts of any page there.
    """
    if request.safe and not page:
        return
    origin = request.get(b"origin")
    if origin is None or allows_origin(origin, options.cors_origins) or same_origin(origin, request.host):
        return
    raise HttpError(403, f"origin: {origin[:128]} is not allowed", attribute="origin")


def check_host(request: HttpRequest, credentials: Credentials, options: HttpOptions) -> None:
    """Raises `HttpError` (403) where a client without a password of its own calls this machine by an unknown name.

    To be called for connections from this machine itself, which are let in without a password. Requests that change
    something need a right Host (RFC 9110, 7.2), others where a browser sends them.
    """
    if credentials is not None and credentials[0] not in _WELL_KNOWN:
        return
    host = request.host
    if host is None or (request.safe and all(request.get(name) is None for name in _BROWSERS)):
        return
    if knows_host(host, options.allowed_hosts):
        return
    raise HttpError(403, f"host: {host[:128]} is not one of adapters.http.allowed_hosts", attribute="host")


def finished(request: HttpRequest, response: Response, options: HttpOptions) -> Response:
    """Returns the response as the client accepts it, with the headers that let an allowed origin's page read it."""
    if response.body:
        response = compressed(request, response, options.compress_bytes_min)
    return readable(request.headers, response, options)


def with_options(request: HttpRequest, response: Response, options: HttpOptions) -> Response:
    """Returns the response to OPTIONS: to the preflight request of a page, or the handshake of a sender of events."""
    return _with_consent(request, _with_preflight(request, response, options), options)


def _with_preflight(request: HttpRequest, response: Response, options: HttpOptions) -> Response:
    """Answers a preflight request (Fetch, 4.8)."""
    origin, method = request.get(b"origin"), request.get(b"access-control-request-method")
    if origin is None or method is None or not allows_origin(origin, options.cors_origins):
        return response
    asked = request.get(b"access-control-request-headers") or ""
    headers = [*response.headers, (b"access-control-allow-methods", METHODS), (b"access-control-max-age", PREFLIGHT_S)]
    if asked and _TOKENS.fullmatch(asked) is not None:
        headers.append((b"access-control-allow-headers", asked.encode()))
    return msgspec.structs.replace(response, headers=headers)


def _with_consent(request: HttpRequest, response: Response, options: HttpOptions) -> Response:
    """Consents to be sent events (HTTP 1.1 Web Hooks for Event Delivery, 4.2)."""
    origin = request.get(b"webhook-request-origin")
    if origin is None or _HOST.fullmatch(origin) is None:
        return response
    if {"*", origin.lower()}.isdisjoint([one.lower() for one in options.webhook_origins]):  # names of DNS
        return response
    path, _ = request.split_target()
    if path != "/events" and not path.startswith("/topics/"):
        return response
    granted = ((b"webhook-allowed-origin", origin.encode()), (b"webhook-allowed-rate", b"*"))
    return msgspec.structs.replace(response, headers=[*response.headers, *granted])
