"""Queues and access rules: consumers that may not read any more, members that may read a part of what is shared."""

import pytest
from test_shared_subscriptions import SharedRig

from controller.local import LocalController
from gateway import queue_pump
from gateway.access import Badge, Identity, Rules
from gateway.access_settings import AccessConfig, AccessRule
from gateway.port import Consume, ConsumerId, Token
from gateway.shared_port import SharedName
from store.local import LocalStore

pytestmark = pytest.mark.anyio

ALL = SharedName("g", "a/#")


def badge(*filters):
    rules = (AccessRule(effect="allow", filters=filters),) if filters else ()
    return Badge(Identity(name="x"), Rules(AccessConfig(default="deny", rules=rules)).access(Identity(name="x")))


@pytest.fixture
async def rig(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_pump, "REST_S", 0.01)
    store = await LocalStore.open(tmp_path / "store")
    controller = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    for topic in ("$amqp", "a"):
        await controller.create_topic(topic, queues=1)
    rig = SharedRig(store, controller)
    await rig.queues.load()
    yield rig
    await rig.rest()
    await rig.queues.close()
    await controller.close()
    await store.close()


async def consume(rig, conn, queue, who, **options):
    effect = Consume(consumer=ConsumerId(1), queue=queue, token=Token(0), **options)
    await rig.queues.consume(conn, effect, who)


async def member(rig, *filters, **options):
    conn = rig.conn()
    name = await rig.join(conn, ALL)
    who = badge(*filters) if filters else badge()
    await consume(rig, conn, name, who, settle_on_delivery=True, **options)
    return conn, who


async def waiting(rig):
    return await rig.store.waiting(rig.queues.registry.queues[ALL.queue].number)


async def test_a_consumer_gets_nothing_while_it_may_not_read(rig):
    conn, who = rig.conn(), badge("$queue/q")
    allowed, denied = who.access, badge().access
    await rig.declare(conn, "q")
    await consume(rig, conn, "q", who)
    await rig.publish("", "q", b"1")
    await conn.has(1)
    who.access = denied
    other = rig.conn()
    await consume(rig, other, "q", badge("$queue/+"))
    await rig.publish("", "q", b"2", b"3")
    assert await other.has(2) == [b"2", b"3"]
    rig.cancel(other)
    await rig.publish("", "q", b"4")
    who.access = allowed
    rig.queues.wake()
    assert await conn.has(2) == [b"1", b"4"]


async def test_each_member_gets_what_it_may_read(rig):
    one, _ = await member(rig, "a/1")
    two, _ = await member(rig, "a/2")
    for n in range(4):
        await rig.publish_to("a/1", b"1-%d" % n)
        await rig.publish_to("a/2", b"2-%d" % n)
    assert sorted(await one.has(4)) == [b"1-%d" % n for n in range(4)]
    assert sorted(await two.has(4)) == [b"2-%d" % n for n in range(4)]
    assert all(deliveries == 0 for _, _, deliveries in one.taken + two.taken)


async def test_what_nobody_may_read_is_dropped_and_the_rest_comes(rig):
    one, _ = await member(rig, "a/1")
    await rig.publish_to("a/3", b"3")
    await rig.publish_to("a/1", b"1")
    assert await one.has(1) == [b"1"]
    assert await waiting(rig) == 0


async def test_what_a_member_may_read_that_has_no_room_waits_for_it(rig):
    """However often others are there for it that may not."""
    one, _ = await member(rig, "a/1")
    two, _ = await member(rig, "a/2", credit=0)
    await rig.publish_to("a/2", b"2")
    for n in range(3):
        await rig.publish_to("a/1", b"1")
        await one.has(n + 1)
    assert two.taken == []
    rig.ready(two, 10, named=True)
    assert await two.has(1) == [b"2"]


async def test_a_member_whose_rights_change_gets_what_it_may_read_now(rig):
    one, who = await member(rig, "a/1")
    two, _ = await member(rig, "a/2")
    await rig.publish_to("a/1", b"1")
    await one.has(1)
    who.access = None
    await rig.lose(two)
    await rig.publish_to("a/2", b"2")
    assert await one.has(2) == [b"1", b"2"]
