"""Leasing over a real log: leases that end, delays, dead letters, order of keys, handles."""

import asyncio
import errno

import pytest

from store.api.handle import HANDLE_CHARS_MAX
from store.base.errors import AppendOutcomeUnknown, BadHandle, LeaseLost, ReplicaIncomplete, StoreOverloaded
from store.format.frame import ROW, ROW_DEAD, ROW_EXTRA, Position
from store.format.policy import INVISIBLE_MS_MAX, LeasePolicy
from store.format.ranges import ranges_of
from store.local import dead_letters as dead_letters_module
from store.local import leasing as leasing_module
from store.local import recorder as recorder_module
from store.local.local import LocalStore
from store.local.reader import Located
from tests.support.process.clock import Clock
from tests.support.store.dead_letters import death_of
from tests.support.store.leasing_kit import ME, OTHER, put, take
from tests.support.store.store_kit import FaultyFiles, behind, bodies

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


async def passes(store, clock, ms):
    clock.ms += ms
    await store.tick()


# ---- a master that begins


async def test_what_an_earlier_master_may_have_leased_is_told_from_what_is_new(tmp_path):
    """Its leases ended with it, and nobody knows which there were."""
    async with await LocalStore.open(tmp_path) as store:
        await put(store, b"a", b"b", b"c")
        await take(store, ME, 1)
    async with await LocalStore.open(tmp_path) as store:
        await put(store, b"d")
        leases = await store.leases.take(16, ME, max_count=9)
        store.leases.requeue(16, ME, [0, 3])
        again = await store.leases.take(16, ME, max_count=9)
    assert [(lease.offset, lease.deliveries, lease.delivered) for lease in leases] == [
        (0, 0, 1),
        (1, 0, 1),
        (2, 0, 1),
        (3, 0, 0),
    ]
    assert [(lease.deliveries, lease.delivered) for lease in again] == [(1, 1), (1, 1)]


# ---- leases that end


async def test_a_lease_that_is_not_settled_ends_and_counts(store, clock):
    await put(store, b"a", b"b", b"c")
    first = await store.leases.take(16, ME, max_count=2, invisible_ms=1_000)
    assert [lease.deliveries for lease in first] == [0, 0]
    await store.leases.settle(16, ME, [0])
    await passes(store, clock, 999)
    assert await take(store, OTHER, 1) == [b"c"]
    assert await take(store, OTHER) == []
    assert store.woken == []
    await passes(store, clock, 1)
    assert store.woken == [16]
    (again,) = await store.leases.take(16, OTHER, max_count=9)
    assert (again.offset, again.deliveries, again.grant) == (1, 1, None)
    await store.leases.settle(16, ME, [1])  # too late: it is somebody else's
    store.leases.requeue(16, OTHER, [1])
    assert await store.leases.waiting(16) == 1


