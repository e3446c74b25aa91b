"""Consumers of one queue at several proxies: counted once, the exclusive and the active one alone."""

import asyncio

import pytest

from gateway.domain.access import NOTHING, OPEN, Identity, Permissions
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Consume, ConsumerId, Token
from gateway.port.queues import (
    DeleteQueue,
    GetMessage,
)
from gateway.queues.consumers.consumer_counts import COUNTS
from gateway.queues.leaving.upkeep import OWNER
from store.base.errors import AppendOutcomeUnknown, StoreError, StoreFull
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_an_auto_delete_queue_goes_with_the_last_consumer_of_all_proxies(two):
    cluster, one, other = two
    await one.declare(one.conn(), "q", auto_delete=True)
    first, second = one.conn(), other.conn()
    await one.consume(first, "q")
    await other.consume(second, "q")
    assert (await one.declare(first, "q", passive=True)).consumers == 2
    with pytest.raises(Refusal):
        await one.ask(DeleteQueue(name="q", if_unused=True))
    await one.lose(first)
    assert (await one.declare(one.conn(), "q", passive=True)).consumers == 1
    other.cancel(second)
    await until(lambda: "q" not in one.queues.registry.queues)
    await until(lambda: empty(cluster.keys("amqp/")))


@pytest.mark.parametrize("refused", ["one", "both"])
async def test_an_auto_delete_queue_goes_though_proxies_saw_consumers_that_had_ended(two, monkeypatch, refused):
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 0.001)
    cluster, one, other = two
    await one.declare(one.conn(), "q", auto_delete=True)
    first, second = one.conn(), other.conn()
    await one.consume(first, "q")
    await other.consume(second, "q")

    async def refuse(*_, **__):
        raise StoreFull("no room")

    with monkeypatch.context() as patch:
        for proxy in (one, other)[: 1 if refused == "one" else 2]:
            patch.setattr(proxy.store.keys, "transact", refuse)
        await one.lose(first)
        await other.lose(second)
    await until(lambda: not any("q" in proxy.queues.registry.queues for proxy in (one, other)))
    await until(lambda: empty(cluster.keys("amqp/")))


async def test_an_auto_delete_queue_that_is_declared_again_waits_for_a_consumer_again(two, monkeypatch):
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 60)
    _, one, _ = two
    await one.declare(one.conn(), "q", auto_delete=True)
    conn = one.conn()
    await one.consume(conn, "q")

    async def away(_queue):
        raise StoreError("away")

    counts, again = one.queues._counts, one.conn()
    with monkeypatch.context() as patch:
        patch.setattr(counts, "_others", away)
        await one.lose(conn)
    await one.declare(again, "q", auto_delete=True)
    await one.publish("", "q", b"1")
    assert await one.queues.registry.finish()
    await one.consume(again, "q")
    assert await again.has(1) == [b"1"]


async def empty(keys):
    return not await keys


async def test_an_auto_delete_queue_goes_with_the_proxy_of_its_last_consumer(two):
    cluster, one, other = two
    await one.declare(one.conn(), "q", auto_delete=True)
    await one.consume(one.conn(), "q")
    await cluster.lose(one, other)
    await until(lambda: "q" not in other.queues.registry.queues)
    await until(lambda: empty(cluster.keys("amqp/")))


async def test_an_exclusive_consumer_is_alone_at_all_proxies(two):
    _, one, other = two
    await one.declare(one.conn(), "q")
    first, second = one.conn(), other.conn()
    await one.consume(first, "q", exclusive=True)
    for exclusive in (False, True):
        with pytest.raises(Refusal) as refused:
            await other.consume(second, "q", exclusive=exclusive)
        assert refused.value.cause is Cause.FORBIDDEN
    await one.lose(first)
    await other.consume(second, "q")
    with pytest.raises(Refusal):
        await one.consume(one.conn(), "q", exclusive=True)
    await other.lose(second)
    await one.consume(one.conn(), "q", exclusive=True)


