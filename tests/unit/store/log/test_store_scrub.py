"""The scrub: paced, resumable, and finding what was flipped in sealed segments without serving it."""

import errno
import json

import pytest

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.format.frame import HEADER, ROW, Frame, LogOffset, Position
from store.local.local import LocalStore
from store.log.log import CommitLog
from store.log.scrub import PASS_INTERVAL_MS, REST_MS, Scrub
from store.log.segment import segment_name
from store.views.old import set_aside
from tests.support.store.flips import flip_frame
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio

T0 = 1_700_000_000_000


@pytest.fixture(autouse=True)
def _steps_end_by_their_bytes_alone(monkeypatch):
    """Gives steps more time than a busy machine may take it from them."""
    monkeypatch.setattr("store.log.scrub.BUSY_S_MAX", 60.0)
    monkeypatch.setattr("store.log.scrub.START_BUSY_S_MAX", 60.0)


def write(directory, count=40, segment=2_000, size=100):
    """Writes a log of frames of about 200 bytes, in segments of ten."""
    log = CommitLog(OsFiles(), directory / "log", segment_size_bytes=segment)
    list(log.recover(0))
    placed = [log.place(frame((16, b"%03d" % n + bytes(size))), epoch=1, stored_at_ms=n) for n in range(count)]
    log.flush()
    log.confirm(log.flushed)
    log.close()
    return placed


def reopened(directory, **options):
    log = CommitLog(options.get("files") or OsFiles(), directory / "log", segment_size_bytes=2_000)
    list(log.recover(log.end))
    return log


def scrub(log, directory, *, now=T0, rate=1 << 30, files=None):
    clock = [now]
    made = Scrub(log, files=files or OsFiles(), path=directory / "scrub", now_ms=lambda: clock[0], bytes_per_s=rate)
    return made, clock


def test_a_sound_log_is_read_to_its_last_seal_and_not_again_before_a_day(tmp_path):
    write(tmp_path)
    log = reopened(tmp_path)
    one, clock = scrub(log, tmp_path)
    one.step()
    assert one.progress == (log.sealed, log.sealed, 1, T0)
    assert 0 < log.sealed < log.end
    clock[0] += PASS_INTERVAL_MS - 1
    one.step()
    assert one.progress.passes == 1
    clock[0] += 1
    one.step()
    assert one.progress == (log.end, log.end, 2, T0 + PASS_INTERVAL_MS)  # with what has been on disk for long
    assert not log.damages.open()
    log.close()


def test_the_last_segment_is_read_when_it_has_been_on_disk_for_a_while(tmp_path):
    placed = write(tmp_path, count=5)
    flip_frame(tmp_path, placed[3], 70)
    log = reopened(tmp_path)
    log.place(frame((16, b"new")), epoch=1, stored_at_ms=9)
    log.flush()
    assert log.sealed == 0
    one, clock = scrub(log, tmp_path)
    later = log.place(frame((16, b"newer")), epoch=1, stored_at_ms=9)
    log.flush()
    one.step()
    clock[0] += REST_MS - 1
    one.step()
    assert one.progress.passes == 0
    clock[0] += 1
    one.step()
    assert (one.progress.at, one.progress.passes) == (later.start, 1)
    assert [(damage.start, damage.found_by) for damage in log.damages.open()] == [(placed[3].start, "scrub")]
    one.save()
    again, _ = scrub(log, tmp_path)
    assert again.progress == one.progress
    log.close()


def test_a_clock_set_back_makes_nothing_older(tmp_path):
    write(tmp_path, count=3)
    log = reopened(tmp_path)
    one, clock = scrub(log, tmp_path)
    clock[0] -= 10 * REST_MS
    one.step()
    assert one.progress.passes == 0
    clock[0] += REST_MS
    one.step()
    assert one.progress.passes == 1
    log.close()


def test_an_empty_log_and_a_rate_of_nothing_do_nothing(tmp_path):
    log = CommitLog(OsFiles(), tmp_path / "log")
    list(log.recover(0))
    one, _ = scrub(log, tmp_path)
    one.step()
    assert one.progress == (0, 0, 0, 0)
    log.close()
    write(tmp_path / "b")
    log = reopened(tmp_path / "b")
    one, _ = scrub(log, tmp_path / "b", rate=0)
    one.step()
    one.save()
    assert one.progress == (0, 0, 0, 0)
    assert not (tmp_path / "b" / "scrub").exists()
    log.close()


