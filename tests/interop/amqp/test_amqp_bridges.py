"""Bridges over AMQP 0-9-1: from and to another Headgate gateway, and RabbitMQ where it is installed."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from cryptography.x509 import DNSName
from paho.mqtt.packettypes import PacketTypes

from tests.support.amqp.rabbitmq import MISSING, RabbitMQ
from tests.support.mqtt.paho_client import PahoClient, properties
from tests.support.process.certificates import Authority
from tests.support.process.gateways import restart
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 60
COUNT = 200


def figures(gateway, name: str = "up") -> dict[str, Any]:
    found = [one for one in json.loads(gateway.admin("/status"))["bridges"] if one["name"] == name]
    return found[0] if found else {"connected": False}


def connected(gateway):
    return wait_until(lambda: figures(gateway)["connected"], f"the bridge is not connected: {figures(gateway)}")


class Upstream:
    """A broker that a bridge speaks to: another Headgate gateway, or RabbitMQ."""

    def __init__(self, broker, port):
        self.broker = broker
        self.port = port

    def start(self):
        restart(self.broker)

    def kill(self):
        self.broker.kill()

    def clear(self):
        """Removes what tests before have declared."""
        channel = connection(self.port).channel()
        for queue in ("work", "out", "dead"):
            channel.queue_delete(queue)
        for exchange in ("orders", "letters"):
            channel.exchange_delete(exchange)
        channel.connection.close()


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory) -> Iterator[RabbitMQ]:
    if MISSING:
        pytest.skip(MISSING)
    broker = RabbitMQ(tmp_path_factory.mktemp("rabbitmq")).start()
    yield broker
    broker.close()


@pytest.fixture(params=["headgate", "rabbitmq"])
def upstream(request):
    if request.param == "headgate":
        gateway = request.getfixturevalue("shared_gateway")
        one = Upstream(gateway, gateway.port("amqp"))
    else:
        broker = request.getfixturevalue("rabbitmq")
        one = Upstream(broker, broker.port)
    one.clear()
    return one


@pytest.fixture
def mortal(upstream, new_gateway):
    """Returns an upstream that a test may kill."""
    if isinstance(upstream.broker, RabbitMQ):
        return upstream
    gateway = new_gateway().start()
    upstream.broker, upstream.port = gateway, gateway.port("amqp")
    return upstream


def connection(port: int, **options: Any) -> pika.BlockingConnection:
    parameters = pika.ConnectionParameters("127.0.0.1", port, socket_timeout=PATIENCE_S, **options)
    return pika.BlockingConnection(parameters)


@pytest.fixture
def channel() -> Iterator[Callable[[int], Any]]:
    made: list[pika.BlockingConnection] = []

    def make(port: int) -> Any:
        made.append(connection(port))
        found = made[-1].channel()
        found.confirm_delivery()
        return found

    yield make
    for one in made:
        if one.is_open:
            with contextlib.suppress(pika.exceptions.AMQPError):
                one.close()


def configured(directory: Path, url: str, text: str = "", **more: Any) -> Path:
    """Writes a configuration file with one bridge."""
    lines = ["[bridges.up]", f'url = "{url}"', "reconnect_min_s = 0.05", "reconnect_max_s = 0.5"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in more.items()]
    file = directory / "bridge.toml"
    file.write_text("\n".join([*lines, text]))
    return file


READ = """
[[bridges.up.exchanges]]
name = "orders"
[[bridges.up.consume]]
queue = "work"
declare = true
bindings = [{ exchange = "orders", routing_key = "order.#" }]
to = "shop/{topic}"
device = "{2}"
"""
FORWARD = """
[[bridges.up.exchanges]]
name = "letters"
[[bridges.up.forward]]
filter = "plant/+/state/#"
exchange = "letters"
routing_key = "{1}.{2}"
"""


@pytest.fixture
def bridged(upstream, new_gateway, tmp_path):
    def make(text: str, **more: Any) -> Any:
        file = configured(tmp_path, f"amqp://127.0.0.1:{upstream.port}", text, **more)
        gateway = new_gateway("--config", str(file)).start()
        connected(gateway)
        return gateway

    return make


def publish(port: int, address: str, *bodies: bytes, **options: Any) -> None:
    client = PahoClient(port).connect()
    for body in bodies:
        client.publish(address, body, 1, **options)
    client.close()


def drained(channel: Any, queue: str, count: int) -> list[tuple[Any, Any, bytes]]:
    """Takes the next messages of a queue, and acknowledges them."""
    found: list[tuple[Any, Any, bytes]] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count:
        method, properties, body = channel.basic_get(queue)
        if method is None:
            assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
            time.sleep(0.02)
            continue
        channel.basic_ack(method.delivery_tag)
        found.append((method, properties, body))
    return found


def test_a_queue_is_read_in_order_with_what_its_messages_say(upstream, bridged, channel):
    gateway = bridged(READ)
    reader = PahoClient(gateway.port("mqtt")).connect()
    reader.subscribe("shop/#", qos=1)
    writer = channel(upstream.port)
    said = pika.BasicProperties(
        content_type="text/plain",
        delivery_mode=2,
        correlation_id="c1",
        headers={"a": "1", "nested": {"b": [1, 2]}, "signed": -5, "when": True},
        message_id="m1",
        timestamp=1_700_000_000_000,  # in ms, as many clients write it
        user_id="guest",
        app_id="till",
    )
    for number in range(COUNT):
        writer.basic_publish("orders", f"order.{number % 3}", b"%d" % number, said)
    found = [reader.get() for _ in range(COUNT)]
    assert {one.topic for one in found} == {f"shop/order/{n}" for n in range(3)}
    for number in range(3):
        mine = [int(one.payload) for one in found if one.topic.endswith(f"/{number}")]
        assert mine == list(range(number, COUNT, 3))
    user = dict(found[0].properties.UserProperty)
    assert (user["a"], user["nested"], user["signed"], user["id"]) == ("1", '{"b":[1,2]}', "-5", "m1")
    assert (found[0].properties.ContentType, found[0].properties.CorrelationData) == ("text/plain", b"c1")
    wait_until(lambda: figures(gateway)["unacknowledged"] == 0, "not all is acknowledged")
    assert figures(gateway)["stored"] == COUNT
    metrics = gateway.admin("/metrics")
    assert 'headgate_bridge_connected{bridge="up"} 1.0' in metrics
    assert f'headgate_bridge_messages_total{{bridge="up",status="stored"}} {COUNT}.0' in metrics
    # By AMQP they leave with the types that they came with.
    local = channel(gateway.port("amqp"))
    local.queue_declare("mine")
    local.queue_bind("mine", "amq.topic", "shop.#")
    writer.basic_publish("orders", "order.x", b"typed", said)
    ((_, properties, _),) = drained(local, "mine", 1)
    headers = {name: value for name, value in properties.headers.items() if name in said.headers}
    assert headers == said.headers
    assert (properties.timestamp, properties.app_id) == (1_700_000_000_000, "till")
    reader.close()


def test_what_cannot_be_stored_is_rejected_and_is_a_dead_letter_of_the_upstream(upstream, bridged, channel):
    writer = channel(upstream.port)
    writer.exchange_declare("letters", "fanout", durable=True)
    writer.queue_declare("dead", durable=True)
    writer.queue_bind("dead", "letters")
    gateway = bridged(
        READ.replace("declare = true", 'declare = true\narguments = { "x-dead-letter-exchange" = "letters" }')
        + "\n[gateway]\nmax_message_bytes = 1000\n"
    )
    bodies = [b"first", b"x" * 300_000, b"last"]
    for body in bodies:
        writer.basic_publish("orders", "order.x", body)
    ((_, properties, body),) = drained(writer, "dead", 1)
    assert body == bodies[1]
    assert properties.headers["x-death"][0]["reason"] == "rejected"
    wait_until(lambda: figures(gateway)["stored"] == 2, "the others are not stored")
    assert figures(gateway)["refused"] == {"too_large": 1}


def test_addresses_are_forwarded_in_order_and_confirmed(upstream, bridged, channel):
    reader = channel(upstream.port)
    reader.exchange_declare("letters", "topic", durable=True)
    reader.queue_declare("out", durable=True)
    reader.queue_bind("out", "letters", "#")
    gateway = bridged(FORWARD)
    publish(gateway.port("mqtt"), "plant/press/state/oil/temp", *[b"%d" % n for n in range(COUNT)])
    publish(gateway.port("mqtt"), "plant/press/other", b"not this one")
    found = drained(reader, "out", COUNT)
    assert [int(body) for _, _, body in found] == list(range(COUNT))
    method, properties, _ = found[0]
    assert method.routing_key == "press.oil.temp"
    assert properties.delivery_mode == 2
    assert properties.message_id
    assert len({one.message_id for _, one, _ in found}) == COUNT
    wait_until(lambda: figures(gateway)["forwarded"] == COUNT, "not all is counted")
    assert figures(gateway)["unconfirmed"] == 0
    wait_until(lambda: figures(gateway)["behind_bytes"] == 0, "the cursor does not move")
    assert f'headgate_bridge_forwarded_messages_total{{bridge="up",status="forwarded"}} {COUNT}.0' in gateway.admin(
        "/metrics"
    )


def test_a_mandatory_message_waits_until_a_queue_takes_it(upstream, bridged, channel):
    gateway = bridged(FORWARD + "mandatory = true\n")
    publish(gateway.port("mqtt"), "plant/a/state/b", b"1", b"2")
    wait_until(lambda: "mandatory" in figures(gateway)["error"], "the bridge does not say why it waits")
    assert figures(gateway)["forwarded"] == 0
    reader = channel(upstream.port)
    reader.queue_declare("out", durable=True)
    reader.queue_bind("out", "letters", "#")
    # in any order: the second may have been in flight when the queue was bound
    assert sorted(body for *_, body in drained(reader, "out", 2)) == [b"1", b"2"]
    wait_until(lambda: figures(gateway)["error"] == "", "the error stays")


def test_nothing_is_lost_when_the_gateway_is_killed_in_the_middle(upstream, bridged, channel):
    """Both directions at once: what is confirmed on one side is there on the other, if more than once."""
    peer = channel(upstream.port)
    peer.exchange_declare("letters", "topic", durable=True)
    peer.queue_declare("out", durable=True)
    peer.queue_bind("out", "letters", "#")
    gateway = bridged(READ + FORWARD)
    durable(gateway).close()
    gateway_publisher = PahoClient(gateway.port("mqtt")).connect()
    for number in range(COUNT):
        persistent = pika.BasicProperties(delivery_mode=2)
        peer.basic_publish("orders", "order.x", b"%d" % number, persistent)
        if number == COUNT // 4:
            gateway_publisher.close()
            gateway.kill()
        elif number == COUNT // 2:
            restart(gateway)
            gateway_publisher = PahoClient(gateway.port("mqtt")).connect()
        if not COUNT // 4 <= number < COUNT // 2:
            gateway_publisher.publish("plant/a/state/b", b"%d" % number, 1)
    gateway_publisher.close()
    sent = {n for n in range(COUNT) if not COUNT // 4 <= n < COUNT // 2}
    came: set[int] = set()
    while came != sent:
        came |= {int(body) for *_, body in drained(peer, "out", 1)}
    reader = durable(gateway)
    stored: set[int] = set()
    while stored != set(range(COUNT)):
        stored.add(int(reader.get().payload))
    reader.close()
    wait_until(lambda: figures(gateway)["unacknowledged"] == 0, "not all is acknowledged")
    assert peer.queue_declare("work", passive=True).method.message_count == 0


def durable(gateway) -> PahoClient:
    """Returns a reader of what the bridge stores, whose session outlives the gateway's process."""
    session = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
    client = PahoClient(gateway.port("mqtt"), client_id="reader")
    client.connect(clean_start=False, properties=session)
    client.subscribe("shop/#", qos=1)
    return client


