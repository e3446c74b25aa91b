"""libcoap's clients over DTLS 1.2, with OpenSSL and with GnuTLS, by pre-shared key and by certificate."""

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from adapters.coap import FACTORY
from tests.support.coap.coap_gateway import coap_gateway
from tests.support.process.certificates import Authority, node_files

pytestmark = pytest.mark.anyio
pytest.importorskip("OpenSSL", reason="pyOpenSSL, of the extra dtls, is not installed")

CLIENTS = [name for name in ("coap-client-openssl", "coap-client-gnutls") if shutil.which(name)]
ANSWER_TIMEOUT_S = 60
KEYS = [
    {"identity": "dev1", "key": b"a-secret-of-dev1".hex()},
    {"identity": "gw", "key": b"another-secret".hex(), "user": "dev2"},
]
LARGE = bytes(range(256)) * 40


@asynccontextmanager
async def serving(directory: Path, **sections: Any) -> AsyncIterator[str]:
    """Yields the URI of a gateway that speaks CoAP over DTLS only, to clients that prove their identity."""
    (directory / "psk.json").write_text(json.dumps({"keys": KEYS}))
    auth = {"anonymous": "nobody", "psk_file": str(directory / "psk.json")}
    rules = [{"effect": "allow", "filters": ["${device}/#"], "users": ["*"]}]
    listeners = {
        "coap": {"enabled": False},
        "coap-tcp": {"enabled": False},
        "coaps": {"enabled": True, "port": 0},
    }
    own = {"listeners": listeners, "access": {"default": "deny", "rules": rules}, "auth": auth, **sections}
    async with coap_gateway(directory, "coaps", own) as uri:
        yield uri


@pytest.fixture(autouse=True)
def coap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.process.app.adapter_factories", lambda: {"coap": FACTORY})