async def test_the_loops_own_timer_ends_leases(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        await put(store, b"a")
        awake = asyncio.get_running_loop().create_future()
        store.queues.watch(awake.set_result)
        assert await take(store, invisible_ms=20) == [b"a"]
        assert await asyncio.wait_for(awake, 10) == [16]
        assert await take(store, OTHER) == [b"a"]


async def test_a_lease_can_be_extended_again_and_again_and_cut_short(store, clock):
    await put(store, b"a", b"b", b"c")
    await take(store, invisible_ms=100)
    for _ in range(5):
        await passes(store, clock, 60)
        assert await store.leases.extend(16, ME, [0, 1, 9], invisible_ms=100) == [0, 1]
    assert await take(store, OTHER) == [b"c"]
    await store.leases.extend(16, ME, [1], invisible_ms=1)
    await passes(store, clock, 1)
    assert await take(store, OTHER) == [b"b"]
    assert await store.leases.extend(16, ME, [1], invisible_ms=100) == []
    assert not await store.leases.extend(99, ME, [1], invisible_ms=100)
    await passes(store, clock, 99)
    assert await take(store, OTHER) == [b"a"]


async def test_a_clock_that_is_set_back_prolongs_no_lease(store, clock):
    await put(store, b"a")
    await take(store, invisible_ms=1_000)
    clock.ms -= 3_600_000
    await store.tick()
    await passes(store, clock, 999)
    assert await take(store, OTHER) == []
    await passes(store, clock, 1)
    assert await take(store, OTHER) == [b"a"]


async def test_a_clock_that_is_set_back_puts_off_no_look_at_leases(store, clock, monkeypatch):
    """The loop's own timer waited until the clock was again where it had been."""
    monkeypatch.setattr("store.timers.ticker.RECHECK_S", 0.01)
    awake = asyncio.get_running_loop().create_future()
    store.queues.watch(lambda queues: awake.done() or awake.set_result(queues))
    await put(store, b"a")
    assert await take(store, invisible_ms=1_000) == [b"a"]
    clock.ms -= 3_600_000
    assert await take(store, OTHER, invisible_ms=1_000) == []  # the steady clock has seen it
    clock.ms += 1_000
    assert await asyncio.wait_for(awake, 10) == [16]
    assert await take(store, OTHER) == [b"a"]


async def test_the_policys_time_holds_where_a_take_does_not_say(store, clock):
    await store.leases.set_policy(16, LeasePolicy(invisible_ms=500))
    await put(store, b"a", b"b")
    assert await take(store, count=1) == [b"a"]
    assert await take(store, count=1, invisible_ms=0) == [b"b"]
    await passes(store, clock, 500)
    assert await take(store, OTHER) == [b"a"]


@pytest.mark.parametrize("ms", [-1, INVISIBLE_MS_MAX + 1])
async def test_a_lease_has_a_longest_time(store, ms):
    await put(store, b"a")
    with pytest.raises(ValueError, match="lasts"):
        await store.leases.take(16, ME, max_count=1, invisible_ms=ms)
    with pytest.raises(ValueError, match="lasts"):
        await store.leases.extend(16, ME, [0], invisible_ms=ms)
    assert await store.leases.waiting(16) == 1


@pytest.mark.slow
async def test_deadlines_that_mean_nothing_any_more_are_forgotten(store, clock):
    for n in range(0, 6_000, 500):
        await put(store, *(b"%d" % i for i in range(n, n + 500)))
    table = store.core.recent.leases
    for _ in range(6_000):
        (lease,) = await store.leases.take(16, ME, max_count=1, invisible_ms=INVISIBLE_MS_MAX)
        table.get(16).begin_settling(ME, [lease.offset])
    assert len(table._deadlines) <= 1_024


async def test_ranges_are_settled(store):
    await put(store, *(b"%d" % n for n in range(10)))
    await take(store, count=8)
    await store.leases.settle(16, ME, range(2, 100))
    await store.leases.settle(16, ME, range(20))
    assert await take(store) == [b"8", b"9"]


# ---- giving back


async def test_what_is_given_back_with_a_delay_comes_after_it(store, clock):
    await put(store, b"a", b"b", b"c")
    await take(store, invisible_ms=10_000)
    store.leases.requeue(16, ME, [0], delay_ms=100)
    store.leases.requeue(16, ME, [1], delay_ms=50, delivered=False)
    assert await take(store, OTHER) == []
    assert await store.leases.waiting(16) == 2
    await passes(store, clock, 50)
    (lease,) = await store.leases.take(16, OTHER, max_count=9)
    assert (lease.offset, lease.deliveries) == (1, 0)
    await passes(store, clock, 50)
    assert store.woken == [16, 16]
    (lease,) = await store.leases.take(16, OTHER, max_count=9)
    assert (lease.offset, lease.deliveries) == (0, 1)


async def test_the_policys_delays_grow(store, clock):
    await store.leases.set_policy(16, LeasePolicy(backoff_ms=10, backoff_max_ms=35))
    await put(store, b"a")
    for wait_ms in (10, 20, 35, 35):
        assert await take(store) == [b"a"]
        store.leases.requeue(16, ME, [0])
        await passes(store, clock, wait_ms - 1)
        assert await take(store) == []
        await passes(store, clock, 1)
    assert await take(store) == [b"a"]
    store.leases.requeue(16, ME, [0], delivered=False)
    assert await take(store) == [b"a"]
    store.leases.requeue(16, ME, [0], delay_ms=0)
    assert await take(store) == [b"a"]


async def test_purge_takes_what_is_kept_back_and_not_what_is_leased(store, clock):
    await put(store, b"a", b"b", b"c")
    await take(store, count=2)
    store.leases.requeue(16, ME, [0], delay_ms=100)
    assert await store.leases.purge(16) == 2
    await passes(store, clock, 100)
    assert await take(store, OTHER) == []
    store.leases.requeue(16, ME, [1])
    assert await take(store, OTHER) == [b"b"]


# ---- dead letters


async def test_a_message_that_comes_back_too_often_is_given_up(store, clock):
    await store.leases.set_policy(16, LeasePolicy(max_deliveries=3, dead_letter_queue=40))
    appended = await put(store, b"good", b"bad")
    for _ in range(2):
        assert await take(store) == [b"good", b"bad"]
        store.leases.requeue(16, ME, [0], delivered=False)
        store.leases.requeue(16, ME, [1])
    store.woken.clear()
    assert await take(store, invisible_ms=10) == [b"good", b"bad"]
    await store.leases.settle(16, ME, [0])
    await passes(store, clock, 10)
    await behind(store).leases.close()
    assert store.woken == [40]
    assert await store.leases.waiting(16) == 0
    (lease,) = await store.leases.take(40, OTHER, max_count=9)
    row = lease.frame.rows[lease.row]
    assert lease.frame.record(lease.row) == b"bad"
    assert int(row["flags"]) == ROW_EXTRA | ROW_DEAD
    assert [int(row[name]) for name in ("address_hash", "id_hash", "time_ms")] == [5, 6, 7]
    death = death_of(lease.frame, lease.row)
    assert death == (16, "", 1, Position(appended.frame, 1), "delivery_limit", 3)
    assert lease.deliveries == 0
    assert await store.log.last(5) == Position(appended.frame, 1)  # it is no news


async def test_what_is_rejected_is_given_up_at_once(store):
    await store.leases.set_policy(16, LeasePolicy(dead_letter_queue=40))
    await put(store, *(b"%d" % n for n in range(6)))
    await take(store, count=5)
    await store.leases.reject(16, ME, [4, 0, 2, 5])
    await store.leases.reject(16, ME, [3], reason="expired")
    leases = await store.leases.take(40, OTHER, max_count=9)
    assert [lease.frame.record(lease.row) for lease in leases] == [b"0", b"2", b"4", b"3"]
    assert [death_of(lease.frame, lease.row).reason for lease in leases] == ["rejected"] * 3 + ["expired"]
    assert await bodies(store, 16) == [b"%d" % n for n in range(6)]
    assert await take(store, OTHER) == [b"5"]
    store.leases.release(ME)
    assert await take(store, OTHER) == [b"1"]
    assert death_of(leases[0].frame, 3) is None  # the record that tells
    await store.leases.reject(99, ME, [1])


async def test_without_a_place_for_dead_letters_they_are_settled(store):
    await store.leases.set_policy(16, LeasePolicy(max_deliveries=1))
    await put(store, b"a", b"b")
    await take(store)
    await store.leases.reject(16, ME, [0])
    assert store.leases.release(ME) == [16]
    await behind(store).leases.close()
    assert await take(store, OTHER) == []
    assert await store.leases.waiting(16) == 0


async def test_many_dead_letters_have_several_frames(store, monkeypatch):
    monkeypatch.setattr(dead_letters_module, "DEAD_BYTES", 100)
    await store.leases.set_policy(16, LeasePolicy(dead_letter_queue=40))
    await put(store, *(b"%030d" % n for n in range(10)))
    await take(store)
    frames = []
    store.log.tail(frames.extend)
    await store.leases.reject(16, ME, range(10))
    assert len(frames) == 4
    assert await take(store, queue=40) == [b"%030d" % n for n in range(10)]
    assert await store.leases.waiting(16) == 0


async def test_dead_letters_of_dead_letters(store):
    await store.leases.set_policy(16, LeasePolicy(dead_letter_queue=40))
    await store.leases.set_policy(40, LeasePolicy(dead_letter_queue=41))
    await put(store, b"a")
    await take(store)
    await store.leases.reject(16, ME, [0])
    (first,) = await store.leases.take(40, ME, max_count=1)
    await store.leases.reject(40, ME, [0])
    (second,) = await store.leases.take(41, ME, max_count=1)
    assert death_of(second.frame, second.row).origin == Position(first.frame.start, first.row)


async def test_what_cannot_be_given_up_comes_again(store, monkeypatch):
    await store.leases.set_policy(16, LeasePolicy(max_deliveries=1, dead_letter_queue=40))
    await put(store, b"a")
    await take(store)
    monkeypatch.setattr(behind(store).log, "_refusal", lambda size: StoreOverloaded("full"))
    with pytest.raises(StoreOverloaded):
        await store.leases.reject(16, ME, [0])
    assert await take(store) == [b"a"]
    store.leases.requeue(16, ME, [0])
    await behind(store).leases.close()
    await asyncio.sleep(0)
    monkeypatch.undo()
    assert await take(store) == [b"a"]
    store.leases.requeue(16, ME, [0])
    await behind(store).leases.close()
    assert await take(store, queue=40) == [b"a"]


async def test_dead_letters_and_policies_outlive_a_restart(tmp_path, clock):
    policy = LeasePolicy(max_deliveries=2, dead_letter_queue=40, backoff_ms=5)
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await store.leases.set_policy(16, policy)
        await store.leases.set_policy(16, LeasePolicy(ordered=True), group="g")
        await put(store, b"a", b"b")
        await take(store)
        await store.leases.reject(16, ME, [0])
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        assert await store.leases.policy(16) == policy
        assert (await store.leases.policy(16, group="g")).ordered
        assert await take(store) == [b"b"]
        assert await take(store, queue=40) == [b"a"]
        await store.queues.delete(16)
        assert await store.leases.policy(16) == LeasePolicy()
        assert await store.leases.policy(16, group="g") == LeasePolicy()


async def test_what_cannot_be_read_is_passed_over_and_blocks_no_key(store, monkeypatch):
    await store.leases.set_policy(17, LeasePolicy(ordered=True))
    for queue in (16, 17):
        for n in range(4):
            await put(store, b"%d" % n, queue=queue, keys=(1,))
    assert await take(store, count=1, queue=17) == [b"0"]
    assert await take(store, OTHER, queue=17) == []  # the others are known and wait
    gone = {16: range(3), 17: range(1, 3)}
    whole = store.core.reader.locate

    def locate(queue, ranges, recent, **options):
        asked = [offset for start, end in ranges for offset in range(start, end)]
        left = ranges_of(offset for offset in asked if offset not in gone[queue])
        found = whole(queue, left, recent, **options)
        return Located(found.records, ranges_of(offset for offset in asked if offset in gone[queue]))

    monkeypatch.setattr(store.core.reader, "locate", locate)
    assert await take(store, count=1) == [b"3"]
    await store.leases.settle(17, ME, [0])
    assert await take(store, queue=17) == [b"3"]


# ---- settling and appending at once


async def test_forward_moves_what_is_held(store):
    await put(store, b"a", b"b")
    await take(store)
    store.woken.clear()
    await store.leases.forward(16, ME, [0], ROW.pack(40, 0, 3, 0, 0, 0, 0, 0), b"new")
    assert store.woken == [40]
    assert await take(store, queue=40) == [b"new"]
    with pytest.raises(LeaseLost):
        await store.leases.forward(16, ME, [0, 1], ROW.pack(40, 0, 3, 0, 0, 0, 0, 0), b"new")
    with pytest.raises(LeaseLost):
        await store.leases.forward(99, ME, [0], b"", b"")
    store.leases.release(ME)
    assert await take(store) == [b"b"]


async def test_forward_that_fails_does_nothing(tmp_path):
    files = FaultyFiles()
    store = await LocalStore.open(tmp_path, files=files)
    await put(store, b"a")
    await take(store)
    files.sync_error = errno.EIO
    with pytest.raises(AppendOutcomeUnknown):
        await store.leases.forward(16, ME, [0], ROW.pack(40, 0, 3, 0, 0, 0, 0, 0), b"new")
    (lease,) = await store.leases.take(16, OTHER, max_count=1)
    assert lease.deliveries == 1
    await store.close()


# ---- groups


async def test_groups_have_their_own_leases_settlements_and_ends(tmp_path, clock):
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await put(store, b"a", b"b")
        assert await take(store, group="g") == [b"a", b"b"]
        assert await take(store, OTHER, group="h") == [b"a", b"b"]
        assert await take(store) == [b"a", b"b"]
        await store.leases.settle(16, ME, [0], group="g")
        await store.leases.settle(16, OTHER, [0, 1], group="h")
        assert store.leases.release(ME) == [16]
        assert await store.leases.waiting(16, group="g") == 1
        assert await store.leases.waiting(16) == 2
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        assert await take(store, group="g") == [b"b"]
        assert await take(store, group="h") == []
        assert await store.leases.purge(16) == 2
        await store.groups.delete("h")
        assert await take(store, group="h") == [b"a", b"b"]
        await store.queues.delete(16)
        assert await store.leases.waiting(16, group="g") == 0
        await put(store, b"new")
        assert await take(store, group="g") == [b"new"]


async def test_a_group_deleted_before_it_was_leased_anything_again(tmp_path, clock):
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await put(store, b"a")
        await take(store, group="g")
        await store.leases.settle(16, ME, [0], group="g")
    async with await LocalStore.open(tmp_path, now_ms=clock, linger_s=3600) as store:
        await store.groups.delete("g")
        assert await take(store, group="g") == [b"a"]


# ---- settlements that nobody waits for


async def test_what_could_not_be_settled_soon_is_leased_again(store, monkeypatch):
    await put(store, b"a")
    await take(store)
    with monkeypatch.context() as full:
        full.setattr(behind(store).log, "_refusal", lambda size: StoreOverloaded("full"))
        with pytest.raises(StoreOverloaded):
            await store.leases.settle_soon(16, ME, [0])
    assert await take(store, OTHER) == [b"a"]
    await store.leases.settle_soon(16, ME, [0])  # another one holds it
    await store.leases.settle_soon(16, OTHER, [0])
    store.leases.release(OTHER)
    assert await take(store) == []


async def test_in_an_ordered_group_nothing_waits_for_a_settlement_to_linger(store, monkeypatch):
    monkeypatch.setattr(recorder_module, "LINGER_S", 3_600)
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    await put(store, b"a1", b"a2", keys=(1, 1))
    assert await take(store) == [b"a1"]
    await store.leases.settle_soon(16, ME, [0])
    assert await take(store) == [b"a2"]


# ---- order of keys


async def test_one_key_is_never_in_flight_twice_and_keeps_its_order(store):
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    await put(store, b"a1", b"a2", b"b1", b"x", b"a3", b"b2", b"y", keys=(1, 1, 2, 0, 1, 2, 0))
    assert await take(store) == [b"a1", b"b1", b"x", b"y"]
    assert await store.leases.waiting(16) == 3
    await store.leases.settle(16, ME, [2])
    assert store.woken == [16]
    assert await take(store, OTHER) == [b"b2"]
    store.leases.requeue(16, ME, [0, 3])
    assert await take(store, OTHER) == [b"a1", b"x"]
    await store.leases.settle(16, OTHER, [0])
    assert await take(store) == [b"a2"]
    await put(store, b"a4", b"c1", keys=(1, 3))
    assert await take(store) == [b"c1"]
    await store.leases.settle(16, ME, [1])
    assert await take(store, count=1) == [b"a3"]


async def test_a_message_given_back_with_a_delay_blocks_its_key_alone(store, clock):
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    await put(store, b"a1", b"a2", b"b1", keys=(1, 1, 2))
    assert await take(store, count=1) == [b"a1"]
    store.leases.requeue(16, ME, [0], delay_ms=100)
    assert await take(store) == [b"b1"]
    await store.leases.settle(16, ME, [2])
    assert await take(store) == []
    await passes(store, clock, 100)
    assert await take(store, invisible_ms=10) == [b"a1"]
    await passes(store, clock, 10)
    assert await take(store) == [b"a1"]
    await store.leases.settle(16, ME, [0])
    assert await take(store) == [b"a2"]


async def test_a_key_whose_message_is_given_up_goes_on(store):
    await store.leases.set_policy(16, LeasePolicy(ordered=True, max_deliveries=1, dead_letter_queue=40))
    await put(store, b"a1", b"a2", keys=(1, 1))
    assert await take(store) == [b"a1"]
    store.leases.requeue(16, ME, [0])
    await behind(store).leases.close()
    assert store.woken == [40, 16]
    assert await take(store) == [b"a2"]
    assert await take(store, queue=40) == [b"a1"]


async def test_an_ordered_group_looks_only_so_far_ahead(store, monkeypatch):
    monkeypatch.setattr(leasing_module, "PASSED_OVER_MAX", 5)
    monkeypatch.setattr(leasing_module, "LOOK_AHEAD", 2)
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    await put(store, *(b"a%d" % n for n in range(6)), b"b", keys=(1, 1, 1, 1, 1, 1, 2))
    assert await take(store) == [b"a0"]
    await store.leases.settle(16, ME, [0])
    assert await take(store) == [b"a1", b"b"]


async def test_takes_at_the_same_time_keep_the_order(store):
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    for n in range(20):
        await put(store, *(b"%d" % i for i in range(10 * n, 10 * n + 10)), keys=[1 + i % 7 for i in range(10)])
    taken = await asyncio.gather(*(store.leases.take(16, owner, max_count=3) for owner in range(6)))
    found = [lease for leases in taken for lease in leases]
    keys = [int(lease.frame.rows["key_hash"][lease.row]) for lease in found]
    assert len(set(keys)) == len(keys) == 7


async def test_small_reads_still_find_what_may_be_leased(store):
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    for n in range(5):
        await put(store, b"a%d" % n * 100, keys=(1,))
    await put(store, b"b", keys=(2,))
    leases = await store.leases.take(16, ME, max_count=2, max_bytes=250)
    assert [lease.offset for lease in leases] == [0, 5]


@pytest.mark.parametrize("invisible_ms", [None, 60_000])
async def test_a_take_that_fails_in_an_ordered_group_holds_nothing(store, monkeypatch, invisible_ms):
    """The messages found before the failure were held for an owner that was never told of them."""
    monkeypatch.setattr(leasing_module, "LOOK_AHEAD", 1)
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    await put(store, b"a1", b"a2", b"b", b"c", keys=(1, 1, 2, 3))
    leasing = behind(store).leases._leasing
    locate, looks = leasing._locate, []

    async def damaged(queue, ranges, *, max_bytes):
        looks.append(ranges)
        if ranges[-1][1] > 2:
            raise ReplicaIncomplete("damaged, and being repaired")
        return await locate(queue, ranges, max_bytes=max_bytes)

    monkeypatch.setattr(leasing, "_locate", damaged)
    for _ in range(2):  # the second time, its key is known to have a message
        with pytest.raises(ReplicaIncomplete):
            await store.leases.take(16, ME, max_count=2, invisible_ms=invisible_ms)
    monkeypatch.setattr(leasing, "_locate", locate)
    leases = await store.leases.take(16, OTHER, max_count=9)
    assert looks[0][0][0] == 0
    assert [(lease.offset, lease.deliveries) for lease in leases] == [(0, 0), (2, 0), (3, 0)]


async def test_order_can_be_switched_off_and_on(store):
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    await put(store, b"a1", b"a2", b"a3", keys=(1, 1, 1))
    assert await take(store) == [b"a1"]
    await store.leases.set_policy(16, LeasePolicy())
    assert await take(store, OTHER, 1) == [b"a2"]
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    store.leases.release(ME)
    store.leases.release(OTHER)
    assert await take(store) == [b"a1"]
    assert await store.leases.purge(16) == 2
    await store.leases.settle(16, ME, [0])
    assert await take(store) == []


# ---- handles


class _Is:
    """Equal to any error of a kind."""

    def __init__(self, kind):
        self.kind = kind

    def __eq__(self, other):
        return isinstance(other, self.kind)

    def __hash__(self):
        return hash(self.kind)


async def test_anybody_settles_by_handle(tmp_path, clock):
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:
        await put(store, *(b"%d" % n for n in range(4)))
        leases = await store.leases.take(16, ME, max_count=4, group="g", invisible_ms=100)
        handles = [lease.handle() for lease in leases]
        assert await store.leases.settle_handles([handles[1], "nonsense", handles[1]]) == [
            None,
            _Is(BadHandle),
            None,
        ]
        clock.ms += 100
        await store.tick()
        assert await store.leases.settle_handles([handles[0]]) == [None]  # it has ended, and nobody else has it
        assert await take(store, OTHER, 1, group="g") == [b"2"]
        assert await store.leases.settle_handles([handles[2]]) == [_Is(LeaseLost)]
    async with await LocalStore.open(tmp_path, now_ms=clock) as store:  # another master: the key is the group's
        assert await store.leases.settle_handles([handles[3], handles[0]]) == [None, None]
        assert await take(store, OTHER, group="g") == [b"2"]
        assert await store.leases.settle_handles(["A" * (HANDLE_CHARS_MAX + 1)]) == [_Is(BadHandle)]


async def test_leases_are_extended_and_given_back_by_handle(store, clock):
    await put(store, b"a", b"b")
    one, two = [lease.handle() for lease in await store.leases.take(16, ME, max_count=2, invisible_ms=100)]
    clock.ms += 60
    longer, bad = await store.leases.extend_handles([one, "x"], invisible_ms=100)
    assert isinstance(bad, BadHandle)
    await passes(store, clock, 60)
    assert await take(store, OTHER) == [b"b"]
    assert await store.leases.requeue_handles([longer, two, "x"], delay_ms=10) == [None, _Is(LeaseLost), _Is(BadHandle)]
    assert await store.leases.requeue_handles([longer]) == [_Is(LeaseLost)]
    assert await store.leases.settle_handles([longer]) == [_Is(LeaseLost)]  # it is kept back
    assert await store.leases.extend_handles([longer], invisible_ms=9) == [_Is(LeaseLost)]
    await passes(store, clock, 10)
    (lease,) = await store.leases.take(16, OTHER, max_count=1)
    assert (lease.offset, lease.deliveries) == (0, 1)
    with pytest.raises(ValueError, match="handle"):
        lease.handle()


async def test_an_older_handle_of_an_extended_lease_still_works(store, clock):
    await put(store, b"a")
    (lease,) = await store.leases.take(16, ME, max_count=1, invisible_ms=100)
    old = lease.handle()
    await store.leases.extend_handles([old], invisible_ms=1_000)
    await passes(store, clock, 500)
    assert await store.leases.settle_handles([old]) == [None]
    assert await store.leases.waiting(16) == 0


async def test_an_ordered_message_is_settled_by_handle(store, clock):
    await store.leases.set_policy(16, LeasePolicy(ordered=True))
    await put(store, b"a1", b"a2", keys=(1, 1))
    (lease,) = await store.leases.take(16, ME, max_count=2, invisible_ms=10)
    await passes(store, clock, 10)
    assert await store.leases.settle_handles([lease.handle()]) == [None]
    assert await take(store) == [b"a2"]


@pytest.mark.parametrize("way", ["settle", "purge", "reject", "forward"])
@pytest.mark.parametrize("deleted", ["queue", "group"])
async def test_what_is_settled_while_its_queue_is_deleted_is_not_of_the_next_one(tmp_path, way, deleted):
    group = "g" if deleted == "group" else ""
    settling = {
        "settle": lambda store: store.leases.settle(16, ME, [0, 1], group=group),
        "purge": lambda store: store.leases.purge(16, group=group),
        "reject": lambda store: store.leases.reject(16, ME, [0, 1], group=group),
        "forward": lambda store: store.leases.forward(16, ME, [0, 1], b"", b"", group=group),
    }
    async with await LocalStore.open(tmp_path / "data", linger_s=3600) as store:
        await put(store, b"a", b"b")
        assert len(await take(store, group=group)) == (0 if way == "purge" else 2) or store.leases.release(ME)
        deleting = store.queues.delete(16) if deleted == "queue" else store.groups.delete(group)
        await asyncio.gather(deleting, settling[way](store), return_exceptions=True)
        await put(store, b"c", b"d")
        expected = [b"c", b"d"] if deleted == "queue" else [b"a", b"b", b"c", b"d"]
        assert await take(store, group=group) == expected
    async with await LocalStore.open(tmp_path / "data") as store:
        assert await take(store, group=group) == expected


# ---- several queues at once


async def test_a_commit_settles_messages_of_several_queues_and_appends_rows(store):
    await put(store, b"a", b"b")
    await put(store, b"c", queue=17)
    await take(store)
    await take(store, queue=17)
    await store.leases.commit(ME, [(16, [0]), (17, [0])], ROW.pack(40, 0, 3, 0, 0, 0, 0, 0), b"new")
    assert await take(store, queue=40) == [b"new"]
    store.leases.release(ME)
    assert await take(store) == [b"b"]
    assert await take(store, queue=17) == []


async def test_a_commit_of_something_that_is_not_held_does_nothing(store):
    await put(store, b"a")
    await put(store, b"c", queue=17)
    await take(store)
    with pytest.raises(LeaseLost):
        await store.leases.commit(ME, [(16, [0]), (17, [0])], ROW.pack(40, 0, 3, 0, 0, 0, 0, 0), b"new")
    assert await take(store, queue=40) == []
    store.leases.release(ME)
    assert await take(store) == [b"a"]


async def test_a_commit_that_fails_gives_all_queues_back_what_they_leased(tmp_path):
    files = FaultyFiles()
    store = await LocalStore.open(tmp_path, files=files)
    await put(store, b"a")
    await put(store, b"c", queue=17)
    await take(store)
    await take(store, queue=17)
    files.sync_error = errno.EIO
    with pytest.raises(AppendOutcomeUnknown):
        await store.leases.commit(ME, [(16, [0]), (17, [0])], b"", b"")
    for queue in (16, 17):
        assert len(await store.leases.take(queue, OTHER, max_count=1)) == 1
    await store.close()