def test_it_goes_on_when_the_upstream_was_killed(mortal, bridged, channel):
    peer = channel(mortal.port)
    peer.exchange_declare("letters", "topic", durable=True)
    peer.queue_declare("out", durable=True)
    peer.queue_bind("out", "letters", "#")
    gateway = bridged(READ + FORWARD)
    peer.basic_publish("orders", "order.x", b"before", pika.BasicProperties(delivery_mode=2))
    wait_until(lambda: figures(gateway)["stored"] == 1, "it is not read")
    mortal.kill()
    wait_until(lambda: not figures(gateway)["connected"], "the bridge does not notice")
    assert figures(gateway)["error"]
    assert gateway.answers("/readyz")
    publish(gateway.port("mqtt"), "plant/a/state/b", *[b"%d" % n for n in range(20)])
    mortal.start()
    connected(gateway)
    peer = channel(mortal.port)
    assert [int(body) for *_, body in drained(peer, "out", 20)] == list(range(20))
    peer.basic_publish("orders", "order.x", b"after", pika.BasicProperties(delivery_mode=2))
    wait_until(lambda: figures(gateway)["stored"] >= 2, "it is not read again")  # `before`, too, if its ack was lost
    assert figures(gateway)["reconnects"] >= 1


def test_an_upstream_that_refuses_says_why(upstream, new_gateway, tmp_path):
    url = f"amqp://127.0.0.1:{upstream.port}"
    file = configured(tmp_path, url, '[[bridges.up.consume]]\nqueue = "nowhere"\n')
    gateway = new_gateway("--config", str(file)).start()
    wait_until(lambda: "nowhere" in figures(gateway).get("error", ""), f"no reason is said: {figures(gateway)}")
    assert not figures(gateway)["connected"]


