"""A replica: it writes what its master sends as it is, and shows what is confirmed."""

import asyncio
import errno
import os
import shutil
import time

import pytest

from store.base.errors import CorruptFrame, NotMaster, StoreClosed, StoreFull, StoreOverloaded, TruncationRefused
from store.engine import receiver
from store.engine.repair import StoppedStore
from store.format.frame import FRAME_ZSTD, Position, UnplacedFrame, origin_of
from store.format.records import QueueDeleted
from store.local import replication as local_replication
from store.local.local import LocalStore
from store.log.retention import RetentionLimits
from store.log.tail import LogTail
from store.replication.epoch_file import EPOCH_FILES
from tests.support.process.waiting import until
from tests.support.store.replica_kit import feed, log_bytes, open_master, open_replica, stored
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair(tmp_path):
    master = await open_master(tmp_path / "master", alone=True, group=2)
    replica = await open_replica(tmp_path / "replica", group=2)
    yield master, replica
    await master.step_down()
    await replica.close()


async def test_frames_are_stored_as_they_are_and_shown_when_confirmed(pair, tmp_path):
    master, replica = pair
    assert (master.replication.role, replica.replication.role) == ("master", "replica")
    packed = UnplacedFrame.build(*[(f := frame((16, b"x" * 500))).rows, f.payload], compress_bytes_min=1)
    assert packed.flags & FRAME_ZSTD
    for one in (frame((16, b"a")), packed, frame((17, b"c", 9), producer_id=4, sequence=1)):
        await append(master, one)
    await feed(master, replica)
    await until(lambda: replica.hooks.told)
    assert replica.hooks.told == [("flushed", master.replication.end)]
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")
    assert replica.log.confirmed == origin_of(2)
    assert await bodies(replica, 16) == []
    seen = []
    replica.log.tail(seen.extend)
    replica.replication.confirm(origin_of(2) + frame((16, b"a")).size_bytes)
    await until(lambda: seen)
    assert await bodies(replica, 16) == [b"a"]
    replica.replication.confirm(master.replication.end + 1000)  # more than has arrived
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert await bodies(replica, 16) == [b"a", b"x" * 500]
    assert len(seen) == 3
    assert (await replica.log.read(await replica.log.last(9))) == b"c"
    frames, end = await replica.log.scan(Position(0, 0), None, max_bytes=1 << 20)
    assert (len(frames), end) == (3, master.replication.end)
    await append(master, frame((16, b"d")))
    await feed(master, replica)
    await until(lambda: replica.log.confirmed == master.replication.end)  # which was confirmed before it came
    assert (await replica.queues.fetch(16, 2, max_bytes=1 << 20)).next == 3


async def test_readers_wait_for_what_is_confirmed(pair):
    master, replica = pair
    await append(master, frame((16, b"a")))
    waiting = asyncio.ensure_future(replica.queues.fetch(16, 0, max_bytes=1 << 20, max_wait_ms=10_000))
    await feed(master, replica)
    assert not waiting.done()
    replica.replication.confirm(master.replication.end)
    assert (await waiting).next == 1


async def test_keys_can_be_read_and_watched(pair):
    master, replica = pair
    watch = replica.keys.watch()
    following = asyncio.ensure_future(anext(watch))
    revision = await master.keys.put("k", b"v")
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    assert [(one.key, one.revision) for one in (await following).changes] == [("k", revision)]
    await watch.aclose()
    assert (await replica.keys.get("k")).revision == revision
    assert [entry.key for entry in (await replica.keys.range()).entries] == ["k"]
    assert await replica.keys.hold() == (await replica.keys.range()).revision


async def test_a_replica_changes_nothing_by_itself(pair):
    master, replica = pair
    await append(master, frame((16, b"a")))
    await master.keys.put("k", b"v", ttl_ms=1)
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    end = replica.replication.flushed
    await until(lambda: replica.log.confirmed == end)
    assert not replica.replication.writable
    for refused in (
        append(replica, frame((16, b"b"))),
        replica.keys.put("k", b"v"),
        replica.leases.take(16, 1, max_count=1),
        replica.queues.delete(16),
        replica.groups.commit("g", {16: 1}),
        replica.log.note_addresses(["a/b"]),
    ):
        with pytest.raises(NotMaster):
            await refused
    await asyncio.sleep(0.01)
    await replica.tick()
    assert replica.replication.end == end
    assert await replica.keys.get("k") is None  # it has expired all the same


