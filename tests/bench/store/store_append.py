"""Appends to a local store: throughput with a window of frames in flight, then latency at a fixed rate. Prints JSON.

python -m tests.bench.store.store_append [--dir DIR] [--seconds 5]
    [--records 100] [--bytes 150] [--queues 1] [--addresses 1000]
"""

import argparse
import asyncio
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from store.api.log import Appended
from store.base.errors import StoreError
from store.format.frame import ROW, UnplacedFrame
from store.local.local import LocalStore
from tests.bench.options import made_directory

WINDOW = 64


def build(
    records: int, size: int, queues: int, addresses: int, chance: random.Random, *, flags: int = 0
) -> UnplacedFrame:
    body = chance.randbytes(size)
    rows = b"".join(
        ROW.pack(16 + i % queues, i * size, size, 0, 0, chance.randrange(addresses) + 1, 0, 0) for i in range(records)
    )
    return UnplacedFrame.build(rows, body * records, flags=flags)


async def throughput(store: LocalStore, frames: list[UnplacedFrame], seconds: float) -> dict[str, float]:
    finished = asyncio.get_running_loop().create_future()
    started, cpu = time.perf_counter(), time.process_time()
    state = {"sent": 0, "done": 0}

    def done(outcome: Appended | StoreError) -> None:
        if isinstance(outcome, StoreError):
            finished.set_exception(outcome)
            return
        state["done"] += 1
        if time.perf_counter() - started < seconds:
            send()
        elif state["done"] == state["sent"]:
            finished.set_result(None)

    def send() -> None:
        frame = frames[state["sent"] % len(frames)]
        state["sent"] += 1
        store.log.append(frame, done)

    for _ in range(WINDOW):
        send()
    await finished
    took = time.perf_counter() - started
    count = state["done"]
    return {
        "frames_per_s": count / took,
        "records_per_s": count * frames[0].row_count / took,
        "mb_per_s": count * frames[0].size_bytes / took / 1e6,
        "cpu_us_per_frame": (time.process_time() - cpu) / count * 1e6,
    }


async def latency(store: LocalStore, frame: UnplacedFrame, rate: int, seconds: float) -> dict[str, float]:
    taken: list[float] = []
    loop = asyncio.get_running_loop()
    started = loop.time()
    for i in range(int(rate * seconds)):
        await asyncio.sleep(max(started + i / rate - loop.time(), 0))
        begun = time.perf_counter()
        store.log.append(frame, lambda _, begun=begun: taken.append(time.perf_counter() - begun))
    while len(taken) < int(rate * seconds):
        await asyncio.sleep(0.01)
    taken.sort()
    return {
        "rate": rate,
        "mean_us": sum(taken) / len(taken) * 1e6,
        "p99_us": taken[len(taken) * 99 // 100] * 1e6,
        "max_us": taken[-1] * 1e6,
    }


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=made_directory, default=None)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=150)
    parser.add_argument("--queues", type=int, default=1)
    parser.add_argument("--addresses", type=int, default=1000)
    options = parser.parse_args()
    data_dir = Path(tempfile.mkdtemp(dir=options.dir))
    chance = random.Random(1)
    frames = [build(options.records, options.bytes, options.queues, options.addresses, chance) for _ in range(64)]
    single = build(1, options.bytes, 1, 1, chance)
    try:
        store = await LocalStore.open(data_dir)
        report: dict[str, object] = {"shape": {k: str(v) for k, v in vars(options).items()}}
        report["throughput"] = await throughput(store, frames, options.seconds)
        report["latency"] = await latency(store, single, 1000, min(options.seconds, 3))
        started = time.perf_counter()
        await store.close()
        report["close_s"] = time.perf_counter() - started
        report["views_mb"] = (data_dir / "views" / "data.mdb").stat().st_size / 1e6
        report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(report, indent=2))
    finally:
        shutil.rmtree(data_dir)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    uvloop.run(main())
