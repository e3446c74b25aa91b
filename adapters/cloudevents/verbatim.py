"""Events in JSON that leave as the bytes that came, by protocols whose clients are sent what was published.

The message in the log is the event, whose body is its data. The text around the data, or around its Base64, is kept
beside it; where text has escapes the whole body is kept.
"""

from base64 import b64encode
from collections.abc import Sequence
from typing import Final

KEPT_BYTES_MAX: Final = 64 << 10  # of a body that are kept beside its data


def around(data: bytes, body: bytes) -> list[bytes] | None:
    """Returns what is kept of a body: two parts around its data, three around its Base64, or the one that it is.

    None where that is more than `KEPT_BYTES_MAX`.
    """
    kept = [body]
    if data:
        before, found, behind = body.partition(data)
        if found:
            kept = [before, behind]
        else:
            before, found, behind = body.partition(b64encode(data))
            kept = [before, b"", behind] if found else kept
    return kept if sum(map(len, kept)) <= KEPT_BYTES_MAX else None


def whole(kept: Sequence[bytes], data: bytes) -> bytes:
    """Returns the body that `around` kept the parts of."""
    if len(kept) == 1:
        return kept[0]
    return b"".join((kept[0], data if len(kept) == 2 else b64encode(data), kept[-1]))