def test_each_step_reads_what_a_second_allows(tmp_path):
    placed = write(tmp_path)
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path, rate=1_000)
    steps, reached = 0, []
    while not one.progress.passes:
        one.step()
        steps += 1
        reached.append(one.progress.at)
    assert steps == pytest.approx(log.sealed / 1_000, abs=2)
    assert set(reached) <= {p.end for p in placed}
    log.close()


def test_a_frame_larger_than_the_allowance_is_paid_for_later(tmp_path):
    write(tmp_path, count=6, segment=1_000, size=10_000)
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path, rate=1_000)
    steps = 0
    while not one.progress.passes:
        one.step()
        steps += 1
    assert steps > log.sealed / 1_000 - 10
    log.close()


def test_it_goes_on_where_the_last_process_was(tmp_path):
    write(tmp_path)
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path, rate=1_000)
    one.step()
    one.step()
    one.save()
    at = one.progress
    again, _ = scrub(log, tmp_path, now=T0 + 5)
    assert again.progress == at
    again.step()
    assert again.progress == (log.sealed, log.sealed, 1, T0)
    log.close()


@pytest.mark.parametrize("content", [b"", b"{", b'{"at": "x"}', b"\xff"])
def test_a_position_that_cannot_be_read_begins_anew(tmp_path, content):
    write(tmp_path)
    (tmp_path / "scrub").write_bytes(content)
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path)
    one.step()
    assert one.progress.passes == 1
    assert json.loads((tmp_path / "scrub").read_bytes())["at"] == log.sealed
    log.close()


def test_a_position_that_cannot_be_kept_is_no_harm(tmp_path, caplog):
    write(tmp_path)
    files = FaultyFiles()
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path, files=files)
    files.fill(0)
    files.write_error = errno.EIO  # a full disk is logged elsewhere
    one.step()
    assert one.progress.passes == 1
    assert "position cannot be stored" in caplog.text
    log.close()


def test_what_is_sealed_during_a_pass_is_for_the_next(tmp_path):
    write(tmp_path)
    log = reopened(tmp_path)
    one, clock = scrub(log, tmp_path, rate=1_000)
    one.step()
    before = one.progress.to
    for n in range(30):
        log.place(frame((16, b"later %d" % n + bytes(100))), epoch=1, stored_at_ms=n)
    log.flush()
    log.confirm(log.flushed)
    for _ in range(20):
        one.step()
    assert one.progress[:3] == (before, before, 1)
    clock[0] += PASS_INTERVAL_MS
    one.step()
    assert one.progress.to == log.sealed > before
    log.close()


REGIONS = {
    "magic": 1,
    "header checksum": 5,
    "log offset": 9,
    "epoch": 16,
    "flags": 21,
    "row count": 24,
    "payload length": 28,
    "body checksum": 33,
    "reserved": 37,
    "stored at": 41,
    "producer": 50,
    "sequence": 60,
    "row": HEADER.size + 3,
    "row's end": HEADER.size + ROW.size - 1,
    "payload": HEADER.size + ROW.size,
    "last byte": HEADER.size + ROW.size + 102,
}


