"""The local store: everything a proxy may ask of it."""

import asyncio
import errno
import shutil
import threading
import time

import lmdb
import pytest

from store.api.keys import Entry, Put
from store.base.errors import (
    AppendOutcomeUnknown,
    CorruptFrame,
    DataDirLocked,
    FrameTooLarge,
    KeyTooLong,
    OffsetOutOfRange,
    RevisionConflict,
    StoreClosed,
    StoreFailed,
    StoreOverloaded,
    ViewsDamaged,
)
from store.format.frame import FRAME_BYTES_MAX, ROW_EXTRA, Position, UnplacedFrame
from store.format.records import KvPut
from store.local.local import LocalStore
from store.log.segment import segment_name
from tests.support.store.store_kit import FaultyFiles, append, begin, bodies, fanout, frame, records_frame

pytestmark = pytest.mark.anyio
HOUR_S = 3600


@pytest.fixture
async def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture(params=["recent", "dispatched", "reopened"])
async def stage(request):
    """Puts what was written where it is read: only in memory, in the views too, or only on disk."""
    return request.param


class StoreStages:
    """Stores on one directory, and the way from one stage to the next."""

    def __init__(self, data_dir, stage="recent"):
        self.data_dir, self.stage, self.now_ms = data_dir, stage, 1000
        self.store = None

    async def open(self, **options):
        lingers = {"recent": HOUR_S, "dispatched": 0.001, "reopened": HOUR_S}
        self.store = await LocalStore.open(
            self.data_dir, **{"now_ms": lambda: self.now_ms, "linger_s": lingers[self.stage], **options}
        )
        return self.store

    async def settle(self):
        """Brings the store to the stage that is tested, and returns it."""
        store = self.store
        if self.stage == "dispatched":
            if store.log.confirmed and store.core.engine.views.dispatched < store.log.confirmed:
                await store.core.until_dispatched(store.log.confirmed)
            assert not store.core.recent.runs()
        elif self.stage == "reopened":
            await store.close()
            await self.open()
        return self.store


@pytest.fixture
async def stores(data_dir, stage):
    stores = StoreStages(data_dir, stage)
    await stores.open()
    yield stores
    await stores.store.close()


@pytest.fixture
async def store(data_dir):
    async with await LocalStore.open(data_dir) as store:
        yield store


# ---- the log


async def test_a_queue_is_read_from_any_offset(stores):
    for unplaced in (frame((16, b"a"), (17, b"-"), (16, b"b")), frame((17, b"-")), frame((16, b"c"))):
        await append(stores.store, unplaced)
    store = await stores.settle()
    assert await store.queues.bounds(16) == (0, 3)
    assert [await bodies(store, 16, offset) for offset in range(4)] == [[b"a", b"b", b"c"], [b"b", b"c"], [b"c"], []]
    fetched = await store.queues.fetch(16, 1, max_bytes=1 << 20)
    assert (fetched.offset, fetched.next, list(map(list, fetched.rows))) == (1, 3, [[2], [0]])
    for offset in (-1, 4):
        with pytest.raises(OffsetOutOfRange) as caught:
            await store.queues.fetch(16, offset, max_bytes=1)
        assert (caught.value.first, caught.value.next) == (0, 3)


async def test_a_group_is_set_back_by_offset_and_by_time(stores):
    store = stores.store
    for n in range(6):
        stores.now_ms = 1000 + 10 * n
        await append(store, frame((16, b"%d" % n)))
    await store.groups.commit("readers", {16: 6})
    await store.groups.commit("readers", {16: 2})
    store = await stores.settle()
    assert await store.groups.offsets("readers") == {16: 2}
    await store.groups.commit("readers", {16: await store.queues.offset_at_time(16, 1035)})
    store = await stores.settle()
    found = (await store.groups.offsets("readers"))[16]
    assert await bodies(store, 16, found) == [b"4", b"5"]


