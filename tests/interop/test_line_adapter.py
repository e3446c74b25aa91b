"""The adapter of docs/adapters.md: installed as a stranger's package, and spoken to over real sockets."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    Adapter,
    AdapterFactory,
    Authenticate,
    Call,
    Close,
    ConnectionInfo,
    Effect,
    Outcome,
    Publish,
    Token,
)
from tests.support.mqtt.paho_client import PahoClient, fresh
from tests.support.process.gateways import GatewayProcess

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).resolve().parents[1] / "line_adapter"
TIMEOUT_S = 60
RECEIVE_BUFFER_BYTES = 4_096  # of a slow reader: the system keeps little for it
LINE_BYTES_MAX = 64 * 1024
NOW_MS = 1_700_000_000_000
INFO = ConnectionInfo(peer=("::1", 4), local=("::1", 7007), now_ms=NOW_MS)

Connect: TypeAlias = Callable[..., "LineClient"]


class LineClient:
    """A client of the line protocol."""

    def __init__(self, port: int, *, receive_buffer_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self.lines = self.socket.makefile("rb")

    def send(self, *lines: bytes) -> None:
        self.socket.sendall(b"".join(line + b"\n" for line in lines))

    def read(self, count: int) -> list[bytes]:
        return [self.lines.readline().removesuffix(b"\n") for _ in range(count)]

    def ask(self, *lines: bytes) -> list[bytes]:
        self.send(*lines)
        return self.read(len(lines))

    def rest(self) -> bytes:
        """Returns what is still sent before the gateway closes the connection."""
        return self.lines.read()

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs the package as a wheel built from its own `pyproject.toml`, and returns its folder."""
    target = tmp_path_factory.mktemp("packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, *offline, "--target", str(target), str(PACKAGE)], check=True, timeout=2 * TIMEOUT_S)
    return target


def environment(installed: Path, **settings: str) -> dict[str, str]:
    return {"PYTHONPATH": str(installed), "HEADGATE__LISTENERS__LINE__PORT": "0", **settings}


def line_port(gateway: GatewayProcess) -> int:
    listening = json.loads(gateway.admin("/status"))["listeners"]
    (found,) = [one["port"] for one in listening if one["name"] == "line"]
    return int(found)


@pytest.fixture(scope="module")
def gateway(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    started = GatewayProcess(tmp_path_factory.mktemp("line") / "data", environ=environment(installed)).start()
    yield started
    started.close()


@pytest.fixture
def connect_to() -> Iterator[Connect]:
    """Connects to a port."""
    with ExitStack() as stack:

        def connected(port: int, **options: int) -> LineClient:
            client = LineClient(port, **options)
            stack.callback(client.close)
            return client

        yield connected


@pytest.fixture
def connect(gateway: GatewayProcess, connect_to: Connect) -> Connect:
    """Connects to the gateway that all tests share."""
    return partial(connect_to, line_port(gateway))


def test_what_one_publishes_another_reads_in_order(connect):
    publisher, subscriber = connect(), connect()
    assert subscriber.ask(b"SUB line/order/+") == [b"OK"]
    count = 5_000  # in one write: many lines a read, and lines cut anywhere
    assert publisher.ask(*(b"PUB line/order/%d text %d" % (n % 3, n) for n in range(count))) == [b"OK"] * count
    assert subscriber.read(count) == [b"MSG line/order/%d text %d" % (n % 3, n) for n in range(count)]


def test_answers_come_in_the_order_of_the_lines(connect):
    """A subscription begins behind what the same connection has published before it."""
    client = connect()
    lines = [b"PUB line/turns 1", b"PUB line/#/no 2", b"SUB line/turns", b"PUB line/turns 3", b"WHAT", b"SUB line/#/no"]
    client.send(*lines)
    answers = client.read(7)
    assert answers.pop(answers.index(b"MSG line/turns 3")) == b"MSG line/turns 3"
    assert [answer.split()[:2] for answer in answers] == [
        [b"OK"],
        [b"ERR", b"malformed"],
        [b"OK"],
        [b"OK"],
        [b"ERR", b"malformed"],
        [b"ERR", b"malformed"],
    ]


def test_every_byte_comes_through(connect):
    client = connect()
    assert client.ask(b"SUB line/bytes/#") == [b"OK"]
    body = b"".join(b"%%%02X" % n for n in range(256))
    client.send(b"PUB line/bytes/a%20b%C3%A9 " + body, b"PUB line/bytes/none", b"PUB line/bytes/crlf 1 2\r")
    found = [line for line in client.read(6) if line != b"OK"]
    assert found == [
        b"MSG line/bytes/a%20b%C3%A9 " + b"".join(_as_sent(n) for n in range(256)),
        b"MSG line/bytes/none ",
        b"MSG line/bytes/crlf 1 2",
    ]


def _as_sent(byte: int) -> bytes:
    return bytes([byte]) if 0x20 <= byte < 0x7F and byte != ord("%") else b"%%%02X" % byte


def test_mqtt_and_http_share_its_addresses(connect, gateway):
    client, address = connect(), fresh("line/shared/dev1")
    mqtt = PahoClient(gateway.port("mqtt")).connect()
    try:
        assert client.ask(b"SUB " + address.encode()) == [b"OK"]
        assert mqtt.subscribe(address, qos=1) == [1]
        client.send(b"PUB %b from a line" % address.encode())
        assert mqtt.get().payload == b"from a line"
        mqtt.publish(address, b"from MQTT\n")
        assert sorted(client.read(3)) == [
            b"MSG %b from MQTT%%0A" % address.encode(),
            b"MSG %b from a line" % address.encode(),
            b"OK",
        ]
        with urllib.request.urlopen(f"{gateway.url}/topics/{address}", timeout=TIMEOUT_S) as answer:
            assert answer.read() == b"from MQTT\n"
    finally:
        mqtt.paho.disconnect()
        mqtt.paho.loop_stop()


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"", b"ERR malformed a line is"),
        (b"pub line/bad 1", b"ERR malformed a line is"),
        (b"PUB", b"ERR malformed the address is empty"),
        (b"PUB line/+/bad 1", b"ERR malformed the address holds"),
        (b"PUB line/%00/bad 1", b"ERR malformed the address holds"),
        (b"PUB line/\xff 1", b"ERR malformed "),
        (b"PUB $SYS/line 1", b"ERR forbidden "),
        (b"SUB", b"ERR malformed a filter"),
        (b"SUB line/#/bad", b"ERR malformed "),
        (b"AUTH late secret", b"ERR malformed a line is"),
    ],
)
def test_a_bad_line_is_refused_and_the_next_one_is_taken(connect, line, answer):
    client = connect()
    first, second, third = client.ask(b"PUB line/good 1", line, b"PUB line/good 2")
    assert (first, third) == (b"OK", b"OK")
    assert second.startswith(answer)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_without_end_is_cut_off_and_disturbs_nobody(connect, end):
    other, client = connect(), connect()
    assert other.ask(b"SUB line/calm") == [b"OK"]
    client.socket.sendall(b"PUB line/calm " + b"x" * LINE_BYTES_MAX + end)
    assert client.rest() == b"ERR too_large a line has at most 65536 bytes (line_bytes_max)\n"
    other.send(b"PUB line/calm 1")
    assert sorted(other.read(2)) == [b"MSG line/calm 1", b"OK"]


