"""A slave: it writes what its master sends as it is, and shows what is confirmed."""

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
from store.local import calls
from store.local.local import LocalStore
from store.log.retention import Limits
from store.log.tail import LogTail
from tests.support.store.replica_kit import feed, log_bytes, open_master, open_slave, stored, until
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.fixture
async def pair(tmp_path):
    master = await open_master(tmp_path / "master", alone=True, group=2)
    slave = await open_slave(tmp_path / "slave", group=2)
    yield master, slave
    await master.step_down()
    await slave.close()


async def test_frames_are_stored_as_they_are_and_shown_when_confirmed(pair, tmp_path):
    master, slave = pair
    assert (master.role, slave.role) == ("master", "slave")
    packed = UnplacedFrame.build(*[(f := frame((16, b"x" * 500))).rows, f.payload], compress_bytes_min=1)
    assert packed.flags & FRAME_ZSTD
    for one in (frame((16, b"a")), packed, frame((17, b"c", 9), producer_id=4, sequence=1)):
        await append(master, one)
    await feed(master, slave)
    await until(lambda: slave.hooks.told)
    assert slave.hooks.told == [("flushed", master.end)]
    assert log_bytes(tmp_path / "slave") == log_bytes(tmp_path / "master")
    assert slave.confirmed == origin_of(2)
    assert await bodies(slave, 16) == []
    seen = []
    slave.tail(seen.extend)
    slave.confirm(origin_of(2) + frame((16, b"a")).size_bytes)
    await until(lambda: seen)
    assert await bodies(slave, 16) == [b"a"]
    slave.confirm(master.end + 1000)  # more than has arrived
    await until(lambda: slave.confirmed == master.end)
    assert await bodies(slave, 16) == [b"a", b"x" * 500]
    assert len(seen) == 3
    assert (await slave.read(await slave.last(9))) == b"c"
    frames, end = await slave.scan(Position(0, 0), None, max_bytes=1 << 20)
    assert (len(frames), end) == (3, master.end)
    await append(master, frame((16, b"d")))
    await feed(master, slave)
    await until(lambda: slave.confirmed == master.end)  # which was confirmed before it came
    assert (await slave.fetch(16, 2, max_bytes=1 << 20)).next == 3


async def test_readers_wait_for_what_is_confirmed(pair):
    master, slave = pair
    await append(master, frame((16, b"a")))
    waiting = asyncio.ensure_future(slave.fetch(16, 0, max_bytes=1 << 20, max_wait_ms=10_000))
    await feed(master, slave)
    assert not waiting.done()
    slave.confirm(master.end)
    assert (await waiting).next == 1


async def test_keys_can_be_read_and_watched(pair):
    master, slave = pair
    watch = slave.kv_watch()
    following = asyncio.ensure_future(anext(watch))
    revision = await master.kv_put("k", b"v")
    await feed(master, slave)
    slave.confirm(master.end)
    assert [(one.key, one.revision) for one in (await following).changes] == [("k", revision)]
    await watch.aclose()
    assert (await slave.kv_get("k")).revision == revision
    assert [entry.key for entry in (await slave.kv_range()).entries] == ["k"]
    assert await slave.kv_hold() == (await slave.kv_range()).revision


async def test_a_slave_changes_nothing_by_itself(pair):
    master, slave = pair
    await append(master, frame((16, b"a")))
    await master.kv_put("k", b"v", ttl_ms=1)
    await feed(master, slave)
    slave.confirm(master.end)
    end = slave.flushed
    await until(lambda: slave.confirmed == end)
    assert not slave.writable
    for refused in (
        append(slave, frame((16, b"b"))),
        slave.kv_put("k", b"v"),
        slave.take(16, 1, max_count=1),
        slave.delete_queue(16),
        slave.commit_offsets("g", {16: 1}),
        slave.note_addresses(["a/b"]),
    ):
        with pytest.raises(NotMaster):
            await refused
    await asyncio.sleep(0.01)
    await slave.tick()
    assert slave.end == end
    assert await slave.kv_get("k") is None  # it has expired all the same


