"""Strangers at the dashboard's port: they keep nobody out, whatever they say or do not say."""

import contextlib
import socket
from types import SimpleNamespace

import pytest

pytest.importorskip("waitress")

from spark.dashboard import connections
from tests.support.process.waiting import WAIT_S, wait_until
from tests.support.spark.dashboard_server import in_a_thread

STRANGERS = connections.CONNECTIONS_COUNT_MAX + connections.CLOSING_COUNT_MAX + 30
KINDS = {
    "silence": b"",
    "half a request": b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n" + bytes(1_000),
    "half a header": b"GET / HTTP/1.1\r\nx-",
    "a request and no more": b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
}


def application(_environ, start):
    start("200 OK", [("content-type", "text/plain"), ("content-length", "2")])
    return [b"ok"]


@contextlib.contextmanager
def serving():
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        server = connections.create(application, sockets=[listening], threads=2)
        with in_a_thread(server):
            yield server, listening.getsockname()[1]


@pytest.fixture
def port():
    with serving() as (_, found):
        yield found


def connect(port, host="127.0.0.1"):
    found = socket.socket()
    found.settimeout(WAIT_S)
    found.bind((host, 0))
    found.connect(("127.0.0.1", port))
    return found


def ask(connection):
    """Asks for a page, and returns the first line of the answer."""
    connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\nok"):
        more = connection.recv(1_000)
        assert more, "the connection was closed"
        answer += more
    return answer.splitlines()[0]


@pytest.mark.parametrize("addresses", [1, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_connections_of_strangers_keep_no_other_address_out(port, kind, addresses):
    with contextlib.ExitStack() as stack:
        before = stack.enter_context(connect(port))
        assert ask(before) == b"HTTP/1.1 200 OK"
        for n in range(STRANGERS):
            one = stack.enter_context(connect(port, f"127.0.1.{1 + n % addresses}"))
            with contextlib.suppress(ConnectionError):
                one.sendall(KINDS[kind])
        assert ask(before) == b"HTTP/1.1 200 OK"
        for _ in range(3):
            with connect(port) as after:
                assert ask(after) == b"HTTP/1.1 200 OK"


def test_a_silent_connection_is_closed_after_a_time(monkeypatch):
    monkeypatch.setattr(connections, "SILENCE_S", 0)
    monkeypatch.setattr(connections, "CLEANUP_S", 0)
    with serving() as (server, port), connect(port) as silent:
        wait_until(lambda: not server.active_channels or server.pull_trigger())
        assert silent.recv(1) == b""


def channel(origin, last_activity, *, requests=()):
    return SimpleNamespace(origin=origin, last_activity=last_activity, requests=requests, will_close=False)


def test_the_address_with_most_makes_way_and_idle_connections_go_first():
    most = connections.CONNECTIONS_COUNT_MAX
    others = [channel("b", 0) for _ in range(most // 2)]
    busy, *idle = [channel("a", n, requests=[1] if n == 0 else []) for n in range(most // 2 + 2)]
    connections.make_way([*others, busy, *idle])
    assert [one.last_activity for one in idle if one.will_close] == [1, 2]
    assert not busy.will_close
    assert not any(one.will_close for one in others)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_hosts_of_a_network_of_64_bits_are_one(one, other, same):
    assert (connections.origin_of(one) == connections.origin_of(other)) == same
