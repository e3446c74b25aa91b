"""Mutual TLS between the nodes of a cluster: credentials from the files of a certificate, its key and its CA.

Everybody in a cluster has a certificate of the cluster's own CA and demands one: a peer without one gets no connection.
"""

import errno
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from cryptography.x509 import load_pem_x509_certificate


class CredentialFiles(NamedTuple):
    """PEM files: a certificate (with those between it and the CA), its private key, and the CA's certificates."""

    certificate: Path
    key: Path
    authority: Path

    def server(self) -> Any:
        """Returns `grpc.ServerCredentials` that ask clients for a certificate; with `tls`, the same for pipes,
        and `until_s`, the end of the certificate.

        Raises OSError.
        """
        made = grpc.ssl_server_credentials(
            [(self.key.read_bytes(), self.certificate.read_bytes())],
            root_certificates=self.authority.read_bytes(),
            require_client_auth=True,
        )
        made.tls, made.until_s = self._tls(ssl.PROTOCOL_TLS_SERVER), self._until_s()
        return made

    def channel(self) -> Any:
        """Returns `grpc.ChannelCredentials` of a client; with `tls`, the same for pipes. Raises OSError."""
        made = grpc.ssl_channel_credentials(
            root_certificates=self.authority.read_bytes(),
            private_key=self.key.read_bytes(),
            certificate_chain=self.certificate.read_bytes(),
        )
        made.tls, made.until_s = self._tls(ssl.PROTOCOL_TLS_CLIENT), self._until_s()
        return made

    def _until_s(self) -> float:
        """Returns when the certificate expires, in seconds since 1970."""
        return load_pem_x509_certificate(self.certificate.read_bytes()).not_valid_after_utc.timestamp()

    def refusal(self, reached_at: str | None = None) -> str:
        """Returns why other nodes would refuse this certificate, "" where they would not.

        A node that is `reached_at` a name or an address is a server and a client of others that have the same
        authority. Of a process for which it is None others may trust another one. Raises OSError.
        """
        if reached_at is None:
            return self._out_of_time()
        return self._refused(ssl.PROTOCOL_TLS_SERVER, reached_at) or self._refused(ssl.PROTOCOL_TLS_CLIENT)

    def _out_of_time(self) -> str:
        certificate, now = load_pem_x509_certificate(self.certificate.read_bytes()), datetime.now(UTC)
        if now > certificate.not_valid_after_utc:
            return "certificate has expired"
        return "certificate is not yet valid" if now < certificate.not_valid_before_utc else ""

    def _refused(self, side: int, host: str = "") -> str:
        """Returns why a peer would refuse this certificate on one side of TLS, by a handshake in memory."""
        client, server = self._tls(ssl.PROTOCOL_TLS_CLIENT), self._tls(ssl.PROTOCOL_TLS_SERVER)
        client.check_hostname = bool(host)
        (client if side == ssl.PROTOCOL_TLS_CLIENT else server).verify_mode = ssl.CERT_NONE
        try:
            ends = _End(client, host), _End(server, None)
            while not all(end.done for end in ends):
                for end, other in (ends, ends[::-1]):
                    end.step()
                    other.incoming.write(end.outgoing.read())
        except ssl.SSLCertVerificationError as error:
            return str(error.verify_message)
        except ssl.SSLError as error:
            return str(error.reason)
        except UnicodeError:
            return f"{host} is no name of a host"
        return ""

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


class _End:
    """One end of a handshake in memory; `host` is the server's, None of a server."""

    def __init__(self, tls: ssl.SSLContext, host: str | None) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.done = False
        self._tls = tls.wrap_bio(self.incoming, self.outgoing, server_side=host is None, server_hostname=host or None)

    def step(self) -> None:
        """Goes on as far as what has come allows. Raises `ssl.SSLError`."""
        try:
            self._tls.do_handshake()
            self.done = True
        except ssl.SSLWantReadError:
            pass
