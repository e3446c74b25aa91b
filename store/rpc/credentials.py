"""Mutual TLS between the nodes of a cluster: credentials from the files of a certificate, its key and its CA.

Everybody in a cluster has a certificate of the cluster's own CA and demands one: a peer without one gets no connection.
"""

import errno
import ssl
from pathlib import Path
from typing import Any, NamedTuple

import grpc


class CredentialFiles(NamedTuple):
    """PEM files: a certificate (with those between it and the CA), its private key, and the CA's certificates."""

    certificate: Path
    key: Path
    authority: Path

    def server(self) -> Any:
        """Returns `grpc.ServerCredentials` that ask clients for a certificate; with `tls`, the same for pipes.

        Raises OSError.
        """
        made = grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.authority.read_bytes(),
            require_client_auth=True,
        )
        made.tls = self._tls(ssl.PROTOCOL_TLS_SERVER)
        return made

    def channel(self) -> Any:
        """Returns `grpc.ChannelCredentials` of a client; with `tls`, the same for pipes. Raises OSError."""
        made = grpc.ssl_channel_credentials(
            root_certificates=self.authority.read_bytes(),
            private_key=self.key.read_bytes(),
            certificate_chain=self.certificate.read_bytes(),
        )
        made.tls = self._tls(ssl.PROTOCOL_TLS_CLIENT)
        return made

    def _tls(self, side: int) -> ssl.SSLContext:
        """Returns a context by which either side proves to the other who it is."""
        tls = ssl.SSLContext(side)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            tls.load_verify_locations(self.authority)
            tls.load_cert_chain(self.certificate, self.key)
        except ssl.SSLError as error:
            raise OSError(
                errno.EINVAL,
                f"not PEM, or the key does not belong to the certificate ({error.reason})",
                str(self.certificate),
            ) from error
        tls.verify_mode = ssl.CERT_REQUIRED
        return tls
