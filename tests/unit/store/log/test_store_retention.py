"""Retention: what is past its queue's limits is not read, and segments nobody's limits keep are deleted."""

import asyncio
import errno
import shutil

import lmdb
import pytest

from store.base.errors import CorruptFrame, NotRebuildable, OffsetOutOfRange
from store.engine.repair import StoppedStore
from store.format.body_parts import PARTS_KEPT_MS, UPLOAD_MS_MAX, part_frame
from store.format.chunks import Chunk
from store.format.frame import HEADER, ROW, Position, UnplacedFrame
from store.format.queue_config import FOREVER, QueueConfig
from store.format.records import PARTS_QUEUE, KvPut, LogTrimmed
from store.format.records import encode as encode_record
from store.local.local import LocalStore
from store.log.retention import LimitsTable, ReadableRange, RetentionLimits, limits_of
from store.log.segment import segment_name
from store.views import Views
from tests.support.process.clock import Clock
from tests.support.store.flips import flip
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio
SEGMENT = 1000
HOUR = 3_600_000


@pytest.fixture
def clock():
    return Clock(10 * HOUR)


@pytest.fixture
async def open_store(tmp_path, clock):
    opened = []

    async def open_store(path=tmp_path / "data", **options):
        options = {"segment_size_bytes": SEGMENT, "now_ms": clock, "linger_s": 0.001, **options}
        opened.append(await LocalStore.open(path, retention_interval_s=3600, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.close()


async def trim(store):
    """Does what housekeeping does every so often; it looks at what the views know."""
    await store.core.until_dispatched(store.log.confirmed)
    await asyncio.get_running_loop().run_in_executor(None, store.core.engine.trimmer.run)


def segments(path):
    return sorted(int(one.stem) for one in (path / "data" / "log").iterdir())


async def write(store, count, *queues, size=300):
    """Writes frames of one record for each queue; the records' bodies are numbers."""
    for n in range(count):
        await append(store, frame(*((queue, (b"%d" % n).ljust(size, b".")) for queue in queues)))


def numbers(found):
    return [int(body.rstrip(b".")) for body in found]


# ---- limits


@pytest.mark.parametrize(
    ("config", "default", "limits"),
    [
        (None, RetentionLimits(5, 6), RetentionLimits(5, 6)),
        (QueueConfig(16), RetentionLimits(5, 6), RetentionLimits(5, 6)),
        (QueueConfig(16, 1), RetentionLimits(5, 6), RetentionLimits(1, 6)),
        (QueueConfig(16, FOREVER, 7), RetentionLimits(5, 6), RetentionLimits(FOREVER, 7)),
        (QueueConfig(16, compact=True), RetentionLimits(5, 6), RetentionLimits(0, FOREVER, compact=True)),
        (QueueConfig(16, 9, compact=True), RetentionLimits(5, 6), RetentionLimits(9, FOREVER, compact=True)),
        (QueueConfig(16, None, 9, compact=True), RetentionLimits(5, 6), RetentionLimits(5, 9, compact=True)),
    ],
)
def test_a_configuration_goes_before_the_default(config, default, limits):
    assert limits_of(config, default) == limits


def test_a_chunk_is_kept_while_it_is_within_all_limits():
    chunk = Chunk(0, 1, 500, 100, 2000, 700)
    assert ReadableRange().test(10_000)(chunk)
    assert ReadableRange(500, 2000).test(10_000)(chunk)
    assert not ReadableRange(501).test(10_000)(chunk)
    assert not ReadableRange(0, 2001).test(10_000)(chunk)
    assert ReadableRange(0, 0, 1000).test(1699)(chunk)
    assert not ReadableRange(0, 0, 1000).test(1700)(chunk)


def test_the_stores_own_queues_have_no_limits():
    table = LimitsTable(RetentionLimits(1, 1), [QueueConfig(17, 2, 3)])
    assert table.kept(1, 7, 100) == ReadableRange(7)
    assert table.kept(16, 7, 100) == ReadableRange(7, 99, 1)
    assert table.kept(17, 7, 100) == ReadableRange(7, 98, 3)
    table.forget(17)
    assert table.kept(17, 7, 100) == ReadableRange(7, 99, 1)


# ---- at read


@pytest.fixture(params=["recent", "dispatched", "reopened"])
async def after(request, open_store):
    """Chooses what reads are asked of: memory, the views, or a store that was closed meanwhile."""

    async def after(store):
        if request.param == "dispatched":
            await store.core.until_dispatched(store.log.confirmed)
        if request.param == "reopened":
            await store.close()
            return await open_store()
        return store

    return after


async def test_age_hides_records_while_their_segment_is_there(open_store, after, clock, tmp_path):
    store = await open_store()
    await store.queues.configure([QueueConfig(16, HOUR)])
    await write(store, 3, 16, 17, size=30)
    clock.ms += HOUR
    await write(store, 2, 16, 17, size=30)
    store = await after(store)
    assert await store.queues.bounds(16) == (0, 5)
    clock.ms += 1
    assert await store.queues.bounds(16) == (3, 5)
    assert await store.queues.bounds(17) == (0, 5)
    assert numbers(await bodies(store, 16, 3)) == [0, 1]
    for offset in (0, 2):
        with pytest.raises(OffsetOutOfRange) as refused:
            await store.queues.fetch(16, offset, max_bytes=1000)
        assert (refused.value.first, refused.value.next) == (3, 5)
    assert await store.queues.offset_at_time(16, 0) == 3
    frames, _ = await store.log.scan(Position(0, 0), [16], max_bytes=1 << 20)
    assert len(frames) == 2
    frames, _ = await store.log.scan(Position(0, 0), [17], max_bytes=1 << 20)
    assert len(frames) == 5
    clock.ms += HOUR
    assert await store.queues.bounds(16) == (5, 5)
    assert await bodies(store, 16, 5) == []
    with pytest.raises(OffsetOutOfRange):
        await store.queues.fetch(16, 4, max_bytes=1000)
    assert await store.queues.offset_at_time(16, 0) == 5


async def test_size_hides_all_but_the_newest(open_store, after):
    store = await open_store()
    one = frame((16, b"0".ljust(30, b"."))).size_bytes
    await store.queues.configure([QueueConfig(16, None, 3 * one)])
    await write(store, 10, 16, size=30)
    store = await after(store)
    assert await store.queues.bounds(16) == (7, 10)
    assert numbers(await bodies(store, 16, 7)) == [7, 8, 9]
    with pytest.raises(OffsetOutOfRange) as refused:
        await store.queues.fetch(16, 6, max_bytes=1000)
    assert refused.value.first == 7
    await store.queues.configure([QueueConfig(16, None, 1)])
    assert await store.queues.bounds(16) == (9, 10)  # the frame that goes over the limit stays
    await store.queues.configure([QueueConfig(16)])
    assert await store.queues.bounds(16) == (0, 10)


async def test_a_frames_bytes_are_shared_by_its_queues(open_store):
    store = await open_store()
    both = frame((16, b"x" * 100), (17, b"x" * 100), (17, b"x" * 100), (17, b"x" * 100))
    await append(store, both)
    await store.core.until_dispatched(store.log.confirmed)
    with store.core.engine.views.reading() as txn:
        ends = [store.core.engine.views.queues.end(txn, queue).size_bytes for queue in (16, 17)]
    assert ends == [both.size_bytes // 4, both.size_bytes * 3 // 4]


async def test_a_configuration_outlives_a_restart_and_goes_with_its_queue(open_store):
    store = await open_store()
    config = QueueConfig(16, 5000, 6000, compact=True)
    await store.queues.configure([config, QueueConfig(17, 1)])
    assert store.queues.config(16) == config
    await store.close()
    store = await open_store()
    assert store.queues.config(16) == config
    await store.queues.delete(16)
    assert store.queues.config(16) is None
    assert store.queues.config(17) == QueueConfig(17, 1)
    await store.close()
    assert (await open_store()).queues.config(16) is None


# ---- on disk


async def test_whole_segments_go_when_all_their_queues_are_past_their_limits(open_store, clock, tmp_path):
    store = await open_store()
    await store.queues.configure([QueueConfig(16, HOUR), QueueConfig(17, 2 * HOUR)])
    await write(store, 10, 16, 17)
    before = segments(tmp_path)
    assert len(before) > 5
    await trim(store)
    assert segments(tmp_path) == before
    clock.ms += HOUR + 1
    await trim(store)
    assert segments(tmp_path) == before  # 17 needs them
    assert await store.queues.bounds(16) == (10, 10)
    clock.ms += HOUR
    await trim(store)
    left = segments(tmp_path)
    assert left[0] == store.core.engine.log.first > 0
    assert left[:-1] == [] or left[0] in before
    assert await store.queues.bounds(17) == (10, 10)
    await write(store, 1, 16, 17)
    assert await store.queues.bounds(16) == (10, 11)  # offsets go on
    assert numbers(await bodies(store, 16, 10)) == [0]
    with pytest.raises(OffsetOutOfRange) as refused:
        await store.queues.fetch(17, 3, max_bytes=1000)
    assert (refused.value.first, refused.value.next) == (10, 11)


async def test_no_limits_no_deletion(open_store, clock, tmp_path):
    store = await open_store()
    await write(store, 10, 16)
    clock.ms += 1000 * HOUR
    before = segments(tmp_path)
    await trim(store)
    assert segments(tmp_path) == before
    assert await store.queues.bounds(16) == (0, 10)


async def test_the_stores_default_is_for_all_that_say_nothing(open_store, clock, tmp_path):
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    await store.queues.configure([QueueConfig(17, FOREVER)])
    await write(store, 5, 16)
    await write(store, 5, 17)
    clock.ms += HOUR + 1
    await trim(store)
    assert store.core.engine.log.first > 0
    assert await store.queues.bounds(16) == (5, 5)
    assert await store.queues.bounds(17) == (0, 5)
    assert numbers(await bodies(store, 17)) == [0, 1, 2, 3, 4]


async def test_size_limits_delete_too(open_store, tmp_path):
    store = await open_store(retention=RetentionLimits(size_bytes=2 * SEGMENT))
    await write(store, 30, 16)
    await store.core.until_dispatched(store.log.confirmed)
    await trim(store)
    assert len(segments(tmp_path)) <= 4
    bounds = await store.queues.bounds(16)
    assert 3 <= bounds.next - bounds.first <= 6


async def test_state_outlives_the_segments_it_came_in(open_store, clock, tmp_path):
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    await store.keys.put("key", b"value")
    await store.groups.commit("group", {16: 7})
    at = await append(store, frame((16, b"x" * 300, 99)))
    await write(store, 10, 16)
    assert await store.log.last(99) == Position(at.frame, 0)
    clock.ms += HOUR + 1
    await trim(store)
    for again in (False, True):
        if again:
            await store.close()
            store = await open_store(retention=RetentionLimits(age_ms=HOUR))
        assert store.core.engine.log.first > at.frame
        assert (await store.keys.get("key")).value == b"value"
        assert await store.groups.offsets("group") == {16: 7}
        assert await store.log.last(99) == Position(at.frame, 0)  # which is gone
        assert await store.log.read(Position(at.frame, 0)) is None
        frames, _ = await store.log.scan(Position(0, 0), None, max_bytes=1 << 20)
        assert all(one.start >= store.core.engine.log.first for one in frames)
        assert await store.queues.bounds(16) == (11, 11)


async def test_a_lagging_group_keeps_what_its_topics_limits_keep(open_store, clock):
    """And nothing more: it is told where the queue begins."""
    store = await open_store()
    await store.queues.configure([QueueConfig(16, HOUR)])
    await store.groups.commit("slow", {16: 2})
    await write(store, 10, 16)
    clock.ms += HOUR
    await trim(store)
    assert numbers(await bodies(store, 16, 2)) == list(range(2, 10))
    clock.ms += 1
    await trim(store)
    with pytest.raises(OffsetOutOfRange) as refused:
        await store.queues.fetch(16, (await store.groups.offsets("slow"))[16], max_bytes=1000)
    assert refused.value.first == 10


async def test_a_deleted_queue_keeps_nothing(open_store, clock):
    store = await open_store()
    await write(store, 10, 16)
    await store.queues.delete(16)
    await write(store, 4, 17)
    await store.queues.configure([QueueConfig(17, HOUR)])
    clock.ms += HOUR + 1
    await trim(store)
    assert store.core.engine.log.first > 0


async def test_a_reader_that_is_under_way_is_not_disturbed(open_store, clock, tmp_path):
    """Files are unlinked at once, and closed when the last reader has let go."""
    store = await open_store(retention=RetentionLimits(age_ms=HOUR), cache_bytes_max=0)
    await write(store, 10, 16)
    log = store.core.engine.log
    reading = log.scan(0, log.confirmed, read_bytes=100)
    first = next(reading)
    clock.ms += HOUR + 1
    await trim(store)
    assert log.first > first.end
    assert len(list(reading)) >= 9
    assert log.read(first.start) is None


# ---- in order, and through the log


async def test_files_are_deleted_only_when_the_views_know(open_store, clock, tmp_path, monkeypatch):
    """A crash between the record and the files is made up for at the next start."""
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    await write(store, 10, 16)
    before = segments(tmp_path)
    clock.ms += HOUR + 1
    with monkeypatch.context() as patch:
        patch.setattr(store.core.engine.trimmer, "delete", lambda: None)
        await trim(store)
    assert set(before) <= set(segments(tmp_path))
    first = store.core.engine.views.first
    assert first > 0
    await store.close()
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    assert store.core.engine.log.first == first == segments(tmp_path)[0]
    assert await store.queues.bounds(16) == (10, 10)


@pytest.mark.parametrize("failing", ["unlink", "sync_directory"])
async def test_a_disk_that_does_not_delete(open_store, clock, tmp_path, monkeypatch, failing):
    files = FaultyFiles()
    store = await open_store(retention=RetentionLimits(age_ms=HOUR), files=files)
    await write(store, 10, 16)
    clock.ms += HOUR + 1

    def refuse(_):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(files, failing, refuse)
        with pytest.raises(OSError, match="no"):
            await trim(store)
    assert store.error is None
    await write(store, 1, 16)
    assert await store.queues.bounds(16) == (10, 11)
    first = store.core.engine.views.first
    await store.close()
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    assert segments(tmp_path)[0] == first
    assert await store.queues.bounds(16) == (10, 11)


async def test_a_full_disk_is_made_room_on(open_store, clock, tmp_path):
    """The record that trims may use the reserve."""
    files = FaultyFiles()
    store = await open_store(retention=RetentionLimits(age_ms=HOUR), files=files, disk_reserve_bytes=1 << 20)
    await write(store, 10, 16)
    files.free = 1000
    store.core.engine.space.look()
    assert store.full is not None
    clock.ms += HOUR + 1
    await trim(store)
    assert store.core.engine.log.first > 0
    files.free = None
    store.core.engine.space.look()
    assert store.full is None


async def test_no_room_even_for_the_record(open_store, clock, tmp_path):
    files = FaultyFiles()
    store = await open_store(retention=RetentionLimits(age_ms=HOUR), files=files)
    await write(store, 10, 16)
    before = segments(tmp_path)
    files.fill(10)
    clock.ms += HOUR + 1
    await trim(store)
    assert set(before) <= set(segments(tmp_path))
    files.write_error = 0
    store.core.engine.space.look()
    await trim(store)
    assert store.core.engine.log.first > 0


async def test_a_rebuild_from_the_whole_log_is_trimmed_alike(open_store, clock, tmp_path):
    """A replica, or an archive that has all segments, comes to the same views byte for byte."""
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    archive = tmp_path / "archive" / "log"
    archive.mkdir(parents=True)

    def keep():
        for one in (tmp_path / "data" / "log").iterdir():
            shutil.copy(one, archive)

    for _ in range(3):
        await write(store, 7, 16, 17)
        await store.keys.put("key", b"value")
        keep()
        clock.ms += HOUR + 1
        await trim(store)
        await write(store, 1, 17)
        keep()
    assert store.core.engine.log.first > 0
    await store.close()
    other = await open_store(tmp_path / "archive")
    first = store.core.engine.log.first
    assert min(int(one.stem) for one in archive.iterdir()) == first
    await other.close()
    entries = []
    for name in ("data", "archive"):
        views = Views(tmp_path / name / "views")
        entries.append(list(views.entries()))
        views.close()
    assert entries[0] == entries[1]


@pytest.mark.parametrize("lost", ["gone", "damaged", "another format"])
async def test_views_that_the_log_cannot_give_again_are_not_thrown_away(open_store, clock, tmp_path, caplog, lost):
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    await write(store, 10, 16)
    clock.ms += HOUR + 1
    await trim(store)
    await write(store, 2, 16)
    await store.close()
    views = tmp_path / "data" / "views"
    match lost:
        case "gone":
            shutil.rmtree(views)
        case "damaged":
            (views / "data.mdb").write_bytes(b"nonsense" * 1000)
        case "another format":
            with lmdb.open(str(views), max_dbs=32) as env, env.begin(write=True) as txn:
                txn.put(b"format", b"0", db=env.open_db(b"meta", txn=txn))
    before = (views / "data.mdb").read_bytes() if views.exists() else b""
    with pytest.raises(NotRebuildable):
        await open_store()
    if before:
        assert (views / "data.mdb").read_bytes() == before
    with StoppedStore(tmp_path / "data") as stopped:
        stopped.rebuild_views(force=True)
    store = await open_store()
    assert (await store.queues.bounds(16)).next > 0


async def test_views_ahead_of_a_log_that_has_lost_its_end_are_kept(open_store, clock, tmp_path):
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    await write(store, 10, 16)
    clock.ms += HOUR + 1
    await trim(store)
    await write(store, 2, 16)
    before, end = await store.queues.bounds(16), store.replication.end
    await store.close()
    last = segments(tmp_path)[-1]
    (tmp_path / "data" / "log" / f"{last:020d}.log").write_bytes(b"")
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    assert [(one.start, one.end) for one in store.damages] == [(last, end)]
    assert await store.queues.bounds(16) == before
    await write(store, 1, 16)
    assert (await store.queues.bounds(16)).next == before.next + 1


async def test_what_a_record_says_of_later_frames_counts_only_to_itself(open_store):
    """A log is never trimmed behind the record that says so, whatever it says."""
    store = await open_store()
    await write(store, 3, 16, size=10)
    await store.core.recorder.record(LogTrimmed(1 << 40, 0))
    await write(store, 1, 16, size=10)
    await store.core.until_dispatched(store.log.confirmed)
    assert await store.queues.bounds(16) == (3, 4)
    assert numbers(await bodies(store, 16, 3)) == [0]


async def test_housekeeping_comes_by_itself(open_store, clock, tmp_path):
    store = await LocalStore.open(
        tmp_path / "data",
        segment_size_bytes=SEGMENT,
        now_ms=clock,
        retention=RetentionLimits(age_ms=HOUR),
        retention_interval_s=0.01,
    )
    await write(store, 10, 16)
    clock.ms += HOUR + 1
    async with asyncio.timeout(60):
        while store.core.engine.log.first == 0:
            await asyncio.sleep(0.01)
    await store.close()


async def test_what_was_trimmed_is_not_leased(open_store, clock):
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    await write(store, 10, 16)
    held = await store.leases.take(16, 1, max_count=2)
    assert [lease.offset for lease in held] == [0, 1]
    clock.ms += HOUR + 1
    await trim(store)
    async with asyncio.timeout(60):
        while await store.leases.waiting(16) > 2:  # of the last segment, which is there
            await asyncio.sleep(0.001)
    await write(store, 2, 16, size=10)
    assert [lease.offset for lease in await store.leases.take(16, 1, max_count=5)] == [8, 9, 10, 11]
    await store.leases.settle(16, 1, [0, 1, 8, 9, 10])
    await store.close()
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    assert await store.leases.waiting(16) == 1
    assert [lease.offset for lease in await store.leases.take(16, 1, max_count=5)] == [11]


async def test_a_take_that_meets_what_was_trimmed_goes_on_behind(open_store, clock, monkeypatch):
    """Before the leases have been told."""
    store = await open_store(retention=RetentionLimits(age_ms=HOUR))
    await write(store, 10, 16)
    assert len(await store.leases.take(16, 1, max_count=1)) == 1
    monkeypatch.setattr(store.leases, "_trim_leases", lambda _: None)
    clock.ms += HOUR + 1
    await trim(store)
    assert [lease.offset for lease in await store.leases.take(16, 1, max_count=3)] == [8, 9]


# ---- queues kept until they are consumed


async def test_what_nobody_has_settled_is_kept_whatever_its_age(tmp_path, open_store, clock):
    """The default limits are for topics: a named queue's messages wait for their consumer."""
    store = await open_store(retention=RetentionLimits(HOUR, 500))
    await store.queues.configure([QueueConfig(17, until_settled=True)])
    await write(store, 12, 17)
    clock.ms += 2 * HOUR
    await write(store, 1, 18)
    await trim(store)
    assert segments(tmp_path)[0] == 0
    assert numbers([lease.frame.record(lease.row) for lease in await store.leases.take(17, 1, max_count=20)]) == [
        *range(12)
    ]


async def test_what_is_settled_goes_up_to_the_first_that_is_not(tmp_path, open_store, clock):
    store = await open_store(retention=RetentionLimits(HOUR, FOREVER))
    await store.queues.configure([QueueConfig(17, until_settled=True)])
    await write(store, 12, 17)
    clock.ms += 2 * HOUR
    await write(store, 12, 18)
    leases = await store.leases.take(17, 1, max_count=12)
    await store.leases.settle(17, 1, [leases[n].offset for n in (0, 1, 2, 3, 4, 6, 7)])
    await trim(store)
    kept = segments(tmp_path)[0]
    assert 0 < kept <= leases[5].frame.start
    assert (await store.queues.bounds(17)).first <= 5
    await store.leases.settle(17, 1, [leases[n].offset for n in (5, 8, 9, 10, 11)])
    await trim(store)
    assert segments(tmp_path)[0] > leases[11].frame.start
    await store.close()
    store = await open_store(retention=RetentionLimits(HOUR, FOREVER))
    assert await store.leases.take(17, 1, max_count=12) == ()


async def test_a_queue_kept_until_settled_may_have_limits_of_its_own(tmp_path, open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(17, HOUR, until_settled=True), QueueConfig(18, 0)])
    await write(store, 12, 17)
    clock.ms += 2 * HOUR
    await write(store, 12, 18)
    clock.ms += 1
    await trim(store)
    assert segments(tmp_path)[0] > 0
    assert await store.leases.take(17, 1, max_count=12) == ()


async def damage(store, tmp_path, frame_start):
    """Damages a frame, and meets it."""
    start = max(one for one in segments(tmp_path) if one <= frame_start)
    flip(tmp_path / "data" / "log" / segment_name(start), frame_start - start + HEADER.size + 100)
    assert list(store.core.engine.log.scan(frame_start, frame_start + 1))
    with pytest.raises(CorruptFrame):
        store.core.engine.log.read(frame_start)


@pytest.mark.parametrize("lost", [True, False])
async def test_a_lost_message_keeps_nothing(tmp_path, open_store, clock, monkeypatch, lost):
    """Nobody can settle it. One that another replica has is kept, also when it is damaged here."""
    store = await open_store(retention=RetentionLimits(HOUR, FOREVER), cache_bytes_max=0, scrub_bytes_per_s=0)
    monkeypatch.setattr(store.core.engine.trimmer, "_lost", lambda at: lost)
    await store.queues.configure([QueueConfig(17, until_settled=True)])
    await write(store, 12, 17)
    leases = await store.leases.take(17, 1, max_count=12)
    await store.leases.settle(17, 1, [lease.offset for lease in leases if lease.offset not in (5, 6)])
    clock.ms += 2 * HOUR
    await write(store, 12, 18)
    await damage(store, tmp_path, leases[5].frame.start)
    await trim(store)
    assert 0 < segments(tmp_path)[0] <= leases[6].frame.start
    await store.leases.settle(17, 1, [6])
    await trim(store)
    assert (segments(tmp_path)[0] > leases[11].frame.start) is lost


# ---- parts of bodies


async def write_parts(store, clock, count):
    return [
        await append(store, part_frame(bytes(300), time_ms=clock(), producer_id=0, sequence=0)) for _ in range(count)
    ]


async def test_parts_are_kept_for_the_oldest_message_that_is_kept(tmp_path, open_store, clock):
    """Parts lie in front of their message, perhaps in a segment that nothing else keeps."""
    store = await open_store(retention=RetentionLimits(HOUR, FOREVER))
    await store.queues.configure([QueueConfig(17, until_settled=True)])
    await write(store, 6, 18)
    parts = await write_parts(store, clock, 6)
    clock.ms += UPLOAD_MS_MAX
    await write(store, 1, 17)
    clock.ms += 2 * HOUR
    await write(store, 12, 18)
    await trim(store)
    assert 0 < segments(tmp_path)[0] <= parts[0].frame
    assert all([await store.log.read(Position(one.frame, 0)) for one in parts])
    (lease,) = await store.leases.take(17, 1, max_count=1)
    await store.leases.settle(17, 1, [lease.offset])
    await trim(store)
    assert segments(tmp_path)[0] > parts[-1].frame


async def test_parts_are_kept_for_a_lost_message_as_if_it_were_sound(tmp_path, open_store, clock):
    store = await open_store(retention=RetentionLimits(HOUR, FOREVER), cache_bytes_max=0, scrub_bytes_per_s=0)
    await store.queues.configure([QueueConfig(17, FOREVER)])
    await write_parts(store, clock, 6)
    clock.ms += 2 * PARTS_KEPT_MS
    parts = await write_parts(store, clock, 6)
    clock.ms += UPLOAD_MS_MAX
    await write(store, 2, 17)
    await store.core.until_dispatched(store.log.confirmed)
    with store.core.engine.views.reading() as txn:
        kept = next(store.core.engine.views.queues.chunks(txn, 17, 0)).frame
    clock.ms += 2 * HOUR
    await write(store, 12, 18)
    await damage(store, tmp_path, kept)
    await trim(store)
    assert 0 < segments(tmp_path)[0] <= parts[0].frame
    assert all([await store.log.read(Position(one.frame, 0)) for one in parts])


async def test_parts_are_kept_while_their_message_is_still_to_come(tmp_path, open_store, clock):
    store = await open_store(retention=RetentionLimits(HOUR, FOREVER))
    await write(store, 6, 18)
    clock.ms += 2 * HOUR
    parts = await write_parts(store, clock, 12)
    clock.ms += UPLOAD_MS_MAX
    await trim(store)
    assert 0 < segments(tmp_path)[0] <= parts[0].frame
    clock.ms += PARTS_KEPT_MS
    await write(store, 4, 18)
    clock.ms += 2 * HOUR
    await write(store, 4, 18)
    await trim(store)
    assert segments(tmp_path)[0] > parts[-1].frame  # no message ever named them


async def test_parts_are_no_records_of_the_stores_own(open_store, clock, tmp_path, caplog):
    store = await open_store()
    put = encode_record(KvPut("key", b"forged"))
    await append(store, part_frame(put[1:], time_ms=0, producer_id=0, sequence=0))
    row = ROW.pack(PARTS_QUEUE, 0, len(put), 0, 0, 0, 0, 0)
    await append(store, UnplacedFrame.build(row, put))
    assert await store.keys.get("key") is None
    await store.close()
    store = await open_store()
    assert await store.keys.get("key") is None
    assert "record" not in caplog.text
