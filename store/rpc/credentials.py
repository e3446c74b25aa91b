"""Mutual TLS between the nodes of a cluster: credentials from the files of a certificate, its key and its CA.

Everybody in a cluster has a certificate of the cluster's own CA and demands one: a peer without one gets no connection.
"""

import errno
import ssl
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc
from cryptography.x509 import load_pem_x509_certificate

from store.base import logs
from store.base.watched_files import WatchedFiles

LOOK_INTERVAL_MS: Final = 5_000  # between two looks whether the files have changed

log = logs.get(__name__)


class CredentialFiles(NamedTuple):
    """PEM files: a certificate (with those between it and the CA), its private key, and the CA's certificates."""

    certificate: Path
    key: Path
    authority: Path

    def server(self, reached_at: str | None = None) -> "MutualTls":
        """Returns the credentials of a server that is reached at this name or address. Raises OSError."""
        return MutualTls(self, ssl.PROTOCOL_TLS_SERVER, reached_at)

    def channel(self, reached_at: str | None = None) -> "MutualTls":
        """Returns the credentials of a client, which is a server as well where it is reached. Raises OSError."""
        return MutualTls(self, ssl.PROTOCOL_TLS_CLIENT, reached_at)

    def until_s(self) -> float:
        """Returns when the certificate expires, in seconds since 1970. Raises OSError."""
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
        client, server = self.context(ssl.PROTOCOL_TLS_CLIENT), self.context(ssl.PROTOCOL_TLS_SERVER)
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

    def context(self, side: int) -> ssl.SSLContext:
        """Returns a context by which either side proves to the other who it is. Raises OSError."""
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


class MutualTls:
    """The credentials of one side of the connections between nodes.

    Files that are renewed are read again for the connections that begin from then on. New ones that cannot be used, or
    that other nodes would refuse, leave the former ones in force.
    """

    def __init__(self, files: CredentialFiles, side: int, reached_at: str | None = None) -> None:
        """See `CredentialFiles`; `side` is `ssl.PROTOCOL_TLS_SERVER` or `_CLIENT`. Raises OSError."""
        self._files = files
        self._side = side
        self._reached_at = reached_at
        self._watched = WatchedFiles(files, interval_ms=LOOK_INTERVAL_MS)
        self._fault = ""  # of new files, as it was logged last
        self._looking = threading.Lock()
        self._tls, self._until_s, self._pem = self._made()

    @property
    def tls(self) -> ssl.SSLContext:
        """Returns the context of a connection that begins now."""
        self._look()
        return self._tls

    @property
    def until_s(self) -> float:
        """Returns when the certificate expires, in seconds since 1970."""
        self._look()
        return self._until_s

    def for_grpc(self) -> Any:
        """Returns the same, as it is now, as `grpc.ServerCredentials` or `grpc.ChannelCredentials`."""
        self._look()
        key, certificate, authority = self._pem
        if self._side == ssl.PROTOCOL_TLS_SERVER:
            return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def _made(self) -> tuple[ssl.SSLContext, float, tuple[bytes, bytes, bytes]]:
        """Returns what is made of the files. Raises OSError."""
        files = self._files
        pem = files.key.read_bytes(), files.certificate.read_bytes(), files.authority.read_bytes()
        return files.context(self._side), files.until_s(), pem

    def _look(self) -> None:
        """Reads changed files again. While one thread looks the others take what there is."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            if self._watched.changed_by(time.monotonic_ns() // 1_000_000):
                self._read_again()
        finally:
            self._looking.release()

    def _read_again(self) -> None:
        try:
            fault = self._files.refusal(self._reached_at)
            made = None if fault else self._made()
        except (OSError, ValueError) as error:
            made, fault = None, str(error)
        if made is not None and self._watched.changed():  # while they were read: they may not belong together
            self._watched.read_again()
            return
        if made is not None:
            self._tls, self._until_s, self._pem = made
            log.info("the certificate of the cluster is read again", until=self._until_s)
        elif fault != self._fault:
            log.warning("the new certificate of the cluster cannot be used; the former stays in force", error=fault)
        self._fault = fault
        if fault:
            self._watched.read_again()  # one that is not valid yet will be


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
