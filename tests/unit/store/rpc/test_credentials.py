"""A node's certificate: as other nodes judge it, and renewed while the node runs."""

import grpc
import grpc.aio
import pytest
from cryptography import x509

from store.base.expiry import expiry_warnings, has_expired
from store.base.pipes import PipeServer, open_channel
from store.rpc import credentials as module
from store.rpc.credentials import CredentialFiles
from tests.support.process.certificates import Authority, node_files

DAY_S = 86_400


def test_a_certificate_that_others_would_refuse_is_known_before_they_do(tmp_path):
    """A node with an expired one started, was refused by all others, and logged nothing."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs", "other")
    sound = node_files(ours, "n1.example")
    for reached_at in (None, "n1.example"):
        assert sound.refusal(reached_at) == ""
    assert "n2.example" in sound.refusal("n2.example")
    expired = node_files(ours, "n1.example", days=(-9, -1))
    for reached_at in (None, "n1.example"):
        assert expired.refusal(reached_at) == "certificate has expired"
    assert node_files(ours, "n1.example", days=(1, 2)).refusal() == "certificate is not yet valid"
    foreign = node_files(theirs, "n1.example", ca_file=ours.file)
    assert foreign.refusal("n1.example") == "unable to get local issuer certificate"
    assert foreign.refusal() == ""  # a proxy's peers may trust an authority that it does not
    assert "is no name of a host" in sound.refusal(f"{'n' * 64}.example")


@pytest.mark.parametrize("server", [False, True])
def test_a_certificate_for_one_purpose_is_enough_where_a_node_is_not_both(tmp_path, server):
    authority = Authority(tmp_path)
    issued = authority.issue("node", x509.DNSName("n1.example"), server=server)
    files = CredentialFiles(issued.cert_file, issued.key_file, authority.file)
    assert files.refusal() == ""
    assert "purpose" in files.refusal("n1.example")


def test_a_certificate_that_ends_soon_or_has_ended_is_a_warning(tmp_path):
    """A replica whose certificate had expired became master of a group, which stood still; /readyz said "ready"."""
    authority = Authority(tmp_path)
    credentials = node_files(authority, "n1.example", days=(-1, 20)).channel()
    end_s = int(authority.now.timestamp()) + 20 * DAY_S
    assert credentials.until_s == node_files(authority, "n1.example", days=(-1, 20)).server().until_s == end_s
    assert expiry_warnings(None, end_s) == expiry_warnings(credentials, end_s - 15 * DAY_S) == ()
    (soon,) = expiry_warnings(credentials, end_s - 13 * DAY_S)
    assert " UTC: renew it before, in place; the node reads it again" in soon
    (expired,) = expiry_warnings(credentials, end_s)
    assert "has expired at " in expired
    assert [has_expired(credentials, end_s + late_s) for late_s in (0, 1)] == [False, True]
    assert not has_expired(None, end_s)


# ---- renewed


@pytest.fixture
def looked_at(monkeypatch):
    """Makes credentials look at their files for each connection."""
    monkeypatch.setattr(module, "LOOK_INTERVAL_MS", 0)


class Same(grpc.GenericRpcHandler):
    """One question."""

    def service(self, _details):
        """See `grpc.GenericRpcHandler`."""
        return grpc.unary_unary_rpc_method_handler(self.answer)

    async def answer(self, request, _context):
        """Returns what came."""
        return request


class Former:
    """Credentials as they are when this is made."""

    def __init__(self, credentials):
        self.tls = credentials.tls


async def by_pipe(port, credentials):
    channel = open_channel(f"localhost:{port}", credentials)
    try:
        return await channel.unary_unary("/test/Same")(b"x")
    finally:
        await channel.close()


async def by_grpc(port, credentials):
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials.for_grpc()) as channel:
        return await channel.unary_unary("/test/Same")(b"x", timeout=60)


@pytest.mark.anyio
@pytest.mark.usefixtures("looked_at")
async def test_a_server_and_its_clients_go_on_with_renewed_files_of_another_authority(tmp_path):
    """Every node of a cluster had to be restarted before its certificate expired."""
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    files, other = node_files(first, "localhost"), node_files(second, "localhost")
    server, client = files.server(), files.channel()
    serving = PipeServer()
    serving.add_generic_rpc_handlers((Same(),))
    port = serving.add_secure_port("127.0.0.1:0", server)
    await serving.start()
    try:
        for ask in (by_pipe, by_grpc):
            assert await ask(port, client) == b"x"
        former, renewed_s = Former(client), other.until_s()
        for there, new in zip(files, other, strict=True):
            there.write_bytes(new.read_bytes())
        for ask in (by_pipe, by_grpc):
            assert await ask(port, client) == b"x"
        assert server.until_s == client.until_s == renewed_s
        with pytest.raises(grpc.aio.AioRpcError):
            await by_pipe(port, former)
    finally:
        await serving.stop(0)


@pytest.mark.anyio
@pytest.mark.usefixtures("looked_at")
async def test_files_that_are_replaced_while_they_are_read_are_not_mixed(tmp_path, monkeypatch):
    """gRPC was given one certificate with the key of another, until the next look or for as long as that failed."""
    authority, other = Authority(tmp_path / "client"), Authority(tmp_path / "server")
    files = node_files(authority, "client", ca_file=other.file)
    client, until_s = files.channel("client"), files.until_s()
    serving = PipeServer()
    serving.add_generic_rpc_handlers((Same(),))
    port = serving.add_secure_port("127.0.0.1:0", node_files(other, "localhost", ca_file=authority.file).server())
    await serving.start()
    node_files(authority, "client", days=(-1, 2))
    judged, made = [], CredentialFiles.context

    def refusal(_files, _reached_at):
        judged.append(True)
        return ""

    def context(self, side):
        found, key = made(self, side), self.key.read_bytes()
        if judged:
            node_files(authority, "client", days=(-1, 3))
            self.key.write_bytes(key)  # the next certificate is there, its key not yet
        return found

    try:
        with monkeypatch.context() as patch:
            patch.setattr(CredentialFiles, "refusal", refusal)
            patch.setattr(CredentialFiles, "context", context)
            assert client.until_s == until_s
        assert await by_grpc(port, client) == b"x"
        assert client.until_s == until_s
        monkeypatch.setattr(CredentialFiles, "refusal", lambda *_: "")  # it is not of the authority that it trusts
        node_files(authority, "client", days=(-1, 4))
        assert await by_grpc(port, client) == b"x"
        assert client.until_s == files.until_s() > until_s
    finally:
        await serving.stop(0)


@pytest.mark.usefixtures("looked_at")
def test_new_files_that_others_would_refuse_leave_the_former_in_force(tmp_path, capsys):
    authority = Authority(tmp_path)
    files = node_files(authority, "n1.example")
    credentials = files.channel("n1.example")
    former, until_s = credentials.tls, credentials.until_s
    own_key = files.key.read_bytes()
    for days, names in (((-9, -1), ["n1.example"]), ((1, 2), ["n1.example"]), ((-1, 2), ["n2.example"])):
        node_files(authority, *names, days=days)
        assert (credentials.tls, credentials.until_s) == (former, until_s)
    files.certificate.write_bytes(b"half of a")
    assert credentials.tls is former
    node_files(authority, "n1.example", days=(-1, 3))
    new_key = files.key.read_bytes()
    files.key.write_bytes(own_key)
    assert credentials.tls is former  # the certificate is written, its key not yet
    files.key.unlink()
    assert credentials.tls is former
    assert capsys.readouterr().out.count("the former stays in force") == 6
    files.key.write_bytes(new_key)
    assert credentials.tls is not former
    assert credentials.until_s == files.until_s() > until_s
