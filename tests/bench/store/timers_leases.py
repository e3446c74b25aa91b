"""Timers set, fired and cancelled, and messages leased and settled, a second, on a local store. Prints JSON.

python -m tests.bench.store.timers_leases [--dir DIR] [--timers 100000] [--messages 200000] [--bytes 150]

Everything is durable (fdatasync) before it counts. Timers are set in frames of `--frame`, as a gateway sets those
of one read; all are due at the same moment. "lease" is take and settle in batches of `--batch`, "one by one" with a
batch of 1 and `WINDOW` consumers side by side, as single acknowledgements come.
"""

import argparse
import asyncio
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from store.api.log import Appended
from store.base.errors import StoreError
from store.format.frame import ROW, Frame, UnplacedFrame
from store.format.policy import LeasePolicy
from store.format.records import TIMERS_QUEUE, TimerSet, encode
from store.local.local import LocalStore
from tests.bench.options import made_directory
from tests.bench.store.studies import Rows

WINDOW = 64
FIRED, LEASED, ORDERED, ENDING = 20, 21, 22, 23


class MovedClock:
    """The wall clock, until it is moved."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


async def append_all(store: LocalStore, frames: list[UnplacedFrame]) -> list[Appended]:
    """Appends frames, `WINDOW` of them at a time."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcomes: list[Appended] = []
    left = iter(frames)

    def done(outcome: Appended | StoreError) -> None:
        if isinstance(outcome, StoreError):
            finished.set_exception(outcome)
            return
        outcomes.append(outcome)
        following = next(left, None)
        if following is not None:
            store.log.append(following, done)
        elif len(outcomes) == len(frames):
            finished.set_result(None)

    for _ in range(min(WINDOW, len(frames))):
        store.log.append(next(left), done)
    await finished
    return outcomes


def timer_frames(count: int, per_frame: int, size: int, due_ms: int) -> list[UnplacedFrame]:
    """Returns frames that set timers, each of which holds one message."""
    body = bytes(size)
    record = encode(TimerSet(due_ms, ROW.pack(FIRED, 0, size, 0, 1, 2, 3, 4), body))
    frames = []
    for first in range(0, count, per_frame):
        some = min(per_frame, count - first)
        rows = b"".join(ROW.pack(TIMERS_QUEUE, n * len(record), len(record), 0, 0, 0, 0, 0) for n in range(some))
        frames.append(UnplacedFrame.build(rows, record * some))
    return frames


def message_frames(queue: int, count: int, per_frame: int, size: int, keys: int) -> list[UnplacedFrame]:
    """Returns frames of messages for one queue, of `keys` keys in turn."""
    frames = []
    for first in range(0, count, per_frame):
        numbers = range(first, min(first + per_frame, count))
        rows = b"".join(ROW.pack(queue, i * size, size, 0, 1 + n % keys, 0, 0, 0) for i, n in enumerate(numbers))
        frames.append(UnplacedFrame.build(rows, bytes(size) * len(numbers)))
    return frames


async def timed(count: int, work: Awaitable[object]) -> dict[str, float]:
    """Returns how many a second, and how much of a processor each takes."""
    started, cpu = time.perf_counter(), time.process_time()
    await work
    took = time.perf_counter() - started
    return {"per_s": count / took, "cpu_us_each": (time.process_time() - cpu) / count * 1e6, "seconds": took}


