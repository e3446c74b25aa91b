"""Reading a queue in order: from the store's cache of frames, from the page cache, from disk."""

import time
from pathlib import Path

from store.format.frame import QueueOffset
from store.local.local import LocalStore
from tests.bench.store.cold_reads import FETCH_BYTES, QUEUE, drop_cache, fill
from tests.bench.store.studies import Rows

CACHED_MB = 48  # of the 64 MiB that the store keeps
CACHED_PASSES = 20


async def read(store: LocalStore, offset: QueueOffset, end: QueueOffset) -> int:
    """Reads everything between two offsets, and returns how many bytes of frames that were."""
    size = 0
    while offset < end:
        fetched = await store.queues.fetch(QUEUE, offset, max_bytes=FETCH_BYTES)
        size += sum(frame.header.size_bytes for frame in fetched.frames)
        offset = fetched.next
    return size


async def measure_case(directory: Path, *, source: str, mb: int) -> Rows:
    """Measures one source. A store that was just opened reads what is not in the cache of frames."""
    cached = source == "frame cache"
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        await fill(store, min(mb, CACHED_MB) if cached else mb)
    if source == "disk":
        drop_cache(directory)
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        first, end = await store.queues.bounds(QUEUE)
        if cached:
            await read(store, first, end)
        started, cpu = time.perf_counter(), time.process_time()
        size = sum([await read(store, first, end) for _ in range(CACHED_PASSES if cached else 1)])
        took, cpu = time.perf_counter() - started, time.process_time() - cpu
    records = (end - first) * (CACHED_PASSES if cached else 1)
    return [
        (
            source,
            {
                "records_per_s": records / took,
                "mb_per_s": size / took / 1e6,
                "cpu_ns_per_record": cpu / records * 1e9,
            },
        )
    ]
