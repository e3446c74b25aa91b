"""Compaction: a compacted queue always has the newest record of each key, and never an older one behind it."""

import asyncio
import random

import pytest

from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.engine.compaction import RecordCopy, RowWatch, copies_frame
from store.format.frame import ROW, ROW_COPY, ROW_EXTRA, ROW_INDEX_KEY, ROW_OLD, ROW_TOMBSTONE, UnplacedFrame
from store.format.queue_config import QueueConfig
from store.local.local import LocalStore
from store.views.compact import CompactKey
from tests.support.process.clock import Clock
from tests.support.store.store_kit import FaultyFiles, append

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SEGMENT = 2000
HOUR = 3_600_000
QUEUE = 16


@pytest.fixture
def clock():
    return Clock(10 * HOUR)


@pytest.fixture
async def open_store(tmp_path, clock):
    opened = []

    async def open_store(**options):
        options = {"segment_size_bytes": SEGMENT, "now_ms": clock, "linger_s": 0.001, **options}
        opened.append(await LocalStore.open(tmp_path / "data", retention_interval_s=3600, **options))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.close()


def keyed(*records, flags=0):
    """Returns a frame of (queue, key hash, body); the address hash is the key's."""
    rows, payload = b"", b""
    for queue, key, body in records:
        rows += ROW.pack(queue, len(payload), len(body), flags, key, 1000 + key, 0, 77)
        payload += body
    return UnplacedFrame.build(rows, payload)


async def trim(store, clock):
    clock.ms += 1
    await store.core.until_dispatched(store.log.confirmed)
    await asyncio.get_running_loop().run_in_executor(None, store.core.engine.trimmer.run)


async def newest(store, queue=QUEUE):
    """Returns what a reader of the whole queue ends up with, by key, and how many records it read."""
    found, count = {}, 0
    offset = (await store.queues.bounds(queue)).first
    while True:
        try:
            fetched = await store.queues.fetch(queue, offset, max_bytes=1 << 20)
        except OffsetOutOfRange as trimmed:  # meanwhile; the newest of every key is behind
            found, offset = {}, trimmed.first
            continue
        if fetched.next == offset:
            return found, count
        for one, rows in zip(fetched.frames, fetched.rows, strict=True):
            for row in rows:
                found[int(one.rows[row]["key_hash"])] = one.record(row)
                count += 1
        offset = fetched.next


def body(n):
    return (b"%d" % n).ljust(200, b".")


async def test_the_newest_of_each_key_outlives_its_segment(open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    await append(store, keyed((QUEUE, 1, body(1)), (QUEUE, 2, body(2))))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(100 + n))))
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    expected = {1: body(1), 2: body(2), 3: body(129)}
    found, count = await newest(store)
    assert found == expected
    assert count < 20
    await store.close()
    store = await open_store()
    assert (await newest(store))[0] == expected
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(200 + n))))
    await trim(store, clock)
    assert (await newest(store))[0] == {**expected, 3: body(229)}


async def test_what_is_stored_again_is_marked_and_does_not_become_the_last_of_its_address(open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])

    def at_address(key, body, address):
        return UnplacedFrame.build(ROW.pack(QUEUE, 0, len(body), ROW_INDEX_KEY, key, address, 5, 77), body)

    await append(store, at_address(1, b"older", 9))
    await append(store, at_address(2, b"newer", 9))
    await append(store, at_address(3, b"alone", 8))
    for n in range(30):
        await append(store, at_address(4, body(n), 7))
    await trim(store, clock)
    copies = {
        bytes(one.record(i)): row
        for one in store.core.engine.log.scan(store.core.engine.log.first, store.log.confirmed)
        for i, row in enumerate(one.rows.tolist())
        if row[3] & ROW_COPY
    }
    assert copies[b"older"][3] == ROW_COPY | ROW_OLD | ROW_INDEX_KEY
    assert copies[b"newer"][3] == copies[b"alone"][3] == ROW_COPY | ROW_INDEX_KEY
    assert copies[b"older"][4:] == (1, 9, 5, 77)
    for address, expected in ((9, b"newer"), (8, b"alone"), (7, body(29))):
        assert await store.log.read(await store.log.last(address)) == expected


async def test_a_key_at_several_addresses_is_several_keys(open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    for address in (1, 2):
        await append(store, UnplacedFrame.build(ROW.pack(QUEUE, 0, 1, 0, 5, address, 0, 0), b"%d" % address))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await trim(store, clock)
    offset = (await store.queues.bounds(QUEUE)).first
    fetched = await store.queues.fetch(QUEUE, offset, max_bytes=1 << 20)
    found = {one.record(row) for one, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows}
    assert {b"1", b"2"} <= found


async def test_other_queues_are_not_compacted(open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True), QueueConfig(17, HOUR)])
    for n in range(10):
        await append(store, keyed((QUEUE, 1, body(n)), (17, 1, body(n))))
    first = store.core.engine.log.first
    await trim(store, clock)
    assert store.core.engine.log.first == first
    clock.ms += HOUR
    await trim(store, clock)
    assert store.core.engine.log.first > first
    bounds = await store.queues.bounds(17)
    assert bounds == (10, 10)
    assert (await newest(store))[0] == {1: body(9)}


