"""A master with other replicas: what is on its disk is read and answered when it is confirmed, and streamed before."""

import asyncio
import errno
import shutil

import pytest

from store.api.log import Appended
from store.base.errors import (
    AppendOutcomeUnknown,
    CorruptFrame,
    NotMaster,
    NotWritable,
    OffsetOutOfRange,
    RevisionConflict,
    StoreClosed,
    StoreError,
    StoreFailed,
)
from store.format.frame import FRAME_ASYNC, ROW, Frame, origin_of
from store.format.policy import LeasePolicy
from store.format.records import KvPut, LeasePolicySet, Settled, TimerSet
from store.local import local
from store.local.local import LocalStore
from store.log.tail import LogTail
from tests.support.process.waiting import until
from tests.support.store.flips import flip
from tests.support.store.leasing_kit import take
from tests.support.store.replica_kit import Hooks, open_master, stored
from tests.support.store.store_kit import FaultyFiles, append, begin, bodies, frame, records_frame

pytestmark = pytest.mark.anyio


def parse(data, at):
    found = []
    while data:
        found.append(Frame.parse(data, log_offset=at))
        data, at = data[found[-1].header.size_bytes :], found[-1].end
    return found


async def test_nothing_is_read_or_answered_before_it_is_confirmed(tmp_path):
    store = await open_master(tmp_path)
    seen = []
    store.log.tail(seen.extend)
    first, second = await stored(store, frame((16, b"a"))) + await stored(store, frame((16, b"b")))
    assert not first.done()
    assert store.log.pending_bytes > 0
    assert store.log.confirmed == 0 < store.replication.flushed == store.replication.end
    assert await bodies(store, 16) == []
    assert (await store.queues.bounds(16)).next == 0
    assert store.core.engine.log.read(0) is None
    end = frame((16, b"a")).size_bytes
    store.replication.confirm(end)
    assert await first == Appended(0)
    assert not second.done()
    assert await bodies(store, 16) == [b"a"]
    assert [one.start for one in seen] == [0]
    store.replication.confirm(store.replication.end)
    assert (await second).frame == end
    assert store.log.pending_bytes == 0
    await store.core.until_dispatched(store.log.confirmed)
    assert store.core.engine.views.dispatched == store.replication.end
    await store.close()


async def test_compare_and_set_waits_too(tmp_path):
    store = await open_master(tmp_path)
    first = asyncio.ensure_future(store.keys.put("k", b"1", expected_revision=0))
    second = asyncio.ensure_future(store.keys.put("k", b"2", expected_revision=0))
    await until(lambda: store.replication.flushed > 0)
    assert await store.keys.get("k") is None
    store.replication.confirm(store.replication.end)
    assert await first > 0
    with pytest.raises(StoreError, match="is at revision"):
        await second
    await store.step_down()


async def test_what_is_acknowledged_before_it_is_confirmed(tmp_path):
    """A group that answers by its master alone: readers see what all have."""
    store = await open_master(tmp_path)
    (answer,) = await stored(store, frame((16, b"a")))
    store.replication.confirm(0, store.replication.flushed)
    assert (await answer).frame == 0
    assert await bodies(store, 16) == []
    store.replication.confirm(store.replication.flushed)
    assert await bodies(store, 16) == [b"a"]
    await store.close()


async def test_hooks_hear_of_frames_before_they_are_on_disk(tmp_path):
    files = FaultyFiles()
    store = await open_master(tmp_path, files=files)
    loop, streamed = asyncio.get_running_loop(), []

    def before_sync():
        asyncio.run_coroutine_threadsafe(read(), loop).result(5)

    async def read():
        streamed.append((list(store.hooks.told), await store.replication.read_log(0, 1 << 20)))

    files.before_sync = before_sync
    await stored(store, frame((16, b"a")))
    told, data = streamed[0]
    assert told == [("written", store.replication.end)]
    assert parse(data, 0)[0].record(0) == b"a"
    assert store.hooks.told == [("written", store.replication.end), ("flushed", store.replication.end)]
    files.before_sync = lambda: None
    await store.step_down()