@pytest.mark.parametrize("hurt", ["header", "body", "place", "cut", "again", "gap"])
async def test_what_is_not_the_next_frame_is_refused(pair, hurt):
    master, slave = pair
    for n in range(3):
        await append(master, frame((16, b"%d" % n)))
    data = await master.read_log(origin_of(2), 1 << 20)
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
        slave.receive(data[:size])
    with pytest.raises(CorruptFrame):
        slave.receive(wrong)
    assert slave.receive(b"") == origin_of(2) + (size if hurt in {"again", "gap"} else 0)
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)


async def test_what_comes_while_a_sync_is_under_way_is_one_write(tmp_path):
    master = await open_master(tmp_path / "master", alone=True)
    for n in range(20):
        await append(master, frame((16, b"%d" % n)))
    files = FaultyFiles()
    slave = await open_slave(tmp_path / "slave", files=files)
    loop, reached, go_on = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def before_sync():
        loop.call_soon_threadsafe(reached.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(5)

    files.before_sync = before_sync
    at = slave.receive(await master.read_log(0, 1))
    await reached.wait()
    writes, syncs = files.writes, files.syncs
    while data := await master.read_log(at, 1):
        at = slave.receive(data)
    go_on.set()
    await until(lambda: slave.flushed == master.end)
    assert (files.writes - writes, files.syncs - syncs) == (3, 2)  # of the log one, and the floor after each sync
    assert [end for _, end in slave.hooks.told] == [frame((16, b"0")).size_bytes, master.end]
    await slave.close()
    await master.close()


@pytest.mark.parametrize("noticed", ["before", "while"])
async def test_what_has_no_room_is_dropped_until_it_is_opened_again(tmp_path, noticed):
    master = await open_master(tmp_path / "master", alone=True)
    await append(master, frame((16, b"a")))
    files = FaultyFiles()
    options = {"files": files, "disk_reserve_bytes": 1 << 20}
    slave = await open_slave(tmp_path / "slave", **options)
    await feed(master, slave)
    kept = slave.flushed
    for n in range(20):
        await append(master, frame((16, b"%d" % n * 1_000)))
    if noticed == "before":
        files.free = 0
        slave._engine._space._allowed = 0  # it looks now
    else:
        files.fill(2_500)
    slave.receive(await master.read_log(kept, 1 << 20))
    await until(lambda: slave.dropped is not None)
    await until(lambda: slave.hooks.told[-1] == ("flushed", kept))
    files.write_error, files.free = 0, None
    slave._engine.look_for_space()
    with pytest.raises(StoreFull):
        slave.receive(b"")
    assert slave.error is None
    assert slave.flushed == kept
    await slave.close()
    slave = await open_slave(tmp_path / "slave", **options)
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert await bodies(slave, 16) == [b"a", *(b"%d" % n * 1_000 for n in range(20))]
    await slave.close()
    await master.close()
    assert log_bytes(tmp_path / "slave") == log_bytes(tmp_path / "master")


async def test_no_file_descriptor_is_no_failure(pair, monkeypatch):
    master, slave = pair
    monkeypatch.setattr(receiver, "LOOK_S", 0.01)
    receiving, tried = slave._engine._receiver, []
    monkeypatch.setattr(receiving._tail, "frames", lambda *_: [])  # as for a slave that is behind: from the files
    frames = slave._engine.log.frames

    def read(*arguments):
        tried.append(arguments)
        if len(tried) < 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return frames(*arguments)

    monkeypatch.setattr(slave._engine.log, "frames", read)
    await append(master, frame((16, b"a")))
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert len(tried) >= 3
    assert slave.error is None


async def test_there_is_an_end_to_what_is_taken(pair, monkeypatch):
    master, slave = pair
    monkeypatch.setattr(calls.replica, "RECEIVED_BYTES_MAX", 100)
    for n in range(3):
        await append(master, frame((16, b"%d" % n)))
    log = slave._engine._receiver
    monkeypatch.setattr(log, "receive", lambda placed: None)  # nothing reaches the disk
    slave.receive(await master.read_log(origin_of(2), 1))
    with pytest.raises(StoreOverloaded):
        slave.receive(await master.read_log(slave.receive(b""), 1))


async def test_segments_end_as_the_masters_do(tmp_path):
    options = {"segment_size_bytes": 1_000}
    master = await open_master(tmp_path / "master", alone=True, **options)
    slave = await open_slave(tmp_path / "slave", **options)
    for n in range(30):
        await append(master, frame((16, b"%d" % n * 40)))
    await feed(master, slave, max_bytes=500)
    names = [sorted(one.name for one in (tmp_path / name / "log").iterdir()) for name in ("master", "slave")]
    assert names[0] == names[1]
    assert len(names[0]) > 3
    await slave.close()
    await master.close()


async def test_retention_follows_the_masters_records(tmp_path):
    options = {"segment_size_bytes": 1_000, "linger_s": 0.001, "retention": Limits(size_bytes=500)}
    master = await open_master(tmp_path / "master", alone=True, **options)
    slave = await open_slave(tmp_path / "slave", retention_interval_s=0.01, **{**options, "segment_size_bytes": 1_500})
    for n in range(30):
        await append(master, frame((16, b"%03d" % n + bytes(40))))
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    end = slave.end
    await asyncio.sleep(0.05)
    assert (slave.first, slave.end) == (0, end)
    await master._until_dispatched(master.confirmed)
    await asyncio.get_running_loop().run_in_executor(None, master._engine.trimmer.run)
    assert master.first > 0
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.first > 0)
    assert slave.first <= master.first  # its segments are of another size
    assert (await slave.bounds(16)) == (await master.bounds(16))
    views = slave._engine.views.first
    await slave.close()
    async with await LocalStore.open(tmp_path / "slave", role="slave") as slave:
        assert slave._recent.first == views
    await master.close()