async def test_a_queue_that_was_never_written(stores):
    store = await stores.settle()
    assert await store.queues.bounds(99) == (0, 0)
    assert (await store.queues.fetch(99, 0, max_bytes=1)).next == 0
    with pytest.raises(OffsetOutOfRange):
        await store.queues.fetch(99, 1, max_bytes=1)
    assert await store.queues.offset_at_time(99, 5) == 0
    assert await store.leases.take(99, 1, max_count=5) == ()
    assert await store.leases.waiting(99) == 0


async def test_a_fetch_keeps_to_its_limits_but_moves(stores):
    for n in range(4):
        await append(stores.store, frame(*((16, b"%d" % n * 100) for _ in range(10))))
    store = await stores.settle()
    assert (await store.queues.fetch(16, 0, max_bytes=1)).next == 10
    assert (await store.queues.fetch(16, 5, max_bytes=1)).next == 10
    size = (await store.queues.fetch(16, 0, max_bytes=1)).frames[0].header.size_bytes
    assert (await store.queues.fetch(16, 0, max_bytes=size * 2)).next == 20
    fetched = await store.queues.fetch(16, 8, max_bytes=1 << 20, max_rows=5)
    assert (fetched.next, list(map(list, fetched.rows))) == (13, [[8, 9], [0, 1, 2]])


async def test_one_record_in_many_queues(stores):
    await append(stores.store, fanout(b"x", 16, 20, 21))
    store = await stores.settle()
    assert [await bodies(store, queue) for queue in (16, 20, 21)] == [[b"x"]] * 3


async def test_records_by_position(stores):
    first = await append(stores.store, frame((16, b"a"), (16, b"b")))
    second = await append(stores.store, frame((16, b"c")))
    store = await stores.settle()
    assert await store.log.read(Position(first.frame, 1)) == b"b"
    assert await store.log.read(Position(second.frame, 0)) == b"c"
    for position in ((0, 2), (0, -1), (1, 0), (-64, 0), (store.log.confirmed, 0), (1 << 62, 0)):
        assert await store.log.read(Position(*position)) is None


async def test_offsets_by_time(stores):
    for now_ms in (1000, 1000, 3000, 2000, 5000):
        stores.now_ms = now_ms
        await append(stores.store, frame((16, b"x"), (16, b"y")))
    store = await stores.settle()
    times = [(0, 0), (1000, 0), (1001, 4), (3000, 4), (3001, 8), (5000, 8), (5001, 10)]
    assert [(t, await store.queues.offset_at_time(16, t)) for t, _ in times] == times


async def test_the_newest_record_of_an_address(stores):
    await append(stores.store, frame((16, b"a", 7), (16, b"b", 8), (16, b"c", 7)))
    at = await append(stores.store, frame((16, b"d", 8), (20, b"d", 8, ROW_EXTRA)))
    store = await stores.settle()
    assert await store.log.last(7) == (0, 2)
    assert await store.log.last(8) == (at.frame, 0)
    assert await store.log.last(9) is None


async def test_scans_in_log_order(stores):
    queues = ([16], [17], [16, 17], [18], [17])
    at = [(await append(stores.store, frame(*((queue, b"x" * 50) for queue in some)))).frame for some in queues]
    store = await stores.settle()

    async def scan(start, queues, max_bytes=1 << 20):
        frames, looked = await store.log.scan(Position(start, 0), queues, max_bytes=max_bytes)
        return [found.start for found in frames], looked

    end = store.log.confirmed
    assert await scan(0, None) == (at, end)
    assert await scan(at[2], None) == (at[2:], end)
    assert await scan(0, [16]) == ([at[0], at[2]], end)
    assert await scan(0, [17, 16]) == ([at[0], at[1], at[2], at[4]], end)
    assert await scan(at[1] + 1, [16, 17]) == ([at[2], at[4]], end)
    assert await scan(0, [99]) == ([], end)
    assert await scan(0, []) == ([], end)
    assert await scan(end, None) == ([], end)
    assert await scan(end, [16]) == ([], end)
    assert await scan(-5, None, 1) == (at[:1], at[1])
    assert (await scan(0, [17], 1))[0] == [at[1]]
    found, start = [], 0
    while start < end:
        some, start = await scan(start, [16, 17, 18], 1)
        found += some
    assert found == at


