"""A log cut anywhere recovers exactly the whole frames before the cut; flipped bits are never served."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.format.frame import FRAME_ASYNC, FRAME_ZSTD, Frame, UnplacedFrame
from store.format.placed import Placed
from store.format.records import KvPut
from store.log.log import CommitLog
from store.log.run import RunBuilder
from store.log.segment import BadRange, segment_name
from store.views import Views
from tests.support.process.examples import examples
from tests.support.store.store_kit import frame, records_frame

BODIES = st.binary(max_size=60) | st.just(b"HGF1" * 20)
FRAMES = st.lists(st.lists(st.tuples(st.integers(16, 19), BODIES), max_size=3), min_size=1, max_size=6)


def write(directory, frames, *, segment=1 << 20):
    log = CommitLog(OsFiles(), directory, segment_size_bytes=segment)
    assert list(log.recover(0)) == []
    placed = []
    for n, unplaced in enumerate(frames):
        placed.append(log.place(unplaced, epoch=1, stored_at_ms=n))
        log.flush()
    log.confirm(log.flushed)
    log.close()
    return [one.whole() for one in placed]


def recover(directory, **options):
    log = CommitLog(OsFiles(), directory, **options)
    found = list(log.recover(0))
    log.close()
    return log, found


def mixed():
    """Returns frames of every kind: with and without records, answered early, compressed, of an idempotent producer."""
    plain = frame((16, b"HGF1" * 30), (17, b"", 3))
    packed = UnplacedFrame.build(plain.rows, plain.payload, flags=FRAME_ASYNC, compress_bytes_min=1)
    assert packed.flags == FRAME_ASYNC | FRAME_ZSTD
    relaxed = UnplacedFrame.build(plain.rows, plain.payload, flags=FRAME_ASYNC)
    return [frame((16, b"one"), (17, b"")), packed, frame(), relaxed, frame((16, b"four"), producer_id=1, sequence=2)]


def test_a_log_cut_at_every_byte(tmp_path):
    frames = write(tmp_path, mixed())
    path = tmp_path / segment_name(0)
    data = path.read_bytes()
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        log, found = recover(tmp_path)
        whole = [one for one in frames if one.end <= cut]
        assert found == whole
        assert [one.plain for one in found] == [one.plain for one in whole]
        assert log.end == path.stat().st_size == (whole[-1].end if whole else 0)
        assert not log.corruptions


def test_a_bit_flipped_at_every_byte_is_detected_and_never_served(tmp_path):
    frames = write(tmp_path, mixed())
    path = tmp_path / segment_name(0)
    data = path.read_bytes()
    for at in range(len(data)):
        (hurt,) = (one for one in frames if one.start <= at < one.end)
        sound = [one for one in frames if one is not hurt]
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8

        # at rest, before the next start
        path.write_bytes(flipped)
        log, found = recover(tmp_path)
        assert found == sound
        if hurt is not frames[-1]:
            assert [(bad.start, bad.end) for bad in log.corruptions] == [(hurt.start, hurt.end)]

        # while the log is open
        path.write_bytes(data)
        log = CommitLog(OsFiles(), tmp_path)
        assert list(log.recover(0)) == frames
        path.write_bytes(flipped)
        with pytest.raises(CorruptFrame):
            log.read(hurt.start, hurt.end - hurt.start)
        assert [log.read(one.start, one.end - one.start) for one in sound] == sound
        found = list(log.scan(log.first, log.end))
        assert [one for one in found if isinstance(one, Frame)] == sound
        assert [(bad.start, bad.end) for bad in found if isinstance(bad, BadRange)] == [(hurt.start, hurt.end)]
        log.close()


@settings(max_examples=examples(60), deadline=None)
@given(FRAMES, st.data())
def test_any_log_cut_anywhere_with_anything_behind(records, data):
    """Zeros follow the cut, as a file system leaves them, or a piece of something else."""
    with TemporaryDirectory() as name:
        directory = Path(name)
        frames = write(directory, [frame(*some) for some in records], segment=200)
        last = max(directory.iterdir())
        raw, start = last.read_bytes(), int(last.stem)
        cut = data.draw(st.integers(0, len(raw)))
        last.write_bytes(raw[:cut] + data.draw(st.just(b"") | st.just(bytes(300)) | st.binary(max_size=100)))
        log, found = recover(directory, segment_size_bytes=200)
        whole = [one for one in frames if one.end <= start + cut]
        assert found[: len(whole)] == whole
        assert all(one in frames for one in found)  # the bytes behind the cut may have been the right ones
        assert log.end == max([start, *(one.end for one in found)])


@settings(max_examples=examples(100), deadline=None)
@given(FRAMES, st.data())
def test_a_flipped_bit_is_detected_and_never_served(records, data):
    with TemporaryDirectory() as name:
        directory = Path(name)
        frames = write(directory, [frame(*some) for some in records])
        path = directory / segment_name(0)
        raw = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(raw)
        log = CommitLog(OsFiles(), directory)
        found = list(log.recover(0))
        (hurt,) = (one for one in frames if one.start <= at < one.end)
        assert found == [one for one in frames if one is not hurt]
        if hurt is frames[-1]:
            assert log.end == hurt.start
        else:
            assert [(bad.start, bad.end) for bad in log.corruptions] == [(hurt.start, hurt.end)]
            with pytest.raises(CorruptFrame):
                log.read(hurt.start, hurt.end - hurt.start)
        log.close()


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 1 << 32))
def test_views_do_not_depend_on_how_frames_were_cut_into_runs(seed):
    chance = random.Random(seed)
    frames = []
    for n in range(30):
        if chance.random() < 0.3:
            frames.append(records_frame(*(KvPut(chance.choice("abc"), b"%d" % n) for _ in range(chance.randrange(3)))))
        else:
            queues = [chance.randrange(16, 20) for _ in range(chance.randrange(12))]
            frames.append(frame(*((queue, b"x", chance.randrange(5)) for queue in queues), producer_id=1, sequence=n))

    def entries(path):
        views, at = Views(path), 0
        with views.reading():
            pass

        def end(queue):
            with views.reading() as txn:
                return views.queues.end(txn, queue)

        builder, left = RunBuilder(end), list(frames)
        while left:
            runs = []
            for _ in range(chance.randint(1, 3)):
                placed = []
                for unplaced in left[: chance.randint(1, 5)]:
                    placed.append(Placed(at, at, unplaced.header(log_offset=at, epoch=1, stored_at_ms=at), unplaced))
                    at += unplaced.size_bytes
                left = left[len(placed) :]
                if placed:
                    runs.append(builder.build(placed))
            views.apply(runs)
        found = list(views.entries())
        views.close()
        return found

    with TemporaryDirectory() as name:
        assert entries(Path(name) / "one") == entries(Path(name) / "two")
