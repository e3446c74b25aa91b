"""The authorities that sinks' certificates are checked by: the system's, and those of `subscriptions.ca_file`."""

import ssl
from functools import cached_property
from pathlib import Path

from gateway.base.client_tls import client_tls, tls_cause


class SinkTrust:
    """The TLS contexts of connections to sinks. The file is read at once: later changes of it have no effect."""

    def __init__(self, ca_file: Path | None) -> None:
        """Raises OSError."""
        self._authorities = "" if ca_file is None else ca_file.read_bytes().decode("ascii", "ignore")

    @cached_property
    def http(self) -> ssl.SSLContext:
        """Returns the context of connections over HTTP, whose client adds the names of its protocols (ALPN)."""
        return self._context()

    @cached_property
    def brokers(self) -> ssl.SSLContext:
        """Returns the context of connections to brokers."""
        return self._context()

    def _context(self) -> ssl.SSLContext:
        context = client_tls()
        if self._authorities:
            context.load_verify_locations(cadata=self._authorities)
        return context


def refused_certificate(error: BaseException) -> str:
    """Returns why a sink's certificate was refused; "" where that is not the cause of an error."""
    cause = tls_cause(error)
    if not isinstance(cause, ssl.SSLCertVerificationError):
        return ""
    return (
        f"the sink's certificate is refused: {cause.verify_message}; "
        "subscriptions.ca_file names authorities besides the system's"
    )
