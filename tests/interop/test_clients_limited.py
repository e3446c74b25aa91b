"""Limits, as real clients meet them: each is answered in its protocol's words, and others do not notice."""

import contextlib
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest
from paho.mqtt import client as paho

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connect, Publish
from tests.support.mqtt.paho_client import TIMEOUT_S, PahoClient, fresh
from tests.support.process.gateways import GatewayProcess

Limited = Callable[..., Any]


@pytest.fixture
def limited(new_gateway: Callable[..., Any]) -> Limited:
    """Makes gateways with limits: `limited(limits__messages_per_s=1)`."""

    def make(**said: Any) -> Any:
        return new_gateway(environ={f"HEADGATE__{name.upper()}": str(value) for name, value in said.items()}).start()

    return make


@contextlib.contextmanager
def connected(port: int, version: int = paho.MQTTv5, **options: Any) -> Iterator[PahoClient]:
    connect = options.pop("connect", {})
    one = PahoClient(port, version, **options).connect(**connect)
    try:
        yield one
    finally:
        one.close()


def code_of(port: int, version: int, **options: Any) -> int:
    """Returns the code that a connecting client is told."""
    with connected(port, version, **options) as one:
        return int(one.code.value)


def raw_code(port: int, version: int) -> int:
    """Returns the code of a CONNACK, as it is on the wire."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as wire:
        wire.sendall(encode(Connect(version=version, client_id=fresh("raw")[-20:]), version))
        return wire.recv(100)[3]


def errors(gateway: Any, cause: str) -> float:
    lines = gateway.admin("/metrics").splitlines()
    name = f'headgate_errors_total{{cause="{cause}",protocol="mqtt"}}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def test_one_connection_too_many_is_told_so_in_every_protocol(limited):
    gateway = limited(gateway__connections_max=1)
    with connected(gateway.port("mqtt")) as inside:
        assert inside.code.value == 0
        assert [raw_code(gateway.port("mqtt"), version) for version in (5, 4, 3)] == [0x97, 3, 3]
        assert code_of(gateway.port("mqtt-ws"), paho.MQTTv5, transport="websockets") == 0x97
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{gateway.url}/topics/a", data=b"x", timeout=TIMEOUT_S)
        with refused.value:
            assert refused.value.code == 429
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", gateway.port("amqp")))
        inside.publish(fresh("t"), b"still here")
    deadline = time.monotonic() + TIMEOUT_S  # those that were told leave in their own time
    while raw_code(gateway.port("mqtt"), 5):
        assert time.monotonic() < deadline
    assert errors(gateway, "quota") >= 4


def test_so_many_connections_of_one_address_and_so_many_new_ones_a_second(limited):
    gateway = limited(limits__connections_per_address=2, limits__connections_per_s=0.001, limits__connections_burst=4)
    port = gateway.port("mqtt")
    with connected(port), connected(gateway.port("mqtt-ws"), transport="websockets"):
        assert [raw_code(port, version) for version in (5, 4)] == [0x97, 3]
    deadline = time.monotonic() + TIMEOUT_S
    while (code := raw_code(port, 5)) == 0x97:  # the two leave in their own time
        assert time.monotonic() < deadline
    assert [code, *[raw_code(port, version) for version in (5, 5, 4)]] == [0, 0, 0x9F, 3]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Yields a gateway that makes clients wait, for all tests below."""
    said = {
        "LIMITS__MESSAGES_PER_S": "50",
        "LIMITS__MESSAGES_BURST": "10",
        "ADAPTERS__MQTT__TOPIC_LEVELS_MAX": "3",
        "ADAPTERS__MQTT__WILL_BYTES_MAX": "10",
        "ADAPTERS__MQTT__MAX_PACKET_BYTES": "1000",
    }
    environ = {f"HEADGATE__{name}": value for name, value in said.items()}
    gateway = GatewayProcess(tmp_path_factory.mktemp("strict") / "data", environ=environ).start()
    yield gateway
    gateway.close()