def test_credentials_that_are_wrong_are_said_and_never_shown(upstream, new_gateway, tmp_path):
    secret = tmp_path / "password"
    secret.write_text("hush-hush/%")
    file = configured(
        tmp_path, f"amqp://127.0.0.1:{upstream.port}", READ, username="nobody/%", password_file=str(secret)
    )
    gateway = new_gateway("--config", str(file)).start()
    wait_until(lambda: "not reached" in figures(gateway).get("error", ""), "no reason is said")
    assert "hush" not in gateway.log.read_text()
    assert "hush" not in gateway.admin("/status")


def test_what_was_read_is_not_forwarded_back(upstream, bridged, channel):
    """A bridge that reads and forwards the same addresses."""
    writer = channel(upstream.port)
    writer.exchange_declare("orders", "topic", durable=True)
    gateway = bridged(
        READ.replace('to = "shop/{topic}"', 'to = "{topic}"')
        + '[[bridges.up.forward]]\nfilter = "order/#"\nexchange = "orders"\n'
    )
    writer.basic_publish("orders", "order.theirs", b"1")
    publish(gateway.port("mqtt"), "order/ours", b"2")
    wait_until(lambda: figures(gateway)["forwarded"] == 1, "ours is not forwarded")
    wait_until(lambda: figures(gateway)["refused"].get("looped") == 1, "ours, which comes back, is not known")
    wait_until(lambda: figures(gateway)["not_forwarded"].get("looped") == 1, "theirs goes back")
    assert figures(gateway)["stored"] == 1