@pytest.mark.parametrize("region", REGIONS)
async def test_a_flip_is_found_reported_and_never_served(tmp_path, region, caplog):
    async with await LocalStore.open(tmp_path, segment_size_bytes=2_000) as store:
        for n in range(40):
            await append(store, frame((16, b"%03d" % n + bytes(100))))
    log = reopened(tmp_path)
    frames = list(log.scan(0, log.end))
    log.close()
    hurt = frames[13]
    name = flip_frame(tmp_path, hurt, REGIONS[region], bit=REGIONS[region] % 8)
    async with await LocalStore.open(
        tmp_path, segment_size_bytes=2_000, cache_bytes_max=0, scrub_bytes_per_s=0
    ) as store:
        # By whoever reads: an error for this record, and every other as it was.
        with pytest.raises(CorruptFrame):
            await store.queues.fetch(16, 13, max_bytes=1)
        (damage,) = store.damages
        assert (damage.segment, damage.start, damage.found_by) == (name, hurt.start, "read")
        assert [b[:3] for b in await bodies(store, 16, 14)] == [b"%03d" % n for n in range(14, 40)]
        fetched = await store.queues.fetch(16, 0, max_bytes=1 << 20)
        assert fetched.next == 13
        scanned, at = await store.log.scan(Position(LogOffset(0), 0), None, max_bytes=1 << 20)
        assert (scanned, at) == (frames[:13], hurt.start)
        with pytest.raises(CorruptFrame) as caught:
            await store.log.scan(Position(at, 0), None, max_bytes=1 << 20)
        assert caught.value.end == hurt.end
        scanned, _ = await store.log.scan(Position(LogOffset(hurt.end), 0), None, max_bytes=1 << 20)
        assert scanned == frames[14:]
    (tmp_path / "damages").unlink()  # the file names the first finder as long as the damage is there
    async with await LocalStore.open(tmp_path, segment_size_bytes=2_000, scrub_bytes_per_s=1 << 30) as store:
        (tmp_path / "scrub").unlink(missing_ok=True)
        store.core.engine.scrub.step()
        (damage,) = store.damages
        assert (damage.segment, damage.start, damage.end, damage.found_by) == (name, hurt.start, hurt.end, "scrub")
        assert "the log is damaged" in caplog.text
    # By recovery, when the views have to read it again; the other records keep their offsets.
    set_aside(tmp_path / "views")
    (tmp_path / "damages").unlink()
    async with await LocalStore.open(tmp_path, segment_size_bytes=2_000) as store:
        (damage,) = store.damages
        assert (damage.segment, damage.start, damage.end, damage.found_by) == (name, hurt.start, hurt.end, "recovery")
        assert [b[:3] for b in await bodies(store, 16, 14)] == [b"%03d" % n for n in range(14, 40)]


def test_segments_are_named_in_what_is_reported(tmp_path):
    placed = write(tmp_path)
    hurt = placed[25]
    name = flip_frame(tmp_path, hurt, 70)
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path)
    one.step()
    one.step()
    (damage,) = log.damages.open()
    assert damage.segment == name == segment_name(int(name[:20]))
    assert (damage.start, damage.end, damage.why) == (hurt.start, hurt.end, "body checksum")
    log.close()


def test_a_closed_segment_that_is_removed_while_it_is_open_is_written_anew(tmp_path, caplog):
    """Its process went on reading what had no name, and only the next start found that it was gone."""
    write(tmp_path)
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path)
    paths = sorted((tmp_path / "log").iterdir())
    before = [path.read_bytes() for path in paths]
    paths[1].unlink()
    paths[2].with_suffix(".new").write_bytes(b"of an attempt that has failed")
    paths[2].unlink()
    one.step()
    assert sorted((tmp_path / "log").iterdir()) == paths
    assert [path.read_bytes() for path in paths] == before
    assert [f"{path} was removed while the store had it open" in caplog.text for path in paths[1:3]] == [True, True]
    assert not log.damages.open()
    assert len([item for item in log.scan(log.first, log.end) if isinstance(item, Frame)]) == 40
    log.close()


def test_a_closed_segment_that_is_removed_and_not_open_any_more_is_damage(tmp_path, caplog):
    write(tmp_path)
    log = reopened(tmp_path)
    one, _ = scrub(log, tmp_path)
    gone = log.segments[1]
    gone.release()
    gone.path.unlink()
    one.step()
    (damage,) = log.damages.open()
    assert (damage.segment, damage.start, damage.end) == (gone.path.name, gone.start, log.segments[2].start)
    assert not gone.path.exists()
    log.close()


def test_a_removed_segment_that_cannot_be_written_anew_stays_as_it_is(tmp_path, caplog):
    class Full(OsFiles):
        def open(self, path, *, create=False):
            if path.suffix == ".new":
                raise OSError(errno.ENOSPC, "no space left")
            return super().open(path, create=create)

    write(tmp_path)
    log = reopened(tmp_path, files=Full())
    one, _ = scrub(log, tmp_path)
    log.segments[1].path.unlink()
    one.step()
    assert "cannot be written anew: [Errno 28]" in caplog.text
    assert one.progress.passes == 1
    assert not log.damages.open()
    log.close()
