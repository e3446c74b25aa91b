"""TLS of connections that this process opens."""

import ssl
from pathlib import Path
from typing import Final

_CAUSES_MAX: Final = 8  # of an error, one below the other


def client_tls(ca_file: Path | None = None) -> ssl.SSLContext:
    """Returns a context that verifies servers, by the authorities of a file or of the system.

    Raises OSError for a file that cannot be read or used.
    """
    context = ssl.create_default_context(cafile=ca_file)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
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


def tls_cause(error: BaseException) -> ssl.SSLError | None:
    """Returns the error of TLS that is the cause of an error; None where there is none."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if cause is None or isinstance(cause, ssl.SSLError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None