def test_a_client_that_sends_too_fast_is_slowed_down(strict):
    with connected(strict.port("mqtt")) as fast, connected(strict.port("mqtt")) as other:
        topic = fresh("fast")
        began = time.monotonic()
        sent = [fast.paho.publish(topic, b"x", 1) for _ in range(60)]
        other.publish(topic, b"meanwhile")
        for one in sent:
            one.wait_for_publish(TIMEOUT_S)
        fast.publish(topic, b"paid for what was before")
        assert time.monotonic() - began >= 1.0  # 10 at once, then 50 a second


def test_a_client_that_is_not_read_is_not_taken_for_silent(strict):
    packets = [Publish(topic="slow", payload=b"x", qos=1, packet_id=number) for number in range(1, 150)]
    with socket.create_connection(("127.0.0.1", strict.port("mqtt")), TIMEOUT_S) as wire:
        wire.sendall(encode(Connect(version=4, client_id=fresh("slow")[-20:], keep_alive_s=1), 4))
        assert wire.recv(4) == b"\x20\x02\x00\x00"
        wire.sendall(b"".join(encode(packet, 4) for packet in packets))
        found = b""
        while len(found) < 4 * len(packets):
            found += wire.recv(4096) or pytest.fail("closed")
        # The next is read when those are paid for, 2.8 s later: more than one and a half times the keep alive.
        wire.sendall(encode(Publish(topic="slow", payload=b"x", qos=1, packet_id=999), 4))
        assert wire.recv(4) == b"\x40\x02\x03\xe7"


def test_topics_and_wills_over_their_limits(strict):
    port = strict.port("mqtt")
    with connected(port) as one:
        one.paho.publish("a/b/c/d", b"x", 1)
        assert one.published.get(timeout=TIMEOUT_S).value == 0x90
        one.publish("a/b/c", b"x")
    dying = PahoClient(port)
    dying.paho.will_set("w", bytes(11), 1)
    assert dying.connect().code.value == 0x95
    dying.close()


def test_a_client_that_is_closed_again_and_again_waits_longer_and_is_logged_once(strict):
    name, took = fresh("stubborn")[-20:], []
    for packet_id in range(1, 6):
        with socket.create_connection(("127.0.0.1", strict.port("mqtt")), TIMEOUT_S) as wire:
            began = time.monotonic()
            wire.sendall(encode(Connect(version=4, client_id=name), 4))
            assert wire.recv(4) == b"\x20\x02\x00\x00"
            took.append(time.monotonic() - began)
            wire.sendall(encode(Publish(topic="t", payload=bytes(2_000), qos=1, packet_id=packet_id), 4))
            with contextlib.suppress(ConnectionError):
                assert wire.recv(4) == b""
    assert took[3] >= 0.25
    assert took[4] >= 0.5
    lines = [line for line in strict.log.read_text().splitlines() if "again and again" in line]
    assert len(lines) == 1
    assert name in lines[0]
    assert "at most 1000" in lines[0]


def test_what_comes_too_fast_is_refused_where_that_is_asked_for(limited):
    gateway = limited(limits__messages_per_s=0.001, limits__messages_burst=1, limits__on_excess="refuse")
    with connected(gateway.port("mqtt")) as one:
        codes = []
        for _ in range(4):
            one.paho.publish(fresh("t"), b"x", 1)
            codes.append(one.published.get(timeout=TIMEOUT_S).value)
        assert codes == [0, 0, 0x97, 0x97]
        one.paho.publish(fresh("t"), b"dropped", 0)
        deadline = time.monotonic() + TIMEOUT_S
        while errors(gateway, "rate") < 3:
            assert time.monotonic() < deadline
    with connected(gateway.port("mqtt"), paho.MQTTv311) as old:
        for _ in range(2):
            old.publish(fresh("t"), b"x")
        old.paho.publish(fresh("t"), b"x", 1)
        old.left.get(timeout=TIMEOUT_S)
