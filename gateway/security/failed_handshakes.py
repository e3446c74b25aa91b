"""The handshakes of TLS and DTLS that fail: counted for each protocol, and logged with the reason of each."""

import ssl

from prometheus_client import Counter

from store.base import logs

log = logs.get(__name__)


class FailedHandshakes:
    """Counts and logs the failed handshakes of one listener."""

    def __init__(self, listener: str, protocol: str, counter: Counter) -> None:
        """Begins with `counter`, which has those of all listeners of `protocol`."""
        self._listener = listener
        self._protocol = protocol
        self._counter = counter

    def note(self, host: str, reason: str) -> None:
        """Counts and logs one, of a peer at `host`."""
        self._counter.inc()
        log.info("a handshake failed", listener=self._listener, protocol=self._protocol, host=host, reason=reason)


def why_failed(error: OSError) -> str:
    """Returns why a TLS handshake ended with an error, "" where the peer has just gone away."""
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).replace("_", " ").lower()
        detail = getattr(error, "verify_message", "")
        return f"{reason}: {detail}" if detail else reason
    if isinstance(error, ConnectionAbortedError):  # so do asyncio and uvloop say that the time is up
        return "it takes too long"
    return ""
