"""Shared subscriptions: who is a member, how long the queue is there, what others may not do with it."""

import asyncio

import pytest

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import BindQueue, DeleteQueue, GetMessage, PurgeQueue, UnbindQueue
from gateway.port.shared import JoinShared, SharedName, shared_name
from gateway.queues.shared import subscriptions as shared_subscriptions
from store.base.errors import StoreFailed
from store.format.frame import QueueNumber
from store.local.local import LocalStore
from tests.support.gateway.asking import refused
from tests.support.gateway.shared_rig import LIGHTS, SharedRig
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    store = await LocalStore.open(tmp_path / "store")
    controller = LocalController.open(tmp_path / "controller", now_ms=lambda: 0)
    for topic in ("$amqp", "a", "b"):
        await controller.do(CreateTopic(name=topic, queues=1))
    rig = SharedRig(store, controller)
    await rig.queues.load()
    yield rig
    await rig.rest()
    await rig.queues.close()
    await controller.close()
    await store.close()


@pytest.mark.parametrize(
    "text", ["$share", "$share/", "$share/g", "$share/g/", "$share//a", "$share/+/a", "$share/g#/a"]
)
def test_a_group_named_wrongly_is_none(text):
    with pytest.raises(Refusal) as info:
        shared_name(text)
    assert info.value.cause is Cause.MALFORMED


def test_what_names_a_shared_subscription():
    assert shared_name("$share/g/a/#") == SharedName("g", "a/#")
    assert shared_name("$share/g//a") == SharedName("g", "/a")
    assert shared_name("$shared/g/a") is None
    assert shared_name("a/$share/g") is None
    with pytest.raises(Refusal):
        shared_name("$share/g/a#")
    with pytest.raises(Refusal) as info:
        shared_name("$share/g/$SYS/#")
    assert info.value.cause is Cause.FORBIDDEN


def test_a_long_name_is_shortened_and_told_apart():
    one, other = SharedName("g", "ä" * 300 + "/1"), SharedName("g", "ä" * 300 + "/2")
    assert len(one.queue.encode()) <= 255
    assert one.queue.startswith("$share/g/ää")
    assert one.queue != other.queue
    assert SharedName("g", "a").queue == "$share/g/a"


async def test_members_share_what_the_filter_matches(rig):
    one, other = rig.conn(), rig.conn()
    assert await rig.join(one, LIGHTS) == "$share/g/a/+/light"
    assert await rig.join(other, LIGHTS) == "$share/g/a/+/light"
    for conn in (one, other):
        await rig.consume(conn, LIGHTS.queue, credit=100)
    for n in range(10):
        await rig.publish_to("a/1/light", b"%d" % n)
    await rig.publish_to("a/1/heat", b"no")
    await until(lambda: len(one.taken) + len(other.taken) == 10)
    assert sorted(one.bodies + other.bodies) == sorted(b"%d" % n for n in range(10))
    assert min(len(one.taken), len(other.taken)) >= 2  # exact halves only where nothing comes between two messages


async def test_what_a_member_leaves_unacknowledged_the_others_get(rig):
    one, other = rig.conn(), rig.conn()
    for conn in (one, other):
        await rig.join(conn, LIGHTS)
    await rig.consume(one, LIGHTS.queue, credit=10)
    await rig.publish_to("a/1/light", b"1", b"2", b"3")
    await one.has(3)
    await rig.settle(one, LIGHTS.queue, "ack", one.taken[0][1])
    await rig.consume(other, LIGHTS.queue, credit=10)
    assert other.taken == []
    await rig.lose(one)
    assert sorted(await other.has(2)) == [b"2", b"3"]


async def test_the_queue_is_there_while_a_session_is_a_member(rig):
    one, other = rig.conn(), rig.conn()
    await rig.join(one, LIGHTS)
    await rig.join(other, LIGHTS)
    await rig.lose(one)  # away, and a member still
    rig.shared.left(one)
    await rig.leave(other, LIGHTS)
    assert rig.names == [LIGHTS.queue]
    await rig.publish_to("a/1/light", b"kept")
    back = rig.conn()
    await rig.join(back, LIGHTS)
    await rig.consume(back, LIGHTS.queue, credit=10)
    assert await back.has(1) == [b"kept"]
    await rig.end(back)
    assert rig.names == [LIGHTS.queue]
    await rig.end(one)
    assert rig.names == []
    assert await rig.publish_to("a/1/light", b"nobody") == []


