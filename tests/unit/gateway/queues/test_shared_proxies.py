"""Shared subscriptions over several proxies: one group, fair shares, and what a proxy that dies leaves behind."""

import asyncio

import pytest

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.ownership.owner_keys import OwnerRecord, encode, owner_key
from gateway.port.adapter import ConsumerId, Disposition, SettleLeased
from gateway.port.shared import JoinShared, LeaveShared
from gateway.queues.shared.subscriptions import SharedSubscriptions
from store.local.local import LocalStore
from tests.support.gateway.queues_proxies import QueuesProxies, QueuesProxy
from tests.support.gateway.shared_rig import LIGHTS, Sessions
from tests.support.process.clock import Clock
from tests.support.process.waiting import until
from tests.support.store.remote_kit import Node

pytestmark = pytest.mark.anyio


class SharedProxy(QueuesProxy):
    """One process with shared subscriptions."""

    def __init__(self, cluster, number):
        super().__init__(cluster, number)
        self.sessions = Sessions()
        self.shared = SharedSubscriptions(
            self.store, self.owners, self.queues.registry, self.sessions, groups_max=100, spawn=self.spawn
        )

    async def start(self):
        await super().start()
        self.spawn(self.queues.follow_members())
        return self

    async def member(self, *, credit=1_000):
        """Returns a connection that shares `LIGHTS`."""
        conn = self.conn()
        self.sessions.there.add(f"s{conn.id}")
        await self.shared.join(conn, JoinShared(names=[LIGHTS]))
        await self.consume(conn, LIGHTS.queue, credit=credit)
        return conn

    async def leave(self, conn):
        self.cancel(conn)
        await self.shared.leave(conn, LeaveShared(names=[LIGHTS]))

    @property
    def names(self):
        return [queue.definition.name for queue in self.queues.registry.shared]


class SharedProxies(QueuesProxies):
    async def proxy(self):
        proxy = SharedProxy(self, len(self.proxies) + 1)
        self.proxies.append(proxy)
        return await proxy.start()


@pytest.fixture
async def cluster(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path / "store", now_ms=clock.now_ms) as store:
        controller = LocalController.open(tmp_path / "controller", now_ms=clock.now_ms)
        for topic in ("$amqp", "a"):
            await controller.do(CreateTopic(name=topic, queues=1))
        node = await Node().start(store)
        cluster = SharedProxies(store, node, controller, clock)
        yield cluster
        for proxy in cluster.proxies:
            await proxy.die()
        await node.stop()
        await controller.close()


@pytest.fixture
async def two(cluster):
    return cluster, await cluster.proxy(), await cluster.proxy()


async def both_count(one, other):
    """Waits until each proxy knows how many members the other has."""
    await until(lambda: all(proxy.queues._shares.elsewhere(LIGHTS.queue) for proxy in (one, other)))


async def test_members_at_two_proxies_are_one_group(two):
    _, one, other = two
    members = [await one.member(), await other.member()]
    assert one.names == other.names == [LIGHTS.queue]
    assert len({proxy.queues.registry.queues[LIGHTS.queue].number for proxy in (one, other)}) == 1
    await one.publish_to("a/1/light", *[b"%d" % n for n in range(50)])
    await until(lambda: sum(len(conn.taken) for conn in members) == 50)
    assert sorted(members[0].bodies + members[1].bodies) == sorted(b"%d" % n for n in range(50))


@pytest.mark.slow
async def test_few_messages_are_shared_fairly_over_proxies(two):
    _, one, other = two
    members = [await one.member(), await one.member(), await other.member()]
    await both_count(one, other)
    for n in range(60):
        await one.publish_to("a/1/light", b"%d" % n)
        await until(lambda n=n: sum(len(conn.taken) for conn in members) == n + 1)
    counts = [len(conn.taken) for conn in members]
    assert min(counts) >= 8, counts


@pytest.mark.slow
async def test_of_many_messages_every_member_gets_some_at_whichever_proxy(two):
    """The number depends on the proxy's speed: what one does not take in its round is divided again."""
    _, one, other = two
    members = [await one.member(), await other.member(), await other.member()]
    await both_count(one, other)
    for _ in range(20):
        await one.publish_to("a/1/light", *[b"x"] * 90)
    await until(lambda: sum(len(conn.taken) for conn in members) == 1_800)
    counts = [len(conn.taken) for conn in members]
    assert min(counts) >= 20, counts


async def test_the_queue_goes_with_the_last_member_of_all(two):
    cluster, one, other = two
    first, second = await one.member(), await other.member()
    await one.leave(first)
    await asyncio.sleep(0)
    assert other.names == [LIGHTS.queue]
    await other.leave(second)
    await until(lambda: not one.names and not other.names)

    async def nothing_is_left():
        return not [key for key in await cluster.keys("shared/") if not key.startswith("shared/counts")]

    await until(nothing_is_left)


@pytest.mark.slow
async def test_joining_at_one_while_the_last_leaves_at_the_other(two):
    _, one, other = two
    for _ in range(10):
        first = await one.member()
        _, second = await asyncio.gather(one.leave(first), other.member())
        await until(lambda: not any("drop_empty" in repr(task) for task in one.tasks))
        await until(lambda: one.names == other.names == [LIGHTS.queue])
        assert len(await one.publish_to("a/1/light", b"x")) == 1
        await second.has(1)
        await other.leave(second)
        await until(lambda: not one.names and not other.names)


@pytest.mark.slow
async def test_what_a_dead_proxy_leaves_is_cleared_away(two):
    cluster, one, other = two
    gone, away, here = await one.member(), await one.member(), await other.member()
    await cluster.store.keys.put(f"s{away.id}", b"a durable session")
    await one.publish_to("a/1/light", *[b"%d" % n for n in range(30)])
    await until(lambda: sum(len(conn.taken) for conn in (gone, away, here)) == 30)
    done = [offset for _, offset, _ in here.taken]
    settled = SettleLeased(queue=LIGHTS.queue, dispositions=[Disposition(offsets=done, outcome="ack")])
    await other.queues.settle(here, settled)
    await cluster.lose(one, other)
    await until(lambda: len(here.taken) == 30)  # with what the members there had not acknowledged
    await other.shared.sweep()
    await until(lambda: not any("drop_empty" in repr(task) for task in other.tasks))
    assert other.names == [LIGHTS.queue]
    assert len(await cluster.keys("shared/members")) == 2
    await other.leave(here)
    assert other.names == [LIGHTS.queue]
    await other.shared.ended(f"s{away.id}")
    await until(lambda: not other.names)


async def test_a_session_held_elsewhere_is_there(two):
    cluster, one, other = two
    conn = await one.member()
    one.sessions.there.clear()
    await cluster.store.keys.put(owner_key(f"s{conn.id}"), encode(OwnerRecord(f"s{conn.id}", one.owners.id)))
    await other.shared.sweep()
    assert len(await cluster.keys("shared/members")) == 1
    await cluster.store.keys.delete(owner_key(f"s{conn.id}"))
    await other.shared.sweep()
    await until(lambda: not one.names and not other.names)
    await until(lambda: conn.cancelled == [ConsumerId(1)])
