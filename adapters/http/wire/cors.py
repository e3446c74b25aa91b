"""The headers that let a page of another origin read a response (Fetch, 3.2: CORS).

Both a handler's response and a connection's refusal before there is a handler have them: without them a page sees a
network error, and never the problem document.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from adapters.http.wire.options import HttpOptions
from adapters.http.wire.response import Response
from store.base.browsers import ANY, allows_origin

ORIGIN: Final = b"origin"
# All, those of events too, which nobody can list; and by name for browsers that are older than the wildcard.
EXPOSED: Final = (
    b"*, etag, link, location, preference-applied, retry-after, x-create-revision, x-expires-at-ms, x-version"
)
_VARY: Final = (b"vary", b"origin")


def readable(
    headers: Sequence[tuple[bytes, bytes]], response: Response, options: HttpOptions, *, whole: bool = True
) -> Response:
    """Returns a response with the headers that let the page of an allowed origin read it.

    `whole`: these are all of them. Where they are not, the origin may be missing; every page may read the response if
    `cors_origins` allows all.
    """
    if not options.cors_origins:
        return response
    kept = [_VARY, *response.headers]
    if (allowed := _allowed(headers, options, whole=whole)) is not None:
        kept += (b"access-control-allow-origin", allowed), (b"access-control-expose-headers", EXPOSED)
    return msgspec.structs.replace(response, headers=kept)


def origin_wanted(headers: Sequence[tuple[bytes, bytes]], options: HttpOptions) -> bool:
    """Returns whether a response depends on an origin that these headers, which may be incomplete, do not name."""
    origins = options.cors_origins
    return bool(origins) and ANY not in origins and all(name != ORIGIN for name, _ in headers)


def _allowed(headers: Sequence[tuple[bytes, bytes]], options: HttpOptions, *, whole: bool) -> bytes | None:
    """Returns the origin whose pages may read the response; None for none. A request has one origin or no page."""
    found = [value for name, value in headers if name == ORIGIN]
    if len(found) == 1:
        return found[0] if allows_origin(found[0].decode("latin-1"), options.cors_origins) else None
    return None if found or whole or ANY not in options.cors_origins else ANY.encode()
