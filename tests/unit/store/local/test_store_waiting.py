"""A fetch that waits at the end of a queue: for a record, for the end of its time, for the end of the store."""

import asyncio

import pytest

from store.base.errors import OffsetOutOfRange, StoreClosed
from store.local.local import LocalStore
from store.recent import arrivals
from tests.support.process.waiting import until
from tests.support.store.store_kit import append, begin, frame

pytestmark = pytest.mark.anyio

LONG_MS = 50_000


@pytest.fixture(params=[0.0005, 3600], ids=["dispatched", "recent"])
async def store(tmp_path, request):
    async with await LocalStore.open(tmp_path, linger_s=request.param) as store:
        yield store


def waiting(store, queue, offset, ms=LONG_MS, **limits):
    return asyncio.ensure_future(store.queues.fetch(queue, offset, max_bytes=1 << 20, max_wait_ms=ms, **limits))


def records(fetched):
    return [one.record(row) for one, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]


async def test_what_is_there_comes_at_once(store):
    await append(store, frame((16, b"1")))
    assert records(await waiting(store, 16, 0)) == [b"1"]


async def test_it_waits_for_the_next_record_of_its_queue_alone(store):
    reading = waiting(store, 16, 0)
    await until(lambda: store.arrivals.count)
    await append(store, frame((17, b"not this")))
    assert not reading.done()
    begin(store, frame((16, b"this"), (17, b"x")))
    assert records(await reading) == [b"this"]
    reading = waiting(store, 16, 1, max_rows=1)
    await until(lambda: store.arrivals.count)
    begin(store, frame((16, b"a"), (16, b"b")))
    assert records(await reading) == [b"a"]
    assert not store.arrivals.waiting


async def test_time_runs_out_with_nothing(store):
    await append(store, frame((16, b"1")))
    fetched = await waiting(store, 16, 1, ms=20)
    assert (fetched.frames, fetched.next) == ((), 1)
    assert not store.arrivals.waiting


async def test_many_wait_and_some_give_up(store):
    readings = [waiting(store, 16, 0) for _ in range(50)]
    await until(lambda: store.arrivals.count == 50)
    for reading in readings[::2]:
        reading.cancel()
    await asyncio.gather(*readings[::2], return_exceptions=True)
    assert store.arrivals.count == 25
    begin(store, frame((16, b"1")))
    for fetched in await asyncio.gather(*readings[1::2]):
        assert records(fetched) == [b"1"]


async def test_beyond_the_limit_nobody_waits(store, monkeypatch):
    monkeypatch.setattr(arrivals, "WAITERS_MAX", 1)
    first = waiting(store, 16, 0)
    await until(lambda: store.arrivals.count)
    assert (await waiting(store, 17, 0)).next == 0
    begin(store, frame((16, b"1")))
    await first


async def test_a_queue_that_is_deleted_ends_the_wait(store):
    await append(store, frame((16, b"1")))
    reading = waiting(store, 16, 1)
    await until(lambda: store.arrivals.count)
    await store.queues.delete(16)
    with pytest.raises(OffsetOutOfRange):
        await reading


async def test_a_store_that_closes_ends_the_wait(tmp_path):
    store = await LocalStore.open(tmp_path)
    reading = waiting(store, 16, 0)
    await until(lambda: store.arrivals.count)
    await store.close()
    with pytest.raises(StoreClosed):
        await reading


async def test_offsets_that_are_not_there_are_refused_at_once(store):
    await append(store, frame((16, b"1")))
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRange):
            await waiting(store, 16, offset)