@pytest.mark.parametrize("remembered", [0, 700, 1 << 20])
async def test_the_log_is_streamed_from_memory_and_from_disk(tmp_path, monkeypatch, remembered):
    monkeypatch.setattr("store.engine.engine.LogTail", lambda: LogTail(remembered))
    store = await open_master(tmp_path, alone=True, group=3, segment_size_bytes=1_000, epoch=7)
    frames = [frame((16, b"%d" % n * 50)) for n in range(20)]
    for one in frames:
        await append(store, one)
    for max_bytes in (1, 400, 1 << 20):
        at, parts = origin_of(3), []
        while data := await store.replication.read_log(at, max_bytes):
            parts.append(data)
            found = parse(data, at)
            assert len(data) <= max_bytes or len(found) == 1
            assert all(one.header.epoch == 7 for one in found)
            at = found[-1].end
        assert b"".join(parts) == b"".join(p.read_bytes() for p in sorted((tmp_path / "log").iterdir()))
    second = origin_of(3) + frames[0].size_bytes
    assert parse(await store.replication.read_log(origin_of(3), 1 << 20, end=second), origin_of(3))[-1].end == second
    assert await store.replication.read_log(origin_of(3), 1 << 20, end=second - 1) == b""
    assert await store.replication.read_log(store.replication.end, 1) == b""
    for beyond in (0, store.replication.end + 1):
        with pytest.raises(OffsetOutOfRange):
            await store.replication.read_log(beyond, 1)
    await store.close()


async def test_appends_are_refused_for_a_while(tmp_path):
    store = await open_master(tmp_path, alone=True)
    assert store.replication.writable
    store.replication.refuse_appends(NotWritable("one replica of two"))
    assert not store.replication.writable
    with pytest.raises(NotWritable, match="one replica of two"):
        await append(store, frame((16, b"a")))
    with pytest.raises(NotWritable):
        await store.keys.put("k", b"v")
    await store.tick()
    store.replication.refuse_appends(None)
    await append(store, frame((16, b"b")))
    assert await bodies(store, 16) == [b"b"]
    await store.close()


async def test_what_waits_to_be_written_is_refused_too(tmp_path):
    files = FaultyFiles()
    store = await open_master(tmp_path, alone=True, files=files)
    reached, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def before_sync():
        loop.call_soon_threadsafe(reached.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(5)

    files.before_sync = before_sync
    (first,) = begin(store, frame((16, b"a")))
    await reached.wait()
    (waiting,) = begin(store, frame((16, b"b")))
    store.replication.refuse_appends(NotWritable("no"))
    files.before_sync = lambda: None
    go_on.set()
    assert (await first).frame == 0
    outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
    assert isinstance(outcome, NotWritable | Appended)  # taken before it was known, or not
    await store.close()


async def test_timers_and_expiry_wait_while_nothing_is_written(tmp_path):
    store = await open_master(tmp_path, alone=True)
    await store.keys.put("k", b"v", ttl_ms=1)
    store.replication.refuse_appends(NotWritable("no"))
    end = store.replication.end
    await asyncio.sleep(0.01)
    await store.tick()
    assert store.replication.end == end
    store.replication.refuse_appends(None)
    await store.tick()
    assert store.replication.end > end
    await store.close()


async def test_stepping_down_answers_and_forgets_what_is_not_confirmed(tmp_path):
    store = await open_master(tmp_path)
    confirmed = await stored(store, frame((16, b"a")))
    store.replication.confirm(store.replication.end)
    lost = await stored(store, frame((16, b"b")))
    put = asyncio.ensure_future(store.keys.put("k", b"v"))
    await until(lambda: store.log.pending_bytes > frame((16, b"b")).size_bytes)
    started = asyncio.get_running_loop().time()
    await store.step_down()
    assert asyncio.get_running_loop().time() - started < local.CONFIRM_WAIT_S
    assert (await confirmed[0]).frame == 0
    with pytest.raises(AppendOutcomeUnknown):
        await lost[0]
    with pytest.raises((AppendOutcomeUnknown, NotMaster)):
        await put
    with pytest.raises(NotMaster):
        await append(store, frame((16, b"c")))
    assert not store.replication.writable
    await store.step_down()
    replica = await LocalStore.open(tmp_path, role="replica")
    assert replica.replication.end > replica.log.confirmed == frame((16, b"a")).size_bytes
    assert await bodies(replica, 16) == [b"a"]
    await replica.close()
    async with await open_master(tmp_path, alone=True) as store:  # a new master has all of its log
        assert await bodies(store, 16) == [b"a", b"b"]


async def test_closing_waits_for_the_others_for_a_moment(tmp_path, monkeypatch):
    store = await open_master(tmp_path)
    answers = await stored(store, frame((16, b"a")))
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0.01)
    with pytest.raises(StoreClosed):
        await append(store, frame((16, b"b")))
    store.replication.confirm(store.replication.end)
    await closing
    assert (await answers[0]).frame == 0

    monkeypatch.setattr(local, "CONFIRM_WAIT_S", 0.05)
    store = await open_master(tmp_path)
    answers = await stored(store, frame((16, b"b")))
    await store.close()
    with pytest.raises(AppendOutcomeUnknown):
        await answers[0]