async def test_history_is_kept_as_long_as_the_queues_limits_say(open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, HOUR, compact=True)])
    for n in range(30):
        await append(store, keyed((QUEUE, 1, body(n))))
    await trim(store, clock)
    assert store.core.engine.log.first == 0
    clock.ms += HOUR
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    assert (await newest(store))[0] == {1: body(29)}


async def test_nothing_is_deleted_while_most_of_it_is_live(open_store, clock):
    """Else the same records would be written again and again."""
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    for key in range(30):
        await append(store, keyed((QUEUE, key, body(key))))
    end = store.replication.end
    await trim(store, clock)
    assert store.core.engine.log.first == 0
    await trim(store, clock)
    assert store.replication.end == end
    for key in range(30):
        await append(store, keyed((QUEUE, key, body(100 + key))))
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    assert (await newest(store))[0] == {key: body(100 + key) for key in range(30)}


async def test_a_tombstone_ends_its_key(open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    await append(store, keyed((QUEUE, 1, body(1)), (QUEUE, 2, body(2))))
    await append(store, keyed((QUEUE, 1, b""), flags=ROW_TOMBSTONE))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await trim(store, clock)
    assert sorted((await newest(store))[0]) == [2, 3]


async def test_records_from_before_a_queue_was_compacted_count_too(open_store, clock):
    store = await open_store()
    await append(store, keyed((QUEUE, 1, body(0)), (QUEUE, 2, body(2))))
    await append(store, keyed((QUEUE, 1, body(1))))
    await append(store, keyed((QUEUE, 4, body(4))))
    await append(store, keyed((QUEUE, 4, b""), flags=ROW_TOMBSTONE))
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    await append(store, keyed((QUEUE, 2, body(22))))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    assert (await newest(store))[0] == {1: body(1), 2: body(22), 3: body(29)}


async def test_a_queue_that_is_compacted_no_longer_keeps_by_its_limits_alone(open_store, clock):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    await append(store, keyed((QUEUE, 1, body(1))))
    await store.queues.configure([QueueConfig(QUEUE, 0)])
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    with store.core.engine.views.reading() as txn:
        assert list(store.core.engine.views.compact.live(txn, 1 << 40)) == []
        assert list(store.core.engine.views.compact.queues(txn)) == []


async def test_a_write_during_compaction_goes_before_the_copy(open_store, clock, monkeypatch):
    """A key that gets a record between the choice and the copy is not copied."""
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    await append(store, keyed((QUEUE, 1, body(1)), (QUEUE, 2, body(2))))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await store.core.until_dispatched(store.log.confirmed)
    loop = asyncio.get_running_loop()
    trimmer = store.core.engine.trimmer
    store_own = trimmer._store
    written = []

    def write_first(make):
        if not written:
            written.append(True)
            asyncio.run_coroutine_threadsafe(append(store, keyed((QUEUE, 1, b"newer"))), loop).result(10)
        store_own(make)

    monkeypatch.setattr(trimmer, "_store", write_first)
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    assert (await newest(store))[0] == {1: b"newer", 2: body(2), 3: body(29)}


async def test_a_newer_record_that_is_taken_back_stops_the_compaction(open_store, clock, monkeypatch):
    """It was seen, its key not copied, and then it was not stored after all: nothing may be deleted."""
    files = FaultyFiles()
    store = await open_store(files=files)
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    await append(store, keyed((QUEUE, 1, body(1)), (QUEUE, 2, body(2))))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await store.core.until_dispatched(store.log.confirmed)
    loop = asyncio.get_running_loop()
    trimmer = store.core.engine.trimmer
    store_own = trimmer._store
    refused = []

    def fail_first(make):
        if not refused:
            files.fill(10)
            writing = asyncio.run_coroutine_threadsafe(append(store, keyed((QUEUE, 1, b"newer"))), loop)
            refused.append(writing.exception(10))
            files.write_error = 0
            store.core.engine.space.look()
        store_own(make)

    with monkeypatch.context() as patch:
        patch.setattr(trimmer, "_store", fail_first)
        await trim(store, clock)
    assert refused[0].retriable
    assert store.core.engine.log.first == 0
    assert (await newest(store))[0] == {1: body(1), 2: body(2), 3: body(29)}
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    assert (await newest(store))[0] == {1: body(1), 2: body(2), 3: body(29)}


async def test_a_queue_that_is_deleted_during_compaction_does_not_come_back(open_store, clock, monkeypatch):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True), QueueConfig(QUEUE + 1, retention_ms=1)])
    await append(store, keyed((QUEUE, 1, body(1)), (QUEUE, 2, body(2))))
    for n in range(30):
        await append(store, keyed((QUEUE + 1, 3, body(n))))
    await store.core.until_dispatched(store.log.confirmed)
    clock.ms += HOUR
    loop = asyncio.get_running_loop()
    trimmer = store.core.engine.trimmer
    store_own = trimmer._store
    deleted = []

    def delete_first(make):
        if not deleted:
            deleted.append(QUEUE)
            asyncio.run_coroutine_threadsafe(store.queues.delete(QUEUE), loop).result(10)
        store_own(make)

    with monkeypatch.context() as patch:
        patch.setattr(trimmer, "_store", delete_first)
        await trim(store, clock)
    assert deleted
    assert await store.queues.bounds(QUEUE) == (0, 0)
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    assert await store.queues.bounds(QUEUE) == (0, 0)


