"""The store's own records on their way into frames."""

import asyncio

import pytest

from store.api.log import Appended
from store.base.errors import RevisionConflict, StoreOverloaded
from store.format.frame import Position
from store.format.records import GroupOffsets, KvPut, QueueDeleted, Settled, decode
from store.local import recorder as recorder_module
from store.local.recorder import Recorder
from tests.support.store.store_kit import placed

pytestmark = pytest.mark.anyio


class RecordedAppends:
    """Keeps what is appended until it is answered."""

    def __init__(self):
        self.appended = []
        self.recorder = Recorder(lambda *call: self.appended.append(call), asyncio.get_running_loop(), lambda: 7)

    def frames(self):
        found = []
        for unplaced, _ in self.appended:
            found.append(placed(unplaced, 0))
        return found


async def test_records_of_one_turn_share_a_frame():
    log = RecordedAppends()
    records = [KvPut("a", b"1"), GroupOffsets("g", {16: 5}), Settled(20, ((0, 4), (6, 7))), QueueDeleted(20)]
    for record in records:
        log.recorder.record(record)
    assert log.appended == []
    await asyncio.sleep(0)
    (found,) = log.frames()
    assert [decode(found.record(row)) for row in range(4)] == records
    assert found.rows["queue"].tolist() == [1, 2, 3, 4]
    assert set(found.rows["time_ms"].tolist()) == {7}
    log.recorder.flush()
    assert len(log.appended) == 1


async def test_large_records_have_frames_of_their_own(monkeypatch):
    monkeypatch.setattr(recorder_module, "FRAME_BYTES", 100)
    log = RecordedAppends()
    for size in (10, 10, 200, 50, 60):
        log.recorder.record(KvPut("k", bytes(size)))
    await asyncio.sleep(0)
    assert [found.header.row_count for found in log.frames()] == [2, 1, 1, 1]


async def test_records_that_are_not_urgent_go_with_what_is_appended_next(monkeypatch):
    monkeypatch.setattr(recorder_module, "LINGER_S", 3_600)
    log = RecordedAppends()
    for n in range(2):
        log.recorder.record(KvPut(f"{n}", b""), urgent=False)
    for _ in range(3):
        await asyncio.sleep(0)
    assert log.appended == []
    log.recorder.appended()
    log.recorder.appended()
    assert [found.header.row_count for found in log.frames()] == [2]
    log.recorder.record(KvPut("2", b""), urgent=False)
    log.recorder.record(KvPut("3", b""))  # which does not wait
    log.recorder.record(KvPut("4", b""), urgent=False)
    await asyncio.sleep(0)
    assert [found.header.row_count for found in log.frames()] == [2, 3]
    log.recorder.appended()
    log.recorder.flush()
    assert len(log.appended) == 2


async def test_records_that_are_not_urgent_wait_only_so_long(monkeypatch):
    monkeypatch.setattr(recorder_module, "LINGER_S", 0.001)
    log = RecordedAppends()
    log.recorder.record(KvPut("a", b""), urgent=False)
    async with asyncio.timeout(60):
        while not log.appended:
            await asyncio.sleep(0.001)
    assert [found.header.row_count for found in log.frames()] == [1]


async def test_every_caller_is_told_what_became_of_its_record():
    log = RecordedAppends()
    futures = [log.recorder.record(KvPut("k", b"", n)) for n in range(3)]
    futures[1].cancel()
    await asyncio.sleep(0)
    conflict = RevisionConflict("k", 2, 65)
    log.recorder.report({Position(64, 0): 65, Position(64, 1): 66, Position(64, 2): conflict})
    log.appended[0][1](Appended(64))
    assert await futures[0] == 65
    with pytest.raises(RevisionConflict):
        await futures[2]


async def test_a_refused_frame_refuses_its_records():
    log = RecordedAppends()
    futures = [log.recorder.record(KvPut("k", b"")) for _ in range(2)]
    await asyncio.sleep(0)
    log.appended[0][1](StoreOverloaded("full"))
    for future in futures:
        with pytest.raises(StoreOverloaded):
            await future


async def test_what_cannot_be_encoded_hurts_only_its_caller():
    log = RecordedAppends()
    with pytest.raises(OverflowError):
        log.recorder.record(GroupOffsets("g", {16: 1 << 70}))
    log.recorder.record(KvPut("a", b"1"))
    await asyncio.sleep(0)
    assert log.frames()[0].header.row_count == 1
