"""Repair in place: the log is byte for byte what it was, and nothing but sound frames is ever taken."""

import pytest

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.format.frame import LogOffset
from store.format.placed import Placed
from store.local.local import LocalStore
from store.log.log import CommitLog
from store.log.mending import mend
from store.log.segment import BadRange
from tests.support.process.waiting import until
from tests.support.store.flips import flip
from tests.support.store.replica_kit import log_bytes, open_replica
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

SEGMENT_BYTES = 2_000


def write(directory, count=40, body_bytes=100):
    """Writes a closed log of frames of about 200 bytes, in segments of some ten, and returns its frames."""
    log = CommitLog(OsFiles(), directory / "log", segment_size_bytes=SEGMENT_BYTES)
    list(log.recover(0))
    placed = [log.place(frame((16, b"%03d" % n + bytes(body_bytes))), epoch=1, stored_at_ms=n) for n in range(count)]
    log.flush()
    log.close()
    return placed


def reopened(directory, scan=True):
    log = CommitLog(OsFiles(), directory / "log", segment_size_bytes=SEGMENT_BYTES)
    list(log.recover(log.first, durable=log.end))
    return log


def files_of(directory):
    return sorted((directory / "log").iterdir())


def between(placed, start, end):
    return b"".join(one.data for one in placed if start <= one.start < end)


def mend_all(log, placed):
    for damage in log.damages.open():
        mend(log, damage.start, between(placed, damage.start, damage.end))


@pytest.mark.parametrize("at", [2, 9, 25, 70, 120])
def test_mend_puts_a_flipped_frame_right(tmp_path, at):
    placed = write(tmp_path)
    before = log_bytes(tmp_path)
    flip(files_of(tmp_path)[1], at, bit=3)
    log = reopened(tmp_path)
    (damage,) = log.damages.open()
    hurt = next(one for one in placed if one.start == damage.start)
    assert damage.end == hurt.end
    mend(log, damage.start, hurt.data)
    assert (log.damages.open(), log.damages.repaired_count) == ([], 1)
    assert log.read(hurt.start).data == hurt.data
    assert log_bytes(tmp_path) == before
    log.close()


def test_mend_makes_a_short_segment_whole_in_parts(tmp_path):
    placed = write(tmp_path)
    before = log_bytes(tmp_path)
    short = files_of(tmp_path)[1]
    short.write_bytes(short.read_bytes()[:500])
    log = reopened(tmp_path)
    (damage,) = log.damages.open()
    assert damage.start < log.segments[1].start + 500 < damage.end == log.segments[2].start
    for part in placed:
        if damage.start <= part.start < damage.end:
            mend(log, part.start, part.data)
    assert (log.damages.open(), log_bytes(tmp_path)) == ([], before)
    log.close()


def test_mend_recreates_missing_segment_files(tmp_path):
    placed = write(tmp_path)
    before, names = log_bytes(tmp_path), files_of(tmp_path)
    for path in names[1:3]:
        path.unlink()
    log = reopened(tmp_path)
    (damage,) = log.damages.open()
    assert (damage.start, damage.end) == (int(names[1].stem), int(names[3].stem))
    mend(log, damage.start, between(placed, damage.start, damage.end))
    assert (log.damages.open(), files_of(tmp_path), log_bytes(tmp_path)) == ([], names, before)
    assert [one.start for one in log.scan(0, log.end)] == [one.start for one in placed]
    log.close()


def test_mend_takes_nothing_but_the_frames_that_belong_there(tmp_path):
    placed = write(tmp_path)
    flip(files_of(tmp_path)[1], 70, bit=3)
    before = log_bytes(tmp_path)
    log = reopened(tmp_path)
    (damage,) = log.damages.open()
    n = next(i for i, one in enumerate(placed) if one.start == damage.start)
    hurt, following = placed[n], placed[n + 1]
    spoilt = bytearray(hurt.data)
    spoilt[-1] ^= 1
    for wrong in (b"", bytes(spoilt), hurt.data[:-1], following.data, hurt.data + following.data, placed[0].data):
        with pytest.raises(CorruptFrame):
            mend(log, damage.start, wrong)
    with pytest.raises(CorruptFrame, match=r"no damage .* is here"):
        mend(log, LogOffset(hurt.start - 1), bytes(spoilt))
    assert log_bytes(tmp_path) == before
    assert log.damages.open() == [damage]
    mend(log, damage.start, hurt.data)
    mend(log, damage.start, hurt.data)  # again: nothing is damaged there
    log.close()


def test_mend_comes_after_retention_has_deleted_what_was_damaged(tmp_path):
    """Found by the joint simulation, whose own log did not expect it."""
    placed = write(tmp_path)
    flip(files_of(tmp_path)[0], 70, bit=3)
    log = reopened(tmp_path)
    (damage,) = log.damages.open()
    log.trim(log.segments[1].start)
    before = log_bytes(tmp_path)
    mend(log, damage.start, between(placed, damage.start, damage.end))
    assert (log.damages.open(), log_bytes(tmp_path)) == ([], before)
    log.close()


