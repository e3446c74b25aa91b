"""Queues and access rules: consumers that may not read any more, and members, who may read all that is shared."""

import pytest

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Consume, ConsumerId, Token
from gateway.port.shared import JoinShared, SharedName
from store.local.local import LocalStore
from tests.support.gateway.shared_rig import SharedRig

pytestmark = pytest.mark.anyio

ALL = SharedName("g", "a/#")


def permissions(*filters):
    rules = (AccessRule(effect="allow", filters=filters),) if filters else ()
    return Permissions(
        Identity(name="x"), AccessRules(AccessConfig(default="deny", rules=rules)).access(Identity(name="x"))
    )


@pytest.fixture
async def rig(tmp_path):
    store = await LocalStore.open(tmp_path / "store")
    controller = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    for topic in ("$amqp", "a"):
        await controller.do(CreateTopic(name=topic, queues=1))
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
    """Returns a connection that joins with these rights, and the rights."""
    conn, who = rig.conn(), permissions(*filters)
    rig.sessions.there.add(f"s{conn.id}")
    (name,) = await rig.shared.join(conn, JoinShared(names=[ALL]), who)
    if isinstance(name, str):
        await consume(rig, conn, name, who, settle_on_delivery=True, **options)
        return conn, who
    raise name


async def waiting(rig):
    return await rig.store.leases.waiting(rig.queues.registry.queues[ALL.queue].number)


async def test_a_consumer_gets_nothing_while_it_may_not_read(rig):
    conn, who = rig.conn(), permissions("$queue/q")
    allowed, denied = who.access, permissions().access
    await rig.declare(conn, "q")
    await consume(rig, conn, "q", who)
    await rig.publish("", "q", b"1")
    await conn.has(1)
    who.access = denied
    other = rig.conn()
    await consume(rig, other, "q", permissions("$queue/+"))
    await rig.publish("", "q", b"2", b"3")
    assert await other.has(2) == [b"2", b"3"]
    rig.cancel(other)
    await rig.publish("", "q", b"4")
    who.access = allowed
    rig.queues.wake()
    assert await conn.has(2) == [b"1", b"4"]


async def test_a_single_active_consumer_that_may_not_read_any_more_holds_up_no_others(rig):
    one, who, two = rig.conn(), permissions("$queue/q"), rig.conn()
    allowed, denied = who.access, permissions().access
    await rig.declare(one, "q", arguments={"x-single-active-consumer": True})
    await consume(rig, one, "q", who)
    await consume(rig, two, "q", permissions("$queue/q"))
    await rig.publish("", "q", b"1")
    assert await one.has(1) == [b"1"]
    who.access = denied
    rig.queues.wake()
    await rig.publish("", "q", b"2")
    assert await two.has(1) == [b"2"]
    who.access = allowed
    rig.queues.wake()
    await rig.publish("", "q", b"3")
    assert await two.has(2) == [b"2", b"3"], "the active consumer stays active: it may hold messages"
    rig.cancel(two)
    await rig.publish("", "q", b"4")
    assert await one.has(2) == [b"1", b"4"]


async def test_an_exclusive_consumer_that_may_not_read_any_more_ends_and_keeps_nobody_out(rig):
    one, who, two = rig.conn(), permissions("$queue/q"), rig.conn()
    await rig.declare(one, "q", auto_delete=True)
    await consume(rig, one, "q", who, exclusive=True)
    with pytest.raises(Refusal):
        await consume(rig, two, "q", permissions("$queue/q"))
    await rig.publish("", "q", b"1")
    assert await one.has(1) == [b"1"]
    rig.queues.wake()
    assert one.cancelled == []
    who.access = permissions().access
    rig.queues.wake()
    assert one.cancelled == one.denied == [1]
    await rig.publish("", "q", b"2")
    await consume(rig, two, "q", permissions("$queue/q"), exclusive=True)
    assert await two.has(1) == [b"2"]


@pytest.mark.parametrize("filters", [(), ("a/1",), ("a/+",), ("b/#",), ("a/1", "a/2")])
async def test_who_may_not_read_all_of_a_filter_is_no_member_of_it(rig, filters):
    away, _ = await member(rig, "a/#")
    await rig.lose(away)
    await rig.publish_to("a/1", b"1")
    await rig.publish_to("a/2", b"2")
    with pytest.raises(Refusal) as caught:
        await member(rig, *filters)
    assert caught.value.cause is Cause.FORBIDDEN
    assert await waiting(rig) == 2
    back, _ = await member(rig, "a/#")
    assert await back.has(2) == [b"1", b"2"]


async def test_a_member_that_loses_a_part_of_its_rights_gets_nothing_and_others_get_all(rig):
    one, who = await member(rig, "a/#")
    before = who.access
    await rig.publish_to("a/1", b"1")
    await one.has(1)
    for access in (permissions("a/1").access, permissions().access):
        who.access = access
        await rig.publish_to("a/1", b"2")
        two, _ = await member(rig, "#")
        assert await two.has(1) == [b"2"]
        await rig.lose(two)
    await rig.publish_to("a/2", b"3")
    assert one.taken == one.taken[:1]
    who.access = before
    rig.queues.wake()
    assert await one.has(2) == [b"1", b"3"]


async def test_members_of_a_shared_subscription_are_told_when_their_right_is_revoked(rig):
    """They were leased nothing more, and waited."""
    one, who = await member(rig, "a/#")
    two, _ = await member(rig, "a/#")
    who.access = permissions("a/1").access
    rig.queues.wake()
    assert one.cancelled == one.denied == [1]
    assert two.cancelled == []
    await rig.publish_to("a/1", b"1")
    assert await two.has(1) == [b"1"]
    rig.queues.wake()
    await rig.lose(one)
    assert len(one.cancelled) == 1


async def test_what_is_leased_while_a_right_is_revoked_is_kept(rig):
    one, who = await member(rig, "a/#")
    real = rig.store.leases.take

    async def take(*args, **options):
        found = await real(*args, **options)
        who.access = permissions("a/1").access
        return found

    rig.store.leases.take = take
    await rig.publish_to("a/2", b"2")
    rig.store.leases.take = real
    two, _ = await member(rig, "a/#")
    assert await two.has(1) == [b"2"]
    assert one.taken == []