async def run(client: str, *arguments: str) -> bytes:
    """Runs a client, and returns its output and its errors."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(client, *arguments, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            out, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    return out


async def code(client: str, *arguments: str) -> str:
    """Returns the code of the error that a client receives; returns "" where there is no error or no answer."""
    found = re.search(rb"^(\d\.\d\d) ", await run(client, *arguments), re.MULTILINE)
    return "" if found is None else found[1].decode()


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_with_a_pre_shared_key(tmp_path: Path, client: str) -> None:
    one, other = ("-u", "dev1", "-k", "a-secret-of-dev1"), ("-u", "gw", "-k", "another-secret")
    body, back = tmp_path / "body", tmp_path / "back"
    body.write_bytes(LARGE)
    async with serving(tmp_path) as uri:
        assert not await code(client, *one, "-m", "post", "-t", "0", "-e", "21", f"{uri}/t/dev1/temp")
        assert (await run(client, *one, "-m", "get", f"{uri}/t/dev1/temp")).strip() == b"21"
        await run(client, *one, "-m", "put", "-b", "1024", "-f", str(body), f"{uri}/t/dev1/large")
        await run(client, *one, "-m", "get", "-o", str(back), f"{uri}/t/dev1/large")
        assert back.read_bytes() == LARGE
        assert await code(client, *other, "-m", "get", f"{uri}/t/dev1/temp") == "4.03", "it is dev2"
        assert not await code(client, *other, "-m", "post", "-e", "22", f"{uri}/t/dev2/temp")


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("credentials", [("-u", "dev1", "-k", "wrong"), ("-u", "nobody", "-k", "a-secret-of-dev1")])
async def test_a_wrong_key_and_an_unknown_identity_are_turned_away(
    tmp_path: Path, client: str, credentials: tuple[str, ...]
) -> None:
    async with serving(tmp_path) as uri:
        assert not await code(client, "-B", "5", *credentials, "-m", "get", f"{uri}/t/dev1/temp")
        good = ("-u", "dev1", "-k", "a-secret-of-dev1")
        assert await code(client, *good, "-m", "get", f"{uri}/t/dev1/temp") == "4.04", "others are served as ever"


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_with_a_certificate(tmp_path: Path, client: str) -> None:
    authority = Authority(tmp_path, "ca")
    server, device = authority.issue("localhost", server=True), authority.issue("dev1")
    pem = tmp_path / "device.pem"
    pem.write_bytes(Path(device.cert_file).read_bytes() + Path(device.key_file).read_bytes())
    tls = {
        "cert_file": str(server.cert_file),
        "key_file": str(server.key_file),
        "client_certificates": "optional",
        "client_ca_file": str(authority.file),
    }
    async with serving(tmp_path, tls=tls) as uri:
        known = ("-c", str(pem), "-R", str(authority.file))
        assert not await code(client, *known, "-m", "post", "-t", "0", "-e", "21", f"{uri}/t/dev1/temp")
        assert (await run(client, *known, "-m", "get", f"{uri}/t/dev1/temp")).strip() == b"21"
        assert await code(client, *known, "-m", "get", f"{uri}/t/dev2/temp") == "4.03"


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_revoked_certificate_and_one_of_another_authority_are_turned_away(tmp_path: Path, client: str) -> None:
    authority, other = Authority(tmp_path / "one", "ca"), Authority(tmp_path / "other", "other")
    server, good = authority.issue("localhost", server=True), authority.issue("dev1")
    revoked, foreign = authority.issue("dev2"), other.issue("dev1")
    tls = {
        "cert_file": str(server.cert_file),
        "key_file": str(server.key_file),
        "client_certificates": "required",
        "client_ca_file": str(authority.file),
        "client_crl_file": str(authority.revoke(revoked)),
    }
    async with serving(tmp_path, tls=tls) as uri:
        for issued, served in ((revoked, False), (foreign, False), (good, True)):
            pem = tmp_path / "client.pem"
            pem.write_bytes(issued.cert_file.read_bytes() + issued.key_file.read_bytes())
            arguments = ("-B", "5", "-c", str(pem), "-R", str(authority.file), "-m", "get", f"{uri}/t/dev1/temp")
            assert await code(client, *arguments) == ("4.04" if served else "")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_certificate_whose_time_is_over_or_not_come_is_turned_away(tmp_path: Path, client: str) -> None:
    authority = Authority(tmp_path, "ca")
    server = authority.issue("localhost", server=True)
    tls = {
        "cert_file": str(server.cert_file),
        "key_file": str(server.key_file),
        "client_certificates": "required",
        "client_ca_file": str(authority.file),
    }
    async with serving(tmp_path, tls=tls) as uri:
        for days, served in (((-3, -1), False), ((1, 3), False), ((-1, 1), True)):
            files = node_files(authority, "node", days=days)
            pem = tmp_path / "client.pem"
            certificate, key, _ = files
            pem.write_bytes(certificate.read_bytes() + key.read_bytes())
            arguments = ("-B", "5", "-c", str(pem), "-R", str(authority.file), "-m", "get", f"{uri}/t/node/temp")
            assert await code(client, *arguments) == ("4.04" if served else "")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_observes(tmp_path: Path, client: str) -> None:
    one = ("-u", "dev1", "-k", "a-secret-of-dev1")
    async with serving(tmp_path) as uri:
        await run(client, *one, "-m", "post", "-t", "0", "-e", "<0>", f"{uri}/t/dev1/temp")
        process = await asyncio.create_subprocess_exec(
            client, *one, "-s", "600", "-m", "get", f"{uri}/t/dev1/temp", stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                for n in range(3):
                    await process.stdout.readuntil(b"<%d>" % n)
                    await run(client, *one, "-m", "post", "-t", "0", "-e", f"<{n + 1}>", f"{uri}/t/dev1/temp")
        finally:
            process.kill()
            await process.wait()


async def test_what_is_no_dtls_is_passed_over(tmp_path: Path) -> None:
    async with serving(tmp_path) as uri:
        port = int(uri.rpartition(":")[2])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))
            for data in (b"", b"\x40\x01\x00\x01", b"\x16\xfe\xfd" + bytes(10) + b"\x01", bytes(1_400)):
                sock.send(data)
        if CLIENTS:
            one = ("-u", "dev1", "-k", "a-secret-of-dev1")
            assert await code(CLIENTS[0], *one, "-m", "get", f"{uri}/t/dev1/temp") == "4.04"