async def test_a_damaged_record_is_not_kept_and_stops_nothing(open_store, clock, monkeypatch, caplog):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    hurt = await append(store, keyed((QUEUE, 1, body(1))))
    await append(store, keyed((QUEUE, 2, body(2))))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await store.core.until_dispatched(store.log.confirmed)
    read = store.core.engine.log.read

    def damaged(at, size=0):
        if at == hurt.frame:
            raise CorruptFrame(at, "flipped")
        return read(at, size)

    monkeypatch.setattr(store.core.engine.log, "read", damaged)
    await trim(store, clock)
    assert store.core.engine.log.first > 0
    assert sorted((await newest(store))[0]) == [2, 3]
    assert "are not kept" in caplog.text


async def test_a_damaged_record_that_another_replica_may_have_puts_trimming_off(open_store, clock, monkeypatch, caplog):
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    hurt = await append(store, keyed((QUEUE, 1, body(1))))
    for n in range(30):
        await append(store, keyed((QUEUE, 3, body(n))))
    await store.core.until_dispatched(store.log.confirmed)
    read = store.core.engine.log.read

    def damaged(at, size=0):
        if at == hurt.frame:
            raise CorruptFrame(at, "flipped")
        return read(at, size)

    monkeypatch.setattr(store.core.engine.trimmer, "_lost", lambda _at: False)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(store.core.engine.log, "read", damaged)
        await trim(store, clock)
        assert store.core.engine.log.first == 0
        assert "waits for its repair" in caplog.text
    await trim(store, clock)  # repaired
    assert store.core.engine.log.first > 0
    assert sorted((await newest(store))[0]) == [1, 3]


def test_the_frame_of_copies_leaves_out_what_is_newer():
    watch = RowWatch()
    copies = [
        RecordCopy(CompactKey(16, key, key), (16, 9, 1, ROW_EXTRA, key, key, 0, 5), b"%d" % key, newest_of_address=True)
        for key in (1, 2)
    ]
    watch.saw(ROW.pack(16, 0, 0, 0, 1, 1, 0, 0))  # no compaction is running
    assert copies_frame(copies, watch).row_count == 2
    with watch.of([16]):
        watch.saw(ROW.pack(17, 0, 0, 0, 2, 2, 0, 0))
        watch.saw(ROW.pack(16, 0, 0, 0, 1, 1, 0, 0) + ROW.pack(16, 0, 0, 0, 7, 2, 0, 0))
        made = copies_frame(copies, watch)
    assert made.payload == b"2"
    assert ROW.unpack(made.rows) == (16, 0, 1, ROW_EXTRA | ROW_COPY | ROW_OLD, 2, 2, 0, 5)


@pytest.mark.parametrize("seed", range(8))
async def test_a_reader_always_ends_with_the_newest_of_each_key(open_store, clock, seed):
    """Random writes, configurations, compactions and restarts against a dictionary."""
    chance = random.Random(seed)
    store = await open_store()
    await store.queues.configure([QueueConfig(QUEUE, compact=True)])
    model = {}
    compacting = None
    for _ in range(60):
        step = chance.random()
        if step < 0.75:
            for _ in range(chance.randrange(1, 6)):
                key, value = chance.randrange(12), b"%d" % chance.randrange(1 << 30)
                if chance.random() < 0.1:
                    await append(store, keyed((QUEUE, key, b""), flags=ROW_TOMBSTONE))
                    model[key] = b""
                else:
                    await append(store, keyed((QUEUE, key, value + b"." * chance.randrange(300))))
                    model[key] = value
        elif step < 0.95:
            if compacting is not None:
                await compacting
            compacting = asyncio.ensure_future(trim(store, clock))
        else:
            if compacting is not None:
                await compacting
                compacting = None
            await store.close()
            store = await open_store()
        found, _ = await newest(store)
        assert {key: value.rstrip(b".") for key, value in found.items() if value} == {
            key: value for key, value in model.items() if value
        }
    if compacting is not None:
        await compacting
    assert store.core.engine.log.first > 0
    last = await store.log.read(await store.log.last(1000))
    assert last is None or last.rstrip(b".") == model[0]
