"""The bytes that wait in a queue, against what was published, taken and given back."""

import asyncio

import pytest

from gateway.port.queues import GetMessage
from gateway.queues.leaving.sizes import QueueSizes
from gateway.queues.leaving.upkeep import OWNER
from store.base.errors import StoreOverloaded
from tests.support.gateway.queues_rig import opened_queues

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(tmp_path):
    async with opened_queues(tmp_path) as rig:
        yield rig


async def test_the_bytes_that_wait_are_counted_and_so_is_what_is_too_much(rig):
    await rig.declare(rig.conn(), "q")
    number = rig.queues.registry.queues["q"].number
    sizes = QueueSizes(rig.store, number)
    assert await sizes.waiting_bytes() == 0
    await rig.publish("", "q", *(b"x" * size for size in (5, 1, 0, 9)))
    assert await sizes.waiting_bytes() == 15
    assert [await sizes.excess(most) for most in (15, 14, 10, 9, 8, 0)] == [0, 1, 1, 2, 4, 4]
    (lease,) = await rig.store.leases.take(number, 7, max_count=1)
    assert await sizes.waiting_bytes() == 10
    rig.store.leases.requeue(number, 7, [lease.offset])
    assert await sizes.waiting_bytes() == 15
    await rig.store.leases.take(number, 7, max_count=2)
    await rig.store.leases.settle(number, 7, [0, 1])
    await rig.publish("", "q", b"xx")
    assert await sizes.waiting_bytes() == 11
    await rig.store.leases.purge(number)
    assert await sizes.waiting_bytes() == 0


async def test_two_that_shorten_a_queue_at_once_keep_the_rest_in_order(rig, monkeypatch):
    """The keeper and two clients that ask for a message remove the oldest at once, and give back what was too much."""
    await rig.declare(rig.conn(), "q", arguments={"x-max-length": 3})
    head = rig.queues.registry.queues["q"].pump.head
    await rig.publish("", "q", *(b"%d" % number for number in range(8)))
    waiting = rig.store.leases.waiting

    async def waiting_later(*arguments):
        await asyncio.sleep(0)  # others go on between a count and what follows from it
        return await waiting(*arguments)

    monkeypatch.setattr(rig.store.leases, "waiting", waiting_later)
    get = GetMessage(queue="q", settle=True)
    _, *first = await asyncio.gather(head.trim(OWNER), *(rig.request(rig.conn(), get) for _ in range(2)))
    last = [await rig.request(rig.conn(), get) for _ in range(2)]
    assert sorted(got.leased.messages[0].body for got in first) == [
        b"5",
        b"6",
    ]  # which of the two is first does not matter
    assert [got and got.leased.messages[0].body for got in last] == [b"7", None]


@pytest.mark.parametrize("failing", ["count", "expired", "exhausted", "excess"])
async def test_what_could_not_be_removed_from_the_head_is_nobodys(rig, monkeypatch, failing):
    """Messages that were leased to be removed for several reasons come back together, whichever of them fails."""
    await rig.declare(rig.conn(), "dead")
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 1}
    await rig.declare(rig.conn(), "q", arguments={**arguments, "x-delivery-limit": 0})
    queue, leases = rig.queues.registry.queues["q"], rig.store.leases
    await rig.publish("", "q", b"exhausted", b"too much")
    leases.requeue(queue.number, 7, [lease.offset for lease in await leases.take(queue.number, 7, max_count=1)])
    await rig.publish("", "q", b"expires", expires_at_ms=2_000)
    await rig.publish("", "q", b"last")
    rig.now_ms = 3_000
    waiting, forward, calls = leases.waiting, leases.forward, []

    async def refuse_count(number):
        calls.append(number)
        if len(calls) == 2:  # with the messages leased
            raise StoreOverloaded("no room")
        return await waiting(number)

    async def refuse_move(*arguments):
        calls.append(arguments)
        if len(calls) == ["expired", "exhausted", "excess"].index(failing) + 1:
            raise StoreOverloaded("no room")
        await forward(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(leases, *(("waiting", refuse_count) if failing == "count" else ("forward", refuse_move)))
        with pytest.raises(StoreOverloaded):
            await queue.pump.head.trim(OWNER)
    assert leases.release(OWNER) == []
    assert await leases.waiting(queue.number) == await leases.unsettled(queue.number)
    await queue.pump.head.trim(OWNER)
    assert await leases.unsettled(queue.number) == 1
    assert await leases.waiting(rig.queues.registry.queues["dead"].number) == 3


@pytest.mark.parametrize("why", ["expired", "excess"])
async def test_a_look_ends_after_some_batches_and_asks_for_another(rig, monkeypatch, why):
    monkeypatch.setattr("gateway.queues.leaving.head.BATCH_COUNT_MAX", 2)
    monkeypatch.setattr("gateway.queues.keeper.LOOK_BATCHES_MAX", 3)
    rules = {"x-max-length": 1} if why == "excess" else {}
    await rig.declare(rig.conn(), "q", arguments={"x-message-ttl": 60_000, **rules})
    number = rig.queues.registry.queues["q"].number
    await rig.publish("", "q", *(b"%d" % n for n in range(11)), expires_at_ms=500 if why == "expired" else None)
    await rig.publish("", "q", b"last")
    left = []
    while await rig.queues.keeper.look_after(number) == rig.now_ms:
        left.append(await rig.store.leases.waiting(number))
    assert left == ([7, 2] if why == "expired" else [6, 1])
    assert await rig.store.leases.waiting(number) == 1


async def test_a_look_that_removes_nothing_asks_for_no_other_one(rig):
    """By their mean size messages are too long that are not when they are looked at: the look began again at once."""
    await rig.declare(rig.conn(), "q", arguments={"x-max-length-bytes": 2_000})
    queue, leases = rig.queues.registry.queues["q"], rig.store.leases
    await rig.publish("", "q", b"s")
    (first,) = await leases.take(queue.number, 101, max_count=1)
    for _ in range(9):
        await rig.publish("", "q", b"L" * 1_000)
        await leases.take(queue.number, 102, max_count=1)
    await rig.publish("", "q", *[b"s"] * 9)
    leases.requeue(queue.number, 101, [first.offset], delivered=True)
    waiting = await leases.waiting(queue.number)
    assert await rig.queues.keeper.look_after(queue.number) != rig.now_ms
    assert await leases.waiting(queue.number) == waiting
