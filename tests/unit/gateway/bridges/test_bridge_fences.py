"""A bridge of two proxies over one store: what its former owner has under way is not stored a second time."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from prometheus_client import CollectorRegistry

from adapters.amqp import FACTORY as AMQP_FACTORY
from adapters.amqp import AmqpOptions
from adapters.mqtt import FACTORY
from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connack, Publish, Suback
from adapters.mqtt.messages.options import Options
from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, CreateTopic
from controller.node.local import LocalController
from gateway.bridges import bridges as module
from gateway.bridges.amqp.link import Link
from gateway.bridges.amqp.transport import DeliveredContent
from gateway.bridges.bridges import Bridges
from gateway.bridges.shared.amqp_settings import AmqpConsume
from gateway.bridges.shared.settings import BridgeConfig, BridgeSubscription
from gateway.ops.metrics import Metrics
from gateway.publishing.ingest import Ingest
from gateway.publishing.routing.router import Router
from store.api.message import decode
from store.format.frame import QueueOffset
from store.local.local import LocalStore
from tests.support.gateway.proxies_rig import Proxy
from tests.support.process.clock import Clock
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

COUNT = 3


class Wire:
    """A connection to an upstream that has kept the bridge's session, and sends what it has not acknowledged."""

    def __init__(self):
        self.incoming = asyncio.Queue()
        self.sent = b""
        self.closed = False
        packets = [Connack(session_present=True), Suback(packet_id=1, codes=(1,))]
        packets += [Publish(topic="up/x", payload=b"%d" % n, qos=1, packet_id=n) for n in range(1, COUNT + 1)]
        for packet in packets:
            self.incoming.put_nowait(encode(packet, 5))

    async def read(self):
        return await self.incoming.get()

    async def write(self, data):
        self.sent += data

    async def close(self):
        self.closed = True

    @property
    def acknowledged(self):
        return self.sent.count(b"\x40\x02\0")


class SlowLog:
    """A store that keeps what is appended from it for a while, as a proxy that sleeps does."""

    def __init__(self, store):
        self.store = store
        self.group = store.group
        self.log = self
        self.logs = {store.group: self}
        self.held = []
        self.sleeps = False

    def append(self, frame, done):
        if self.sleeps:
            self.held.append((frame, done))
        else:
            self.store.log.append(frame, done)

    def wake(self):
        self.sleeps = False
        for frame, done in self.held:
            self.store.log.append(frame, done)
        self.held.clear()


class AmqpWire:
    """A connection to an AMQP broker that delivers again what is not acknowledged."""

    upstream = ""

    def __init__(self):
        self.acknowledged = 0
        self.closed = False
        self.content = self.channel = self.underlay = self
        self.on_consumer_cancel_callbacks = set()

    async def declare(self, _config):
        pass

    async def set_qos(self, *, prefetch_count):
        assert prefetch_count >= COUNT

    async def basic_consume(self, queue, received):
        for number in range(1, COUNT + 1):
            deliver = Basic.Deliver(consumer_tag="c", delivery_tag=number, exchange="", routing_key=queue)
            header = ContentHeader(body_size=1, properties=Basic.Properties(app_id=str(number)))
            await received(SimpleNamespace(delivery=deliver, header=header, body=b"%d" % number))

    def take(self, _number):
        return DeliveredContent((1 << 12).to_bytes(2, "big") + b"\x02", 1, passed_over=False)

    def release(self, _size):
        pass

    async def basic_ack(self, tag, *, multiple, wait):
        assert multiple
        self.acknowledged = tag

    async def ended(self):
        await asyncio.Event().wait()

    async def close(self):
        self.closed = True


MQTT = BridgeConfig(url="mqtt://upstream", subscribe=(BridgeSubscription(filter="up/#", to="t/x"),))
AMQP = BridgeConfig(url="amqp://upstream", consume=(AmqpConsume(queue="up", to="t/x"),))


class FencedBridgeNode:
    """A proxy with a bridge."""

    crowded = False
    fanout = None

    def __init__(self, proxy, controller, config):
        self.proxy, self.owners, self.store, self.spawn = proxy, proxy.owners, proxy.store, proxy.spawn
        self.log = SlowLog(proxy.store)
        ingest = Ingest(
            self.log,
            Router(controller),
            Metrics(process=False),
            new_producer=lambda: int(proxy.owners.id, 16) >> 1,
            message_bytes_max=1 << 20,
            soon=lambda call: asyncio.get_running_loop().call_soon(call),
            clock=lambda: 0.0,
            create_topic=pytest.fail,
            appended_to=lambda _: None,
            drained=lambda: None,
            acknowledged=lambda _: None,
        )
        self.bridges = Bridges(
            {"up": config},
            {"mqtt": (FACTORY, Options()), "amqp": (AMQP_FACTORY, AmqpOptions())},
            self,
            store=ingest.publish,
            registry=CollectorRegistry(),
            now_ms=lambda: 0,
            message_bytes_max=1 << 20,
        )
        self.bridges.start()

    @property
    def status(self):
        return self.bridges.status()[0]


async def bodies(store, controller):
    """Returns the bodies in the log, and how often each is there."""
    (queue,) = controller.topic("t").queues
    bounds = await store.queues.bounds(queue)
    fetched = await store.queues.fetch(queue, QueueOffset(bounds.first), max_bytes=1 << 20)
    found = Counter()
    for frame, rows in zip(fetched.frames, fetched.rows, strict=True):
        found.update(decode(frame.record(row)).body for row in rows)
    return found


@pytest.mark.parametrize(("config", "wire"), [(MQTT, Wire), (AMQP, AmqpWire)], ids=["mqtt", "amqp"])
async def test_what_a_late_owner_has_under_way_is_refused_once_its_successor_is_connected(
    tmp_path, monkeypatch, config, wire
):
    wires = []

    async def dial(*_, **_options):
        wires.append(wire())
        return wires[-1]

    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "dial", dial)
    monkeypatch.setattr(Link, "open", dial)
    clock = Clock()
    controller = LocalController.open(tmp_path / "controller", now_ms=clock.now_ms)
    await controller.do(AddGroup(number=0, config=GroupConfig()))
    await controller.do(CreateTopic(name="t", queues=1))
    async with await LocalStore.open(tmp_path / "store", now_ms=clock.now_ms) as store:
        late = FencedBridgeNode(await Proxy(store, clock, seed=1).start(), controller, config)
        late.log.sleeps = True
        await until(lambda: late.log.held)
        successor = FencedBridgeNode(await Proxy(store, clock, seed=2).start(), controller, config)
        for _ in range(8):
            clock.ms += 1_000
            await successor.owners.renew()
        await store.keys.look()
        await until(lambda: successor.status.stored == COUNT)
        late.log.wake()
        await until(lambda: not late.status.here or wires[0].acknowledged)
        assert await bodies(store, controller) == {b"%d" % n: 1 for n in range(1, COUNT + 1)}
        assert (wires[0].closed, wires[0].acknowledged) == (True, 0)
        assert wires[1].acknowledged == COUNT
        for node in (late, successor):
            await node.proxy.die()
    await controller.close()
