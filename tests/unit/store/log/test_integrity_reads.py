"""Reads that meet damage: repaired, or an error that says what is lost; never a gap."""

import asyncio

import pytest

from store.api.lost import NOTHING_LOST
from store.base.errors import CorruptFrame, ReplicaIncomplete
from store.format.frame import HEADER, Position
from store.local import core
from store.local.local import LocalStore
from tests.support.process.waiting import until
from tests.support.store.replica_kit import open_master
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.anyio

OPTIONS = {"segment_size_bytes": 2_000, "cache_bytes_max": 0, "scrub_bytes_per_s": 0}
HURT = 13


def record(n):
    return frame((16, b"%03d" % n + bytes(100)))


async def damaged(directory, region=HEADER.size + 3):
    """Writes a closed store of forty records in queue 16, one of which is damaged; returns its frames as they were."""
    async with await LocalStore.open(directory, **OPTIONS) as store:
        for n in range(40):
            await append(store, record(n))
        frames = list(store.core.engine.log.scan(0, store.replication.end))
    hurt = frames[HURT]
    path = max(p for p in (directory / "log").iterdir() if int(p.stem) <= hurt.start)
    data = bytearray(path.read_bytes())
    data[hurt.start - int(path.stem) + region] ^= 1
    path.write_bytes(data)
    return frames


async def replica(directory):
    store = await open_master(directory, **OPTIONS)
    store.replication.confirm(store.replication.flushed)
    return store


READS = {
    "fetch": lambda store, hurt: store.queues.fetch(16, HURT, max_bytes=1),
    "scan": lambda store, hurt: store.log.scan(Position(hurt.start, 0), None, max_bytes=1),
    "scan of queues": lambda store, hurt: store.log.scan(Position(hurt.start, 0), [16], max_bytes=1),
    "read": lambda store, hurt: store.log.read(Position(hurt.start, 0)),
}


@pytest.mark.parametrize("region", [1, 9, 35, HEADER.size + 3])
@pytest.mark.parametrize("kind", READS)
async def test_a_reader_on_a_replica_waits_and_gets_the_message_after_the_repair(tmp_path, kind, region):
    frames = await damaged(tmp_path, region)
    hurt = frames[HURT]
    store = await replica(tmp_path)
    reading = asyncio.ensure_future(READS[kind](store, hurt))
    await until(lambda: store.is_damaged or reading.done())
    assert not reading.done()
    await store.replication.mend(hurt.start, hurt.data)
    found = await reading
    got = found if kind == "read" else (found.frames if kind == "fetch" else found[0])[0].record(0)
    assert got == b"%03d" % HURT + bytes(100)
    await store.close()