@pytest.mark.parametrize("hurt", ["header", "body", "place", "cut", "again", "gap"])
async def test_what_is_not_the_next_frame_is_refused(pair, hurt):
    master, replica = pair
    for n in range(3):
        await append(master, frame((16, b"%d" % n)))
    data = await master.replication.read_log(origin_of(2), 1 << 20)
    size = len(data) // 3
    wrong = {
        "header": data[:size] + bytes([data[size] ^ 1]) + data[size + 1 :],
        "body": data[:-1] + bytes([data[-1] ^ 1]),
        "place": data[:size] + data[:size],
        "cut": data[:-1],
        "again": data[:size],
        "gap": data[2 * size :],
    }[hurt]
    if hurt in {"again", "gap"}:
        replica.replication.receive(data[:size])
    with pytest.raises(CorruptFrame):
        replica.replication.receive(wrong)
    assert replica.replication.receive(b"") == origin_of(2) + (size if hurt in {"again", "gap"} else 0)
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)


async def test_what_comes_while_a_sync_is_under_way_is_one_write(tmp_path):
    master = await open_master(tmp_path / "master", alone=True)
    for n in range(20):
        await append(master, frame((16, b"%d" % n)))
    files = FaultyFiles()
    replica = await open_replica(tmp_path / "replica", files=files)
    loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def before_sync():
        loop.call_soon_threadsafe(reached.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(5)

    files.before_sync = before_sync
    at = replica.replication.receive(await master.replication.read_log(0, 1))
    await reached.wait()
    writes, syncs = files.writes, files.syncs
    while data := await master.replication.read_log(at, 1):
        at = replica.replication.receive(data)
    go_on.set()
    await until(lambda: replica.replication.flushed == master.replication.end)
    assert (files.writes - writes, files.syncs - syncs) == (3, 2)  # of the log one, and the floor after each sync
    assert [end for _, end in replica.hooks.told] == [frame((16, b"0")).size_bytes, master.replication.end]
    await replica.close()
    await master.close()


@pytest.mark.parametrize("noticed", ["before", "while"])
async def test_what_has_no_room_is_dropped_until_it_is_opened_again(tmp_path, noticed):
    master = await open_master(tmp_path / "master", alone=True)
    await append(master, frame((16, b"a")))
    files = FaultyFiles()
    options = {"files": files, "disk_reserve_bytes": 1 << 20}
    replica = await open_replica(tmp_path / "replica", **options)
    await feed(master, replica)
    kept = replica.replication.flushed
    for n in range(20):
        await append(master, frame((16, b"%d" % n * 1_000)))
    if noticed == "before":
        files.free = 0
        replica.core.engine.space._allowed = 0  # it looks now
    else:
        files.fill(2_500)
    replica.replication.receive(await master.replication.read_log(kept, 1 << 20))
    await until(lambda: replica.replication.dropped is not None)
    await until(lambda: replica.hooks.told[-1] == ("flushed", kept))
    files.write_error, files.free = 0, None
    replica.core.engine.space.look()
    with pytest.raises(StoreFull):
        replica.replication.receive(b"")
    assert replica.error is None
    assert replica.replication.flushed == kept
    await replica.close()
    replica = await open_replica(tmp_path / "replica", **options)
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert await bodies(replica, 16) == [b"a", *(b"%d" % n * 1_000 for n in range(20))]
    await replica.close()
    await master.close()
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")


async def test_no_file_descriptor_is_no_failure(pair, monkeypatch):
    master, replica = pair
    monkeypatch.setattr(receiver, "LOOK_S", 0.01)
    receiving, tried = replica.core.engine.receiver, []
    monkeypatch.setattr(receiving._tail, "frames", lambda *_: [])  # as for a replica that is behind: from the files
    frames = replica.core.engine.log.frames

    def read(*arguments):
        tried.append(arguments)
        if len(tried) < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return frames(*arguments)

    monkeypatch.setattr(replica.core.engine.log, "frames", read)
    await append(master, frame((16, b"a")))
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert len(tried) >= 3
    assert replica.error is None


async def test_there_is_an_end_to_what_is_taken(pair, monkeypatch):
    master, replica = pair
    monkeypatch.setattr(local_replication, "RECEIVED_BYTES_MAX", 100)
    for n in range(3):
        await append(master, frame((16, b"%d" % n)))
    log = replica.core.engine.receiver
    monkeypatch.setattr(log, "receive", lambda placed: None)  # no frame reaches the disk
    replica.replication.receive(await master.replication.read_log(origin_of(2), 1))
    with pytest.raises(StoreOverloaded):
        replica.replication.receive(await master.replication.read_log(replica.replication.receive(b""), 1))


async def test_segments_end_as_the_masters_do(tmp_path):
    options = {"segment_size_bytes": 1_000}
    master = await open_master(tmp_path / "master", alone=True, **options)
    replica = await open_replica(tmp_path / "replica", **options)
    for n in range(30):
        await append(master, frame((16, b"%d" % n * 40)))
    await feed(master, replica, max_bytes=500)
    names = [sorted(one.name for one in (tmp_path / name / "log").iterdir()) for name in ("master", "replica")]
    assert names[0] == names[1]
    assert len(names[0]) > 3
    await replica.close()
    await master.close()


async def test_retention_follows_the_masters_records(tmp_path):
    options = {"segment_size_bytes": 1_000, "linger_s": 0.001, "retention": RetentionLimits(size_bytes=500)}
    master = await open_master(tmp_path / "master", alone=True, **options)
    replica = await open_replica(
        tmp_path / "replica", retention_interval_s=0.01, **{**options, "segment_size_bytes": 1_500}
    )
    for n in range(30):
        await append(master, frame((16, b"%03d" % n + bytes(40))))
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    end = replica.replication.end
    await asyncio.sleep(0.05)
    assert (replica.replication.first, replica.replication.end) == (0, end)
    await master.core.until_dispatched(master.log.confirmed)
    await asyncio.get_running_loop().run_in_executor(None, master.core.engine.trimmer.run)
    assert master.replication.first > 0
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.replication.first > 0)
    assert replica.replication.first <= master.replication.first  # its segments are of another size
    assert (await replica.queues.bounds(16)) == (await master.queues.bounds(16))
    views = replica.core.engine.views.first
    await replica.close()
    async with await LocalStore.open(tmp_path / "replica", role="replica") as replica:
        assert replica.core.recent.first == views
    await master.close()


