"""Appends a second with frames of some size, answered when they are on disk or when they are written."""

import random
from pathlib import Path

from store.format.frame import FRAME_ASYNC
from store.local.local import LocalStore
from tests.bench.store.store_append import build, throughput
from tests.bench.store.studies import Rows

FRAMES = 64
QUEUES, ADDRESSES, SIZE_BYTES = 8, 1_000, 150
WARM_UP_S = 0.3


async def measure_case(directory: Path, *, records: int, flush: str, seconds: float) -> Rows:
    """Measures one size of frames, with one kind of acknowledgement."""
    flags = FRAME_ASYNC if flush == "async" else 0
    chance = random.Random(1)
    frames = [build(records, SIZE_BYTES, QUEUES, ADDRESSES, chance, flags=flags) for _ in range(FRAMES)]
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        await throughput(store, frames, min(seconds, WARM_UP_S))
        found = await throughput(store, frames, seconds)
    return [(f"{records:,} record{'s' if records > 1 else ''}, {flush}", found)]