async def test_a_timer_that_fires_does_not_keep_a_master_from_stepping_down(tmp_path):
    store = await open_master(tmp_path)
    put = asyncio.ensure_future(store.keys.put("k", b"v", ttl_ms=1))
    await until(lambda: store.replication.flushed > 0)
    store.replication.confirm(store.replication.end)
    await put
    end = store.replication.end
    await until(lambda: store.replication.end > end)  # the sweep's record
    async with asyncio.timeout(60):
        await store.step_down()


async def test_async_frames_wait_like_others(tmp_path):
    store = await open_master(tmp_path)
    answers = await stored(store, frame((16, b"a"), flags=FRAME_ASYNC), frame((16, b"b")))
    assert not any(one.done() for one in answers)
    store.replication.confirm(store.replication.end)
    assert [(await one).frame for one in answers] == [0, frame((16, b"a")).size_bytes]
    await store.close()


async def test_repeats_wait_for_what_they_repeat(tmp_path):
    store = await open_master(tmp_path)
    await stored(store, frame((16, b"a"), producer_id=1, sequence=1))
    (again,) = begin(store, frame((16, b"a"), producer_id=1, sequence=1))
    await asyncio.sleep(0.02)
    assert not again.done()
    store.replication.confirm(store.replication.end)
    assert await again == Appended(0, duplicate=True)
    await store.close()


async def test_a_disk_that_fails_is_told(tmp_path):
    files = FaultyFiles()
    store = await open_master(tmp_path, files=files)
    waiting = await stored(store, frame((16, b"a")))
    files.sync_error = errno.EIO
    (failing,) = begin(store, frame((16, b"b")))
    await until(lambda: any(kind == "failed" for kind, _ in store.hooks.told))
    assert isinstance(store.error, StoreFailed)
    assert not failing.done()  # in order: behind what waits
    await store.step_down()
    for one in (*waiting, failing):
        with pytest.raises(AppendOutcomeUnknown):
            await one


async def test_views_never_follow_what_is_not_confirmed(tmp_path):
    store = await open_master(tmp_path, linger_s=0.0005)
    for n in range(20):
        await stored(store, frame((16, b"%d" % n)))
        if n == 9:
            store.replication.confirm(store.replication.end)
            at = store.replication.end
    await store.core.until_dispatched(at)
    await asyncio.sleep(0.02)
    assert store.core.engine.views.dispatched == at
    await store.step_down()
    replica = await LocalStore.open(tmp_path, role="replica")
    assert replica.log.confirmed == at < replica.replication.end
    await replica.close()


async def inherited(tmp_path, *frames, confirmed):
    """Returns a new master with some of its log not confirmed."""
    old = await open_master(tmp_path, alone=True)
    for one in frames:
        await append(old, one)
    await old.step_down()
    shutil.rmtree(tmp_path / "views")
    return await open_master(tmp_path, epoch=2, confirmed=confirmed)


