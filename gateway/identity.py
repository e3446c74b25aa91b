"""Who a client says it is by what others vouch for: the names in certificates and tokens."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

__all__ = ["NAME_BYTES_MAX", "Claim", "identity_of", "is_name"]

NAME_BYTES_MAX = 255

_KINDS: Final = {"dns": "DNS", "uri": "URI", "email": "email"}


class Claim(NamedTuple):
    """Who somebody is who was vouched for."""

    name: str
    device: str = ""  # "": as `name`
    expires_at_ms: int | None = None


def identity_of(certificate: Mapping[str, Any] | None, kind: str) -> str | None:
    """Whom a verified certificate names, by `[tls] client_identity`; None where it names nobody, or several.

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
    """Whether somebody can have this name: some text without control characters."""
    return isinstance(text, str) and 0 < len(text.encode(errors="replace")) <= NAME_BYTES_MAX and text.isprintable()
