"""Finds out why a controller does not answer: nothing listens, or the two sides disagree about TLS.

gRPC reports all of these as a failed connection. So the port is tried once more, by hand.
"""

import socket
import ssl
from collections.abc import Iterable
from typing import Any

from gateway.config.cluster_settings import NodeAddress
from store.base.pipes.pipe import OPENING

PROBE_S = 2.0  # to connect, and for TLS
UNIX = "unix:"
REFUSED = "does not accept the certificate of cluster.tls.cert_file; its log says why"
_NO_TLS = {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"}


def why_unreachable(addresses: Iterable[str], credentials: Any) -> str:
    """Returns one sentence for all controllers that were asked."""
    found = [f"{address} {why_silent(address, credentials)}" for address in addresses]
    return f"no controller answers: {'; '.join(found)}"


def why_silent(address: str, credentials: Any) -> str:
    """Returns the trouble with one address, as the end of a sentence that begins with the address."""
    if address.startswith(UNIX):
        return "does not answer"
    try:
        at = NodeAddress.parse(address)
        probe = socket.create_connection((at.host, at.port), PROBE_S)
    except ValueError:
        return "is not host:port"
    except ConnectionRefusedError:
        return "refuses connections: nothing listens there"
    except socket.gaierror:
        return "has a name that is not known"
    except TimeoutError:
        return f"takes no connection within {PROBE_S:g} s"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    with probe:
        if credentials is None:
            return _without(probe)
        fault = _with(probe, credentials.tls, at.host)
    return fault or _behind(at, credentials.tls)


def _without(probe: socket.socket) -> str:
    """Returns the fault, as seen without a certificate of ours."""
    any_server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    any_server.check_hostname = False
    any_server.verify_mode = ssl.CERT_NONE  # only whether it speaks TLS is asked
    try:
        any_server.wrap_socket(probe).close()
    except ssl.SSLError as error:
        if (error.reason or "") in _NO_TLS:
            return "listens, but does not answer as a controller"
    except OSError:
        return "listens, but does not answer as a controller"
    return "demands TLS: name a node's file that has [cluster.tls], with --config"


def _with(probe: socket.socket, tls: ssl.SSLContext, host: str) -> str:
    """Returns the fault, as seen with a certificate of ours, where one is required; "" where the handshake succeeds."""
    try:
        with tls.wrap_socket(probe, server_hostname=host) as secured:
            secured.settimeout(PROBE_S)
            secured.recv(1)  # TLS 1.3 refuses a client's certificate behind the handshake
    except ssl.SSLCertVerificationError as error:
        return f"has a certificate that cluster.tls.ca_file does not vouch for: {error.verify_message}"
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if reason in _NO_TLS:
            return "speaks without TLS, and [cluster.tls] demands it"
        return f"refuses the certificate of cluster.tls.cert_file: {reason.lower().replace('_', ' ')}"
    except TimeoutError:
        return ""
    except OSError as error:
        return f"ends the connection: {error.strerror or error}"
    return ""


def _behind(at: NodeAddress, tls: ssl.SSLContext) -> str:
    """Returns the fault behind a handshake that succeeds: of TLS 1.3 a client's certificate is checked after it.

    A node closes then, without a word. Of a sound certificate it waits for the name of a stream.
    """
    try:
        with socket.create_connection((at.host, at.port), PROBE_S) as probe:
            probe.sendall(OPENING)
            with tls.wrap_socket(probe, server_hostname=at.host) as secured:
                secured.settimeout(PROBE_S)
                if not secured.recv(1):
                    return REFUSED
    except TimeoutError:
        pass
    except OSError:  # TLS's errors are too
        return REFUSED
    return "speaks TLS, but does not answer as a controller"