async def test_a_session_that_ends_with_its_connection_is_looked_for_only_if_it_has_joined(rig, monkeypatch):
    one, other = rig.conn(), rig.conn()
    await rig.join(one, LIGHTS)
    await rig.end(one, lasting=False)
    assert rig.names == []

    async def read(*_, **__):
        raise AssertionError("it has nothing to look for")

    monkeypatch.setattr(rig.store.keys, "prefix", read)
    await rig.end(other, lasting=False)


async def test_who_is_a_member_already_writes_nothing(rig, monkeypatch):
    conn = rig.conn()
    await rig.join(conn, LIGHTS)

    async def write(*_, **__):
        raise AssertionError("it is a member already")

    monkeypatch.setattr(rig.store.keys, "transact", write)
    assert await rig.join(conn, LIGHTS) == LIGHTS.queue


async def test_several_are_joined_and_left_at_once(rig):
    conn = rig.conn()
    names = [SharedName("g", "a"), SharedName("h", "a"), SharedName("g", "b/#")]
    assert await rig.join(conn, *names) == ["$share/g/a", "$share/h/a", "$share/g/b/#"]
    assert sorted(await rig.publish_to("a", b"x")) == sorted(
        queue.number for queue in rig.queues.registry.shared if queue.definition.pattern == "a"
    )
    await rig.leave(conn, *names[:2])
    assert rig.names == ["$share/g/b/#"]


async def test_a_session_that_ends_leaves_all_at_once(rig, monkeypatch):
    monkeypatch.setattr(shared_subscriptions, "FORGET_COUNT_MAX", 4)
    rig.shared._groups_max = 10
    conn = rig.conn()
    await rig.join(conn, *(SharedName("g", f"a/{n}") for n in range(10)))
    await rig.end(conn)
    assert rig.names == []
    assert await rig.store.keys.prefix("shared/") == []


async def test_there_are_only_so_many(rig):
    conn = rig.conn()
    await rig.join(conn, *(SharedName(f"g{n}", "a") for n in range(3)))
    answer = await rig.join(conn, SharedName("g3", "a"))
    assert isinstance(answer, Refusal)
    assert answer.cause is Cause.QUOTA
    assert await rig.join(conn, SharedName("g1", "a")) == "$share/g1/a"
    await rig.leave(conn, SharedName("g0", "a"))
    assert await rig.join(conn, SharedName("g3", "a")) == "$share/g3/a"


async def test_nobody_else_can_use_or_name_such_a_queue(rig):
    member, stranger = rig.conn(), rig.conn()
    queue = await rig.join(member, LIGHTS)
    for name in (queue, "$share/not/there"):  # nor learn whether it is there
        await refused(Cause.FORBIDDEN, rig.declare(stranger, name))
        await refused(Cause.NOT_FOUND, rig.declare(stranger, name, passive=True))
        await refused(Cause.NOT_FOUND, rig.consume(stranger, name))
        for request in (
            PurgeQueue(name=name),
            GetMessage(queue=name),
            BindQueue(queue=name, exchange="amq.topic", routing_key="x"),
        ):
            await refused(Cause.NOT_FOUND, rig.request(stranger, request))
        assert await rig.request(stranger, DeleteQueue(name=name)) == 0
        await rig.request(stranger, UnbindQueue(queue=name, exchange="amq.topic", routing_key="x"))
    assert queue in rig.names
    assert await rig.publish("", queue, b"by name") == []
    rig.shared.left(member)
    await refused(Cause.NOT_FOUND, rig.consume(member, queue))


async def test_a_connection_without_a_session_shares_nothing(rig):
    conn = rig.conn()
    rig.sessions.without.add(conn.id)
    await refused(Cause.FORBIDDEN, rig.join(conn, LIGHTS))


async def test_a_connection_that_ends_while_it_joins_leaves_nothing_behind(rig):
    conn = rig.conn()
    conn.gone = True
    await rig.shared.join(conn, JoinShared(names=[LIGHTS]))
    await rig.rest()
    assert rig.names == []