async def test_what_was_not_confirmed_is_followed_from_disk_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(receiver, "RUN_BYTES", 200)
    master = await open_master(tmp_path / "master", alone=True)
    slave = await open_slave(tmp_path / "slave")
    for n in range(20):
        await append(master, frame((16 + n % 2, b"%d" % n)))
    await feed(master, slave)
    middle = frame((16, b"0")).size_bytes * 7
    slave.confirm(middle)
    await until(lambda: slave.confirmed == middle)
    await slave.close()
    slave = await open_slave(tmp_path / "slave")
    assert (slave.confirmed, slave.end) == (middle, master.end)
    assert await bodies(slave, 16) == [b"0", b"2", b"4", b"6"]
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert await bodies(slave, 17) == [b"%d" % n for n in range(1, 20, 2)]
    await slave.close()
    shutil.rmtree(tmp_path / "slave" / "views")  # then all of it is followed again, as far as it is confirmed
    slave = await open_slave(tmp_path / "slave")
    assert (slave.confirmed, slave.end) == (0, master.end)
    slave.confirm(middle)
    await until(lambda: slave.confirmed == middle)
    assert await bodies(slave, 16) == [b"0", b"2", b"4", b"6"]
    await slave.close()
    await master.close()


@pytest.mark.parametrize("remembered", [0, 300])
async def test_what_memory_has_lost_is_followed_from_disk(tmp_path, monkeypatch, remembered):
    monkeypatch.setattr("store.engine.engine.LogTail", lambda: LogTail(remembered))
    master = await open_master(tmp_path / "master", alone=True)
    slave = await open_slave(tmp_path / "slave")
    for n in range(20):
        await append(master, frame((16, b"%d" % n)))
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert await bodies(slave, 16) == [b"%d" % n for n in range(20)]
    await slave.close()
    await master.close()


