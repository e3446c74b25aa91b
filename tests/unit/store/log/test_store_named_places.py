"""Log offsets that clients make up: a look at one costs little, and holds up nobody else."""

import asyncio
from threading import Event

import pytest

from store.format.frame import HEADER, LogOffset, Position
from store.local.cache import FrameCache
from store.local.core import READERS
from store.local.local import LocalStore
from store.log import sound_frames
from store.log.segment import _Window
from store.log.sound_frames import SoundFrame, SoundFrames
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio


def record(i):
    return frame((16, f"record {i:2}".encode()))


@pytest.fixture
async def store(tmp_path, monkeypatch):
    monkeypatch.setattr(FrameCache, "get", lambda *_: None)
    async with await LocalStore.open(tmp_path) as one:
        yield one


async def test_looks_at_made_up_places_leave_threads_to_other_readers(store, monkeypatch):
    at = [(await append(store, record(i))).frame for i in range(3)]
    log, going_on, looks = store.core.engine.log, Event(), []
    look = log.sound_frame_at

    def slow(*asked):
        looks.append(asked)
        assert going_on.wait(60)
        return look(*asked)

    monkeypatch.setattr(log, "sound_frame_at", slow)
    made_up = [asyncio.ensure_future(store.log.scan(Position(at[1] + n, 0), None, max_bytes=1)) for n in range(1, 9)]
    try:
        async with asyncio.timeout(60):
            while not looks:
                await asyncio.sleep(0.001)
            for one in made_up[: READERS + 1]:  # their clients are gone; the thread works on
                one.cancel()
            assert await store.log.read(Position(at[0], 0)) is not None
            assert len(looks) == 1
    finally:
        going_on.set()
    others = made_up[READERS + 1 :]
    assert others
    for frames, _ in await asyncio.gather(*others):
        assert frames[0].start == at[2]


async def test_nothing_is_searched_for_frames_where_a_client_has_named_a_place_in_a_sound_one(store, monkeypatch):
    """A record of made-up headers, each of a large frame, would be read as often as there are headers."""
    first = HEADER.size + 48
    headers = [record(1).header(log_offset=first + n * HEADER.size, epoch=1, stored_at_ms=1) for n in range(9)]
    await append(store, frame((16, b"".join(headers))))
    second = (await append(store, record(2))).frame
    monkeypatch.setattr(_Window, "next_frame", None)
    for at in (1, first, first + 5 * HEADER.size, second - 1):
        frames, _ = await store.log.scan(Position(at, 0), None, max_bytes=1)
        assert [one.start for one in frames] == [second]
        assert await store.log.read(Position(at, 0)) is None
    assert not store.is_damaged


async def test_a_segment_is_read_once_however_many_places_in_it_are_named(store, monkeypatch):
    at = [(await append(store, record(i))).frame for i in range(40)]
    log = store.core.engine.log
    size = at[1] - at[0]
    monkeypatch.setattr(sound_frames, "MARK_BYTES", 4 * size)
    known, begun = SoundFrames(), []

    def scanned(start):
        begun.append(start)
        return log.scan(start, log.end)

    def find(place):
        return known.find(LogOffset(place), LogOffset(0), scanned)

    assert find(at[30] + 1) == SoundFrame(at[30], at[31])
    for place in (at[29] + 1, at[3] + 2, at[0] + 1, at[38] + 1, at[39] + 1, at[12], at[13] - 1):
        found = find(place)
        assert found.start <= place < found.end
        assert found.start in at
        assert place - begun[-1] <= (5 * size if place < at[31] else 11 * size)
    monkeypatch.setattr(sound_frames, "MARKS_COUNT_MAX", 3)
    known = SoundFrames()
    assert find(at[39] + 1).start == at[39]
    assert known.find(LogOffset(at[5] + 1), at[4], scanned).start == at[5]
    assert find(at[38] + 1).start == at[38]