def test_gateways_that_read_each_other_store_a_message_once_each(new_gateway, tmp_path):
    gateways = [new_gateway() for _ in range(2)]
    for at, gateway in enumerate(gateways):
        directory = tmp_path / f"{at}"
        directory.mkdir()
        read = READ.replace('name = "orders"', 'name = "amq.topic"').replace('"orders"', '"amq.topic"')
        read = read.replace('to = "shop/{topic}"', 'to = "{topic}"')
        url = f"amqp://127.0.0.1:{gateways[1 - at].port('amqp')}"
        gateway.arguments = ("--config", str(configured(directory, url, read)))
    for gateway in gateways:
        gateway.start()
    for gateway in gateways:
        connected(gateway)
    for gateway in gateways:
        publish(gateway.port("mqtt"), "order/x", b"1", b"2")
    wait_until(lambda: sum(figures(one)["refused"].get("looped", 0) for one in gateways) == 4, "messages go round")
    assert [figures(one)["stored"] for one in gateways] == [2, 2]


def test_over_tls_the_upstream_has_to_be_who_it_says(new_gateway, tmp_path, channel):
    authority = Authority(tmp_path)
    server = authority.issue("localhost", DNSName("localhost"), server=True)
    environ = {"HEADGATE__TLS__CERT_FILE": str(server.cert_file), "HEADGATE__TLS__KEY_FILE": str(server.key_file)}
    source = new_gateway(environ=environ).start()
    url = f"amqps://localhost:{source.port('amqps')}"
    trusting = READ + f'[bridges.up.tls]\nca_file = "{authority.file}"\n'
    gateway = new_gateway("--config", str(configured(tmp_path, url, trusting))).start()
    connected(gateway)
    channel(source.port("amqp")).basic_publish("orders", "order.x", b"secret")
    wait_until(lambda: figures(gateway)["stored"] == 1, "it is not read")
    directory = tmp_path / "other"
    directory.mkdir()
    other = new_gateway("--config", str(configured(directory, url, READ))).start()
    wait_until(lambda: "certificate" in figures(other).get("error", "").lower(), "a stranger's certificate is taken")