async def test_a_change_of_role_in_place(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    master, slave = await open_master(one), await open_slave(other)
    for n in range(10):
        await stored(master, frame((16, b"%d" % n)))
    await feed(master, slave)
    master.confirm(frame((16, b"0")).size_bytes * 4)
    slave.confirm(master.confirmed)
    await until(lambda: slave.confirmed == master.confirmed)
    old_end = master.end
    await master.step_down()
    await slave.close()
    master, slave = await open_master(other, epoch=2), await open_slave(one)
    assert master.confirmed == master.end == old_end  # what it had is confirmed now
    assert slave.confirmed < old_end
    await stored(master, frame((16, b"new"), producer_id=5, sequence=1))
    await feed(master, slave)
    master.confirm(master.end)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    expected = [*(b"%d" % n for n in range(10)), b"new"]
    assert await bodies(master, 16) == await bodies(slave, 16) == expected
    await slave.close()
    await master.close()
    assert log_bytes(one) == log_bytes(other)


async def test_what_differs_is_cut_off_at_the_opening(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    master, slave = await open_master(one), await open_slave(other)
    await stored(master, frame((16, b"a")))
    await feed(master, slave)
    common = master.end
    for store in (master, slave):
        store.confirm(common)
    await stored(master, frame((16, b"lost")), frame((16, b"lost too")))
    await until(lambda: slave.confirmed == common)
    await master.step_down()
    await slave.close()
    master = await open_master(other, epoch=2)
    await stored(master, frame((16, b"b" * 100)))
    with pytest.raises(TruncationRefused, match="no frame begins at"):
        await open_slave(one, truncate_to=common + 1)
    with pytest.raises(TruncationRefused, match="the views have followed"):
        await open_slave(one, truncate_to=common - 1)
    slave = await open_slave(one, truncate_to=common)
    assert slave.end == slave.flushed == slave.confirmed == common
    await feed(master, slave)
    for store in (master, slave):
        store.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert await bodies(slave, 16) == [b"a", b"b" * 100]
    await slave.close()
    await master.close()
    assert log_bytes(one) == log_bytes(other)


async def test_a_torn_tail_is_cut_though_frames_behind_say_it_was_synced(tmp_path):
    """They say so of their master's disk."""
    master = await open_master(tmp_path / "master", alone=True)
    slave = await open_slave(tmp_path / "slave")
    for n in range(5):
        await append(master, frame((16, b"%d" % n * 50)))
    await feed(master, slave)
    size = master.end // 5
    slave.confirm(size)
    await until(lambda: slave.confirmed == size)
    await slave.close()
    (segment,) = (tmp_path / "slave" / "log").iterdir()
    with segment.open("r+b") as file:
        file.seek(2 * size + 70)
        file.write(bytes(20))  # a page that was never written
    (tmp_path / "slave" / "floor").unlink()  # of an older version, or older than the log after a power failure
    slave = await open_slave(tmp_path / "slave")
    assert (slave.end, slave.confirmed, slave.corruptions) == (2 * size, size, [])
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert len(await bodies(slave, 16)) == 5
    await slave.close()
    await master.close()


async def test_damage_is_not_passed_over(tmp_path, monkeypatch):
    """A slave that left a frame out would be another one than its master: it waits for the repair."""
    monkeypatch.setattr("store.engine.engine.LogTail", lambda: LogTail(0))
    master = await open_master(tmp_path / "master", alone=True)
    slave = await open_slave(tmp_path / "slave")
    for n in range(5):
        await append(master, frame((16, b"%d" % n * 50)))
    await feed(master, slave)
    size = master.end // 5
    (segment,) = (tmp_path / "slave" / "log").iterdir()
    with segment.open("r+b") as file:
        file.seek(2 * size + 70)
        file.write(bytes(20))
    slave.confirm(master.end)
    await until(lambda: ("damaged", 0) in slave.hooks.told)
    assert (slave.confirmed, slave.error) == (2 * size, None)
    assert [damage.start for damage in slave.damages] == [2 * size]
    await slave.mend(2 * size, await master.read_log(2 * size, 1))
    await until(lambda: slave.confirmed == master.end)
    assert len(await bodies(slave, 16)) == 5
    await slave.close()
    await master.close()


async def test_a_disk_that_fails(tmp_path):
    files = FaultyFiles()
    master = await open_master(tmp_path / "master", alone=True)
    slave = await open_slave(tmp_path / "slave", files=files)
    await append(master, frame((16, b"a")))
    files.sync_error = errno.EIO
    slave.receive(await master.read_log(0, 1))
    await until(lambda: slave.hooks.told)
    assert slave.hooks.told[0][0] == "failed"
    await slave.close()
    slave = await open_slave(tmp_path / "slave")
    await feed(master, slave)
    await slave.close()
    await master.close()


async def test_a_disk_that_is_nearly_full_takes_nothing(tmp_path):
    files = FaultyFiles()
    slave = await open_slave(tmp_path / "slave", files=files)
    files.free = 0
    slave._engine.look_for_space()
    with pytest.raises(StoreFull):
        slave.receive(b"")
    files.free = None
    slave._engine.look_for_space()
    slave.receive(b"")
    await slave.close()
    with pytest.raises(StoreClosed):
        slave.receive(b"")


async def test_views_ahead_of_a_log_that_has_lost_its_end(tmp_path):
    master = await open_master(tmp_path / "master", alone=True, segment_size_bytes=300)
    slave = await open_slave(tmp_path / "slave", segment_size_bytes=300)
    for n in range(10):
        await append(master, frame((16, b"%d" % n)))
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    await slave.close()
    last = max((tmp_path / "slave" / "log").iterdir())
    last.write_bytes(b"")
    slave = await open_slave(tmp_path / "slave", segment_size_bytes=300)
    assert slave.is_damaged
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert len(await bodies(slave, 16)) == 10
    assert not slave.is_damaged  # it closed by itself when the master had sent that again
    await slave.close()
    last.write_bytes(b"")
    missing = min((tmp_path / "slave" / "log").iterdir())
    missing.unlink()
    slave = await open_slave(tmp_path / "slave", segment_size_bytes=300)
    assert [one.start for one in slave.damages] == [0, int(last.stem)]
    assert slave.first == 0
    await slave.close()
    await master.close()


async def test_deleted_queues(pair):
    master, slave = pair
    await append(master, frame((16, b"a")))
    await master._recorder.record(QueueDeleted(16))
    await append(master, frame((16, b"b")))
    await feed(master, slave)
    slave.confirm(master.end)
    await until(lambda: slave.confirmed == master.end)
    assert await bodies(slave, 16) == [b"b"]


async def test_opening_reads_the_last_segment_at_most(tmp_path):
    """However far the views are behind: how much of the log is confirmed is not known anyway."""
    master = await open_master(tmp_path / "master", alone=True, segment_size_bytes=20_000)
    for n in range(300):
        await append(master, frame((16, b"%03d" % n + bytes(1_000))))
    await master.close()
    shutil.rmtree(tmp_path / "master" / "views")
    started = time.perf_counter()
    slave = await open_slave(tmp_path / "master", segment_size_bytes=20_000)
    assert time.perf_counter() - started < 5
    assert slave.confirmed == 0
    await slave.close()


async def test_rebuilding_the_views_of_a_replica_does_not_confirm_its_log(pair, tmp_path):
    master, slave = pair
    await append(master, frame((16, b"a")))
    await feed(master, slave)
    await slave.close()
    (tmp_path / "slave" / "epochs").write_bytes(b"")  # as replication leaves it there
    with StoppedStore(tmp_path / "slave") as stopped:
        assert stopped.rebuild_views() == origin_of(2)
    slave = await open_slave(tmp_path / "slave", group=2)
    assert slave.confirmed == origin_of(2) < slave.end
    slave.confirm(slave.end)
    await until(lambda: slave.confirmed == slave.end)
    await slave.close()


async def test_the_scrub_goes_on_with_a_log_that_was_cut(tmp_path):
    options = {"segment_size_bytes": 300, "scrub_bytes_per_s": 0}
    master = await open_master(tmp_path, alone=True, **options)
    for n in range(20):
        await append(master, frame((16, b"%02d" % n)))
    await master._until_dispatched(master.confirmed)
    await master.step_down()
    options["scrub_bytes_per_s"] = 1 << 20
    slave = await open_slave(tmp_path, **options)
    await until(lambda: slave.scrubbed.passes == 1)
    end = slave.scrubbed.to
    await slave.close()
    shutil.rmtree(tmp_path / "views")
    slave = await open_slave(tmp_path, truncate_to=frame((16, b"00")).size_bytes * 5, **options)
    assert slave.scrubbed.to <= slave.end < end
    await slave.close()
