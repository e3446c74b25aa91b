"""A store with few and with very many queues: appends, fetches, memory and open files side by side. Prints JSON.

Three shapes of frames: `batch`, a hundred records of one queue, as a producer of one queue sends them; `mixed`, a
hundred records of as many queues, as a gateway gathers them from its connections; `single`, one record.

Fetches go round the queues in a random order, a hundred records at a time at most, from each queue's beginning. With
`mixed` frames a fetch of few queues finds several records in each frame it reads, one of many queues one.

python -m tests.bench.store.many_queues [--dir DIR] [--seconds 4] [--queues 8,50000] [--shapes batch,mixed,single]
    [--rounds 3] [--bytes 150]
"""

import argparse
import asyncio
import gc
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

from store.format.frame import FIRST_QUEUE, ROW, QueueOffset, UnplacedFrame
from store.local.local import LocalStore
from tests.bench.options import made_directory
from tests.bench.store.store_append import throughput
from tests.bench.store.studies import Rows

FRAMES = 2_048  # built beforehand and sent again and again
FETCH_BYTES = 4 << 20
FETCH_ROWS = 100
RECORDS = {"batch": 100, "mixed": 100, "single": 1}


def build(shape: str, queues: int, size: int, chance: random.Random) -> list[UnplacedFrame]:
    """Returns frames that touch all queues about equally often."""
    count = RECORDS[shape]
    payloads = [chance.randbytes(size) * count for _ in range(64)]  # few, so that memory is as near for many frames
    frames, following = [], 0
    for _ in range(max(FRAMES, queues // count + 1 if shape == "mixed" else queues)):
        if shape == "mixed":
            chosen = [FIRST_QUEUE + (following + i) % queues for i in range(count)]
            following += count
        else:
            chosen = [FIRST_QUEUE + following % queues] * count
            following += 1
        rows = b"".join(ROW.pack(queue, i * size, size, 0, 0, 0, 0, 0) for i, queue in enumerate(chosen))
        frames.append(UnplacedFrame.build(rows, payloads[len(frames) % len(payloads)]))
    chance.shuffle(frames)
    return frames


async def warm(store: LocalStore, frames: list[UnplacedFrame]) -> None:
    """Writes to every queue before anything is measured."""
    for start in range(0, len(frames), 512):
        some = frames[start : start + 512]
        futures = [asyncio.get_running_loop().create_future() for _ in some]
        for frame, future in zip(some, futures, strict=True):
            store.log.append(frame, lambda outcome, future=future: future.set_result(outcome))
        await asyncio.gather(*futures)


async def fetching(store: LocalStore, queues: int, seconds: float, chance: random.Random) -> dict[str, float]:
    """Records and fetches a second, from a store that was just opened."""
    order = [FIRST_QUEUE + n for n in range(queues)]
    chance.shuffle(order)
    offsets = dict.fromkeys(order, QueueOffset(0))
    records = fetches = 0
    started = time.perf_counter()
    while order and time.perf_counter() - started < seconds:
        unread = []
        for queue in order:
            fetched = await store.queues.fetch(queue, offsets[queue], max_bytes=FETCH_BYTES, max_rows=FETCH_ROWS)
            fetches += 1
            records += fetched.next - offsets[queue]
            if fetched.next > offsets[queue]:
                offsets[queue] = fetched.next
                unread.append(queue)
            if time.perf_counter() - started > seconds:
                break
        order = unread
    took = time.perf_counter() - started
    return {"records_per_s": records / took, "fetches_per_s": fetches / took, "records_per_fetch": records / fetches}


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def measure(
    directory: Path | None, *, shape: str, queues: int, seconds: float, size: int = 150
) -> dict[str, float]:
    """Measures one shape with one number of queues, on another store each time."""
    data_dir = Path(tempfile.mkdtemp(dir=directory))
    chance = random.Random(1)
    frames = build(shape, queues, size, chance)
    gc.collect()
    try:
        store = await LocalStore.open(data_dir, scrub_bytes_per_s=0)
        before, files = resident_mb(), open_files()
        await warm(store, frames)
        appended = await throughput(store, frames, seconds)
        grown, more_files = resident_mb() - before, open_files() - files
        started = time.perf_counter()
        await store.close()
        close_s = time.perf_counter() - started
        started = time.perf_counter()
        store = await LocalStore.open(data_dir, scrub_bytes_per_s=0)
        open_s = time.perf_counter() - started
        fetched = await fetching(store, queues, seconds, chance)
        views_mb = (data_dir / "views" / "data.mdb").stat().st_size / 1e6
        await store.close()
    finally:
        shutil.rmtree(data_dir)
    return {
        "append_records_per_s": appended["records_per_s"],
        "append_cpu_us_per_frame": appended["cpu_us_per_frame"],
        "fetch_records_per_s": fetched["records_per_s"],
        "records_per_fetch": fetched["records_per_fetch"],
        "fetches_per_s": fetched["fetches_per_s"],
        "memory_mb": grown,
        "files": more_files,
        "close_s": close_s,
        "open_s": open_s,
        "views_mb": views_mb,
    }


async def measure_case(directory: Path, *, shape: str, queues: int, seconds: float) -> Rows:
    """Measures one case of the store's figures (`tests.bench.store`)."""
    return [(f"{shape}, {queues:,} queues", await measure(directory, shape=shape, queues=queues, seconds=seconds))]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=made_directory, default=None)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--queues", default="8,50000")
    parser.add_argument("--shapes", default="batch,mixed,single")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=150)
    options = parser.parse_args()
    counts = [int(count) for count in options.queues.split(",")]
    report: dict[str, object] = {}
    for shape in options.shapes.split(","):
        found: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
        for _ in range(options.rounds):
            for count in counts:  # side by side, so that what else the machine does meets both
                run = await measure(options.dir, shape=shape, queues=count, seconds=options.seconds, size=options.bytes)
                found[count].append(run)
        medians = {
            count: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for count, runs in found.items()
        }
        few, many = medians[counts[0]], medians[counts[-1]]
        report[shape] = {
            **{f"{count} queues": values for count, values in medians.items()},
            "append_ratio": many["append_records_per_s"] / few["append_records_per_s"],
            "fetch_ratio": many["fetch_records_per_s"] / few["fetch_records_per_s"],
        }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as `headgate serve` does
    uvloop.run(main())
