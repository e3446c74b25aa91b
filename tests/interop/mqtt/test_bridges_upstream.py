"""Bridges from brokers that nobody here wrote: mosquitto and amqtt; and over TLS and WebSocket from a gateway."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cryptography.x509 import DNSName
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes

from tests.support.mqtt.bridge_figures import configured, connected, figures
from tests.support.mqtt.paho_client import PahoClient, fresh, properties
from tests.support.mqtt.upstreams import Amqtt, Mosquitto
from tests.support.process.certificates import Authority
from tests.support.process.gateways import restart
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

BROKERS = {
    f"{kind.__name__.lower()}-{version}": pytest.param(
        (kind, version), marks=pytest.mark.skipif(bool(kind.missing), reason=kind.missing or "-")
    )
    for kind in (Mosquitto, Amqtt)
    for version in kind.versions
}


@pytest.fixture(params=BROKERS.values(), ids=BROKERS)
def upstream(request, tmp_path) -> Iterator[Any]:
    kind, version = request.param
    broker = kind(tmp_path)
    broker.start()
    broker.version = version
    yield broker
    broker.stop()


@pytest.fixture
def bridged(upstream, new_gateway, tmp_path):
    file = configured(tmp_path, f"mqtt://127.0.0.1:{upstream.port}", version=upstream.version)
    gateway = new_gateway("--config", str(file)).start()
    connected(gateway)
    return gateway


@pytest.fixture
def client() -> Iterator[Callable[..., PahoClient]]:
    made: list[PahoClient] = []

    def make(port: int, version: int = paho.MQTTv5, client_id: str | None = None, **options: Any) -> PahoClient:
        made.append(PahoClient(port, version, client_id))
        return made[-1].connect(**options)

    yield make
    for one in made:
        one.close()


class Source:
    """A gateway as the upstream: it runs wherever the tests do, and forgets nothing either."""

    versions = ("5.0", "3.1.1")

    def __init__(self, gateway):
        self.gateway = gateway
        self.port = gateway.port("mqtt")

    def start(self):
        self.gateway.start()

    def stop(self):
        self.gateway.stop()


def publisher(client, upstream):
    return client(upstream.port, paho.MQTTv5 if "5.0" in upstream.versions else paho.MQTTv311)


def test_messages_of_any_qos_come_through_and_again_when_the_upstream_was_away(upstream, bridged, client):
    reader = client(bridged.port("mqtt"))
    reader.subscribe("plant7/#", qos=2)
    writer = publisher(client, upstream)
    for qos in (0, 1, 2):
        for number in range(50):
            writer.publish(f"up/{qos}/{number % 3}", b"%d" % number, qos)
        found = [reader.get() for _ in range(50)]
        granted = 2 if isinstance(upstream, Amqtt) else qos  # amqtt sends with the subscription's
        assert {one.qos for one in found} == {granted}
        assert sorted(int(one.payload) for one in found) == list(range(50))
        assert {one.topic for one in found} == {f"plant7/up/{qos}/{n}" for n in range(3)}
    wait_until(lambda: figures(bridged)["stored"] == 150, "not all is counted")
    assert figures(bridged)["unacknowledged"] == 0
    metrics = bridged.admin("/metrics")
    assert 'headgate_bridge_connected{bridge="up"} 1.0' in metrics
    assert 'headgate_bridge_messages_total{bridge="up",status="stored"} 150.0' in metrics
    upstream.kill()
    wait_until(lambda: not figures(bridged)["connected"], "the bridge does not notice")
    assert figures(bridged)["error"]
    assert 'headgate_bridge_connected{bridge="up"} 0.0' in bridged.admin("/metrics")
    assert bridged.answers("/readyz")  # clients of ours are served all the same
    upstream.start()
    connected(bridged)
    publisher(client, upstream).publish("up/x", b"again")
    assert reader.get().payload == b"again"
    assert figures(bridged)["reconnects"] == 1


def numbers(upstream, bridged, client, disturb, *, count=600):
    """Publishes numbers upstream while `disturb` acts, and returns the numbers that the log received."""
    name = fresh("reader")
    session = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
    first = client(bridged.port("mqtt"), client_id=name, clean_start=False, properties=session)
    first.subscribe("plant7/#", qos=1)
    first.close()
    writer = publisher(client, upstream)
    for number in range(count):
        writer.publish(f"up/{number % 7}", b"%d" % number, 1 + number % 2)
        disturb(number)
    reader = client(bridged.port("mqtt"), client_id=name, clean_start=False, properties=session)
    came: list[int] = []
    while len(set(came)) < count:
        came.append(int(reader.get().payload))
    return came


@pytest.mark.parametrize(("kind", "version"), [("mosquitto", "5.0"), ("headgate", "3.1.1")])
def test_nothing_is_lost_when_the_gateway_is_killed(new_gateway, tmp_path, client, kind, version):
    if kind == "mosquitto" and Mosquitto.missing:
        pytest.skip(Mosquitto.missing)
    upstream = Mosquitto(tmp_path) if kind == "mosquitto" else Source(new_gateway())
    upstream.start()
    try:
        file = configured(tmp_path, f"mqtt://127.0.0.1:{upstream.port}", version=version)
        gateway = new_gateway("--config", str(file)).start()
        connected(gateway)

        def disturb(number):
            if number == 150:
                wait_until(lambda: figures(gateway)["stored"], "nothing comes")
                gateway.kill()
            if number == 350:
                restart(gateway)

        came = numbers(upstream, gateway, client, disturb)
        assert set(came) == set(range(600))
    finally:
        upstream.stop()


@pytest.mark.skipif(bool(Mosquitto.missing), reason=Mosquitto.missing or "-")
def test_while_the_disk_is_full_the_upstream_keeps_it_all(new_gateway, tmp_path, client):
    upstream = Mosquitto(tmp_path)
    upstream.start()
    try:
        file = configured(tmp_path, f"mqtt://127.0.0.1:{upstream.port}")
        full = {"HEADGATE__STORE__DISK_RESERVE_BYTES": str(1 << 60)}
        gateway = new_gateway("--config", str(file), environ=full)
        gateway.answers = lambda _path: type(gateway).answers(gateway, "/healthz")  # ready it will not be
        gateway.start()
        wait_until(lambda: figures(gateway)["connected"], "the bridge is not connected")
        writer = publisher(client, upstream)
        for number in range(100):
            writer.publish("up/x", b"%d" % number, 1)
        found = wait_until(
            lambda: (one := figures(gateway))["unacknowledged"] and one["error"] and one, "nothing comes"
        )
        assert found["stored"] == 0
        assert "full" in found["error"] or "free" in found["error"] or "disk" in found["error"]
        gateway.kill()
        gateway.environ.clear()
        del gateway.answers
        gateway.start()
        wait_until(lambda: figures(gateway)["stored"] >= 100, "what was not acknowledged does not come again")
    finally:
        gateway.close()
        upstream.stop()


def test_over_tls_and_websocket_with_all_that_mqtt_5_says(new_gateway, tmp_path, client):
    authority = Authority(tmp_path)
    server = authority.issue("localhost", DNSName("localhost"), server=True)
    environ = {"HEADGATE__TLS__CERT_FILE": str(server.cert_file), "HEADGATE__TLS__KEY_FILE": str(server.key_file)}
    source = new_gateway(environ=environ).start()
    url = f"wss://localhost:{source.port('mqtt-wss')}/mqtt"
    file = configured(tmp_path, url)
    file.write_text(file.read_text() + f'\n[bridges.up.tls]\nca_file = "{authority.file}"\n')
    gateway = new_gateway("--config", str(file)).start()
    connected(gateway)
    reader = client(gateway.port("mqtt"))
    reader.subscribe("plant7/#", qos=2)
    user = [("k", "1"), ("type", "reading"), ("k", "2")]
    said = properties(
        PacketTypes.PUBLISH,
        PayloadFormatIndicator=1,
        MessageExpiryInterval=600,
        ContentType="text/plain",
        ResponseTopic="answers/here",
        CorrelationData=b"corr",
        UserProperty=user,
    )
    writer = client(source.port("mqtt"))
    writer.publish("up/x", b"21", 2, properties=said, retain=True)
    found = reader.get()
    assert (found.topic, found.payload, found.qos) == ("plant7/up/x", b"21", 2)
    shown = found.properties
    assert (shown.PayloadFormatIndicator, shown.ContentType, shown.ResponseTopic) == (1, "text/plain", "answers/here")
    assert shown.CorrelationData == b"corr"
    assert shown.UserProperty[:-1] == user
    name, path = shown.UserProperty[-1]  # through which gateways it has come
    assert (name, len(path.split())) == ("headgate-path", 2)
    assert 500 < shown.MessageExpiryInterval <= 600
    late = client(gateway.port("mqtt"))
    late.subscribe("plant7/up/#")
    assert late.get().retain  # here too
    large = bytes(900_000)
    writer.publish("up/large", large)
    assert reader.get().payload == large
    assert gateway.stop(signal.SIGTERM) == 0
