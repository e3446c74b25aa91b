"""`headgate kv` against a real gateway, and against answers made up."""

from itertools import islice

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.cli.remote import kv as cli_kv
from gateway.remote.http import RemoteGateway, RemoteRefused
from gateway.remote.kv import GatewayKeys
from store.api.keys import Entry
from store.api.kv_export import ExportWriter, exporting
from store.base.errors import DamagedExport
from store.base.process_errors import HeadgateError
from tests.support.process.program import headgate

EVENTS = {"content-type": "text/event-stream"}


@pytest.fixture
def offset(shared_gateway):
    return ("--port-offset", str(shared_gateway.offset), "--ns", "cli")


@pytest.mark.slow
def test_a_key_from_beginning_to_end(offset):
    absent = headgate("kv", "get", "a/b c", *offset)
    assert (absent.returncode, absent.stderr) == (1, b"headgate: 404 Not Found: there is no key 'a/b c'\n")
    put = headgate("kv", "put", "a/b c", "-", "--if-revision", "0", *offset, stdin=b"\0 value\n")
    first = int(put.stdout)
    assert headgate("kv", "get", "a/b c", *offset).stdout == b"\0 value\n"
    second = int(headgate("kv", "put", "a/b c", "new", "--if-revision", str(first), "--ttl", "600", *offset).stdout)
    assert second > first
    refused = headgate("kv", "put", "a/b c", "no", "--if-revision", str(first), *offset)
    assert refused.returncode == 1
    assert f"412 Precondition Failed: 'a/b c' is at revision {second}" in refused.stderr.decode()
    shown = headgate("kv", "get", "a/b c", "-v", *offset).stdout.decode().split("\t")
    assert (shown[0], shown[1], shown[3]) == (str(second), "2", "new\n")
    assert headgate("kv", "list", "a/", *offset).stdout == b"a/b c\n"
    assert headgate("kv", "list", "-v", *offset).stdout.startswith(f"a/b c\t{second}\t2\t20".encode())
    assert headgate("kv", "list", "--count", *offset).stdout == b"1\n"
    watched = headgate("kv", "watch", "a/", "--from", "0", "-n", "2", *offset).stdout
    assert watched == f"{first}\tput\ta/b c\t".encode() + b"\0 value\n\n" + f"{second}\tput\ta/b c\tnew\n".encode()
    assert headgate("kv", "delete", "a/b c", *offset).returncode == 0
    assert headgate("kv", "delete", "a/b c", *offset).returncode == 1
    forbidden = headgate("kv", "list", *offset[:2], "--ns", "$sys")
    assert (forbidden.returncode, forbidden.stderr.startswith(b"headgate: 403 Forbidden: ")) == (1, True)


@pytest.mark.slow
def test_a_namespace_moves_to_another(shared_gateway, tmp_path):
    with RemoteGateway(shared_gateway.url) as remote:
        here, there = GatewayKeys(remote, "here"), GatewayKeys(remote, "there")
        for n in range(1_500):
            here.put(f"k{n:04}", b"%d" % n, ttl_s=600 if n % 7 == 0 else None)
        here.put("large", bytes(3 << 20))
        done = here.export_to(tmp_path / "file.kv")
        assert done.entries == 1_501
        assert there.import_from(tmp_path / "file.kv") == (1_501, 0, 0)
        assert there.import_from(tmp_path / "file.kv") == (0, 1_501, 0)
        there.put("k0500", b"changed")
        assert there.import_from(tmp_path / "file.kv") == (1, 1_500, 0)
        left = [(one.key, one.value, one.expires_at_ms) for one in here.entries()]
        assert left == [(one.key, one.value, one.expires_at_ms) for one in there.entries()]
    options = ("--port-offset", str(shared_gateway.offset))
    said = headgate("kv", "export", str(tmp_path / "again.kv"), *options, "--ns", "there").stdout.decode()
    assert said.startswith("1,501 keys at revision ")
    said = headgate("kv", "import", str(tmp_path / "again.kv"), *options, "--ns", "third").stdout.decode()
    assert said == "1,501 keys stored, 0 as they were, 0 expired\n"


@pytest.fixture
def answering(monkeypatch):
    """Gives a gateway's answers."""

    def use(answer):
        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(cli_kv, "RemoteGateway", lambda url, **_: RemoteGateway(url, transport=transport))
        return GatewayKeys(RemoteGateway("http://gateway", transport=transport), "n")

    return use


def test_answers_of_something_else(answering):
    for answer in (
        httpx.Response(200, content=b"<html>"),
        httpx.Response(200, json={}),
        httpx.Response(200, headers={"etag": '"x"'}),
    ):
        keys = answering(lambda _, answer=answer: answer)
        for call in (
            lambda keys=keys: keys.get("a"),
            lambda keys=keys: keys.put("a", b""),
            lambda keys=keys: list(keys.entries()),
            keys.count,
        ):
            with pytest.raises(RemoteRefused, match="does not answer as a gateway does"):
                call()


def test_a_watch_that_the_gateway_ends(answering):
    problem = b'event: error\ndata: {"status":410,"detail":"compacted"}\n\n'
    keys = answering(lambda _: httpx.Response(200, content=problem, headers=EVENTS))
    with pytest.raises(RemoteRefused, match="410: compacted"):
        list(keys.watch())


def test_the_last_change_of_a_revision_is_known(answering):
    events = b'event: put\ndata: {"key":"a","revision":5}\n\nid: 5\nevent: delete\ndata: {"key":"b","revision":5}\n\n'
    keys = answering(lambda _: httpx.Response(200, content=events, headers=EVENTS))
    assert [(one.change.kind, one.last) for one in islice(keys.watch(), 2)] == [("put", False), ("delete", True)]


def test_files_that_cannot_be_imported(answering, tmp_path):
    def refuse(request):
        raise AssertionError(request)

    keys = answering(refuse)
    (tmp_path / "bad.kv").write_bytes(b"something else")
    with pytest.raises(DamagedExport):
        keys.import_from(tmp_path / "bad.kv")
    with exporting(tmp_path / "two.kv") as file:
        writer = ExportWriter(file, revision=1, now_ms=1)
        writer.add(Entry("a", b"", 1, 1, 1, None, name) for name in ("", "n"))
        writer.finish()
    with pytest.raises(HeadgateError, match="2 namespaces"):
        keys.import_from(tmp_path / "two.kv")
    shown = CliRunner().invoke(app, ["kv", "import", str(tmp_path / "bad.kv")])
    assert isinstance(shown.exception, DamagedExport)
