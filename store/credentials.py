"""Mutual TLS between the nodes of a cluster: gRPC credentials from the files of a certificate, its key and its CA.

Everybody in a cluster has a certificate of the cluster's own CA and demands one: who has none gets no connection.
"""

from pathlib import Path
from typing import Any, NamedTuple

import grpc

__all__ = ["CredentialFiles"]


class CredentialFiles(NamedTuple):
    """PEM files: a certificate (with those between it and the CA), its private key, and the CA's certificates."""

    certificate: Path
    key: Path
    authority: Path

    def server(self) -> Any:
        """`grpc.ServerCredentials` that ask every client for a certificate of the CA. Raises OSError."""
        return grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.authority.read_bytes(),
            require_client_auth=True,
        )

    def channel(self) -> Any:
        """`grpc.ChannelCredentials` of a client. Raises OSError."""
        return grpc.ssl_channel_credentials(
            root_certificates=self.authority.read_bytes(),
            private_key=self.key.read_bytes(),
            certificate_chain=self.certificate.read_bytes(),
        )
