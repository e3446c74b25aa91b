"""Straight to a group's stores: single records, keys, and how long a replica that has lost everything takes."""

import asyncio
import random
import shutil
import time
from pathlib import Path
from typing import Any

from store.api.log import Appended
from store.base.errors import StoreError
from store.format.frame import UnplacedFrame
from store.remoting import RemoteStore
from tests.bench.cluster.rig import BenchCluster, running
from tests.bench.procfs import cpu_s
from tests.bench.store.store_append import build, throughput
from tests.bench.store.studies import Rows

WARM_UP_S = 0.5
CLIENTS = 64
RECORD_BYTES = 150
REBUILT_S = 900.0  # at most, until a replica is filled again


async def measure_case(directory: Path, *, what: str, **case: Any) -> Rows:
    """Measures one of the two cases."""
    return await {"calls": _calls, "rebuild": _rebuild}[what](directory, **case)


async def append_times(store: RemoteStore, frame: UnplacedFrame, seconds: float) -> list[float]:
    """Returns the durations of appends, one after the other; ascending."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        done: asyncio.Future[Appended | StoreError] = asyncio.get_running_loop().create_future()
        store.log.append(frame, done.set_result)
        assert isinstance(await done, Appended)
        taken.append(time.perf_counter() - begun)
    return sorted(taken)


# ---- what replicas cost


async def _calls(directory: Path, *, replicas: int, seconds: float) -> Rows:
    """Appends of single records, many at a time and one by one, then gets of a key."""
    chance = random.Random(1)
    frames = [build(1, RECORD_BYTES, 8, 1_000, chance) for _ in range(64)]
    async with running(directory, replicas=replicas, proxies=0) as rig:
        store = rig.store()
        await store.connected()
        await throughput(store, frames, min(seconds, WARM_UP_S))
        before = _cpu(rig)
        flat_out = await throughput(store, frames, seconds)
        records_per_s = flat_out["records_per_s"]
        found = {"records_per_s": records_per_s, "cpu_us": (_cpu(rig) - before) / (records_per_s * seconds) * 1e6}
        found |= _percentiles("append", await append_times(store, frames[0], seconds))
        await store.keys.put("k", b"v" * 100)
        found |= _percentiles("get", await _gets(store, seconds, 1))
        found["gets_per_s"] = len(await _gets(store, seconds, CLIENTS)) / seconds
        await store.close()
    return [(f"{replicas} replica{'s' if replicas > 1 else ''}, {min(2, replicas)} in sync", found)]


def _cpu(rig: BenchCluster) -> float:
    return sum(cpu_s(rig.cluster.pid(node.name)) for node in rig.stores)


async def _gets(store: RemoteStore, seconds: float, clients: int) -> list[float]:
    taken: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        while (begun := time.perf_counter()) < until:
            assert await store.keys.get("k") is not None
            taken.append(time.perf_counter() - begun)

    await asyncio.gather(*(client() for _ in range(clients)))
    return sorted(taken)


def _percentiles(name: str, taken: list[float]) -> dict[str, float]:
    return {
        f"{name}_p50_us": taken[len(taken) // 2] * 1e6,
        f"{name}_p99_us": taken[len(taken) * 99 // 100] * 1e6,
    }


# ---- an empty replica


async def _rebuild(directory: Path, *, mb: int) -> Rows:
    """Measures how long a replica without any data takes to come back, while nothing else runs."""
    chance = random.Random(1)
    frames = [build(100, RECORD_BYTES, 8, 1_000, chance) for _ in range(64)]
    async with running(directory, proxies=0) as rig:
        store = rig.store()
        await store.connected()
        while store.log.confirmed < mb * 1_000_000:
            await throughput(store, frames, min(1.0, mb / 100))
        size = store.log.confirmed
        name = next(node.name for node in rig.stores if node.name != rig.master)
        await asyncio.to_thread(rig.cluster.stop, name)
        await rig.until(lambda: len(rig.group.sync_set) == 2)
        shutil.rmtree(directory / "data" / name)
        began = time.perf_counter()
        rig.cluster.start(name)
        await rig.whole(patience_s=REBUILT_S)
        took = time.perf_counter() - began
        await store.close()
    return [(f"{mb:,} MB", {"rebuild_s": took, "mb_per_s": size / took / 1e6})]
