"""The URL of a gateway that commands are given: its certificate and host, and a password that no message shows."""

import re
import ssl
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from cryptography.x509 import DNSName

from gateway.cli import commands as cli
from gateway.cli.remote import messages as cli_remote
from gateway.remote.http import RemoteGateway, Unreachable
from tests.support.process.certificates import Authority


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main(monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["headgate", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def port(authority: Authority) -> Iterator[int]:
    """Yields the port of a server whose certificate, for localhost, is of a private authority."""
    issued = authority.issue("localhost", DNSName("localhost"), server=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.cert_file, issued.key_file)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_private_authority_is_named_by_an_option_or_the_environment(monkeypatch, authority, port):
    url = ("pub", "a", "b", "--url", f"https://localhost:{port}")
    assert main(monkeypatch, *url, "--ca-file", str(authority.file)) == 0
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    assert main(monkeypatch, *url) == 0


def test_a_refused_certificate_is_said_in_its_own_words(monkeypatch, capsys, authority, port):
    assert main(monkeypatch, "pub", "a", "b", "--url", f"https://localhost:{port}") == 3
    assert capsys.readouterr().err == (
        f"headgate: the certificate of https://localhost:{port} is refused: unable to get local issuer certificate; "
        "--ca-file and SSL_CERT_FILE name authorities\n"
    )
    other_name = ("--url", f"https://127.0.0.1:{port}", "--ca-file", str(authority.file))
    assert main(monkeypatch, "pub", "a", "b", *other_name) == 3
    assert "is refused: IP address mismatch" in capsys.readouterr().err


def test_a_port_without_tls_is_said(monkeypatch, capsys):
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        assert main(monkeypatch, "pub", "a", "b", "--url", f"https://127.0.0.1:{server.server_port}") == 3
        server.shutdown()
        thread.join()
    assert re.search(r"the TLS handshake with https://127.0.0.1:\d+ failed: [A-Z_]+$", capsys.readouterr().err.strip())


@pytest.mark.parametrize(("content", "words"), [(None, "cannot be read"), (b"x", "holds no certificates")])
def test_a_file_of_authorities_that_cannot_be_used_is_code_2(monkeypatch, capsys, tmp_path, content, words):
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    assert main(monkeypatch, "kv", "list", "--url", "https://localhost", "--ca-file", str(file)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"headgate: --ca-file: {file} {words}")


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("https://user:password@gateway.example:8443/x", "http://gateway.example:8089/status"),
        ("gateway.example", "http://gateway.example:8089/status"),
        ("http://[::1]:8080", "http://[::1]:8089/status"),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_topics_asks_the_admin_port_of_the_host_of_the_url(monkeypatch, url, asked, by_environment):
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(503)

    transport = httpx.MockTransport(answer)
    monkeypatch.setattr(cli_remote, "RemoteGateway", lambda at: RemoteGateway(at, transport=transport))
    if by_environment:
        monkeypatch.setenv("HEADGATE_URL", url)
    assert main(monkeypatch, "topics", "--port-offset", "1", *([] if by_environment else ["--url", url])) == 1
    assert [str(request.url) for request in seen] == [asked]
    assert "authorization" not in seen[0].headers, "the admin port knows no users"


@pytest.mark.parametrize("url", ["http://", "http://[::1", "/"])
def test_topics_refuses_a_url_without_a_host(monkeypatch, capsys, url):
    assert main(monkeypatch, "topics", "--url", url) == 2
    assert capsys.readouterr().err == "headgate: --url: names no host; write http://host:port\n"


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError(""),
        httpx.ReadTimeout(""),
        httpx.RemoteProtocolError(""),
        httpx.ReadError(""),
        httpx.InvalidURL("Invalid port: 'secret'"),
    ],
)
def test_a_password_stays_out_of_messages(error):
    def fail(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"].startswith("Basic ")
        raise error

    transport = httpx.MockTransport(fail)
    with RemoteGateway("https://alice:secret@gw:1/", transport=transport) as remote, pytest.raises(Unreachable) as said:
        remote.publish("a", b"")
    assert "https://gw:1" in str(said.value)
    assert "secret" not in str(said.value)


def test_a_password_that_breaks_its_url_stays_out_of_messages():
    with pytest.raises(Unreachable, match=r"^https://gw:1 is no URL") as said:
        RemoteGateway("https://alice:se/cret@gw:1")
    assert "se" not in str(said.value).partition(" is no URL")[0]
