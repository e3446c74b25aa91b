"""Very many queues: no file for a queue, few bytes for each, and as easily forgotten as made."""

import asyncio
import tracemalloc

import pytest

from store.local.local import LocalStore
from tests.support.process.open_files import open_files
from tests.support.store.store_kit import append, begin, bodies, frame

pytestmark = pytest.mark.anyio

QUEUES = 20_000
A_FRAME = 500


def files_in(folder):
    return sorted(file for file in open_files() if file.startswith(f"{folder}/"))


async def fill(store, queues, body):
    frames = [
        frame(*((16 + n, body) for n in range(start, min(start + A_FRAME, queues))))
        for start in range(0, queues, A_FRAME)
    ]
    await asyncio.gather(*begin(store, *frames))


@pytest.mark.slow
async def test_files_and_memory_do_not_follow_the_number_of_queues(tmp_path):
    async with await LocalStore.open(tmp_path, cache_bytes_max=0, scrub_bytes_per_s=0) as store:
        await fill(store, 8, b"first")
        await store.queues.fetch(16, 0, max_bytes=1 << 20)
        files = files_in(tmp_path)
        tracemalloc.start()
        await fill(store, QUEUES, b"second")
        await store.core.until_dispatched(store.log.confirmed)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert files_in(tmp_path) == files
        assert any(file.endswith(".log") for file in files)
        assert held < QUEUES * 600
        for queue in (16, 23, 24, 16 + QUEUES // 2, 15 + QUEUES):
            expected = [b"first", b"second"] if queue < 24 else [b"second"]
            assert await bodies(store, queue) == expected
    async with await LocalStore.open(tmp_path) as store:
        assert (await store.queues.bounds(15 + QUEUES)).next == 1
        await append(store, frame((15 + QUEUES, b"third")))
        assert await bodies(store, 15 + QUEUES) == [b"second", b"third"]


async def test_they_are_forgotten_together(tmp_path):
    async with await LocalStore.open(tmp_path, scrub_bytes_per_s=0) as store:
        await fill(store, 2_000, b"x")
        await asyncio.gather(*(store.queues.delete(16 + n) for n in range(1_000)))
        assert [(await store.queues.bounds(16 + n)).next for n in (0, 999, 1_000, 1_999)] == [0, 0, 1, 1]
        await append(store, frame((16, b"again")))
        assert await bodies(store, 16) == [b"again"]
    async with await LocalStore.open(tmp_path) as store:
        with store.core.engine.views.reading() as txn:
            assert len(list(store.core.engine.views.queues.queues(txn))) == 1_000 + 1 + 1  # and the deletions' own