async def test_an_exclusive_consumer_that_ends_while_the_store_is_away_keeps_nobody_out(two, monkeypatch):
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 0.001)
    cluster, one, other = two
    await one.declare(one.conn(), "q", durable=True)
    conn = one.conn()
    await one.consume(conn, "q", exclusive=True)

    async def unknown(*_):
        raise AppendOutcomeUnknown("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr(one.store.keys, "transact", unknown)
        await one.lose(conn)
    await until_there(lambda: cluster.keys(COUNTS), [])
    await other.consume(other.conn(), "q")


async def until_there(ask, wanted):
    async with asyncio.timeout(60):
        while await ask() != wanted:
            await asyncio.sleep(0.001)


async def test_consumers_of_a_queue_that_is_deleted_elsewhere_are_told(two):
    _, one, other = two
    await one.declare(one.conn(), "q")
    conn = other.conn()
    await other.consume(conn, "q")
    await one.ask(DeleteQueue(name="q"))
    await conn.until(lambda: conn.cancelled == [1])


async def test_one_proxy_has_the_single_active_consumer_until_it_is_gone(two):
    cluster, one, other = two
    arguments = {"x-single-active-consumer": True}
    first, second = one.conn(), other.conn()
    for proxy, conn in ((one, first), (other, second)):
        await proxy.declare(conn, "q", arguments=arguments)
        await proxy.consume(conn, "q")
        await proxy.queues.keeper.look_after(proxy.queues.registry.queues["q"].number)
    await other.publish("", "q", b"1", b"2")
    assert await first.has(2) == [b"1", b"2"]
    assert not second.taken
    number = other.queues.registry.queues["q"].number
    assert await other.queues.keeper.look_after(number) is not None  # it asks again
    await cluster.lose(one, other)

    async def taken_over():
        return await other.queues.keeper.look_after(number) is None

    await until(taken_over)
    assert await second.has(2) == [b"1", b"2"]


async def test_a_proxy_whose_consumers_may_not_read_any_more_lets_another_have_the_active_one(two):
    _, one, other = two
    first, second = one.conn(), other.conn()
    who = Permissions(Identity(name="x"), None)
    for proxy, conn, permissions in ((one, first, who), (other, second, OPEN)):
        await proxy.declare(conn, "q", arguments={"x-single-active-consumer": True})
        effect = Consume(consumer=ConsumerId(1), queue="q", token=Token(0))
        await proxy.queues.consume(conn, effect, permissions)
        await proxy.queues.keeper.look_after(proxy.queues.registry.queues["q"].number)
    who.access = NOTHING
    one.queues.wake()
    number = one.queues.registry.queues["q"].number
    assert await one.queues.keeper.look_after(number) is None

    async def taken_over():
        return await other.queues.keeper.look_after(number) is None

    await until(taken_over)
    await other.publish("", "q", b"1")
    assert await second.has(1) == [b"1"]
    assert not first.taken


async def test_the_active_consumer_of_a_deleted_queue_keeps_none_of_the_next_one_waiting(two):
    """Its proxy kept the name, and the next queue of that name was delivered nowhere."""
    _, one, other = two
    arguments = {"x-single-active-consumer": True}
    await other.declare(other.conn(), "q", arguments=arguments)
    await other.consume(other.conn(), "q")
    before = other.queues.registry.queues["q"].number
    assert await other.queues.keeper.look_after(before) is None
    await other.ask(DeleteQueue(name="q"))
    conn = one.conn()
    await one.declare(conn, "q", arguments=arguments)
    await one.consume(conn, "q")
    number = one.queues.registry.queues["q"].number
    assert await one.queues.keeper.look_after(number) is not None, "its upkeep has not looked yet"
    other.spawn(other.queues.keeper.run())

    async def taken():
        return await one.queues.keeper.look_after(number) is None

    await until(taken)
    await other.publish("", "q", b"1")
    assert await conn.has(1) == [b"1"]


@pytest.mark.parametrize("arguments", [{"x-message-ttl": 100_000}, {"x-message-ttl": 100_000, "x-max-priority": 3}])
async def test_a_proxy_without_a_ready_consumer_leases_nothing_to_learn_of_messages(two, arguments, monkeypatch):
    """It gave back what it had leased, when another proxy's consumer had been given later messages already."""
    _, one, other = two
    for proxy in (one, other):
        await proxy.declare(proxy.conn(), "q", arguments=arguments)
    head = other.queues.registry.queues["q"].pump.head
    taken, take = [], type(other.store.leases).take

    async def noted(leases, queue, owner, *, max_count, **options):
        taken.append(max_count)
        return await take(leases, queue, owner, max_count=max_count, **options)

    monkeypatch.setattr(type(other.store.leases), "take", noted)
    told = []
    other.store.queues.watch(told.extend)
    assert not await head.probe(OWNER)
    await one.publish("", "q", b"1")
    await until(lambda: set(told) & set(other.queues.registry.queues["q"].numbers))
    assert set(taken) == {0}
    taken.clear()
    assert await head.probe(OWNER)
    assert not taken, "it is told of no more while one waits"
    assert (await one.ask(GetMessage(queue="q"))).leased is not None
