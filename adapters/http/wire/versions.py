"""The choice of HTTP's version by a connection's first bytes."""

from adapters.http.wire.guard import PREFACE
from adapters.http.wire.h1 import Http1
from adapters.http.wire.h2 import Http2
from adapters.http.wire.options import HttpOptions


def choose(opening: bytes, alpn: str | None, options: HttpOptions) -> Http1 | Http2 | None:
    """Returns HTTP/2 by ALPN or by its preface, else HTTP/1.1; None while the first bytes could be either."""
    if alpn is None and len(opening) < len(PREFACE) and PREFACE.startswith(opening):
        return None
    if alpn == "h2" or (alpn is None and opening.startswith(PREFACE)):
        http2 = Http2(options)
        http2.open()
        return http2
    return Http1(options)
