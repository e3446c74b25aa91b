"""The end of a node's certificate, for its operator and for those who elect."""

from datetime import UTC, datetime
from typing import Any

SOON_S = 14 * 86_400


def expiry_warnings(credentials: Any, now_s: float) -> tuple[str, ...]:
    """Returns a warning where the certificate of a node's credentials has expired, or will soon.

    `credentials` are `store.rpc.credentials`', or None. `now_s` is since 1970.
    """
    until_s = getattr(credentials, "until_s", None)
    if until_s is None or until_s - now_s > SOON_S:
        return ()
    at = datetime.fromtimestamp(until_s, UTC).isoformat(sep=" ", timespec="minutes").removesuffix("+00:00")
    if until_s > now_s:
        return (
            f"the certificate of cluster.tls.cert_file expires at {at} UTC: renew it before, in place; the node "
            "reads it again",
        )
    return (
        f"the certificate of cluster.tls.cert_file has expired at {at} UTC: other nodes refuse new connections, and "
        "where this node becomes master, its group stands still; renew it in place: the node reads it again",
    )


def has_expired(credentials: Any, now_s: float) -> bool:
    """Returns whether other nodes refuse the certificate, as it has expired."""
    until_s = getattr(credentials, "until_s", None)
    return until_s is not None and until_s < now_s