@pytest.mark.parametrize("kind", READS)
async def test_a_reader_on_a_replica_is_told_to_try_again_when_nobody_repairs(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(core, "REPAIR_S_MAX", 0.05)
    frames = await damaged(tmp_path)
    store = await replica(tmp_path)
    with pytest.raises(ReplicaIncomplete, match="being repaired") as caught:
        await READS[kind](store, frames[HURT])
    assert caught.value.retriable
    store.hooks.beyond_repair = True  # no replica has it
    with pytest.raises(CorruptFrame):
        await READS[kind](store, frames[HURT])
    await store.close()


async def test_a_reader_that_is_cancelled_leaves_nothing_behind(tmp_path):
    frames = await damaged(tmp_path)
    store = await replica(tmp_path)
    waiting = store.core._repair_waiters
    reading = asyncio.ensure_future(READS["fetch"](store, frames[HURT]))
    await until(lambda: waiting or reading.done())
    reading.cancel()
    await asyncio.wait([reading])
    assert (reading.cancelled(), waiting) == (True, [])
    await store.close()


async def test_consumers_with_leases_wait_for_the_repair_and_pass_over_what_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(core, "REPAIR_S_MAX", 0.05)
    await damaged(tmp_path)
    store = await replica(tmp_path)
    taken = await store.leases.take(16, 1, max_count=20)
    assert [one.offset for one in taken] == list(range(HURT))
    with pytest.raises(ReplicaIncomplete):
        await store.leases.take(16, 1, max_count=20)
    assert store.messages_lost == 0
    store.hooks.beyond_repair = True
    taken = await store.leases.take(16, 1, max_count=5)
    assert [one.offset for one in taken] == list(range(HURT + 1, HURT + 5))
    assert store.messages_lost == 1
    await store.close()


@pytest.mark.parametrize("kind", READS)
async def test_a_reader_on_a_store_alone_gets_an_error_with_the_offsets_and_no_gap(tmp_path, kind):
    frames = await damaged(tmp_path)
    hurt = frames[HURT]
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        with pytest.raises(CorruptFrame) as caught:
            await READS[kind](store, hurt)
        error = caught.value
        assert error.log_offset == hurt.start
        if kind == "fetch":
            assert (error.next, error.end) == (HURT + 1, hurt.end)
            assert f"offsets {HURT} to {HURT} of queue 16" in str(error)
        elif kind != "read":
            assert error.end == hurt.end
        fetched = await store.queues.fetch(16, 0, max_bytes=1 << 20)
        assert fetched.next == HURT  # the frames before the damage come first, and those behind it not with them
        assert (await store.queues.fetch(16, HURT + 1, max_bytes=1 << 20)).next == 40
        assert [(one.start, one.end) for one in store.damages] == [(hurt.start, hurt.end)]


async def test_bytes_of_a_frame_in_a_record_are_no_damage(tmp_path):
    """Whoever can store bytes and name places could have a sound log called damaged otherwise."""
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        inner = record(1).header(log_offset=HEADER.size + 48, epoch=1, stored_at_ms=1)
        await append(store, frame((16, inner + b"not its body")))
        assert await store.log.read(Position(HEADER.size + 48, 0)) is None
        assert not store.is_damaged


async def test_a_scan_that_begins_within_a_frame_goes_on_behind_it_and_calls_nothing_damaged(tmp_path):
    """Clients of event streams name the positions where these go on."""
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        inner = record(1)
        placed = inner.header(log_offset=HEADER.size + 48, epoch=1, stored_at_ms=1) + inner.rows + inner.payload
        at = [(await append(store, one)).frame for one in (frame((16, placed + b"more")), record(2), record(3))]
        for start, first in ((1, 1), (at[0] + HEADER.size, 1), (at[1] + 9, 2), (at[2] - 1, 2)):
            frames, following = await store.log.scan(Position(start, 0), None, max_bytes=1 << 20)
            assert ([one.start for one in frames], following) == (at[first:], store.log.confirmed)
        frames, following = await store.log.scan(Position(HEADER.size + 48, 0), None, max_bytes=1 << 20)
        frames, _ = await store.log.scan(Position(following, 0), None, max_bytes=1)
        assert frames[0].start == at[1], "behind the bytes of a frame that a record holds"
        frames, following = await store.log.scan(Position(at[2] + 1, 0), None, max_bytes=1 << 20)
        assert (frames, following) == ([], store.log.confirmed)
        assert not store.is_damaged


async def test_a_scan_that_begins_within_a_damaged_frame_reports_all_of_it(tmp_path):
    hurt = (await damaged(tmp_path))[HURT]
    async with await LocalStore.open(tmp_path, **OPTIONS) as store:
        with pytest.raises(CorruptFrame):
            await store.log.scan(Position(hurt.start + 5, 0), None, max_bytes=1 << 20)
        assert [(one.start, one.end) for one in store.damages] == [(hurt.start, hurt.end)]


@pytest.mark.slow
async def test_a_store_says_which_offsets_of_which_queues_are_lost(tmp_path):
    frames = await damaged(tmp_path)
    (path, *_) = sorted((tmp_path / "log").iterdir())
    path.unlink()
    async with await LocalStore.open(tmp_path, **{**OPTIONS, "scrub_bytes_per_s": 1 << 30}) as store:
        await until(lambda: len(store.damages) == 2)
        in_file = sum(1 for one in frames if one.start < store.damages[0].end)
        lost = await store.lost()
        assert list(lost.ranges) == [(16, 0, in_file), (16, HURT, HURT + 1)]
        assert (lost.damages, lost.messages, lost.more) == (2, in_file + 1, 0)
        assert lost.size_bytes == sum(one.end - one.start for one in store.damages)
        for damage in store.damages:
            await store.replication.mend(
                damage.start, b"".join(one.data for one in frames if damage.start <= one.start < damage.end)
            )
        assert await store.lost() == NOTHING_LOST