async def test_what_a_new_master_has_may_have_to_be_confirmed_yet(tmp_path):
    """A quorum confirms: frames of an older epoch may still lose an election."""
    size = frame((16, b"0")).size_bytes
    frames = [frame((16, b"%d" % n), producer_id=7, sequence=n) for n in range(4)]
    store = await inherited(tmp_path, *frames, records_frame(KvPut("k", b"v")), confirmed=2 * size)
    assert (store.log.confirmed, store.replication.flushed) == (2 * size, store.replication.end)
    assert store.core.engine.views.dispatched == 2 * size
    assert await bodies(store, 16) == [b"0", b"1"]
    assert await store.keys.get("k") is None
    (again,) = begin(store, frames[3])
    (new,) = await stored(store, frame((16, b"4"), producer_id=7, sequence=4))
    end = store.replication.end
    put = asyncio.ensure_future(store.keys.put("k", b"w", expected_revision=0))
    await until(lambda: store.replication.end > end)  # the put is in the log
    assert not again.done()
    store.replication.confirm(3 * size)  # a part of what it was given together
    await until(lambda: store.replication.flushed == store.replication.end)
    store.replication.confirm(store.replication.end)
    assert (await again) == Appended(3 * size, duplicate=True)
    assert (await new).frame > 4 * size
    with pytest.raises(RevisionConflict):
        await put
    assert await bodies(store, 16) == [b"%d" % n for n in range(5)]
    await store.step_down()


async def test_stepping_down_again_before_that(tmp_path):
    size = frame((16, b"0")).size_bytes
    store = await inherited(tmp_path, *(frame((16, b"%d" % n)) for n in range(4)), confirmed=2 * size)
    await store.step_down()
    replica = await LocalStore.open(tmp_path, role="replica", truncate_to=2 * size)
    assert await bodies(replica, 16) == [b"0", b"1"]
    await replica.close()


async def test_the_views_of_a_new_master_pass_over_damage_only_where_it_is_lost(tmp_path):
    old = await inherited(tmp_path, *(frame((16, b"%d" % n)) for n in range(4)), confirmed=0)
    await old.step_down()
    size = frame((16, b"0")).size_bytes
    (segment,) = (tmp_path / "log").iterdir()
    flip(segment, 2 * size - 1)
    hooks = Hooks()
    with pytest.raises(CorruptFrame, match=f"log offset {size}"):
        await open_master(tmp_path, epoch=3, confirmed=0, replication=hooks)
    hooks.beyond_repair = True
    store = await open_master(tmp_path, epoch=3, confirmed=0, replication=hooks)
    store.replication.confirm(store.replication.end)
    assert [(one.start, one.end) for one in store.damages] == [(size, 2 * size)]
    await store.core.until_dispatched(store.replication.end)
    assert list(store.core.engine.views.passed) == [(size, 2 * size)]
    assert (await store.lost()).unfollowed_bytes == size
    await store.step_down()


async def test_timers_wait_until_it_is_known_which_have_fired(tmp_path):
    rows = ROW.pack(17, 0, 1, 0, 0, 0, 0, 0)
    timer = records_frame(TimerSet(1, rows, b"x"))
    old = await open_master(tmp_path, alone=True)
    await append(old, timer)
    await old.tick()
    assert await bodies(old, 17) == [b"x"]
    await old.step_down()
    shutil.rmtree(tmp_path / "views")
    store = await open_master(tmp_path, epoch=2, confirmed=timer.size_bytes)
    end = store.replication.end
    assert store.timers.held.timers == 1
    await store.tick()
    assert (store.replication.end, await bodies(store, 17)) == (end, [])
    store.replication.confirm(end)
    await store.tick()
    assert (store.replication.end, await bodies(store, 17)) == (end, [b"x"])
    await store.step_down()


async def test_a_new_master_leases_nothing_that_its_predecessor_has_settled(tmp_path):
    """Nor does it forget a policy: its views may lack both when the first client leases messages."""
    policy = LeasePolicy(max_deliveries=3)
    records = [records_frame(Settled(16, ((0, 1),))), records_frame(LeasePolicySet(16, "", policy))]
    first = frame((16, b"a"), (16, b"b"))
    store = await inherited(tmp_path, first, *records, confirmed=first.size_bytes)
    store.replication.confirm(store.replication.end)
    assert await take(store) == [b"b"]
    assert await store.leases.policy(16) == policy
    await store.step_down()
