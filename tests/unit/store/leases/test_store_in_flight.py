"""Messages on their way: what others may do with them meanwhile, and what is left when somebody goes away."""

import asyncio

import pytest

from store.base.errors import LeaseLost, StoreOverloaded
from store.format.chunks import QueueEnd
from store.format.frame import LogOffset
from store.format.placed import Placed
from store.format.policy import LeasePolicy
from store.format.records import GroupDeleted, LogTrimmed, QueueDeleted
from store.leases.leases import HandleClaim, LeaseQueue
from store.local.local import LocalStore
from store.log.run import RunBuilder
from store.views import Views
from tests.support.process.clock import Clock
from tests.support.store.leasing_kit import ME, OTHER, put, take
from tests.support.store.store_kit import records_frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def clock():
    return Clock(1_000_000)


@pytest.fixture
async def store(tmp_path, clock):
    async with await LocalStore.open(tmp_path / "data", now_ms=clock, linger_s=0.001) as store:
        store.woken = []
        store.queues.watch(store.woken.extend)
        yield store


async def handles(store, count=1, queue=16, **options):
    return [x.handle() for x in await store.leases.take(queue, ME, max_count=count, invisible_ms=1_000, **options)]


# ---- settling by handle


async def test_a_second_settlement_waits_for_the_first(store):
    await put(store, b"a")
    (handle,) = await handles(store)
    before = store.log.confirmed
    first = asyncio.ensure_future(store.leases.settle_handles([handle]))
    await asyncio.sleep(0)
    assert await store.leases.settle_handles([handle]) == [None]
    assert store.log.confirmed > before
    assert await first == [None]


async def test_when_the_first_settlement_fails_the_second_does_not_lie(store, monkeypatch):
    await put(store, b"a")
    (handle,) = await handles(store)
    monkeypatch.setattr(store.log, "_refusal", lambda size: StoreOverloaded("full"))
    first = asyncio.ensure_future(store.leases.settle_handles([handle]))
    await asyncio.sleep(0)
    with pytest.raises(StoreOverloaded):
        await store.leases.settle_handles([handle])
    with pytest.raises(StoreOverloaded):
        await first
    monkeypatch.undo()
    assert await store.leases.waiting(16) == 1
    assert await store.leases.settle_handles([handle]) == [None]
    assert await take(store) == []


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_is_being_buried_is_not_settled_by_handle(store, ordered):
    await store.leases.set_policy(16, LeasePolicy(max_deliveries=1, dead_letter_queue=40, ordered=ordered))
    await put(store, b"a", keys=(1,))
    (handle,) = await handles(store)
    store.leases.requeue(16, ME, [0])
    (lost,) = await store.leases.settle_handles([handle])
    assert isinstance(lost, LeaseLost)
    await store.leases.close()
    assert await take(store, queue=40) == [b"a"]


async def test_what_is_being_looked_at_is_nobodys():
    leases = LeaseQueue()
    assert leases.look_at(2, 9) == [(0, 2)]
    assert leases.claim(1, 7) is HandleClaim.LOST
    leases.give_up_take([(0, 2)])
    assert leases.claim(1, 7) is HandleClaim.TAKEN
    assert leases.claim(1, 7) is HandleClaim.PENDING
    leases.settle([(1, 2)])
    assert leases.claim(1, 7) is HandleClaim.SETTLED
    leases.lease(1, 1, 1)
    leases.abandon(leases.set_apart(1, [0]))
    assert leases.claim(0, 7) is HandleClaim.LOST


@pytest.mark.parametrize("turns", range(8))
async def test_who_goes_away_while_settling_leaves_nothing_behind(store, clock, monkeypatch, turns):
    await put(store, b"a")
    await put(store, b"b", queue=17)
    texts = [*await handles(store), *await handles(store, queue=17)]
    del store.core.recent.leases.of_queues["", 17]  # as after a restart
    settling = asyncio.ensure_future(store.leases.settle_handles(texts))
    for _ in range(turns):
        await asyncio.sleep(0)
    settling.cancel()
    await asyncio.wait([settling])
    if 0 in (in_flight := store.core.recent.leases.get(16).in_flight).settling:  # it was recorded
        await asyncio.wait_for(in_flight.settled(0), 10)
    clock.ms += 1_000
    await store.tick()
    left = await store.leases.waiting(16)
    assert len(await take(store, OTHER)) == left
    await store.core.until_dispatched(store.log.confirmed)
    with store.core.engine.views.reading() as txn:
        assert store.core.engine.views.settled.get(txn, 16) == ([] if left else [(0, 1)])


async def test_who_goes_away_while_purging_leaves_nothing_behind(store):
    await put(store, b"a", b"b")
    assert await store.leases.waiting(16) == 2
    purging = asyncio.ensure_future(store.leases.purge(16))
    await asyncio.sleep(0)
    purging.cancel()
    await asyncio.wait([purging])
    assert store.core.recent.leases.get(16).in_flight.settling
    await store.leases.purge(16)
    await put(store, b"c")
    assert not store.core.recent.leases.get(16).in_flight.settling


# ---- order, from now on


async def test_order_begins_when_what_is_out_has_come_to_an_end(store, clock):
    await put(store, *(b"%d" % n for n in range(5)), keys=(1,) * 5)
    assert await take(store, count=1, invisible_ms=100) == [b"0"]
    assert await take(store, count=1) == [b"1"]
    store.leases.requeue(16, ME, [1], delay_ms=200)
    assert await take(store, OTHER, count=1) == [b"2"]
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    assert await take(store, OTHER) == []
    clock.ms += 100
    await store.tick()
    assert await take(store, OTHER) == []
    clock.ms += 100
    await store.tick()
    assert await take(store, OTHER) == []
    store.woken.clear()
    await store.leases.settle(16, OTHER, [2])
    assert store.woken == [16]
    assert await take(store, OTHER) == [b"0"]
    await store.leases.settle(16, OTHER, [0])
    assert await take(store, OTHER) == [b"1"]


