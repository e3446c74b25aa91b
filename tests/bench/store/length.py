"""Measures a record's cost in a short log and in a long one: appends, fetches and look-ups at several lengths.

Appends are those of the last million records up to a length, views included: the store is filled flat out. Look-ups
are measured `PASSES` times at each length, and the medians count; what is looked up is chosen at random over all of the
log, the keys are as many at each length. A machine may take more for a page of its cache the more there are (a virtual
one that is given its memory page by page), so the same bytes are also written at each length without a store.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

from store.api.keys import Put
from store.api.log import IndexKind
from store.format.frame import FIRST_QUEUE, ROW, ROW_INDEX_ADDRESS, QueueNumber, QueueOffset, UnplacedFrame
from store.local.local import LocalStore
from tests.bench.procfs import forget_peak, memory_mb
from tests.bench.store.cold_reads import drop_cache
from tests.bench.store.store_append import WINDOW
from tests.bench.store.studies import Rows
from tests.bench.store.timers_leases import append_all

RECORDS, SIZE_BYTES = 100, 150  # of a frame
QUEUES, ADDRESSES, ADDRESSES_A_FRAME, KEYS = 64, 20_000, 10, 10_000
FRAMES = 2_048  # built beforehand: as many as name every address about once
PASSES = 3
TIMED = 1_000_000  # records, the last ones that are appended
LOOKS = 1_000  # of each kind in a pass
COLD_LOOKS = 200
KEYS_AT_ONCE = 500
FETCH_BYTES = 1  # one frame, whatever its size

Look = Callable[[], Awaitable[object]]


def build(chance: random.Random) -> list[UnplacedFrame]:
    """Returns frames of one queue and ten addresses each."""
    payload = chance.randbytes(SIZE_BYTES) * RECORDS
    frames = []
    for n in range(FRAMES):
        hashes = [1 + (n * ADDRESSES_A_FRAME + i) % ADDRESSES for i in range(ADDRESSES_A_FRAME)]
        rows = b"".join(
            ROW.pack(
                FIRST_QUEUE + n % QUEUES,
                i * SIZE_BYTES,
                SIZE_BYTES,
                ROW_INDEX_ADDRESS,
                0,
                hashes[i % ADDRESSES_A_FRAME],
                0,
                0,
            )
            for i in range(RECORDS)
        )
        frames.append(UnplacedFrame.build(rows, payload))
    return frames


async def put_keys(store: LocalStore) -> None:
    for first in range(0, KEYS, KEYS_AT_ONCE):
        puts = [Put(f"key/{n:07}", b"v" * 100) for n in range(first, first + KEYS_AT_ONCE)]
        await store.keys.transact({}, puts, namespace="bench")


async def fill(store: LocalStore, frames: Sequence[UnplacedFrame], records: int, directory: Path) -> dict[str, float]:
    """Appends the frames in turn until the views have them, and returns the figures of the last ones."""
    timed = min(TIMED, records) // RECORDS
    await append_all(store, [frames[n % len(frames)] for n in range(records // RECORDS - timed)] or frames[:1])
    found = await timed_appends(store, [frames[n % len(frames)] for n in range(timed)])
    found["bare_system_ns"] = bare_system_ns(directory, frames, timed * RECORDS)
    await store.core.until_dispatched(store.log.confirmed)
    await asyncio.sleep(1)  # the disk comes to rest, too
    return found


async def timed_appends(store: LocalStore, frames: list[UnplacedFrame]) -> dict[str, float]:
    started, before = time.perf_counter(), getrusage(RUSAGE_SELF)
    await append_all(store, frames)
    took, after = time.perf_counter() - started, getrusage(RUSAGE_SELF)
    records = len(frames) * RECORDS
    return {
        "append_records_per_s": records / took,
        "append_user_ns": (after.ru_utime - before.ru_utime) / records * 1e9,
        "append_system_ns": (after.ru_stime - before.ru_stime) / records * 1e9,
    }


def bare_system_ns(directory: Path, frames: Sequence[UnplacedFrame], records: int) -> float:
    """Returns the system's time for each record when its bytes alone are written and synced, as many at a time."""
    parts = [part for frame in frames[:WINDOW] for part in (frame.rows, frame.payload)]
    with (directory / "bare").open("wb", buffering=0) as file:
        before = getrusage(RUSAGE_SELF).ru_stime
        for _ in range(max(records // RECORDS // WINDOW, 1)):
            os.writev(file.fileno(), parts)
            os.fdatasync(file.fileno())
        spent = getrusage(RUSAGE_SELF).ru_stime - before
        written = file.tell()
    (directory / "bare").unlink()
    return spent / written * (ROW.size + SIZE_BYTES) * 1e9


async def each_us(look: Look, looks: int = LOOKS) -> float:
    """Returns the time of one look, measured one after the other."""
    started = time.perf_counter()
    for _ in range(looks):
        await look()
    return (time.perf_counter() - started) / looks * 1e6


async def one_pass(
    store: LocalStore, frames: Sequence[UnplacedFrame], chance: random.Random, cold: Path | None
) -> dict[str, float]:
    """Measures everything once; with `cold` only random fetches, from disk and named so."""
    ends = {
        queue: (await store.queues.bounds(queue)).next
        for queue in map(QueueNumber, range(FIRST_QUEUE, FIRST_QUEUE + 64))
    }
    queues = list(ends)

    def newest() -> Awaitable[object]:
        queue = chance.choice(queues)
        return store.queues.fetch(queue, QueueOffset(ends[queue] - RECORDS), max_bytes=FETCH_BYTES)

    def anywhere() -> Awaitable[object]:  # but where the cache of frames has nothing of a short log either
        queue = chance.choice(queues)
        return store.queues.fetch(queue, QueueOffset(chance.randrange(ends[queue] * 6 // 10)), max_bytes=FETCH_BYTES)

    if cold is not None:
        drop_cache(cold)
        return {"fetch_random_cold_us": await each_us(anywhere, COLD_LOOKS)}

    def key() -> Awaitable[object]:
        return store.keys.get(f"key/{chance.randrange(KEYS):07}", namespace="bench")

    def address() -> int:
        return chance.randrange(ADDRESSES) + 1

    return {
        "fetch_newest_us": await each_us(newest),
        "fetch_random_us": await each_us(anywhere),
        "kv_get_us": await each_us(key),
        "find_us": await each_us(lambda: store.log.find(IndexKind.ADDRESS, address(), limit=1)),
        "find_100_us": await each_us(lambda: store.log.find(IndexKind.ADDRESS, address(), limit=100)),
        "last_us": await each_us(lambda: store.log.last(address())),
    }


async def measure_case(directory: Path, *, lengths: Sequence[int]) -> Rows:
    """Measures the lengths in their order, in records."""
    chance = random.Random(1)
    frames, rows, length = build(chance), [], 0
    async with await LocalStore.open(directory, scrub_bytes_per_s=0) as store:
        await put_keys(store)
        for wanted in lengths:
            forget_peak()
            found = await fill(store, frames, wanted - length, directory)
            for cold in (None, directory):  # the cold ones last: they leave the log out of the page cache
                passes = [await one_pass(store, frames, chance, cold) for _ in range(PASSES)]
                found |= {key: statistics.median(one[key] for one in passes) for key in passes[0]}
            log_bytes = sum(path.stat().st_size for path in (directory / "log").iterdir())
            views_bytes = (directory / "views" / "data.mdb").stat().st_size
            length = wanted
            found |= {
                "log_mb": log_bytes / 1e6,
                "views_bytes": views_bytes / length,
                "peak_mb": memory_mb("VmHWM"),
                "anonymous_mb": memory_mb("RssAnon"),
            }
            rows.append((f"{wanted:,} records", found))
    return rows
