"""Measures what a cluster takes of a processor while nobody uses it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gateway.process.local_cluster import ClusterProcess
from tests.bench.cluster.rig import BenchCluster, running
from tests.bench.procfs import cpu_s, switches
from tests.bench.store.studies import Rows

SETTLE_S = 5.0  # from the start to the first look: until then replicas get in sync, and files are opened


class _Spent(NamedTuple):
    """The processor time of some processes so far, and how often their threads have gone to sleep."""

    cpu_s: float
    switches: int


async def measure_case(directory: Path, *, seconds: float, settle_s: float = SETTLE_S) -> Rows:
    """Measures the processor time of three controllers, two groups of three and two proxies that have nothing to do."""
    async with running(directory, controllers=3, groups=2, replicas=3, proxies=2) as rig:
        await asyncio.sleep(settle_s)
        roles = {role: [node for node in rig.cluster.nodes if node.role == role] for role in _ROLES}
        before = {role: _spent(rig, some) for role, some in roles.items()}
        await asyncio.sleep(seconds)
        after = {role: _spent(rig, some) for role, some in roles.items()}
        count = len(rig.cluster.nodes)
    percent = {role: (after[role].cpu_s - before[role].cpu_s) / seconds * 100 for role in roles}
    found = {"percent": sum(percent.values())}
    found |= {f"{role}_percent": percent[role] / len(some) for role, some in roles.items()}
    found["switches_per_s"] = sum(after[role].switches - before[role].switches for role in roles) / seconds
    return [(f"{count} processes", found)]


_ROLES = ("controller", "store", "proxy")


def _spent(rig: BenchCluster, some: Sequence[ClusterProcess]) -> _Spent:
    pids = [rig.cluster.pid(node.name) for node in some]
    return _Spent(sum(cpu_s(pid) for pid in pids), sum(switches(pid) for pid in pids))
