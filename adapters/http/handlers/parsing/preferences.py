"""Preferences of a request: the header Prefer (RFC 7240)."""

import re
from typing import Final

from adapters.http.wire.request import HttpRequest

# Text up to the next comma or semicolon, or to the end; those in a quoted-string, closed or not, separate nothing.
_PIECES: Final = re.compile(r'((?:"(?:[^"\\]|\\.?)*(?:"|\Z)|[^,;"])*)([,;]|\Z)')


def preference(request: HttpRequest, wanted: str) -> str | None:
    """Returns the value of a preference, "" where it has none; None where the request does not have it.

    Of a preference that is given more than once the first counts; parameters of others say nothing (RFC 7240, 2).
    """
    begins = True
    for piece, separator in _PIECES.findall(request.get(b"prefer") or ""):
        name, _, value = piece.partition("=")
        if begins and name.strip().lower() == wanted:
            return str(value).strip().strip('"')
        begins = separator == ","
    return None
