"""A subscription runs while its record says so and its name is owned, each time as its record is then."""

import asyncio
import random
from types import SimpleNamespace

import msgspec
import pytest

from gateway.domain.access import Identity
from gateway.ownership.owners import OwnershipLost
from gateway.port.push import SubscriptionSpec
from gateway.push import manager as module
from gateway.push.delivery import SinkGone
from gateway.push.manager import PushManager, subscription_key
from gateway.push.spec import SubscriptionRecord
from store.local.local import LocalStore
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

KEY = subscription_key("s1")


class Owners:
    """Owners of names that are all free, and what is done with them."""

    alone = True

    def __init__(self):
        self.events = []
        self.gate = asyncio.Event()
        self.gate.set()

    def serve(self, prefix, listener):
        assert (prefix, listener) == ("push/", listener)

    async def take(self, name, *, wait):
        self.events.append(f"asked for {name}")
        await self.gate.wait()
        return self

    async def write(self, _operations, *, cursor):
        self.events.append(f"cursor {cursor}")

    async def forget(self, _operations):
        self.events.append("forgotten")

    async def release(self):
        self.events.append("released")


class Delivery:
    """A subscription at work that delivers nothing."""

    made: list["Delivery"]
    last_cursor = None

    def __init__(self, record, _context, _permissions, _kind):
        self.record = record
        self.failure = asyncio.get_running_loop().create_future()
        self.made.append(self)

    async def run(self, _owned):
        raise await self.failure


class Rig:
    def __init__(self, store):
        self.store = store
        self.owners = Owners()
        self.tasks = []
        context = SimpleNamespace(store=store, chance=random.Random(1))
        self.manager = PushManager(context, self.owners, {}, permissions_of=lambda _: None, spawn=self.spawn)

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))
        return self.tasks[-1]

    async def put(self, sink, id_="s1"):
        spec = SubscriptionSpec(sink=sink, protocol="HTTP")
        record = SubscriptionRecord(id=id_, spec=spec, identity=Identity(name="u"))
        await self.store.keys.put(subscription_key(id_), msgspec.msgpack.encode(record))

    @property
    def sinks(self):
        """The sinks of the subscription for each time that it was begun."""
        return [one.record.spec.sink for one in Delivery.made]


@pytest.fixture
async def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PushDelivery", Delivery)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    Delivery.made = []
    async with await LocalStore.open(tmp_path) as store:
        rig = Rig(store)
        rig.manager.start()
        yield rig
        await rig.manager.stop()
        await asyncio.wait(rig.tasks)


async def test_a_change_begins_it_again_without_giving_up_its_name(rig):
    await rig.put("http://one")
    await until(lambda: rig.sinks == ["http://one"])
    await rig.put("http://two")
    await until(lambda: rig.sinks == ["http://one", "http://two"])
    assert rig.owners.events == ["asked for push/s1"]


async def test_a_failure_begins_it_again_without_giving_up_its_name(rig):
    await rig.put("http://one")
    await until(lambda: rig.sinks)
    Delivery.made[0].failure.set_result(ZeroDivisionError())
    await until(lambda: len(rig.sinks) == 2)
    assert rig.owners.events == ["asked for push/s1"]


async def test_a_name_that_another_process_has_is_not_released(rig):
    await rig.put("http://one")
    await until(lambda: rig.sinks)
    Delivery.made[0].failure.set_result(OwnershipLost("push/s1"))
    await until(lambda: len(rig.sinks) == 2)
    assert rig.owners.events == ["asked for push/s1"] * 2


async def test_a_sink_that_wants_nothing_more_pauses_it(rig):
    await rig.put("http://one")
    await until(lambda: rig.sinks)
    Delivery.made[0].failure.set_result(SinkGone())
    await until(lambda: len(rig.sinks) == 2)
    assert Delivery.made[1].record.gone
    assert rig.owners.events == ["asked for push/s1"]


async def test_the_name_of_a_deleted_one_is_forgotten(rig):
    await rig.put("http://one")
    await until(lambda: rig.sinks)
    await rig.store.keys.delete(KEY)
    await until(lambda: "released" in rig.owners.events)
    assert rig.owners.events == ["asked for push/s1", "forgotten", "released"]
    assert not rig.manager.deliveries


async def test_one_that_is_deleted_while_its_name_is_taken_is_not_begun(rig):
    rig.owners.gate.clear()
    await rig.put("http://one")
    await until(lambda: rig.owners.events)
    await rig.store.keys.delete(KEY)
    await rig.put("http://two", "s2")
    await until(lambda: "asked for push/s2" in rig.owners.events)  # so the deletion has been noticed
    rig.owners.gate.set()
    await until(lambda: "released" in rig.owners.events and rig.sinks)
    assert rig.sinks == ["http://two"]
