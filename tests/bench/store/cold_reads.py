"""Measures how long an append takes while old data is being read from disk, and while nothing is. Prints JSON.

A log is written and dropped from the page cache; then single frames are appended at a fixed rate, at first alone, then
beside readers that fetch the log from its beginning, then alone again.

python -m tests.bench.store.cold_reads [--dir DIR] [--mb 1000] [--readers 1,4] [--rate 500] [--rounds 3]
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from store.api.log import Appended
from store.format.frame import QueueNumber, QueueOffset, UnplacedFrame
from store.local.local import LocalStore
from tests.bench.options import made_directory
from tests.bench.store.store_append import build
from tests.bench.store.studies import Rows

QUEUE = QueueNumber(16)
FETCH_BYTES = 1 << 20
ALONE_S = 4.0


async def fill(store: LocalStore, size_mb: int) -> None:
    frames = [build(100, 150, 1, 1_000, random.Random(n)) for n in range(16)]
    left = size_mb * 1_000_000
    while left > 0:
        futures = []
        for frame in frames * 8:
            future = asyncio.get_running_loop().create_future()
            store.log.append(frame, future.set_result)
            futures.append(future)
            left -= frame.size_bytes
        await asyncio.gather(*futures)


def drop_cache(data_dir: Path) -> None:
    for path in (data_dir / "log").iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


async def appending(store: LocalStore, frame: UnplacedFrame, rate: int, stop: asyncio.Event) -> dict[str, float]:
    """Appends single frames until told to stop, and returns their latencies."""
    taken: list[float] = []
    sent, loop = 0, asyncio.get_running_loop()
    started = loop.time()
    while not stop.is_set():
        await asyncio.sleep(max(started + sent / rate - loop.time(), 0))
        begun = time.perf_counter()

        def done(outcome: object, begun: float = begun) -> None:
            assert isinstance(outcome, Appended)
            taken.append(time.perf_counter() - begun)

        store.log.append(frame, done)
        sent += 1
    while len(taken) < sent:
        await asyncio.sleep(0.01)
    taken.sort()
    return {
        "appends": len(taken),
        "p50_us": taken[len(taken) // 2] * 1e6,
        "p99_us": taken[len(taken) * 99 // 100] * 1e6,
        "max_us": taken[-1] * 1e6,
    }


async def read(store: LocalStore, end: int) -> int:
    """Reads everything up to an offset, and returns how many bytes of frames that were."""
    offset, size = QueueOffset(0), 0
    while offset < end:
        fetched = await store.queues.fetch(QUEUE, offset, max_bytes=FETCH_BYTES)
        size += sum(frame.header.size_bytes for frame in fetched.frames)
        offset = fetched.next
    return size


async def measure(
    directory: Path | None, *, readers: int, mb: int, rate: int, alone_s: float = ALONE_S
) -> dict[str, float]:
    """Appends alone, and then beside so many readers of a cold log."""
    data_dir = Path(tempfile.mkdtemp(dir=directory))
    single = build(1, 150, 1, 1, random.Random(0))
    try:
        async with await LocalStore.open(data_dir, scrub_bytes_per_s=0) as store:
            await fill(store, mb)
        async with await LocalStore.open(data_dir, scrub_bytes_per_s=0) as store:
            drop_cache(data_dir)
            end = (await store.queues.bounds(QUEUE)).next
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.call_later(alone_s, stop.set)
            alone = await appending(store, single, rate, stop)
            stop = asyncio.Event()
            appends = asyncio.ensure_future(appending(store, single, rate, stop))
            begun = time.perf_counter()
            sizes = await asyncio.gather(*(read(store, end) for _ in range(readers)))
            took = time.perf_counter() - begun
            stop.set()
            beside = await appends
    finally:
        shutil.rmtree(data_dir)
    return {
        "read_mb_per_s": sum(sizes) / took / 1e6,
        **{f"alone_{key}": value for key, value in alone.items()},
        **{f"reading_{key}": value for key, value in beside.items()},
    }


async def measure_case(directory: Path, *, readers: int, mb: int, alone_s: float = 3.0) -> Rows:
    """Measures one case of the store's figures (`tests.bench.store`)."""
    found = await measure(directory, readers=readers, mb=mb, rate=500, alone_s=alone_s)
    return [(f"{readers} reader{'s' if readers > 1 else ''}", found)]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=made_directory, default=None)
    parser.add_argument("--mb", type=int, default=1_000)
    parser.add_argument("--readers", default="1,4")
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    report = {}
    for readers in map(int, options.readers.split(",")):
        runs = [
            await measure(options.dir, readers=readers, mb=options.mb, rate=options.rate) for _ in range(options.rounds)
        ]
        report[f"{readers} readers"] = {key: round(statistics.median(run[key] for run in runs), 1) for key in runs[0]}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    uvloop.run(main())
