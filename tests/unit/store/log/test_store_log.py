"""The commit log and its segments."""

import errno
import weakref

import pytest

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.format.frame import HEADER, Frame, LogOffset
from store.format.placed import Placed
from store.log.log import CommitLog
from store.log.segment import BadRange, OpenFiles, segment_name, segment_start
from tests.support.store.store_kit import FaultyFiles, frame


def open_log(directory, *, files=None, size=1 << 20, start=0):
    log = CommitLog(files or OsFiles(), directory, segment_size_bytes=size)
    return log, list(log.recover(start))


def put(log, *frames):
    placed = [log.place(f, epoch=1, stored_at_ms=7) for f in frames]
    log.flush()
    log.confirm(log.flushed)
    return placed


def test_segment_names():
    assert segment_name(0) == "00000000000000000000.log"
    assert segment_start(segment_name(123)) == 123
    for name in ("LOCK", "1.log", "0000000000000000000x.log", "00000000000000000000", "\u0660" * 20 + ".log"):
        assert segment_start(name) is None


def test_what_was_placed_is_read_back_once_confirmed(tmp_path):
    log, _ = open_log(tmp_path)
    first = log.place(frame((16, b"one"), (17, b"two")), epoch=3, stored_at_ms=9)
    assert (log.end, log.flushed, log.confirmed) == (first.end, 0, 0)
    log.flush()
    assert log.flushed == first.end
    assert log.read(first.start) is None
    log.confirm(log.flushed)
    found = log.read(first.start)
    assert found == first.whole()
    assert (found.header.epoch, found.header.stored_at_ms) == (3, 9)
    assert [found.record(0), found.record(1)] == [b"one", b"two"]
    assert Placed.of(found) == first
    log.close()


def test_there_is_no_frame_between_frames(tmp_path):
    log, _ = open_log(tmp_path)
    put(log, frame((16, b"one")), frame((16, b"two")))
    assert log.read(1) is None
    assert log.read(log.end) is None
    assert log.read(-1) is None
    with pytest.raises(CorruptFrame):
        log.read(1, 64)
    log.close()


def test_sound_bytes_are_not_called_damaged_when_a_replica_asks_from_within_a_frame(tmp_path):
    """Its log may be another one, whose frames begin elsewhere."""
    log, _ = open_log(tmp_path, size=300)
    placed = put(log, *(frame((16, b"x" * 50)) for _ in range(5)))
    for one in placed:
        with pytest.raises(CorruptFrame, match="no frame begins there"):
            log.frames(LogOffset(one.start + 1), log.end, 1 << 20)
    assert not log.damages.open()
    assert [one.start for one in log.frames(placed[0].start, log.end, 1 << 20)] == [one.start for one in placed]
    path = tmp_path / segment_name(placed[3].start)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFrame):
        log.frames(LogOffset(placed[3].start + 2), log.end, 1 << 20)
    assert [(one.start, one.end) for one in log.damages.open()] == [(placed[3].start, placed[3].end)]
    log.close()


def test_damage_is_found_where_the_disk_has_failed_to_read_before(tmp_path):
    files = FaultyFiles()
    log, _ = open_log(tmp_path, files=files)
    placed = put(log, *(frame((16, b"x" * 50)) for _ in range(3)))
    at = placed[1].start
    files.unreadable = 2  # one read: it is tried again, in pieces
    with pytest.raises(CorruptFrame):
        log.frames(at, log.end, 1 << 20)
    files.unreadable = 2
    assert log.read(at).start == at
    assert not log.damages.open()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[at + HEADER.size + 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFrame, match="checksum"):
        log.frames(at, log.end, 1 << 20)
    assert [(one.start, one.end) for one in log.damages.open()] == [(at, placed[1].end)]
    log.close()


