"""Measures how long a store takes to open after its process was killed, by the size of its log.

One log grows. At each size it is opened after a kill -9 while it was appended to flat out, and then, round by round,
after one while 20 MB/s were appended, and with its views deleted, so that they are all made anew: from the page cache,
and from disk.

python -m tests.bench.store.recovery fill DIRECTORY MB FRAMES_PER_S     appends, says so at MB, and goes on for ever
python -m tests.bench.store.recovery open DIRECTORY                     opens, and says when it had
"""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from store.api.log import Appended
from store.base.errors import StoreError
from store.local.local import LocalStore
from store.views import MAP_SIZE_BYTES, Views
from tests.bench.procfs import memory_mb
from tests.bench.store.cold_reads import drop_cache
from tests.bench.store.store_append import build
from tests.bench.store.studies import Rows

FRAMES, WINDOW = 64, 64
PACED = 1_000  # frames a second: 20 MB
GOES_ON_S = {PACED: 1.0, 0: 0.1}  # from the wanted size on, until it is killed; so the log hardly grows
LIVE, FLAT_OUT, REBUILT, COLD = "killed at 20 MB/s", "killed flat out", "views deleted", "views deleted, cold"


async def fill(directory: Path, mb: int, rate: int) -> None:
    """Appends flat out to a size; then at a rate, or flat out (0), until killed."""
    frames = [build(100, 150, 8, 1_000, random.Random(n)) for n in range(FRAMES)]
    store = await LocalStore.open(directory, scrub_bytes_per_s=0)
    paced = asyncio.Event()
    sent = 0

    def send() -> None:
        nonlocal sent
        store.log.append(frames[sent % FRAMES], done)
        sent += 1

    def done(outcome: Appended | StoreError) -> None:
        assert isinstance(outcome, Appended), outcome
        if not paced.is_set():
            send()

    for _ in range(WINDOW):
        send()
    while store.log.confirmed < mb * 1_000_000:
        await asyncio.sleep(0.01)
    if rate:
        paced.set()
        await store.core.until_dispatched(store.log.confirmed)
    print("full", flush=True)
    started, first = time.monotonic(), sent
    while True:
        if rate:
            while sent - first < (time.monotonic() - started) * rate:
                send()
        await asyncio.sleep(1 / PACED)


async def open_once(directory: Path) -> None:
    """Opens the store, and prints when it was open."""
    started = time.monotonic()
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        opened = time.monotonic()
        found = {
            "opened": opened,
            "open_s": opened - started,
            "cpu_s": time.process_time(),
            "end": store.log.confirmed,
            "peak_mb": memory_mb("VmHWM"),
        }
    print(json.dumps(found))


def kill_while_appending(directory: Path, mb: int, rate: int) -> None:
    """Kills a process that appends, soon after the log has a size."""
    command = [sys.executable, "-m", __name__, "fill", str(directory), str(mb), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "full\n"
            time.sleep(GOES_ON_S[rate])
        finally:
            process.kill()


def opened(directory: Path) -> dict[str, float]:
    """Returns the figures of a new process that opens the store."""
    views = Views(directory / "views", map_size_bytes=MAP_SIZE_BYTES, rebuildable=True)
    dispatched = views.dispatched
    views.close()
    command = [sys.executable, "-m", __name__, "open", str(directory)]
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    replayed_mb = (found["end"] - dispatched) / 1e6
    return {
        "start_s": found["opened"] - started,
        "open_s": found["open_s"],
        "cpu_s": found["cpu_s"],
        "replayed_mb": replayed_mb,
        "mb_per_s": replayed_mb / found["open_s"],
        "peak_mb": found["peak_mb"],
    }


def without_views(directory: Path, *, cold: bool) -> dict[str, float]:
    """Measures an opening with nothing but the log."""
    shutil.rmtree(directory / "views")
    if cold:
        os.sync()
        drop_cache(directory)
    return opened(directory)


async def measure_case(directory: Path, *, sizes_mb: Sequence[int], rounds: int) -> Rows:
    """Measures the sizes in their order."""
    rows = []
    for mb in sizes_mb:
        size = f"{mb / 1000:g} GB"
        kill_while_appending(directory, mb, 0)
        rows.append((f"{size}, {FLAT_OUT}", opened(directory)))
        for _ in range(rounds):
            kill_while_appending(directory, mb, PACED)
            rows.append((f"{size}, {LIVE}", opened(directory)))
            rows.append((f"{size}, {REBUILT}", without_views(directory, cold=False)))
            rows.append((f"{size}, {COLD}", without_views(directory, cold=True)))
    return rows


def main() -> None:
    what, directory, *numbers = sys.argv[1:]
    sys.setswitchinterval(0.0005)
    if what == "fill":
        mb, rate = map(int, numbers)
        uvloop.run(fill(Path(directory), mb, rate))
    else:
        uvloop.run(open_once(Path(directory)))


if __name__ == "__main__":
    main()