def test_mend_puts_the_middle_of_a_damage_right_where_there_is_a_file(tmp_path):
    placed = write(tmp_path)
    before = log_bytes(tmp_path)
    log = reopened(tmp_path)
    hurt = [one for one in placed if one.start >= log.segments[1].start][2:5]
    log.damaged(BadRange(hurt[0].start, hurt[2].end, "told so"), "test")
    mend(log, hurt[1].start, hurt[1].data)
    assert [(one.start, one.end) for one in log.damages.open()] == [(one.start, one.end) for one in (hurt[0], hurt[2])]
    assert log_bytes(tmp_path) == before
    log.close()


def test_mend_fills_a_file_that_is_cut_short_from_its_end_only(tmp_path):
    placed = write(tmp_path)
    path = files_of(tmp_path)[1]
    with path.open("r+b") as file:
        file.truncate(500)
    log = reopened(tmp_path)
    (damage,) = log.damages.open()
    missing = [one for one in placed if damage.start <= one.start < damage.end]
    with pytest.raises(CorruptFrame, match="an earlier range is repaired first"):
        mend(log, missing[2].start, missing[2].data)
    assert path.stat().st_size == 500
    log.close()


def test_mend_leaves_what_the_writer_has_under_way_to_the_writer(tmp_path):
    """A replica that has lost its end is sent that by its master, while others can be asked for it, too."""
    placed = write(tmp_path)
    last = files_of(tmp_path)[-1]
    first = int(last.stem)
    tail = [Placed.of(one) for one in reopened(tmp_path).scan(first, placed[-1].end)]
    before = log_bytes(tmp_path)
    last.write_bytes(last.read_bytes()[: tail[2].start - first])
    log = CommitLog(OsFiles(), tmp_path / "log", segment_size_bytes=SEGMENT_BYTES)
    list(log.recover(log.first, replica=True, durable=tail[-1].end))
    assert [one[1:3] for one in log.damages.open()] == [(tail[2].start, tail[-1].end)]
    assert log.mendable_end == tail[2].start
    log.put(tail[2])  # it has a place and is not written yet
    with pytest.raises(CorruptFrame, match="log's end"):
        mend(log, tail[2].start, before[tail[2].start : tail[2].end])
    log.write()
    log.sync()
    assert log.mendable_end == tail[2].start
    for one in tail[3:]:
        log.put(one)
    log.write()
    log.sync()
    assert log.mendable_end == log.end == tail[-1].end
    log.close()
    assert log_bytes(tmp_path) == before


@pytest.mark.slow
async def test_a_replica_is_told_of_damage_and_mended_while_it_serves(tmp_path):
    placed = write(tmp_path, count=30)
    path = files_of(tmp_path)[1]
    flip(path, 70, bit=3)
    options = {"segment_size_bytes": SEGMENT_BYTES, "cache_bytes_max": 0, "scrub_bytes_per_s": 1 << 30}
    store = await open_replica(tmp_path, **options)
    async with store:
        await until(lambda: store.is_damaged)
        await until(lambda: store.hooks.last("damaged") == 0 and ("damaged", 0) in store.hooks.told)
        (damage,) = store.damages
        await store.replication.mend(damage.start, between(placed, damage.start, damage.end))
        assert (store.is_damaged, store.damages, store.damages_repaired) == (False, [], 1)


@pytest.mark.slow
async def test_a_repaired_damage_stays_repaired_and_an_open_one_open_after_a_restart(tmp_path):
    async with await LocalStore.open(tmp_path, segment_size_bytes=SEGMENT_BYTES) as store:
        for n in range(40):
            await append(store, frame((16, b"%03d" % n + bytes(100))))
    placed = list(CommitLog(OsFiles(), tmp_path / "log", segment_size_bytes=SEGMENT_BYTES).scan(0, 1 << 40))
    for path in files_of(tmp_path)[1:3]:
        flip(path, 70, bit=3)
    options = {"segment_size_bytes": SEGMENT_BYTES, "cache_bytes_max": 0, "scrub_bytes_per_s": 1 << 30}
    async with await LocalStore.open(tmp_path, **options) as store:
        await until(lambda: len(store.damages) == 2)
        first, second = store.damages
        await store.replication.mend(first.start, between(placed, first.start, first.end))
    async with await LocalStore.open(tmp_path, **{**options, "scrub_bytes_per_s": 0}) as store:
        assert list(store.damages) == [second]
        await store.replication.mend(second.start, between(placed, second.start, second.end))
        assert [one[:3] for one in await bodies(store, 16)] == [b"%03d" % n for n in range(40)]