def test_a_frame_never_spans_segments(tmp_path):
    log, _ = open_log(tmp_path, size=300)
    placed = put(log, *(frame((16, b"x" * 50)) for _ in range(5)))
    big = put(log, frame((16, b"y" * 1000)))[0]
    after = put(log, frame((16, b"z")))[0]
    sizes = {int(path.stem): path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {0: 162, 162: 162, 324: 162, 486: 162, 648: 162, 810: 1112, 1922: 113}
    log.close()
    log, found = open_log(tmp_path, size=300)
    assert [f.start for f in found] == [p.start for p in (*placed, big, after)]
    assert log.read(big.start) == big.whole()
    log.close()


def test_recovery_begins_where_it_is_told(tmp_path):
    log, _ = open_log(tmp_path, size=300)
    placed = put(log, *(frame((16, b"x" * 50)) for _ in range(5)))
    log.close()
    log, found = open_log(tmp_path, size=300, start=placed[3].start)
    assert [f.start for f in found] == [placed[3].start, placed[4].start]
    assert log.confirmed == placed[4].end
    log.close()


@pytest.mark.parametrize("tail", [b"\0" * 500, b"H", b"HGF1" * 40, bytes(range(256))])
def test_a_torn_tail_is_cut(tmp_path, tail):
    log, _ = open_log(tmp_path)
    put(log, frame((16, b"one")))
    end = log.end
    log.close()
    path = tmp_path / segment_name(0)
    with path.open("ab") as file:
        file.write(tail)
    log, found = open_log(tmp_path)
    assert len(found) == 1
    assert log.end == end == path.stat().st_size
    assert not log.corruptions
    put(log, frame((16, b"two")))
    log.close()
    assert len(open_log(tmp_path)[1]) == 2


def test_a_sound_header_with_a_short_body_is_a_torn_tail(tmp_path):
    """Even when the body holds what looks like a frame in its place."""
    log, _ = open_log(tmp_path)
    put(log, frame((16, b"one")))
    end = log.end
    inner = frame((16, b"evil"))
    fake_at = end + HEADER.size + 48
    fake = inner.header(log_offset=fake_at, epoch=1, stored_at_ms=0) + inner.rows + inner.payload
    outer = frame((16, fake + b"x" * 100))
    put(log, outer)
    log.close()
    path = tmp_path / segment_name(0)
    with path.open("r+b") as file:
        file.truncate(log.end - 10)
    log, found = open_log(tmp_path)
    assert [f.start for f in found] == [0]
    assert log.end == end
    log.close()


@pytest.mark.parametrize("byte", [0, 5, 8, 40, 70, 120])
def test_damage_in_front_of_valid_frames_is_reported_and_left(tmp_path, byte, caplog):
    log, _ = open_log(tmp_path)
    placed = [one for i in range(4) for one in put(log, frame((16, b"abcdefgh%d" % i)))]
    log.close()
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    data[placed[1].start + byte] ^= 0x10
    path.write_bytes(data)
    log, found = open_log(tmp_path)
    assert [f.start for f in found] == [placed[i].start for i in (0, 2, 3)]
    assert log.end == placed[3].end
    assert [(bad.start, bad.end) for bad in log.corruptions] == [(placed[1].start, placed[2].start)]
    assert "the log is damaged" in caplog.text
    assert path.read_bytes() == data
    with pytest.raises(CorruptFrame):
        log.read(placed[1].start, placed[2].start - placed[1].start)
    log.close()


def test_a_short_middle_segment_is_damage(tmp_path):
    log, _ = open_log(tmp_path, size=150)
    placed = put(log, *(frame((16, b"x" * 50)) for _ in range(3)))
    log.close()
    with (tmp_path / segment_name(placed[1].start)).open("r+b") as file:
        file.truncate(20)
    log, found = open_log(tmp_path, size=150)
    assert [f.start for f in found] == [placed[0].start, placed[2].start]
    bad = log.corruptions
    assert (bad[0].start, bad[-1].end) == (placed[1].start, placed[2].start)
    assert log.end == placed[2].end
    log.close()


def test_an_empty_last_segment(tmp_path):
    log, _ = open_log(tmp_path, size=150)
    placed = put(log, *(frame((16, b"x" * 50)) for _ in range(2)))
    log.close()
    with (tmp_path / segment_name(placed[1].start)).open("r+b") as file:
        file.truncate(0)
    log, found = open_log(tmp_path, size=150)
    assert [f.start for f in found] == [0]
    assert put(log, frame((16, b"again")))[0].start == placed[1].start
    log.close()


def test_scan_says_what_it_could_not_read(tmp_path):
    log, _ = open_log(tmp_path)
    placed = put(log, *(frame((16, b"abcdefgh%d" % i)) for i in range(3)))
    found = list(log.scan(placed[0].start + 1, log.end))
    assert isinstance(found[0], BadRange)
    assert [f.start for f in found if isinstance(f, Frame)] == [placed[1].start, placed[2].start]
    assert [f.start for f in log.scan(placed[1].start, placed[2].start)] == [placed[1].start]
    log.close()


@pytest.mark.parametrize("limit", [1, 7, 64, 1000])
def test_short_writes_are_finished(tmp_path, limit):
    files = FaultyFiles()
    log, _ = open_log(tmp_path, files=files)
    files.write_bytes_max = limit
    put(log, *(frame((16, bytes([i]) * 20)) for i in range(6)))
    log.close()
    assert [f.record(0) for f in open_log(tmp_path)[1]] == [bytes([i]) * 20 for i in range(6)]


def test_a_write_that_makes_no_progress_is_an_error(tmp_path):
    files = FaultyFiles()
    log, _ = open_log(tmp_path, files=files)
    files.write_bytes_max = 0
    with pytest.raises(OSError, match="no progress") as caught:
        put(log, frame((16, b"one")))
    assert caught.value.errno == errno.EIO
    log.close()


def test_more_parts_than_one_call_takes(tmp_path):
    log, _ = open_log(tmp_path)
    put(log, *(frame((16, b"%d" % i)) for i in range(1000)))
    log.close()
    assert [f.record(0) for f in open_log(tmp_path)[1]] == [b"%d" % i for i in range(1000)]


def test_frames_over_the_window_of_a_scan(tmp_path):
    log, _ = open_log(tmp_path)
    put(log, frame((16, b"a" * (5 << 20))), frame((16, b"b")), frame((16, b"c" * (4 << 20))))
    log.close()
    assert [len(f.record(0)) for f in open_log(tmp_path)[1]] == [5 << 20, 1, 4 << 20]


@pytest.mark.parametrize("lost", range(4))
def test_a_page_that_was_never_written_begins_the_torn_tail(tmp_path, lost):
    """Two groups are under way when the power fails, and any of their pages may be on disk."""
    log, _ = open_log(tmp_path)
    placed = put(log, frame((16, b"acknowledged")))
    for i in range(4):
        placed.append(log.place(frame((16, b"under way %d" % i)), epoch=1, stored_at_ms=7))
        if i == 1:
            log.write()
    log.write()
    log.close()
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    gone = placed[1 + lost]
    data[gone.start : gone.end] = bytes(gone.end - gone.start)
    path.write_bytes(data)
    log, found = open_log(tmp_path)
    assert [f.start for f in found] == [one.start for one in placed[: 1 + lost]]
    assert log.end == path.stat().st_size == gone.start
    assert not log.corruptions
    log.close()


def test_damage_and_a_torn_tail_behind_it(tmp_path):
    log, _ = open_log(tmp_path)
    placed = [one for i in range(3) for one in put(log, frame((16, b"%d" % i)))]
    placed += [log.place(frame((16, b"under way %d" % i)), epoch=1, stored_at_ms=7) for i in range(3)]
    log.write()
    log.close()
    path = tmp_path / segment_name(0)
    data = bytearray(path.read_bytes())
    for hurt in (placed[1], placed[4]):
        data[hurt.start + 70] ^= 1
    path.write_bytes(data)
    log, found = open_log(tmp_path)
    assert [f.start for f in found] == [placed[i].start for i in (0, 2, 3)]
    assert [(bad.start, bad.end) for bad in log.corruptions] == [(placed[1].start, placed[1].end)]
    assert log.end == placed[4].start
    log.close()


def test_recovery_writes_again_what_a_failed_sync_may_have_left_in_memory(tmp_path):
    log, _ = open_log(tmp_path)
    placed = [one for i in range(3) for one in put(log, frame((16, b"%d" % i)))]
    log.close()
    files = FaultyFiles()
    log, found = open_log(tmp_path, files=files, start=placed[1].start)
    assert [f.start for f in found] == [one.start for one in placed[1:]]
    assert (files.writes, files.syncs) == (1, 1)
    log.close()
    files = FaultyFiles()
    log, _ = open_log(tmp_path, files=files, start=placed[2].end)
    assert (files.writes, files.syncs) == (0, 1)  # no bytes to write: the views have seen all of it
    log.close()


# ---- open files


class CountedFiles(OsFiles):
    """Knows how many files are open."""

    def __init__(self):
        self.open_now = []

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        self.open_now.append(weakref.ref(file))
        return file

    def count(self):
        return sum(one() is not None for one in self.open_now)


def test_a_log_of_many_segments_has_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(OpenFiles.__init__, "__defaults__", (3,))
    files = CountedFiles()
    log, _ = open_log(tmp_path, files=files, size=300)
    placed = [one for n in range(20) for one in put(log, frame((16, b"%d" % n + bytes(100))))]
    assert len(log.segments) == 20
    assert files.count() <= 4
    for order in (placed, reversed(placed), placed[::3] * 2):
        for one in order:
            assert log.read(one.start) == one.whole()
            assert files.count() <= 4
    log.close()
    files.open_now.clear()
    log, found = open_log(tmp_path, files=files, size=300)
    assert [one.start for one in found] == [one.start for one in placed]
    assert files.count() <= 4
    put(log, frame((16, b"last")))
    log.close()


def test_a_segment_that_is_deleted_while_its_file_is_not_open_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(OpenFiles.__init__, "__defaults__", (1,))
    log, _ = open_log(tmp_path, size=300)
    placed = [one for n in range(6) for one in put(log, frame((16, b"%d" % n + bytes(100))))]
    reading = log.scan(placed[0].start, log.end)
    assert next(reading).start == placed[0].start
    log.trim(placed[3].start)
    assert [item.why for item in reading if isinstance(item, BadRange)]
    assert log.read(placed[0].start) is None
    (tmp_path / segment_name(placed[3].start)).unlink()
    with pytest.raises(CorruptFrame, match="gone"):
        log.read(placed[3].start, placed[3].frame.size_bytes)
    log.close()