async def test_what_was_not_confirmed_is_followed_from_disk_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(receiver, "RUN_BYTES", 200)
    master = await open_master(tmp_path / "master", alone=True)
    replica = await open_replica(tmp_path / "replica")
    for n in range(20):
        await append(master, frame((16 + n % 2, b"%d" % n)))
    await feed(master, replica)
    middle = frame((16, b"0")).size_bytes * 7
    replica.replication.confirm(middle)
    await until(lambda: replica.log.confirmed == middle)
    await replica.close()
    replica = await open_replica(tmp_path / "replica")
    assert (replica.log.confirmed, replica.replication.end) == (middle, master.replication.end)
    assert await bodies(replica, 16) == [b"0", b"2", b"4", b"6"]
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert await bodies(replica, 17) == [b"%d" % n for n in range(1, 20, 2)]
    await replica.close()
    shutil.rmtree(tmp_path / "replica" / "views")  # then all of it is followed again, as far as it is confirmed
    replica = await open_replica(tmp_path / "replica")
    assert (replica.log.confirmed, replica.replication.end) == (0, master.replication.end)
    replica.replication.confirm(middle)
    await until(lambda: replica.log.confirmed == middle)
    assert await bodies(replica, 16) == [b"0", b"2", b"4", b"6"]
    await replica.close()
    await master.close()


@pytest.mark.parametrize("remembered", [0, 300])
async def test_what_memory_has_lost_is_followed_from_disk(tmp_path, monkeypatch, remembered):
    monkeypatch.setattr("store.engine.engine.LogTail", lambda: LogTail(remembered))
    master = await open_master(tmp_path / "master", alone=True)
    replica = await open_replica(tmp_path / "replica")
    for n in range(20):
        await append(master, frame((16, b"%d" % n)))
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert await bodies(replica, 16) == [b"%d" % n for n in range(20)]
    await replica.close()
    await master.close()


