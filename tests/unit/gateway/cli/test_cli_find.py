"""`headgate find` and `sub --where`, against answers made up and against a real gateway."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import app
from gateway.cli.remote import messages as cli_remote
from gateway.remote.http import RemoteGateway, RemoteRefused
from tests.support.process.program import headgate

EVENTS = [{"id": str(n), "subject": "a/b", "data": {"n": n}} for n in range(5)]


def run(*args):
    return CliRunner().invoke(app, args)


@pytest.fixture
def asked(monkeypatch):
    """Returns the requests sent to a gateway that has five messages, two on a page."""
    requests = []

    def answer(request):
        requests.append(request)
        start = int(request.url.params.get("after", 0))
        headers = {"link": f'</messages?after={start + 2}>; rel="next"'} if start + 2 < len(EVENTS) else {}
        return httpx.Response(200, json=EVENTS[start : start + 2], headers=headers)

    monkeypatch.setattr(
        cli_remote, "RemoteGateway", lambda url, **_: RemoteGateway(url, transport=httpx.MockTransport(answer))
    )
    return requests


def test_find_reads_on_until_it_has_enough(asked):
    assert run("find", "--key", "k", "-n", "3").output == '{"n":0}\n{"n":1}\n{"n":2}\n'
    assert [dict(request.url.params) for request in asked] == [{"key": "k", "limit": "3"}, {"after": "2"}]
    assert len(run("find", "--id", "x").output.splitlines()) == 5


def test_find_asks_with_bounds_and_a_condition(asked):
    run("find", "-a", "a/b", "--from", "5", "--to", "2026-01-01T00:00:00Z", "-w", "qos > 0")
    expected = {"address": "a/b", "from": "5", "to": "2026-01-01T00:00:00Z", "where": "qos > 0", "limit": "10"}
    assert dict(asked[0].url.params) == expected


def test_find_shows_ids_and_whole_events(asked):
    assert run("find", "-k", "k", "-v", "-n", "1").output == '0\ta/b\t{"n":0}\n'
    assert json.loads(run("find", "-k", "k", "--json", "-n", "1").output) == EVENTS[0]


@pytest.mark.parametrize("content", [b"<html>", b"{}", b'[{"a":1}]'])
def test_an_answer_of_something_else(monkeypatch, content):
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    monkeypatch.setattr(cli_remote, "RemoteGateway", lambda url, **_: RemoteGateway(url, transport=transport))
    assert isinstance(run("find", "-k", "k").exception, RemoteRefused)


@pytest.mark.slow
def test_a_real_gateway(shared_gateway):
    offset = ("--port-offset", str(shared_gateway.offset))
    for body in ("0", "1", "2", "3"):
        assert headgate("pub", f"findtest/{body}", body, "-q", str(int(body) % 2), *offset).returncode == 0
    sub = headgate("sub", "findtest/+", "--from", "0.0", "-n", "2", "-v", "-w", "qos = 1 AND type IS NULL", *offset)
    lines = [line.split(b"\t") for line in sub.stdout.splitlines()]
    assert [line[1:] for line in lines] == [[b"findtest/1", b"1"], [b"findtest/3", b"3"]]
    found = headgate("find", "--id", lines[1][0].decode(), *offset)
    assert (found.returncode, found.stdout) == (0, b"3\n")
    refused = headgate("find", "--address", "findtest/1", *offset)
    assert refused.returncode == 1
    assert b"is configured without that index" in refused.stderr
    bad = headgate("sub", "#", "-w", "qos = = 1", *offset)
    assert bad.returncode == 1
    assert b"line 1, column 7" in bad.stderr
    listed = headgate("topics", "findtest/", *offset).stdout.decode().splitlines()
    assert listed == ["findtest/0", "findtest/1", "findtest/2", "findtest/3"]


@pytest.mark.slow
def test_a_real_gateway_says_what_it_knows_of_damage(shared_gateway):
    with RemoteGateway(f"http://127.0.0.1:{8088 + shared_gateway.offset}") as admin:
        status = admin.status()
    assert status.damages == ()
    assert 0 <= status.scrub.at <= status.scrub.to <= status.log.end
