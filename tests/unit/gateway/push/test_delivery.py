"""One subscription at work: its cursor and its status are stored, again and again where the store refuses them."""

import asyncio
import random
from types import SimpleNamespace

import msgspec
import pytest

from gateway.domain.access import OPEN, Identity
from gateway.domain.cursor import cursor_of, offsets_of
from gateway.port.adapter import Deliveries, SubscriptionId
from gateway.port.push import DeliveryStatus, SubscriptionConfig, SubscriptionSpec
from gateway.push import delivery as module
from gateway.push.context import AttemptLimit, HeldBudget, Totals
from gateway.push.delivery import PushDelivery, status_key
from gateway.push.outbox import Failure
from gateway.push.sender import Consent
from gateway.push.spec import SubscriptionRecord
from store.api.message import Message
from store.base.errors import StoreFull
from store.format.frame import Position
from tests.support.mqtt.mqtt_driver import batch_of
from tests.support.process.clock import Clock
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

FRAME = 4096


class Fanout:
    """The fan-out: the test hands events over."""

    def __init__(self):
        self.subscriber = None
        self.handed = 0

    def subscribe(self, subscriber, sub, pattern, _start, *, permissions):
        self.subscriber = subscriber
        subscriber.patterns[sub] = pattern

    def publish(self, *messages):
        batch = batch_of(*messages, frame=FRAME + self.handed)
        self.handed += FRAME
        self.subscriber.receiver.deliver(Deliveries(batch, range(len(messages)), [(SubscriptionId(0),)]))

    def reached(self, _subscriber):
        return cursor_of({0: Position(self.handed, 0)})

    def leave(self, subscriber):
        subscriber.patterns.clear()


class Sender:
    """A sink that takes everything, or nothing."""

    def __init__(self):
        self.sent = 0
        self.failing = False

    async def consent(self):
        return Consent("")

    async def send(self, _one):
        self.sent += 1
        return Failure(error="no") if self.failing else None

    async def close(self):
        pass


class Owned:
    """The name of the subscription, and a store that may be full."""

    def __init__(self):
        self.full = False
        self.refused = 0
        self.statuses = []
        self.committed = None

    async def cursor(self):
        return {}

    async def write(self, operations=(), *, cursor=None):
        if self.full:
            self.refused += 1
            raise StoreFull("no room")
        self.statuses += [msgspec.msgpack.decode(one.value, type=DeliveryStatus) for one in operations]
        self.committed = cursor or self.committed


async def nothing(key):
    assert key == status_key("s1")


@pytest.fixture
def fanout():
    return Fanout()


@pytest.fixture
async def owned(fanout, monkeypatch):
    monkeypatch.setattr(module, "COMMIT_S", 0.001)
    context = SimpleNamespace(
        store=SimpleNamespace(keys=SimpleNamespace(get=nothing), logs={}),
        fanout=fanout,
        codec=SimpleNamespace(event_attributes=lambda _message: {}),
        budget=HeldBudget(1 << 20),
        totals=Totals(),
        attempts=AttemptLimit(8),
        now_ms=Clock(),
        chance=random.Random(1),
    )
    spec = SubscriptionSpec(sink="http://sink", protocol="HTTP", config=SubscriptionConfig(addresses=("a/#",)))
    record = SubscriptionRecord(id="s1", spec=spec, identity=Identity(name="u"))
    owned = Owned()
    owned.sender, owned.clock = Sender(), context.now_ms
    kind = SimpleNamespace(sender=lambda _record, _context: owned.sender)
    task = asyncio.ensure_future(PushDelivery(record, context, OPEN, kind).run(owned))
    yield owned
    task.cancel()
    await asyncio.wait([task])


async def test_a_cursor_and_a_status_that_the_store_has_refused_are_stored_without_another_event(owned, fanout):
    await until(lambda: owned.statuses)
    owned.full = True
    fanout.publish(Message("a/b", b"1"))
    await until(lambda: owned.refused)
    owned.full = False
    await until(lambda: owned.committed)
    assert owned.committed == offsets_of(cursor_of({0: Position(FRAME, 0)}))
    assert owned.statuses[-1].delivered == 1


async def test_an_event_that_waits_is_attempted_again_in_time_when_the_clock_is_set_back(owned, fanout):
    await until(lambda: owned.statuses)
    owned.sender.failing = True
    fanout.publish(Message("a/b", b"1"))
    await until(lambda: owned.sender.sent == 1 and owned.statuses[-1].failed)
    owned.sender.failing = False
    owned.clock.ms -= 3_600_000
    owned.clock.ms += 1  # and goes on
    fanout.publish(Message("a/c", b"2"))
    await until(lambda: owned.sender.sent == 2)
    owned.clock.ms += 120_000  # more than a pause
    fanout.publish(Message("a/d", b"3"))
    await until(lambda: owned.sender.sent == 4)
