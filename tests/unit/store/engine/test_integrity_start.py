"""The first pass after a start: the whole log, at once, and compared with its seals."""

import pytest

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.format.frame import HEADER, LogOffset
from store.integrity.ledger import BY_SEAL, DamageLedger
from store.integrity.seals import SealFile
from store.local.local import LocalStore
from store.log.log import CommitLog
from store.log.scrub import START_FACTOR, Scrub
from store.log.sealer import Sealer
from store.log.segment import BadRange
from tests.support.process.waiting import until
from tests.support.store.flips import flip
from tests.support.store.replica_kit import open_replica
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio

SEGMENT_BYTES = 2_000


@pytest.fixture(autouse=True)
def _steps_end_by_their_bytes_alone(monkeypatch):
    """Gives steps more time than a busy machine may take it from them."""
    monkeypatch.setattr("store.log.scrub.BUSY_S_MAX", 60.0)
    monkeypatch.setattr("store.log.scrub.START_BUSY_S_MAX", 60.0)


def write(directory, count=40):
    """Writes a closed, sealed log in segments of some ten frames, and returns its frames."""
    log = CommitLog(OsFiles(), directory / "log", segment_size_bytes=SEGMENT_BYTES)
    list(log.recover(0))
    placed = [log.place(frame((16, b"%03d" % n + bytes(100))), epoch=1, stored_at_ms=n) for n in range(count)]
    log.flush()
    log.confirm(log.flushed)
    Sealer(log, SealFile(OsFiles(), directory / "seals")).step(10)
    log.close()
    return placed


def started(directory, rate=1 << 30):
    log = CommitLog(OsFiles(), directory / "log", segment_size_bytes=SEGMENT_BYTES)
    list(log.recover(log.end))
    seals = SealFile(OsFiles(), directory / "seals")
    files, path = OsFiles(), directory / "scrub"
    return log, Scrub(log, files=files, path=path, now_ms=lambda: 1, bytes_per_s=rate, seals=seals, at_start=True)


def flip_frame(directory, one, at):
    path = max(p for p in (directory / "log").iterdir() if int(p.stem) <= one.start)
    flip(path, one.start - int(path.stem) + at)


def test_the_whole_log_is_read_after_each_start_whenever_the_last_pass_was(tmp_path):
    placed = write(tmp_path)
    for _ in range(2):
        log, scrub = started(tmp_path)
        assert scrub.verifying
        scrub.step()
        assert not scrub.verifying
        assert scrub.progress.to == log.end
        scrub.save()
        log.close()
    for hurt in (placed[3], placed[-1]):  # the last segment too, though it was written just now
        flip_frame(tmp_path, hurt, 70)
    log, scrub = started(tmp_path)
    scrub.step()
    assert [one.start for one in log.damages.open()] == [placed[3].start, placed[-1].start]
    log.close()


def test_the_first_pass_is_faster_and_still_bounded(tmp_path):
    write(tmp_path)
    log, scrub = started(tmp_path, rate=100)
    steps = 0
    while scrub.verifying:
        scrub.step()
        steps += 1
    assert steps == pytest.approx(log.end / (100 * START_FACTOR), abs=2)
    log.close()


def test_an_empty_log_is_verified_at_once(tmp_path):
    log, scrub = started(tmp_path)
    scrub.step()
    assert not scrub.verifying
    log.close()


def test_what_is_found_sound_is_no_damage_any_more(tmp_path):
    """As after a repair whose process was killed before it could be noted."""
    placed = write(tmp_path)
    log, scrub = started(tmp_path)
    log.damaged(BadRange(placed[3].start, placed[3].end, "body checksum"), "read")
    assert log.damages.count == 1
    scrub.step()
    assert log.damages.count == 0
    log.close()


