"""Connections that are refused, in the log: a line for each peer and reason in a while, however often it recurs."""

import logging
import ssl
from collections.abc import Callable

logger = logging.getLogger(__name__)

AGAIN_S = 60.0  # before the same is logged again
KINDS_MAX = 256  # of a peer and a reason; beyond, the oldest one is forgotten
_NO_TLS = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNSUPPORTED_PROTOCOL"}


class NotAdmitted(OSError):
    """Raised for a connection to gRPC that ended before a service had admitted it."""

    def __init__(self) -> None:
        super().__init__("it asked gRPC for nothing sound, or failed in the TLS handshake, which gRPC does not tell")


class NotServed(OSError):
    """Raised for a connection that this node cannot serve; says why."""


class Refusals:
    """Connections that were not established."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """Reads the time from `clock_s`."""
        self._clock_s = clock_s
        self._logged: dict[tuple[str, str], float] = {}  # when, oldest first; <= KINDS_MAX
        self._more: dict[tuple[str, str], int] = {}  # since then; has the keys of `_logged`

    def note(self, host: str, error: OSError, *, secure: bool) -> None:
        """Logs why a connection of a host was not established. `secure`: by the port's rules it needs TLS."""
        why = str(error) if isinstance(error, NotServed) else why_refused(error) if secure else ""
        end = f"is refused: {why}" if why else f"was not established: {str(error) or type(error).__name__}"
        kind, now_s = (host, end), self._clock_s()
        since_s = self._logged.get(kind)
        if since_s is not None and now_s - since_s < AGAIN_S:
            self._more[kind] += 1
            return
        more = self._more.pop(kind, 0)
        repeated = f", and {more} more since the line before" if more else ""
        logger.log(logging.WARNING if why else logging.INFO, "a connection from %s %s%s", host, end, repeated)
        self._logged.pop(kind, None)
        self._logged[kind], self._more[kind] = now_s, 0
        while len(self._logged) > KINDS_MAX:
            oldest = next(iter(self._logged))
            del self._logged[oldest], self._more[oldest]


def why_refused(error: OSError) -> str:
    """Returns the reason why TLS was not established, "" where that is not known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message}); see cluster.tls.ca_file"
    if isinstance(error, ConnectionResetError) and not error.args:  # uvloop's, of a peer that closes in the handshake
        return "it has ended the TLS handshake, as it does where it does not accept the certificate of this node"
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return "it does not speak TLS, which [cluster.tls] demands"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it has shown no certificate, which [cluster.tls] demands"
    if "ALERT" in reason:
        return f"it does not accept the certificate of this node ({reason.lower().replace('_', ' ')})"
    return f"the TLS handshake has failed ({reason.lower().replace('_', ' ')})"
