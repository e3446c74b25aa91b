"""Events in JSON that leave as the bytes that came, by protocols whose clients are sent what was published.

The message in the log is the event, whose body is its data. The text around the data, or around its Base64, is kept
beside it; where text has escapes the whole body is kept.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final

from adapters.cloudevents.attributes import OURS

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


def unambiguous(kept: Sequence[bytes]) -> bool:
    """Returns whether every reader of a body takes it for the event that it is to us, by the parts of `around`.

    It says each name once, as some readers take the first of two, and none that the gateway alone says.
    """
    text = kept[0] if len(kept) == 1 else b"1".join((kept[0], kept[-1]))
    try:
        json.loads(text, object_pairs_hook=_check_names)
    except (ValueError, RecursionError):
        return False
    return True


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    names = {name for name, _ in pairs}
    if len(names) < len(pairs) or not OURS.isdisjoint(names):
        raise ValueError("a name is there twice, or the gateway's")
