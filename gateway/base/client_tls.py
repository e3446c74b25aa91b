"""TLS of connections that this process opens."""

import ssl
from pathlib import Path


def client_tls(ca_file: Path | None = None) -> ssl.SSLContext:
    """Returns a context that verifies servers, by the authorities of a file or of the system.

    Raises OSError for a file that cannot be read or used.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