def test_subscriptions_are_limited(connect):
    client = connect()
    answers = client.ask(*(b"SUB line/many/%d" % n for n in range(101)))
    assert answers == [b"OK"] * 100 + [b"ERR quota there are subscriptions_max subscriptions"]


def test_a_slow_reader_holds_up_nobody_and_misses_nothing(connect, gateway):
    slow, quick, publisher = connect(receive_buffer_bytes=RECEIVE_BUFFER_BYTES), connect(), connect()
    assert slow.ask(b"SUB line/slow") == quick.ask(b"SUB line/slow") == [b"OK"]
    text = b"x" * 30_000
    sent = 0
    while behind(gateway) == 0:  # until what the system and the gateway hold for it is full
        assert publisher.ask(*(b"PUB line/slow %d %b" % (sent + n, text) for n in range(50))) == [b"OK"] * 50
        assert quick.read(50) == [b"MSG line/slow %d %b" % (sent + n, text) for n in range(50)]
        sent += 50
        assert sent < 5_000, "nothing limits what is held for a client that does not read"
    assert slow.read(sent) == [b"MSG line/slow %d %b" % (n, text) for n in range(sent)]
    assert publisher.ask(b"PUB line/slow last") == [b"OK"]
    assert slow.read(1) == quick.read(1) == [b"MSG line/slow last"]


def behind(gateway: GatewayProcess) -> float:
    found = [line for line in gateway.admin("/metrics").splitlines() if line.startswith("headgate_subscribers_behind ")]
    return float(found[0].split()[1])


