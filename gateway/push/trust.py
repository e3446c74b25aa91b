"""The authorities that sinks' certificates are checked by: the system's, and those of `subscriptions.ca_file`."""

import ssl
from functools import cached_property
from pathlib import Path
from typing import Final

from gateway.base.client_tls import client_tls

_CAUSES_MAX: Final = 8  # of an error, one below the other


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


def ca_file_mistake(ca_file: Path) -> str:
    """Returns why the certificates of a file cannot be used; "" where they can."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(ca_file)
    except ssl.SSLError:
        return f"{ca_file} holds no certificates; write the path of a PEM file"
    except OSError as error:
        return f"{ca_file} cannot be read ({error.strerror}); write the path of a PEM file"
    return ""


def refused_certificate(error: BaseException) -> str:
    """Returns why a sink's certificate was refused; "" where that is not the cause of an error."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the sink's certificate is refused: {cause.verify_message}; "
                "subscriptions.ca_file names authorities besides the system's"
            )
        if cause is None:
            break
        cause = cause.__cause__ or cause.__context__
    return ""
