"""The reasons why a controller does not answer, as an operator is told."""

import ipaddress
import socket
import ssl
import threading

import pytest
from cryptography import x509

from gateway.operating import unreachable
from gateway.operating.unreachable import why_silent, why_unreachable
from store.rpc.credentials import CredentialFiles
from tests.support.process.certificates import Authority


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Returns the credentials of a server, of a node, and of a node of another cluster."""
    directory = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority(directory / "ours"), Authority(directory / "theirs", "other")
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    server = ours.issue("server", here, server=True)
    mine, other = ours.issue("node"), theirs.issue("node")
    return (
        CredentialFiles(server.cert_file, server.key_file, ours.file).server().tls,
        CredentialFiles(mine.cert_file, mine.key_file, ours.file).channel(),
        CredentialFiles(other.cert_file, other.key_file, theirs.file).channel(),
        CredentialFiles(other.cert_file, other.key_file, ours.file).channel(),
    )


@pytest.fixture
def serve():
    """Yields a function that starts a server, which answers every connection in one way, and returns its address."""
    sockets, threads = [], []

    def start(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def run():
            try:
                while True:
                    answer(listener.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        threads.append(thread)
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for one in sockets:
        one.shutdown(socket.SHUT_RDWR)
        one.close()
    for thread in threads:
        thread.join(10)


def plainly(accepted):
    """Answers as a server of HTTP/2 without TLS does."""
    accepted.sendall(b"\0\0\0\x04\0\0\0\0\0")
    accepted.close()


def by(tls):
    def secured(accepted):
        try:
            with tls.wrap_socket(accepted, server_side=True) as made:
                made.recv(1)
        except (ssl.SSLError, ConnectionError):
            accepted.close()

    return secured


def silently(tls):
    """Refuses a certificate as a node does: without a word, behind a handshake that has succeeded for the client."""

    def refused(accepted):
        with accepted:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            end = tls.wrap_bio(incoming, outgoing, server_side=True)
            first = accepted.recv(1)
            incoming.write(b"" if first == b"\x01" else first)
            try:
                while True:
                    try:
                        end.do_handshake()
                        return
                    except ssl.SSLWantReadError:
                        accepted.sendall(outgoing.read())
                        incoming.write(accepted.recv(1 << 16))
            except ssl.SSLError:
                accepted.shutdown(socket.SHUT_WR)

    return refused


def test_silence_and_refusals_are_told_apart(serve, certificates, monkeypatch):
    monkeypatch.setattr(unreachable, "PROBE_S", 5.0)
    server, mine, other, unknown = certificates
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    plain, secure = serve(plainly), serve(by(server))
    assert why_silent(nobody, None) == "refuses connections: nothing listens there"
    assert why_silent("no such:host", None) == "is not host:port"
    assert why_silent("unix:/nowhere", None) == "does not answer"
    assert why_silent(plain, None) == "listens, but does not answer as a controller"
    assert why_silent(plain, mine) == "speaks without TLS, and [cluster.tls] demands it"
    assert why_silent(secure, None) == "demands TLS: name a node's file that has [cluster.tls], with --config"
    assert why_silent(secure, other).startswith("has a certificate that cluster.tls.ca_file does not vouch for: ")
    assert why_silent(secure, unknown).startswith("refuses the certificate of cluster.tls.cert_file: ")
    assert why_silent(serve(silently(server)), unknown) == unreachable.REFUSED
    assert why_unreachable([nobody, plain], None) == (
        f"no controller answers: {nobody} refuses connections: nothing listens there; "
        f"{plain} listens, but does not answer as a controller"
    )