def test_its_options_users_and_rules_are_those_of_every_adapter(installed, connect_to, new_gateway, tmp_path):
    """One gateway with a name and a password, a rule, and limits of the adapter's; then it goes down."""
    config, password = tmp_path / "headgate.toml", tmp_path / "password"
    password.write_text("secret 1")
    config.write_text(f"""
        [adapters.line]
        line_bytes_max = 100

        [auth]
        anonymous = "nobody"
        users.ada.password_file = "{password}"

        [access]
        default = "deny"
        rules = [{{effect = "allow", users = ["ada"], protocols = ["line"], filters = ["ada/#"]}}]
    """)
    gateway = new_gateway("--config", str(config), environ=environment(installed)).start()
    port = line_port(gateway)

    stranger, liar, ada = connect_to(port), connect_to(port), connect_to(port)
    stranger.send(b"PUB ada/x 1")
    assert stranger.rest().startswith(b"ERR unauthenticated ")
    liar.send(b"AUTH ada wrong", b"PUB ada/x 1")
    assert liar.rest() == b"ERR unauthenticated wrong name or password\n"

    assert ada.ask(b"AUTH ada secret%201", b"PUB ada/x 1") == [b"OK", b"OK"]
    assert ada.ask(b"PUB bob/x 1", b"SUB bob/#") == [
        b"ERR forbidden not allowed: to publish 'bob/x'",
        b"ERR forbidden not allowed: to subscribe 'bob/#'",
    ]
    assert ada.ask(b"SUB ada/#") == [b"OK"]
    ada.send(*(b"PUB ada/many %d" % n for n in range(200)))
    assert [line for line in ada.read(400) if line != b"OK"] == [b"MSG ada/many %d" % n for n in range(200)]
    stranger = connect_to(port)
    stranger.send(b"x" * 101)
    assert stranger.rest() == b"ERR too_large a line has at most 100 bytes (line_bytes_max)\n"
    gateway.stop(signal.SIGTERM)
    assert ada.rest() == b"BYE\n"


def test_a_wrong_option_is_named(installed, tmp_path):
    config = tmp_path / "headgate.toml"
    config.write_text("[adapters.line]\nline_bytes_mx = 100\n")
    command = [sys.executable, "-m", "gateway.cli", "check-config", "--config", str(config)]
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    checked = subprocess.run(command, env=environ, capture_output=True, timeout=TIMEOUT_S, check=False)
    assert checked.returncode == 2
    assert b"adapters.line.line_bytes_mx: there is no such key; did you mean" in checked.stderr


# ---- without a socket and a clock


@pytest.fixture(scope="module")
def factory() -> AdapterFactory:
    spec = spec_from_file_location("headgate_line", PACKAGE / "headgate_line.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Factory


def new_connection(factory: AdapterFactory) -> Adapter:
    return factory.connect(INFO, factory.options(), random=Random(1))


def let_in(connection: Adapter, **principal: int) -> list[Effect]:
    """Answers the question that the first line has asked."""
    who = Principal(name="ada", **principal)
    return list(connection.completed(Token(1), Outcome(value=who), now_ms=NOW_MS))


def test_a_first_line_that_is_late_ends_the_connection(factory):
    connection = new_connection(factory)
    assert connection.deadline_ms() == NOW_MS + 10_000
    assert connection.tick(now_ms=NOW_MS + 10_000) == [Close(reason="ERR unauthenticated too late")]
    assert connection.take_output() == b"ERR unauthenticated too late\n"


def test_a_token_that_expires_ends_the_connection(factory):
    connection = new_connection(factory)
    connection.receive(b"AUTH ada token\n", now_ms=NOW_MS)
    assert let_in(connection, expires_at_ms=NOW_MS + 5_000) == []
    assert connection.deadline_ms() == NOW_MS + 5_000
    (closed,) = connection.tick(now_ms=NOW_MS + 5_000)
    assert isinstance(closed, Close)


def test_one_effect_takes_all_messages_of_a_read(factory):
    connection = new_connection(factory)
    (asked,) = connection.receive(b"PUB a 1\nPUB b 2\nPUB +/c 3\nPUB d 4\n", now_ms=NOW_MS)
    assert asked == Call(request=Authenticate(mechanism="anonymous"), token=Token(1))
    (published,) = let_in(connection)
    assert isinstance(published, Publish)
    assert [(one.address, one.body, one.device) for one in published.messages] == [
        ("a", b"1", "ada"),
        ("b", b"2", "ada"),
        ("d", b"4", "ada"),
    ]
    assert not connection.wants_data
    full = Refusal(Cause.QUOTA, "full")
    connection.completed(published.token, Outcome(refused={1: full}), now_ms=NOW_MS)
    lines = connection.take_output().splitlines()
    assert [line.split()[:2] for line in lines] == [[b"OK"], [b"ERR", b"quota"], [b"ERR", b"malformed"], [b"OK"]]
    assert connection.wants_data


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.sampled_from([b"PUB a/b ", b"SUB ", b"AUTH ", b"\n"])))
def test_no_input_raises_and_cuts_do_not_matter(factory, noise, words):
    data = b"".join(piece for pair in zip_longest(noise, words, fillvalue=b"") for piece in pair) + b"\n"

    def heard(cut: int) -> tuple[bytes, bool]:
        connection = new_connection(factory)
        for at in range(0, len(data), cut):
            effects = connection.receive(data[at : at + cut], now_ms=NOW_MS)
            while any(isinstance(effect, Call | Publish) for effect in effects):
                effects = connection.completed(Token(1), Outcome(value=Principal(name="")), now_ms=NOW_MS)
        return connection.take_output(), connection.wants_data

    assert heard(len(data)) == heard(1) == heard(7)