async def test_order_begins_when_what_is_being_settled_has_failed(store, monkeypatch):
    await put(store, b"a", b"b", keys=(1, 1))
    assert await take(store, count=1) == [b"a"]
    leases = store.core.recent.leases.get(16)
    ranges = leases.begin_settling(ME, [0])
    leases.set_policy(LeasePolicy(ordered=True))
    assert await take(store) == []
    leases.restore(ranges, delivered=True)
    assert await take(store) == [b"a"]


async def test_what_cannot_be_read_does_not_keep_order_from_beginning():
    leases = LeaseQueue()
    leases.lease(1, 1, 9)
    leases.abandon(leases.set_apart(1, [0]))
    leases.set_policy(LeasePolicy(ordered=True))
    assert not leases.blocked


# ---- queues that were deleted


async def test_of_a_deleted_queue_nothing_comes_back(store, clock):
    await store.leases.set_policy(16, LeasePolicy(max_deliveries=1, dead_letter_queue=40))
    await put(store, b"old")
    await take(store, invisible_ms=100)
    await store.queues.delete(16)
    await put(store, b"new")
    clock.ms += 100
    await store.tick()
    store.leases.release(ME)
    await store.leases.close()
    assert await take(store, queue=40) == []
    assert await take(store) == [b"new"]


@pytest.mark.parametrize("deleted", ["queue", "group"])
@pytest.mark.parametrize("restarted", [False, True])
async def test_handles_of_what_was_deleted_mean_nothing_any_more(tmp_path, clock, deleted, restarted):
    store = await LocalStore.open(tmp_path, now_ms=clock, linger_s=0.001)
    await put(store, b"old")
    (old,) = await handles(store, group="g")
    if deleted == "queue":
        await store.queues.delete(16)
        await put(store, b"new")
    else:
        await store.groups.delete("g")
    (new,) = await handles(store, group="g")
    if restarted:
        await store.close()
        store = await LocalStore.open(tmp_path, now_ms=clock, linger_s=0.001)
    lost, longer, back = [
        *await store.leases.settle_handles([old]),
        *await store.leases.extend_handles([old], invisible_ms=9),
        *await store.leases.requeue_handles([old]),
    ]
    assert [type(answer) for answer in (lost, longer, back)] == [LeaseLost] * 3
    assert await store.leases.settle_handles([new]) == [None]
    assert await store.leases.waiting(16, group="g") == 0
    await store.close()


async def test_deleted_queues_leave_nothing_in_memory(store):
    for queue in range(20, 40):
        await put(store, b"a", queue=queue)
        if queue % 2:
            assert await take(store, queue=queue) == [b"a"]
        await store.queues.delete(queue)
    await store.core.until_dispatched(store.log.confirmed)
    await asyncio.sleep(0)
    table = store.core.recent.leases
    assert not table.of_queues
    assert not table.groups
    assert not table._anew
    assert not [queue for queue in store.core.recent._next if queue >= 16]
    await store.queues.delete(16)
    assert len([queue for queue in store.core.engine.builder.ends if queue >= 16]) <= 2
    await put(store, b"new", queue=21)
    assert await take(store, queue=21) == [b"new"]


async def test_a_deleted_queue_that_is_leased_from_again_stays_in_memory(tmp_path, clock):
    async with await LocalStore.open(tmp_path, now_ms=clock, linger_s=3600) as store:
        await put(store, b"old")
        assert await take(store) == [b"old"]
        deleting = asyncio.ensure_future(store.queues.delete(16))
        while store.core.recent.deletion(16) is None and not deleting.done():
            await asyncio.sleep(0)
        await deleting
        await put(store, b"a", b"b")
        assert await take(store, count=1) == [b"a"]
        await store.leases.settle(16, ME, [0])
        assert await take(store, OTHER) == [b"b"]
        await store.core.until_dispatched(store.log.confirmed)
        assert await take(store) == []


def test_deletions_are_known_while_the_log_has_them(tmp_path):
    views, builder, at = Views(tmp_path / "views"), RunBuilder(lambda queue: QueueEnd()), 0

    def apply(*records):
        nonlocal at
        unplaced = records_frame(*records)
        placed = Placed(LogOffset(at), 1, unplaced.header(log_offset=at, epoch=1, stored_at_ms=1), unplaced)
        at = placed.end
        views.apply([builder.build([placed])])
        return placed.start

    def deleted_at(queue, group):
        with views.reading() as txn:
            return views.settled.deleted_at(txn, queue, group)

    assert deleted_at(20, "g") == -1
    apply(QueueDeleted(21))
    first, second = apply(QueueDeleted(20)), apply(GroupDeleted("g"))
    assert [deleted_at(20, ""), deleted_at(20, "g"), deleted_at(22, "g"), deleted_at(22, "")] == [
        first,
        second,
        second,
        -1,
    ]
    apply(LogTrimmed(second, 1))
    assert [deleted_at(20, ""), deleted_at(20, "g"), deleted_at(22, "")] == [second - 1, second, second - 1]
    kept = [key for name, key, _ in views.entries() if name == b"settled" and key[:1] in b"de"]
    assert kept == [b"e\0\1g"]
    views.close()