async def test_part_recent_and_part_dispatched(data_dir):
    stores = StoreStages(data_dir)
    store = await stores.open()
    at = [(await append(store, frame((16, b"%d" % n), (17, b"x")))).frame for n in range(3)]
    await store.core.until_dispatched(store.log.confirmed)
    at += [(await append(store, frame((16, b"%d" % n), (17, b"x")))).frame for n in range(3, 6)]
    assert store.core.recent.chunks(16)[0].first == 3
    assert await bodies(store, 16) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert await store.queues.bounds(16) == (0, 6)
    for start in range(6):
        frames, _ = await store.log.scan(Position(at[start], 0), [17, 16], max_bytes=1 << 20)
        assert [found.start for found in frames] == at[start:]
    assert [lease.offset for lease in await store.leases.take(16, 1, max_count=9)] == list(range(6))
    await store.close()


async def test_listeners_see_what_comes_later_once_and_in_order(store):
    await append(store, frame((16, b"before")))
    seen, other = [], []

    def fails(_):
        raise ValueError("listener")

    stop_failing = store.log.tail(fails)
    stop = store.log.tail(seen.extend)
    store.log.tail(other.extend)
    await asyncio.gather(*begin(store, *(frame((16, b"%d" % n)) for n in range(20))))
    stop()
    stop()
    stop_failing()
    await append(store, frame((16, b"after")))
    assert [found.record(0) for found in seen] == [b"%d" % n for n in range(20)]
    assert [found.record(0) for found in other] == [*(b"%d" % n for n in range(20)), b"after"]
    assert (await store.log.scan(Position(0, 0), None, max_bytes=1 << 20))[0][1:] == other


async def test_answers_come_in_order_before_listeners_and_reads_see_them(store):
    events = []
    store.log.tail(lambda frames: events.extend(("tail", found.start) for found in frames))
    done = asyncio.get_running_loop().create_future()

    def first(outcome):
        events.append(("done", outcome.frame))
        raise ValueError("a callback's own mistake hurts nobody else")

    def second(outcome):
        events.append(("done", outcome.frame))
        assert store.log.confirmed > outcome.frame
        done.set_result(None)

    store.log.append(frame((16, b"a")), first)
    store.log.append(frame((16, b"b")), second)
    assert store.log.pending_bytes == 2 * frame((16, b"a")).size_bytes
    await done
    await asyncio.sleep(0)
    assert store.log.pending_bytes == 0
    for kind in ("done", "tail"):
        assert [start for name, start in events if name == kind] == [0, frame((16, b"a")).size_bytes]
    assert events.index(("done", 0)) < events.index(("tail", 0))


