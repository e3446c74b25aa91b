"""Reads that a write comes between."""

import asyncio

import pytest

from store.local.local import LocalStore
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio


async def test_a_record_that_arrives_while_the_end_of_a_queue_is_looked_up(tmp_path, monkeypatch):
    async with await LocalStore.open(tmp_path) as store:
        await append(store, frame((16, b"1")))
    async with await LocalStore.open(tmp_path) as store:
        loop, bounds = asyncio.get_running_loop(), store.core.reader.bounds

        async def arrive():
            await append(store, frame((16, b"2")))
            await store.core.until_dispatched(store.log.confirmed)

        def between(*args, in_memory=False, **options):
            if not in_memory:
                asyncio.run_coroutine_threadsafe(arrive(), loop).result()
            return bounds(*args, in_memory=in_memory, **options)

        with monkeypatch.context() as patch:
            patch.setattr(store.core.reader, "bounds", between)
            fetched = await store.queues.fetch(16, 1, max_bytes=1_000)
        assert (fetched.frames, fetched.next) == ((), 1)
        assert await bodies(store, 16, 1) == [b"2"]
