"""The plug-in for amqtt: a real amqtt broker in this process, paho as its clients, and a gateway behind it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from amqtt.broker import Broker
from amqtt.plugins.base import BaseTopicPlugin
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes

from amqtt_headgate import HeadgatePlugin
from tests.support.mqtt.paho_client import PahoClient, properties
from tests.support.mqtt.upstreams import free_port
from tests.support.process.gateways import restart
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 60


class ForbidsSecrets(BaseTopicPlugin):
    """Lets nobody publish below `secret`."""

    async def topic_filtering(self, *, session=None, topic=None, action=None):
        return not (topic or "").startswith("secret/")


class AmqttBroker:
    """amqtt's broker with the plug-in, on an event loop of its own."""

    def __init__(self, gateway_port: int, **settings: Any) -> None:
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        plugin = {"host": "127.0.0.1", "port": gateway_port, "to": "amqtt/{topic}", **settings}
        self._broker = self._run(self._start(plugin))

    async def _start(self, plugin: dict[str, Any]) -> Broker:
        broker = Broker(
            {
                "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{self.port}"}},
                "plugins": {
                    "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True},
                    f"{__name__}.ForbidsSecrets": {},
                    "amqtt_headgate.HeadgatePlugin": plugin,
                },
            }
        )
        await broker.start()
        return broker

    @property
    def plugin(self) -> HeadgatePlugin:
        found = self._broker.plugins_manager.get_plugin("HeadgatePlugin")
        assert isinstance(found, HeadgatePlugin)
        return found

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self._run(self._broker.shutdown())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def broker() -> Iterator[Callable[..., AmqttBroker]]:
    made: list[AmqttBroker] = []

    def make(gateway: Any, **settings: Any) -> AmqttBroker:
        made.append(AmqttBroker(gateway.port("mqtt"), **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def client() -> Iterator[Callable[..., PahoClient]]:
    made: list[PahoClient] = []

    def make(port: int, version: int = paho.MQTTv311, client_id: str | None = None, **options: Any) -> PahoClient:
        made.append(PahoClient(port, version, client_id))
        return made[-1].connect(**options)

    yield make
    for one in made:
        one.close()


def test_what_clients_publish_is_stored_in_order_and_acknowledged(new_gateway, broker, client):
    gateway = new_gateway().start()
    reader = client(gateway.port("mqtt"), paho.MQTTv5)
    reader.subscribe("amqtt/#", qos=1)
    amqtt = broker(gateway)
    writer = client(amqtt.port, client_id="dev42")
    for qos in (0, 1, 2):
        for number in range(20):
            writer.publish(f"up/{qos}", b"%d" % number, qos)
        found = [reader.get() for _ in range(20)]
        assert [int(one.payload) for one in found] == list(range(20))
        assert {one.topic for one in found} == {f"amqtt/up/{qos}"}
        assert ("amqttclient", "dev42") in found[0].properties.UserProperty
    writer.publish("up/kept", b"retained", 1, retain=True)
    assert reader.get().payload == b"retained"
    late = client(gateway.port("mqtt"), paho.MQTTv5)
    late.subscribe("amqtt/up/kept", qos=1)
    assert late.get().retain
    wait_until(lambda: amqtt.plugin.stored == 61, "not all is counted")


def test_what_the_broker_does_not_let_its_clients_publish_is_not_handed_over(new_gateway, broker, client):
    gateway = new_gateway().start()
    reader = client(gateway.port("mqtt"), paho.MQTTv5)
    reader.subscribe("amqtt/#", qos=1)
    amqtt = broker(gateway, topics=["up/#", "secret/#"])
    writer = client(amqtt.port)
    for topic in ("secret/x", "elsewhere", "up/x"):
        writer.publish(topic, b"1", 1)
    assert reader.get().topic == "amqtt/up/x"
    assert reader.messages.empty()


def test_amqtt_acknowledges_nothing_before_it_is_stored(new_gateway, broker, client):
    """The gateway is killed in between: what amqtt has acknowledged is there."""
    gateway = new_gateway().start()
    session = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
    reader = client(gateway.port("mqtt"), paho.MQTTv5, "reader", clean_start=False, properties=session)
    reader.subscribe("amqtt/#", qos=1)
    amqtt = broker(gateway)
    local = client(amqtt.port)
    local.subscribe("up/#", qos=1)
    writer = client(amqtt.port)
    writer.publish("up/x", b"before", 1)
    assert local.get().payload == b"before"
    reader.close()
    gateway.kill()
    infos = [writer.paho.publish("up/x", b"%d" % number, qos) for number, qos in enumerate((1, 2, 1))]
    assert sorted(local.get().payload for _ in infos) == [b"0", b"1", b"2"]  # the broker's own subscribers have it
    assert not any(info.is_published() for info in infos)
    restart(gateway)
    for info in infos:
        info.wait_for_publish(PATIENCE_S)
        assert info.is_published()
    reader = client(gateway.port("mqtt"), paho.MQTTv5, "reader", clean_start=False, properties=session)
    came = set()
    while not came >= {b"before", b"0", b"1", b"2"}:
        came.add(reader.get().payload)


def test_what_is_more_than_may_be_held_is_not_acknowledged(new_gateway, broker, client):
    gateway = new_gateway()
    amqtt = broker(gateway, held_count_max=1)
    local = client(amqtt.port)
    local.subscribe("up/#", qos=1)
    writer = client(amqtt.port)
    infos = [writer.paho.publish("up/x", b"%d" % number, 1) for number in range(2)]
    for _ in infos:
        local.get()
    wait_until(lambda: amqtt.plugin.dropped == 1, "both are held")
    gateway.start()
    infos[0].wait_for_publish(PATIENCE_S)
    assert infos[0].is_published()
    assert not infos[1].is_published()