async def test_members_and_their_queues_survive_a_restart(rig):
    one = rig.conn()
    await rig.join(one, LIGHTS, SharedName("of nobody", "a"))
    await rig.store.keys.put("s1", b"a session")
    number = rig.queues.registry.queues[LIGHTS.queue].number
    await rig.publish_to("a/1/light", b"1")
    await rig.restart()
    assert rig.queues.registry.queues[LIGHTS.queue].number == number
    await rig.shared.begin()
    await rig.rest()
    assert sorted(rig.names) == ["$share/g/a/+/light", "$share/of nobody/a"]
    await rig.publish_to("a/1/light", b"2")
    await rig.join(one, LIGHTS)
    await rig.consume(one, LIGHTS.queue, credit=10)
    assert sorted(await one.has(2)) == [b"1", b"2"]


async def test_what_a_crash_leaves_of_sessions_that_are_gone_is_cleared_away(rig):
    await rig.join(rig.conn(), LIGHTS)
    await rig.restart()
    await rig.shared.begin()
    await rig.rest()
    assert rig.names == []
    assert await rig.store.keys.prefix("shared/") == []


async def test_a_queue_that_could_not_be_removed_is_removed_later(rig, monkeypatch):
    conn = rig.conn()
    await rig.join(conn, LIGHTS)

    async def fail(*_, **__):
        raise StoreFailed("no")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store.keys, "delete", fail)
        await rig.leave(conn, LIGHTS)
    assert rig.names == [LIGHTS.queue]
    await rig.shared.sweep()
    await rig.rest()
    assert rig.names == []


async def test_a_store_that_fails_refuses_the_member(rig, monkeypatch):
    async def fail(*_, **__):
        raise StoreFailed("[Errno 5] Input/output error: '/data/store/log/0.log'")

    monkeypatch.setattr(rig.store.keys, "transact", fail)
    answer = await rig.join(rig.conn(), LIGHTS)
    assert isinstance(answer, Refusal)
    assert answer.cause is Cause.UNAVAILABLE
    assert "/" not in answer.detail, "clients are told no names of files"


async def test_joining_while_the_last_one_leaves_finds_a_queue(rig):
    for _ in range(20):
        one, other = rig.conn(), rig.conn()
        await rig.join(one, LIGHTS)
        _, name = await asyncio.gather(rig.leave(one, LIGHTS), rig.join(other, LIGHTS))
        await rig.rest()
        assert name in rig.queues.registry.queues
        assert len(await rig.publish_to("a/1/light", b"x")) == 1
        await rig.leave(other, LIGHTS)
        assert rig.names == []


async def test_what_is_shared_is_kept_no_longer_than_a_topic(rig):
    await rig.join(rig.conn(), LIGHTS)
    number = QueueNumber(rig.queues.registry.queues[LIGHTS.queue].number)
    config = rig.store.queues.config(number)
    assert config is None or not config.until_settled
    await rig.restart()
    config = rig.store.queues.config(number)
    assert config is None or not config.until_settled


async def test_a_connection_that_is_ending_gets_nothing_and_holds_nothing_up(rig):
    """Its session is closed before its consumers are removed, and that takes a while."""
    one, other = rig.conn(), rig.conn()
    for conn in (one, other):
        await rig.join(conn, LIGHTS)
    await rig.consume(one, LIGHTS.queue, credit=10)
    one.gone = True
    await rig.publish_to("a/1/light", b"1")
    await rig.consume(other, LIGHTS.queue, credit=10)
    assert await other.has(1) == [b"1"]
    assert one.taken == []


async def test_among_very_many_members_few_calls_are_made(rig, monkeypatch):
    members = [rig.conn() for _ in range(160)]
    for conn in members:
        await rig.join(conn, LIGHTS)
        await rig.consume(conn, LIGHTS.queue, credit=100)
    takes, take = 0, rig.store.leases.take

    async def counted(*arguments, **options):
        nonlocal takes
        takes += 1
        return await take(*arguments, **options)

    monkeypatch.setattr(rig.store.leases, "take", counted)
    for _ in range(4):
        await rig.publish_to("a/1/light", *[b"x"] * 400)
    await until(lambda: sum(len(conn.taken) for conn in members) == 1_600)
    assert takes <= 400
    assert max(len(conn.taken) for conn in members) <= 40