async def test_overload_is_refused_at_once_and_ends(data_dir):
    files = FaultyFiles()
    async with await LocalStore.open(data_dir, files=files, pending_bytes_max=1000) as store:
        resume = threading.Event()
        files.before_sync = lambda: resume.wait(10)
        waiting = begin(store, *(frame((16, b"x" * 200)) for _ in range(4)))
        assert (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[0] == {waiting[3]}
        with pytest.raises(StoreOverloaded):
            await waiting[3]
        resume.set()
        await asyncio.gather(*waiting[:3])
        await append(store, frame((16, b"x" * 5000)))
        assert len(await bodies(store, 16)) == 4


@pytest.mark.slow
async def test_a_frame_over_the_limit(store):
    with pytest.raises(FrameTooLarge):
        await append(store, UnplacedFrame(rows=b"", payload=bytes(FRAME_BYTES_MAX), row_count=0, body_crc32c=0))
    with pytest.raises(FrameTooLarge):
        await store.keys.put("k", bytes(FRAME_BYTES_MAX))
    half = bytes(FRAME_BYTES_MAX // 2)
    with pytest.raises(FrameTooLarge):
        await store.keys.transact({}, [Put("a", half), Put("b", half)])
    assert await store.keys.put("k", b"small") > 0  # by the same connection, if there is one


class NoReaders:
    """LMDB's environment, but no read transaction begins."""

    def __init__(self, env, error):
        self._env, self._error = env, error

    def begin(self, *, write=False, **options):
        if not write:
            raise self._error
        return self._env.begin(write=True, **options)

    def __getattr__(self, name):
        return getattr(self._env, name)


@pytest.mark.parametrize("error", [lmdb.ReadersFullError("full"), lmdb.MemoryError("none"), lmdb.PanicError("panic")])
async def test_records_that_the_views_cannot_decide_leave_no_hole_in_them(data_dir, monkeypatch, error):
    """The views went on behind the run, and noted it as lost: its messages were in no queue."""
    store = await LocalStore.open(data_dir, linger_s=HOUR_S)
    await append(store, frame((16, b"a"), producer_id=1, sequence=1))
    await store.keys.put("other", b"v")  # the commit thread asks for the ends of queues only once
    with monkeypatch.context() as patched:
        patched.setattr(store.core.engine.views, "env", NoReaders(store.core.engine.views.env, error))
        for outcome in begin(store, records_frame(KvPut("key", b"v")), frame((16, b"b"), producer_id=1, sequence=2)):
            with pytest.raises(AppendOutcomeUnknown):
                await asyncio.wait_for(outcome, 10)
    damaged = isinstance(error, lmdb.PanicError)
    assert isinstance(store.error, ViewsDamaged if damaged else StoreFailed)
    with pytest.raises(type(store.error)):
        await append(store, frame((16, b"c")))
    await store.close()
    async with await LocalStore.open(data_dir) as store:
        assert (await append(store, frame((16, b"b"), producer_id=1, sequence=2))).duplicate
        assert await bodies(store, 16) == [b"a", b"b"]
        assert (await store.keys.get("key")).value == b"v"
        assert not list(store.core.engine.views.passed)


@pytest.mark.slow
async def test_a_failed_disk(data_dir):
    files = FaultyFiles()
    store = await LocalStore.open(data_dir, files=files, linger_s=HOUR_S)
    await append(store, frame((20, b"a"), (20, b"b")))
    assert store.error is None
    leases = await store.leases.take(20, 1, max_count=2)
    files.sync_error = errno.EIO
    with pytest.raises(AppendOutcomeUnknown):
        await store.leases.settle(20, 1, [lease.offset for lease in leases])
    assert await store.leases.waiting(20) == 2
    assert isinstance(store.error, StoreFailed)
    with pytest.raises(StoreFailed):
        await append(store, frame((16, b"x")))
    with pytest.raises(StoreFailed):
        await store.keys.put("k", b"")
    assert await bodies(store, 20) == [b"a", b"b"]
    await store.close()


async def test_closing_answers_for_everything(data_dir):
    store = await LocalStore.open(data_dir)
    waiting = begin(store, *(frame((16, b"%d" % n)) for n in range(10)))
    own = asyncio.gather(store.keys.put("k", b"v"), store.keys.delete("k", expected_revision=0), store.keys.delete("l"))
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert all(future.done() for future in waiting)
    with pytest.raises(RevisionConflict):
        await own
    for call in (
        append(store, frame((16, b"x"))),
        store.keys.put("k", b""),
        store.keys.get("k"),
        store.queues.fetch(16, 0, max_bytes=1),
        store.log.scan(Position(0, 0), None, max_bytes=1),
        store.leases.take(16, 1, max_count=1),
        store.log.last(1),
    ):
        with pytest.raises(StoreClosed):
            await call
    async with await LocalStore.open(data_dir) as store:
        assert len(await bodies(store, 16)) == 10
        assert (await store.keys.get("k")).value == b"v"


async def test_one_store_a_directory(store, data_dir):
    with pytest.raises(DataDirLocked):
        await LocalStore.open(data_dir)


async def test_damage_is_never_served(data_dir):
    stores = StoreStages(data_dir, "reopened")
    await stores.open()
    at = [(await append(stores.store, frame((20, b"body%d" % n)))).frame for n in range(4)]
    await stores.store.close()
    path = data_dir / "log" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[at[1] + 64 + 48 + 2] ^= 1
    path.write_bytes(data)
    store = await stores.open()
    assert (await store.queues.fetch(20, 0, max_bytes=1 << 20)).next == 1
    with pytest.raises(CorruptFrame):
        await store.queues.fetch(20, 1, max_bytes=1 << 20)
    assert await bodies(store, 20, 2) == [b"body2", b"body3"]
    with pytest.raises(CorruptFrame):
        await store.log.read(Position(at[1], 0))
    for queues in (None, [20]):
        frames, looked = await store.log.scan(Position(0, 0), queues, max_bytes=1 << 20)
        assert ([found.start for found in frames], looked) == ([at[0]], at[1])
        with pytest.raises(CorruptFrame) as caught:
            await store.log.scan(Position(looked, 0), queues, max_bytes=1 << 20)
        assert caught.value.end == at[2]
        frames, looked = await store.log.scan(Position(at[2], 0), queues, max_bytes=1 << 20)
        assert ([found.start for found in frames], looked) == ([at[2], at[3]], store.log.confirmed)
    assert [lease.offset for lease in await store.leases.take(20, 1, max_count=9)] == [0, 2, 3]
    assert store.leases.release(1) == [20]
    assert [lease.offset for lease in await store.leases.take(20, 1, max_count=9)] == [0, 2, 3]
    await store.close()


# ---- the key-value view


async def test_put_get_delete(stores):
    store = stores.store
    first = await store.keys.put("a", b"1")
    second = await store.keys.put("a", b"2")
    assert second > first
    await store.keys.put("b", b"")
    assert await store.keys.delete("b")
    assert not await store.keys.delete("b")
    store = await stores.settle()
    assert await store.keys.get("a") == Entry("a", b"2", second, first, 2)
    assert await store.keys.get("b") is None
    assert await store.keys.get("c") is None


async def test_compare_and_set(stores):
    first = await stores.store.keys.put("a", b"1", expected_revision=0)
    store = await stores.settle()
    for expected in (0, first + 1):
        with pytest.raises(RevisionConflict) as caught:
            await store.keys.put("a", b"2", expected_revision=expected)
        assert caught.value.actual == first
    second = await store.keys.put("a", b"2", expected_revision=first)
    with pytest.raises(RevisionConflict):
        await store.keys.delete("a", expected_revision=first)
    assert await store.keys.delete("a", expected_revision=second)
    with pytest.raises(RevisionConflict):
        await store.keys.delete("a", expected_revision=second)
    assert not await store.keys.delete("a", expected_revision=0)


async def test_a_late_loop_does_not_make_a_compare_and_set_meet_itself(data_dir):
    async with await LocalStore.open(data_dir, linger_s=0) as store:
        revision = 0
        for n in range(5):
            await append(store, frame((16, b"x")))
            await store.core.until_dispatched(store.log.confirmed)
            putting = asyncio.ensure_future(store.keys.put("a", b"%d" % n, expected_revision=revision))
            while not store.log.pending_bytes:
                await asyncio.sleep(0)
            time.sleep(0.02)  # the loop is busy with something else, the engine's threads are not
            revision = await putting


async def test_of_many_compare_and_sets_at_once_one_holds(store):
    outcomes = await asyncio.gather(
        *(store.keys.put("a", b"%d" % n, expected_revision=0) for n in range(20)), return_exceptions=True
    )
    assert isinstance(outcomes[0], int)
    assert all(isinstance(outcome, RevisionConflict) for outcome in outcomes[1:])
    assert store.log.confirmed < 20 * 64  # in one frame, not twenty
    assert (await store.keys.get("a")).value == b"0"


async def test_keys_by_prefix(stores):
    for key in ("a", "a/1", "a/2", "a/3", "b"):
        await stores.store.keys.put(key, key.encode())
    await stores.store.keys.delete("a/2")
    store = await stores.settle()
    await store.keys.put("a/0", b"")
    await store.keys.delete("a/3")
    assert [entry.key for entry in await store.keys.prefix("a/")] == ["a/0", "a/1"]
    assert [entry.key for entry in await store.keys.prefix("")] == ["a", "a/0", "a/1", "b"]
    assert [entry.key for entry in await store.keys.prefix("", limit=2)] == ["a", "a/0"]
    assert [entry.key for entry in await store.keys.prefix("", after="a/0", limit=2)] == ["a/1", "b"]


async def test_long_keys_and_large_values(stores):
    key, value = "é" * 240, bytes(range(256)) * 20_000
    await stores.store.keys.put(key, value)
    with pytest.raises(KeyTooLong):
        await stores.store.keys.put(key + "x", b"")
    with pytest.raises(KeyTooLong):
        await stores.store.groups.commit("g" * 481, {16: 1})
    store = await stores.settle()
    assert (await store.keys.get(key)).value == value
    assert await store.keys.get("") is None


async def test_a_cancelled_put_hurts_nobody(store):
    cancelled = asyncio.ensure_future(store.keys.put("a", b"1"))
    other = asyncio.ensure_future(store.keys.put("b", b"2"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await other
    found = await store.keys.get("a")
    assert found is None or found.value == b"1"  # over a network it may not have been sent yet


# ---- groups


async def test_groups(stores):
    store = stores.store
    await store.groups.commit("g", {16: 5, 17: 6})
    await store.groups.commit("h", {16: 1})
    await store.groups.delete("h")
    store = await stores.settle()
    await store.groups.commit("g", {16: 4})
    assert await store.groups.offsets("g") == {16: 4, 17: 6}
    assert await store.groups.offsets("h") == {}
    await store.groups.delete("g")
    assert await store.groups.offsets("g") == {}
    await store.groups.commit("g", {18: 1})
    assert await store.groups.offsets("g") == {18: 1}
    with pytest.raises(ValueError, match="63 bits"):
        await store.groups.commit("g", {18: 1 << 63})


# ---- leases


async def lease(store, owner, count, **limits):
    return [
        (lease.offset, lease.deliveries, lease.frame.record(lease.row))
        for lease in await store.leases.take(20, owner, max_count=count, **limits)
    ]


async def test_messages_are_leased_settled_and_leased_again(stores):
    for n in range(3):
        await append(stores.store, frame((20, b"%d" % (2 * n)), (21, b"-"), (20, b"%d" % (2 * n + 1))))
    store = await stores.settle()
    assert await store.leases.waiting(20) == 6
    assert await lease(store, 1, 3) == [(0, 0, b"0"), (1, 0, b"1"), (2, 0, b"2")]
    assert await lease(store, 2, 9) == [(3, 0, b"3"), (4, 0, b"4"), (5, 0, b"5")]
    assert await lease(store, 3, 9) == []
    await store.leases.settle(20, 1, [1, 3])
    store.leases.requeue(20, 2, [4], delivered=False)
    assert store.leases.release(1) == [20]
    assert await store.leases.waiting(20) == 3
    assert await lease(store, 3, 9) == [(0, 1, b"0"), (2, 1, b"2"), (4, 0, b"4")]
    await store.leases.settle(20, 3, [0, 2, 4])
    await store.leases.settle(20, 2, [3, 5])
    assert await store.leases.waiting(20) == 0
    assert store.leases.release(3) == []
    store = await stores.settle()
    assert await store.leases.waiting(20) == 0
    await append(store, frame((20, b"new")))
    assert await lease(store, 1, 9) == [(6, 0, b"new")]


async def test_after_a_restart_only_the_settled_are_gone(data_dir):
    stores = StoreStages(data_dir, "reopened")
    store = await stores.open()
    await append(store, frame(*((20, b"%d" % n) for n in range(6))))
    await lease(store, 1, 5)
    await store.leases.settle(20, 1, [1, 3])
    store = await stores.settle()
    assert [(offset, count) for offset, count, _ in await lease(store, 1, 9)] == [(0, 1), (2, 1), (4, 0), (5, 0)]
    await store.close()


async def test_a_take_keeps_to_its_bytes_but_gives_one(stores):
    for _ in range(2):
        await append(stores.store, frame(*((20, b"x" * 100) for _ in range(10))))
    store = await stores.settle()
    assert len(await lease(store, 1, 99, max_bytes=50)) == 1
    assert len(await lease(store, 1, 99, max_bytes=350)) == 3
    assert await store.leases.waiting(20) == 16
    assert [offset for offset, _, _ in await lease(store, 1, 99, max_bytes=1 << 20)] == list(range(4, 20))


async def test_takes_at_the_same_time_share_nothing(stores):
    for n in range(5):
        await append(stores.store, frame(*((20, b"%d" % n) for _ in range(20))))
    store = await stores.settle()
    taken = await asyncio.gather(*(lease(store, owner, 30) for owner in range(5)))
    offsets = [offset for some in taken for offset, _, _ in some]
    assert sorted(offsets) == list(range(100))


async def test_an_owner_released_during_a_take_gets_nothing(data_dir):
    stores = StoreStages(data_dir, "reopened")
    await stores.open()
    await append(stores.store, frame((20, b"a")))
    store = await stores.settle()
    await store.leases.waiting(20)
    taking = asyncio.ensure_future(store.leases.take(20, 1, max_count=1))
    await asyncio.sleep(0)
    assert store.leases.release(1) == [20]
    assert await taking == []
    assert await store.leases.waiting(20) == 1
    await store.close()


async def test_purge(stores):
    await append(stores.store, frame(*((20, b"x") for _ in range(10))))
    store = await stores.settle()
    await lease(store, 1, 2)
    assert await store.leases.purge(20) == 8
    assert await store.leases.purge(20) == 0
    assert store.leases.release(1) == [20]
    assert await store.leases.waiting(20) == 2
    store = await stores.settle()
    assert [offset for offset, _, _ in await lease(store, 1, 9)] == [0, 1]


async def test_a_deleted_queue(stores):
    store = stores.store
    await append(store, frame(*((20, b"x") for _ in range(10)), (21, b"y")))
    await lease(store, 1, 3)
    await store.leases.settle(20, 1, [0])
    store = await stores.settle()
    await lease(store, 2, 1)
    await store.queues.delete(20)
    assert await store.queues.bounds(20) == (0, 0)
    assert await store.leases.waiting(20) == 0
    assert await bodies(store, 21) == [b"y"]
    await append(store, frame((20, b"again")))
    store = await stores.settle()
    assert [(offset, body) for offset, _, body in await lease(store, 3, 9)] == [(0, b"again")]


async def test_a_queue_read_while_it_is_deleted(data_dir):
    stores = StoreStages(data_dir)
    store = await stores.open()
    await append(store, frame((20, b"old")))
    await store.core.until_dispatched(store.log.confirmed)
    found = []

    def deleted(_):
        stop()
        found.extend(begin(store, frame((20, b"new"))))
        found.append(asyncio.ensure_future(bodies(store, 20)))

    stop = store.log.tail(deleted)
    await store.queues.delete(20)
    await found[0]
    assert await found[1] in ([], [b"new"])
    assert await bodies(store, 20) == [b"new"]
    await store.close()


async def test_a_copy_taken_at_any_time_recovers(data_dir, tmp_path):
    stores = StoreStages(data_dir)
    store = await stores.open()
    await append(store, frame((16, b"a", 5)))
    await store.core.until_dispatched(store.log.confirmed)
    await store.keys.put("k", b"v")
    await append(store, frame((16, b"b", 5)))
    copy = tmp_path / "copy"
    shutil.copytree(data_dir / "log", copy / "log")
    (copy / "views").mkdir()
    store.core.engine.views.copy(copy / "views")
    await store.close()
    async with await LocalStore.open(copy) as store:
        assert await bodies(store, 16) == [b"a", b"b"]
        assert (await store.keys.get("k")).value == b"v"
        assert await store.log.read(await store.log.last(5)) == b"b"