def test_a_range_that_is_found_sound_is_closed_with_one_write_of_the_list(tmp_path, monkeypatch):
    """As of a segment whose file was put back: frame by frame it took minutes for a megabyte, a restart likewise."""
    placed = write(tmp_path)
    saved = []
    monkeypatch.setattr(DamageLedger, "_save", lambda ledger: saved.append(ledger.count))
    log, scrub = started(tmp_path)
    log.damaged(BadRange(placed[3].start, placed[25].end, "missing"), "start")
    scrub.step()
    assert log.damages.count == 0
    log.damaged(BadRange(placed[3].start, placed[25].end, "missing"), "start")
    list(log.recover(log.first))
    assert log.damages.count == 0
    assert saved == [1, 0, 1, 0]
    log.close()


def test_what_is_damaged_by_its_seal_is_not_closed_with_a_sound_range_around_it(tmp_path):
    placed = write(tmp_path)
    log, _ = started(tmp_path)
    log.damaged(BadRange(placed[3].start, placed[4].end, "other frames"), BY_SEAL)
    log.damaged(BadRange(placed[6].start, placed[7].end, "body checksum"), "read")
    log.damages.verified(placed[0].start, placed[-1].end)
    assert [one[1:3] for one in log.damages.open()] == [(placed[3].start, placed[4].end)]
    log.close()


def test_a_sound_frame_that_is_not_the_one_that_was_sealed_is_damage(tmp_path):
    """A write that the disk has lost leaves what was there before: another frame, with sound checksums."""
    placed = write(tmp_path)
    one = placed[13]
    path = max(p for p in (tmp_path / "log").iterdir() if int(p.stem) <= one.start)
    data = bytearray(path.read_bytes())
    old = frame((16, b"old" + bytes(100)))
    header = old.header(log_offset=one.start, epoch=1, stored_at_ms=13)
    at = one.start - int(path.stem)
    data[at : at + one.size_bytes] = header + old.rows + old.payload
    path.write_bytes(data)
    log, scrub = started(tmp_path)
    scrub.step()
    (damage,) = log.damages.open()
    assert damage.found_by == "seal"
    assert damage.start <= one.start < damage.end
    scrub2 = Scrub(log, files=OsFiles(), path=tmp_path / "x", now_ms=lambda: 1, bytes_per_s=1 << 30, at_start=True)
    scrub2.step()
    assert log.damages.open() == [damage]  # each frame being sound does not close it
    log.close()


@pytest.mark.slow
async def test_what_the_scrub_finds_reaches_the_hooks(tmp_path):
    placed = write(tmp_path)
    flip_frame(tmp_path, placed[13], HEADER.size + 3)
    replica = await open_replica(tmp_path, segment_size_bytes=SEGMENT_BYTES)
    await until(lambda: ("damaged", 0) in replica.hooks.told)
    assert [(one.start, one.found_by) for one in replica.damages] == [(placed[13].start, "scrub")]
    await replica.close()


@pytest.mark.slow
async def test_a_sound_store_says_when_it_is_verified(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        await append(store, frame((16, b"a")))
    async with await LocalStore.open(tmp_path) as store:
        assert store.verifying
        await until(lambda: not store.verifying)
        assert not store.is_damaged


def test_frames_that_others_say_are_wrong_are_sent_to_nobody(tmp_path):
    """Each is sound by itself, and a replica that lacks them would take them for the group's."""
    placed = write(tmp_path)
    log, _ = started(tmp_path)
    wrong = placed[10:20]
    log.damaged(BadRange(wrong[0].start, wrong[-1].end, "other frames"), BY_SEAL)
    at, sent = LogOffset(0), []
    while at < log.end:
        at, frames = log.sound(at, log.end, 1_000)
        sent.append((at, frames))
        at = LogOffset(at + len(frames))
    assert b"".join(frames for _, frames in sent) == b"".join(one.data for one in (*placed[:10], *placed[20:]))
    assert not any(start <= wrong[0].start < start + len(frames) for start, frames in sent)
    assert log.frames(placed[5].start, log.end, 1 << 20)[-1].end == wrong[0].start
    with pytest.raises(CorruptFrame, match="other frames"):
        log.frames(wrong[3].start, log.end, 1 << 20)
    assert log.frames(wrong[-1].end, log.end, 1 << 20)[-1].end == log.end
    log.close()
