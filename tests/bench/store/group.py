"""A store group of real processes on this machine: what replicas cost, and how long a lost one takes to come back."""

import asyncio
import random
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import AsyncGeneratorType
from typing import Any

from controller.client import GroupConfig
from controller.remote import RemoteController
from gateway.local_cluster import LocalCluster, Plan, nodes
from store.client import Appended
from store.errors import StoreError
from store.format import UnplacedFrame
from store.remoting import RemoteStore
from tests.bench.procfs import cpu_s
from tests.bench.store.studies import Rows
from tests.bench.store_append import build, throughput

WARM_UP_S = 0.5
PATIENCE_S = 600.0
POLL_S = 0.002
CLIENTS = 64
KEYS = 1_000


def _free(plan: Plan) -> bool:
    for node in nodes(plan):
        for port in (node.port, node.admin_port):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return False
    return True


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(POLL_S)


class _Group:
    """The processes of a group, its controller, and a client."""

    def __init__(self, cluster: LocalCluster, controller: RemoteController) -> None:
        self.cluster, self.controller = cluster, controller
        self.names = [node.name for node in cluster.nodes if node.role == "store"]
        self.store = RemoteStore(0, self.address, budget_s=60)
        controller.watch(self.store.moved)

    def address(self) -> str | None:
        group = self.controller.group(0)
        found = group.replica(group.master) if group is not None and group.master is not None else None
        return found.address if found is not None else None

    @property
    def group(self) -> Any:
        return self.controller.group(0)

    @property
    def master(self) -> str:
        return str(self.group.replica(self.group.master).node)

    async def whole(self) -> None:
        await _until(lambda: self.group is not None and len(self.group.sync_set) == len(self.names))

    def cpu(self) -> float:
        return sum(cpu_s(self.cluster.pid(name)) for name in self.names)


@asynccontextmanager
async def _running(directory: Path, replicas: int, min_in_sync: int) -> "AsyncGeneratorType[_Group, None]":
    offsets = range(14_000, 40_000, 700)
    plans = (Plan(directory, controllers=1, groups=1, replicas=replicas, proxies=0, port_offset=at) for at in offsets)
    cluster = LocalCluster(next(plan for plan in plans if _free(plan)))
    controller = RemoteController(
        list(cluster.plan.addresses.values()), now_ms=lambda: time.time_ns() // 1_000_000, budget_s=60
    )
    try:
        cluster.write()
        for node in cluster.nodes:
            cluster.start(node.name)
        await controller.ready()
        await controller.add_group(0, GroupConfig(replicas=replicas, min_in_sync=min_in_sync))
        group = _Group(cluster, controller)
        await group.whole()
        await group.store.connected()
        yield group
        await group.store.close()
    finally:
        await controller.close()
        await asyncio.to_thread(cluster.stop_all)


async def measure_case(directory: Path, *, what: str, **case: Any) -> Rows:
    """One of the two."""
    return await {"cost": _cost, "rebuild": _rebuild}[what](directory, **case)


# ---- what replicas cost


async def _cost(directory: Path, *, replicas: int, seconds: float) -> Rows:
    chance = random.Random(1)
    frames = {count: [build(count, 150, 8, 1_000, chance) for _ in range(64)] for count in (100, 1)}
    async with _running(directory, replicas, min(2, replicas)) as group:
        store = group.store
        found: dict[str, float] = {}
        for count, some in frames.items():
            await throughput(store, some, min(seconds, WARM_UP_S))
            before = group.cpu()
            flat_out = await throughput(store, some, seconds)
            cpu = (group.cpu() - before) / (flat_out["frames_per_s"] * seconds) * 1e6
            found |= {
                f"records_per_s_{count}": flat_out["records_per_s"],
                f"mb_per_s_{count}": flat_out["mb_per_s"],
                f"cpu_us_per_frame_{count}": cpu,
            }
        found |= _percentiles("append", await _one_by_one(store, frames[1][0], seconds))
        await store.kv_put("k", b"v" * 100)
        found |= _percentiles("get", await _gets(store, seconds, 1))
        taken = await _gets(store, seconds, CLIENTS)
        found["gets_per_s"] = len(taken) / seconds
    name = f"{replicas} replica{'s' if replicas > 1 else ''}, {min(2, replicas)} in sync"
    return [(name, found)]


async def _one_by_one(store: RemoteStore, frame: UnplacedFrame, seconds: float) -> list[float]:
    loop, taken = asyncio.get_running_loop(), []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        done: asyncio.Future[Appended | StoreError] = loop.create_future()
        store.append(frame, done.set_result)
        assert isinstance(await done, Appended)
        taken.append(time.perf_counter() - begun)
    return taken


async def _gets(store: RemoteStore, seconds: float, clients: int) -> list[float]:
    taken: list[float] = []
    until = time.perf_counter() + seconds

    async def client() -> None:
        while (begun := time.perf_counter()) < until:
            assert await store.kv_get("k") is not None
            taken.append(time.perf_counter() - begun)

    await asyncio.gather(*(client() for _ in range(clients)))
    return taken


def _percentiles(name: str, taken: list[float]) -> dict[str, float]:
    taken.sort()
    return {
        f"{name}_p50_us": taken[len(taken) // 2] * 1e6,
        f"{name}_p99_us": taken[len(taken) * 99 // 100] * 1e6,
    }


# ---- an empty replica


async def _rebuild(directory: Path, *, mb: int) -> Rows:
    """A replica that has lost all it had comes back, while nothing else is going on."""
    chance = random.Random(1)
    frames = [build(100, 150, 8, 1_000, chance) for _ in range(64)]
    async with _running(directory, 3, 2) as group:
        name = next(name for name in group.names if name != group.master)
        while group.store.confirmed < mb * 1_000_000:
            await throughput(group.store, frames, 1.0)
        size = group.store.confirmed
        await asyncio.to_thread(group.cluster.stop, name)
        await _until(lambda: len(group.group.sync_set) == 2)
        shutil.rmtree(directory / "data" / name)
        began = time.perf_counter()
        group.cluster.start(name)
        await group.whole()
        took = time.perf_counter() - began
    return [(f"{mb:,} MB", {"rebuild_s": took, "mb_per_s": size / took / 1e6})]
