"""Identities that others vouch for: the names in certificates and tokens; and the names of users."""

import unicodedata
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

NAME_BYTES_MAX = 255

_KINDS: Final = {"dns": "DNS", "uri": "URI", "email": "email"}


class Claim(NamedTuple):
    """An identity that was vouched for."""

    name: str
    device: str = ""  # "": as `name`
    expires_at_ms: int | None = None


def identity_of(certificate: Mapping[str, Any] | None, kind: str) -> str | None:
    """Returns the name in a verified certificate, by `[tls] client_identity`; None where it has no name, or several.

    `certificate` is as `ssl.SSLObject.getpeercert` gives it.
    """
    if not certificate:
        return None
    if kind == "cn":
        pairs = [pair for part in certificate.get("subject", ()) for pair in part]
        names = [value for key, value in pairs if key == "commonName"]
    else:
        names = [value for key, value in certificate.get("subjectAltName", ()) if key == _KINDS[kind]]
    return names[0] if len(names) == 1 and is_name(names[0]) else None


def is_name(text: Any) -> bool:
    """Returns whether a text can be a user's name: not empty, not too long, without control characters."""
    return isinstance(text, str) and 0 < len(text.encode(errors="replace")) <= NAME_BYTES_MAX and text.isprintable()


def check_user_name(name: str) -> None:
    """Raises ValueError, whose text does not repeat it, for a text that cannot be the name of a user.

    No protocol has to carry more than these: MQTT's user names have no U+0000, and should have no other control
    characters either (5.0, 1.5.4).
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError("is not UTF-8; write another name") from None
    if not 0 < size <= NAME_BYTES_MAX:
        raise ValueError(f"has {size} bytes; write a name of 1 to {NAME_BYTES_MAX}")
    if any(unicodedata.category(one) == "Cc" for one in name):
        raise ValueError("has a control character; write a name without")