async def test_a_change_of_role_in_place(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    master, replica = await open_master(one), await open_replica(other)
    for n in range(10):
        await stored(master, frame((16, b"%d" % n)))
    await feed(master, replica)
    master.replication.confirm(frame((16, b"0")).size_bytes * 4)
    replica.replication.confirm(master.log.confirmed)
    await until(lambda: replica.log.confirmed == master.log.confirmed)
    old_end = master.replication.end
    await master.step_down()
    await replica.close()
    master, replica = await open_master(other, epoch=2), await open_replica(one)
    assert master.log.confirmed == master.replication.end == old_end  # its frames are confirmed now
    assert replica.log.confirmed < old_end
    await stored(master, frame((16, b"new"), producer_id=5, sequence=1))
    await feed(master, replica)
    master.replication.confirm(master.replication.end)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    expected = [*(b"%d" % n for n in range(10)), b"new"]
    assert await bodies(master, 16) == await bodies(replica, 16) == expected
    await replica.close()
    await master.close()
    assert log_bytes(one) == log_bytes(other)


async def test_what_differs_is_cut_off_at_the_opening(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    master, replica = await open_master(one), await open_replica(other)
    await stored(master, frame((16, b"a")))
    await feed(master, replica)
    common = master.replication.end
    for store in (master, replica):
        store.replication.confirm(common)
    await stored(master, frame((16, b"lost")), frame((16, b"lost too")))
    await until(lambda: replica.log.confirmed == common)
    await master.step_down()
    await replica.close()
    master = await open_master(other, epoch=2)
    await stored(master, frame((16, b"b" * 100)))
    with pytest.raises(TruncationRefused, match="no frame begins at"):
        await open_replica(one, truncate_to=common + 1)
    with pytest.raises(TruncationRefused, match="the views have followed"):
        await open_replica(one, truncate_to=common - 1)
    replica = await open_replica(one, truncate_to=common)
    assert replica.replication.end == replica.replication.flushed == replica.log.confirmed == common
    await feed(master, replica)
    for store in (master, replica):
        store.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert await bodies(replica, 16) == [b"a", b"b" * 100]
    await replica.close()
    await master.close()
    assert log_bytes(one) == log_bytes(other)


async def test_a_lost_end_need_not_come_again_where_it_was_never_the_groups(tmp_path):
    """The replica gets back all that views have followed or the master has, and does not wait for the rest."""
    master = await open_master(tmp_path / "master", alone=True)
    replica = await open_replica(tmp_path / "replica")
    ends = []
    for n in range(5):
        await append(master, frame((16, b"%d" % n * 50)))
        ends.append(master.replication.end)
    await feed(master, replica)
    replica.replication.confirm(ends[1])
    await until(lambda: replica.log.confirmed == ends[1])
    await replica.close()
    (segment,) = (tmp_path / "replica" / "log").iterdir()
    with segment.open("r+b") as file:
        file.truncate(ends[1])
    replica = await open_replica(tmp_path / "replica")
    assert (replica.replication.end, replica.replication.lost_end) == (ends[1], ends[4])
    await replica.close()
    replica = await open_replica(tmp_path / "replica", truncate_to=ends[3])
    assert (replica.replication.end, replica.replication.lost_end) == (ends[1], ends[3])
    assert [(one.start, one.end) for one in replica.damages] == [(ends[1], ends[3])]
    await replica.close()
    for truncate_to in (ends[1], None):
        replica = await open_replica(tmp_path / "replica", truncate_to=truncate_to)
        assert (replica.replication.end, replica.replication.held) == (ends[1], ends[1])
        assert (replica.replication.lost_end, list(replica.damages)) == (None, [])
        await replica.close()
    await master.close()


async def fed_with_five_frames(tmp_path):
    """Returns a master, a replica that has its five frames, none of them confirmed, and the size of each."""
    master = await open_master(tmp_path / "master", alone=True)
    replica = await open_replica(tmp_path / "replica")
    for n in range(5):
        await append(master, frame((16, b"%d" % n * 50)))
    await feed(master, replica)
    return master, replica, master.replication.end // 5


async def close_with_one_confirmed(tmp_path, replica, size):
    """Closes a replica whose first frame is confirmed; returns the file of its log."""
    replica.replication.confirm(size)
    await until(lambda: replica.log.confirmed == size)
    await replica.close()
    (segment,) = (tmp_path / "replica" / "log").iterdir()
    return segment


async def test_a_torn_tail_is_cut_though_frames_behind_say_it_was_synced(tmp_path):
    """They say so of their master's disk."""
    master, replica, size = await fed_with_five_frames(tmp_path)
    segment = await close_with_one_confirmed(tmp_path, replica, size)
    with segment.open("r+b") as file:
        file.seek(2 * size + 70)
        file.write(bytes(20))  # a page that was never written
    (tmp_path / "replica" / "floor").unlink()  # of an older version, or older than the log after a power failure
    replica = await open_replica(tmp_path / "replica")
    assert (replica.replication.end, replica.log.confirmed, replica.corruptions) == (2 * size, size, [])
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert len(await bodies(replica, 16)) == 5
    await replica.close()
    await master.close()


@pytest.mark.parametrize("damaged", [2, 4])
async def test_damage_that_is_known_is_not_taken_for_a_torn_tail_where_the_floor_is_lost(tmp_path, damaged):
    """The list of damages says, too, how far the log was on disk."""
    master, replica, size = await fed_with_five_frames(tmp_path)
    segment = await close_with_one_confirmed(tmp_path, replica, size)
    with segment.open("r+b") as file:
        file.seek(damaged * size + 70)
        file.write(bytes(20))
    replica = await open_replica(tmp_path / "replica", scrub_bytes_per_s=0)
    found = (damaged * size, (damaged + 1) * size)
    assert [(one.start, one.end) for one in replica.damages] == [found]
    await replica.close()
    (tmp_path / "replica" / "floor").unlink()
    replica = await open_replica(tmp_path / "replica", scrub_bytes_per_s=0)
    assert [(one.start, one.end) for one in replica.damages] == [found]
    assert replica.replication.held == 5 * size
    assert replica.replication.end == (5 if damaged == 2 else damaged) * size
    await replica.close()
    replica = await open_replica(tmp_path / "replica", scrub_bytes_per_s=0, truncate_to=damaged * size)
    assert (replica.replication.held, list(replica.damages)) == (damaged * size, [])
    await replica.close()
    await master.close()


async def test_damage_is_not_passed_over(tmp_path, monkeypatch):
    """A replica that left a frame out would be another one than its master: it waits for the repair."""
    monkeypatch.setattr("store.engine.engine.LogTail", lambda: LogTail(0))
    master, replica, size = await fed_with_five_frames(tmp_path)
    (segment,) = (tmp_path / "replica" / "log").iterdir()
    with segment.open("r+b") as file:
        file.seek(2 * size + 70)
        file.write(bytes(20))
    replica.replication.confirm(master.replication.end)
    await until(lambda: ("damaged", 0) in replica.hooks.told)
    assert (replica.log.confirmed, replica.error) == (2 * size, None)
    assert [damage.start for damage in replica.damages] == [2 * size]
    await replica.replication.mend(2 * size, await master.replication.read_log(2 * size, 1))
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert len(await bodies(replica, 16)) == 5
    await replica.close()
    await master.close()


async def test_a_disk_that_fails(tmp_path):
    files = FaultyFiles()
    master = await open_master(tmp_path / "master", alone=True)
    replica = await open_replica(tmp_path / "replica", files=files)
    await append(master, frame((16, b"a")))
    files.sync_error = errno.EIO
    replica.replication.receive(await master.replication.read_log(0, 1))
    await until(lambda: replica.hooks.told)
    assert replica.hooks.told[0][0] == "failed"
    await replica.close()
    replica = await open_replica(tmp_path / "replica")
    await feed(master, replica)
    await replica.close()
    await master.close()


async def test_a_disk_that_is_nearly_full_takes_nothing(tmp_path):
    files = FaultyFiles()
    replica = await open_replica(tmp_path / "replica", files=files)
    files.free = 0
    replica.core.engine.space.look()
    with pytest.raises(StoreFull):
        replica.replication.receive(b"")
    files.free = None
    replica.core.engine.space.look()
    replica.replication.receive(b"")
    await replica.close()
    with pytest.raises(StoreClosed):
        replica.replication.receive(b"")


async def test_views_ahead_of_a_log_that_has_lost_its_end(tmp_path):
    master = await open_master(tmp_path / "master", alone=True, segment_size_bytes=300)
    replica = await open_replica(tmp_path / "replica", segment_size_bytes=300)
    for n in range(10):
        await append(master, frame((16, b"%d" % n)))
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    await replica.close()
    last = max((tmp_path / "replica" / "log").iterdir())
    last.write_bytes(b"")
    replica = await open_replica(tmp_path / "replica", segment_size_bytes=300)
    assert replica.is_damaged
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert len(await bodies(replica, 16)) == 10
    assert not replica.is_damaged  # it closed by itself when the master had sent that again
    await replica.close()
    last.write_bytes(b"")
    missing = min((tmp_path / "replica" / "log").iterdir())
    missing.unlink()
    replica = await open_replica(tmp_path / "replica", segment_size_bytes=300)
    assert [one.start for one in replica.damages] == [0, int(last.stem)]
    assert replica.replication.first == 0
    await replica.close()
    await master.close()


async def test_deleted_queues(pair):
    master, replica = pair
    await append(master, frame((16, b"a")))
    await master.core.recorder.record(QueueDeleted(16))
    await append(master, frame((16, b"b")))
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert await bodies(replica, 16) == [b"b"]


async def test_opening_reads_the_last_segment_at_most(tmp_path):
    """However far the views are behind: how much of the log is confirmed is not known anyway."""
    master = await open_master(tmp_path / "master", alone=True, segment_size_bytes=20_000)
    for n in range(300):
        await append(master, frame((16, b"%03d" % n + bytes(1_000))))
    await master.close()
    shutil.rmtree(tmp_path / "master" / "views")
    started = time.perf_counter()
    replica = await open_replica(tmp_path / "master", segment_size_bytes=20_000)
    assert time.perf_counter() - started < 5
    assert replica.log.confirmed == 0
    await replica.close()


@pytest.mark.parametrize("name", EPOCH_FILES)
async def test_rebuilding_the_views_of_a_replica_does_not_confirm_its_log(pair, tmp_path, name):
    master, replica = pair
    await append(master, frame((16, b"a")))
    await feed(master, replica)
    await replica.close()
    (tmp_path / "replica" / name).write_bytes(b"")  # as replication leaves it there, or damage one of two
    with StoppedStore(tmp_path / "replica") as stopped:
        assert stopped.rebuild_views() == origin_of(2)
    replica = await open_replica(tmp_path / "replica", group=2)
    assert replica.log.confirmed == origin_of(2) < replica.replication.end
    replica.replication.confirm(replica.replication.end)
    await until(lambda: replica.log.confirmed == replica.replication.end)
    await replica.close()


@pytest.mark.slow
async def test_the_scrub_goes_on_with_a_log_that_was_cut(tmp_path):
    options = {"segment_size_bytes": 300, "scrub_bytes_per_s": 0}
    master = await open_master(tmp_path, alone=True, **options)
    for n in range(20):
        await append(master, frame((16, b"%02d" % n)))
    await master.core.until_dispatched(master.log.confirmed)
    await master.step_down()
    options["scrub_bytes_per_s"] = 1 << 20
    replica = await open_replica(tmp_path, **options)
    await until(lambda: replica.scrubbed.passes == 1)
    end = replica.scrubbed.to
    await replica.close()
    shutil.rmtree(tmp_path / "views")
    replica = await open_replica(tmp_path, truncate_to=frame((16, b"00")).size_bytes * 5, **options)
    assert replica.scrubbed.to <= replica.replication.end < end
    await replica.close()


async def test_a_replica_wakes_for_no_key_that_expires(pair):
    master, replica = pair
    await master.keys.put("k", b"v", ttl_ms=1)
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == replica.replication.flushed)
    await replica.tick()
    assert await replica.keys.tick(replica.keys.clock()) is None
    assert await master.keys.tick(master.keys.clock()) is None
    await master.keys.put("k", b"v", ttl_ms=60_000)
    assert await master.keys.tick(master.keys.clock()) is not None