async def timers(store: LocalStore, clock: MovedClock, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measures setting, firing and cancelling timers."""
    report: dict[str, dict[str, float]] = {}
    due_ms = clock() + 3_600_000
    frames = timer_frames(options.timers, options.frame, options.bytes, due_ms)
    report["set"] = await timed(options.timers, append_all(store, frames))
    singles = timer_frames(2_000, 1, options.bytes, due_ms + 3_600_000)
    report["set_one_by_one"] = await timed(len(singles), append_all(store, singles))
    ids = [entry.id for entry in await store.timers.entries(limit=1 << 30) if entry.due_ms > due_ms]
    report["cancel"] = await timed(len(ids), asyncio.gather(*(store.timers.cancel(id_) for id_ in ids)))
    clock.ahead_ms += 3_600_000
    report["fire"] = await timed(options.timers, store.tick())
    assert (await store.queues.bounds(FIRED)).next == options.timers
    assert store.timers.held.timers == 0
    report["late_ms"] = await lateness(store, clock)
    return report


async def lateness(store: LocalStore, clock: MovedClock) -> dict[str, float]:
    """Returns how late single timers fire that are due one after the other, until the message is durable."""
    late: list[float] = []
    start = clock() + 2_000
    await append_all(store, [timer_frames(1, 1, 10, start + 7 * n)[0] for n in range(200)])
    ended = asyncio.Event()

    def listen(frames: Sequence[Frame]) -> None:
        for frame in frames:
            for _ in range(int((frame.rows["queue"] == FIRED).sum())):
                late.append(clock() - (start + 7 * len(late)))
        if len(late) == 200:
            ended.set()

    stop = store.log.tail(listen)
    await asyncio.wait_for(ended.wait(), 30)
    stop()
    late.sort()
    return {"median": late[100], "p99": late[197], "max": late[-1]}


async def drain(store: LocalStore, queue: int, batch: int, consumers: int, **options: Any) -> None:
    """Takes and settles everything of a queue."""

    async def consume(owner: int) -> None:
        while leases := await store.leases.take(queue, owner, max_count=batch, **options):
            await store.leases.settle(queue, owner, [lease.offset for lease in leases])

    await asyncio.gather(*(consume(owner) for owner in range(1, consumers + 1)))


async def by_handle(store: LocalStore, count: int, batch: int) -> None:
    """Takes for a time, and settles by signed handles."""
    left = count
    while left:
        leases = await store.leases.take(ENDING, 1, max_count=min(batch, left), group="h", invisible_ms=60_000)
        await store.leases.settle_handles([lease.handle() for lease in leases])
        left -= len(leases)


async def leases(store: LocalStore, clock: MovedClock, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measures leasing and settling, in batches and one by one, in order of keys, by handle, and leases that end."""
    report: dict[str, dict[str, float]] = {}
    count, batch = options.messages, options.batch
    await append_all(store, message_frames(LEASED, count, options.frame, options.bytes, 1_000))
    report["lease_and_settle"] = await timed(count, drain(store, LEASED, batch, 4))
    few = count // 10
    report["for_a_time"] = await timed(count, drain(store, LEASED, batch, 4, group="timed", invisible_ms=60_000))
    await append_all(store, message_frames(ORDERED, count, options.frame, options.bytes, 1_000))
    await store.leases.set_policy(ORDERED, LeasePolicy(ordered=True))
    report["ordered_1000_keys"] = await timed(count, drain(store, ORDERED, batch, 1))
    await append_all(store, message_frames(ENDING, few, options.frame, options.bytes, 1_000))
    report["one_by_one"] = await timed(few, drain(store, ENDING, 1, WINDOW))
    report["by_handle"] = await timed(few, by_handle(store, few, batch))

    await store.leases.take(ENDING, 1, max_count=few, max_bytes=1 << 30, group="e", invisible_ms=1_000)
    clock.ahead_ms += 1_000
    report["end_by_themselves"] = await timed(few, store.tick())
    assert await store.leases.waiting(ENDING, group="e") == few
    return report


async def measure_case(directory: Path, *, timer_count: int = 100_000, messages: int = 200_000) -> Rows:
    """Measures one case of the store's figures (`tests.bench.store`)."""
    clock = MovedClock()
    options = argparse.Namespace(timers=timer_count, messages=messages, bytes=150, frame=100, batch=256)
    async with await LocalStore.open(directory, now_ms=clock) as store:
        rows = [(f"timers: {name}", found) for name, found in (await timers(store, clock, options)).items()]
        rows += [(f"leases: {name}", found) for name, found in (await leases(store, clock, options)).items()]
    return [(row.replace("_", " "), found) for row, found in rows]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=made_directory, default=None)
    parser.add_argument("--timers", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=150)
    parser.add_argument("--frame", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    data_dir = Path(tempfile.mkdtemp(dir=options.dir))
    clock = MovedClock()
    try:
        async with await LocalStore.open(data_dir, now_ms=clock) as store:
            report: dict[str, object] = {"shape": {k: str(v) for k, v in vars(options).items()}}
            report["timers"] = await timers(store, clock, options)
            report["leases"] = await leases(store, clock, options)
        report["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(report, indent=2))
    finally:
        shutil.rmtree(data_dir)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)
    uvloop.run(main())
