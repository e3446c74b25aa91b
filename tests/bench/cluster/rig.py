"""A cluster of processes to measure: on loopback, or with a network between its nodes that takes time."""

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from controller.api.client import Group, GroupConfig
from controller.api.commands import AddGroup, CreateTopic
from controller.remote.remote import RemoteController
from gateway.process.local_cluster import ClusterPlan, ClusterProcess, LocalCluster, nodes
from store.remoting import RemoteStore
from tests.bench.load.base import Load, Measured
from tests.support.cluster.local_clusters import until_ready
from tests.support.cluster.network import Network

PATIENCE_S = 120.0
POLL_S = 0.002
QUEUES = 4
MTU = 65_000  # of the network: it is written in Python, and a packet costs the same whatever is in it
LOAD_S = 120.0
MQTT_PORT, PROXY_PORTS = 1883, (5672, 8080, 8081, 8083)  # where a proxy listens, but for its offset


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class BenchCluster:
    """The processes, their controllers, and what clients need."""

    def __init__(self, cluster: LocalCluster, controller: RemoteController, network: Network | None) -> None:
        self.cluster, self.controller, self.network = cluster, controller, network
        self.stores = [node for node in cluster.nodes if node.role == "store"]
        self.proxies = [node for node in cluster.nodes if node.role == "proxy"]

    @property
    def group(self) -> Group:
        found = self.controller.group(0)
        assert found is not None
        return found

    @property
    def master(self) -> str:
        """The name of the group's master."""
        group = self.group
        found = group.replica(group.master) if group.master is not None else None
        assert found is not None
        return found.node

    def store(self) -> RemoteStore:
        """Returns a client of the group that finds its master."""

        def address() -> str | None:
            group = self.group
            found = group.replica(group.master) if group.master is not None else None
            return None if found is None else found.address

        store = RemoteStore(0, address, budget_s=60)
        self.controller.watch(store.moved)
        return store

    async def whole(self, *, patience_s: float = PATIENCE_S) -> None:
        """Waits until every replica of every group is in sync."""
        await self.until(lambda: self._in_sync == len(self.stores), patience_s)

    @property
    def _in_sync(self) -> int:
        groups = [self.controller.group(number) for number in range(self.cluster.plan.groups)]
        return sum(len(group.sync_set) for group in groups if group is not None)

    async def until(self, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Waits for a condition. Raises TimeoutError."""
        async with asyncio.timeout(patience_s):
            while not condition():
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def running(
    directory: Path,
    *,
    controllers: int = 1,
    groups: int = 1,
    replicas: int = 3,
    proxies: int = 1,
    delay_ms: float | None = None,
) -> AsyncIterator[BenchCluster]:
    """Yields a whole cluster. With a delay, be it 0, every process has its own namespace, and packets between the
    processes, not those of clients, take this much longer each way.
    """
    plan = ClusterPlan(directory, controllers=controllers, groups=groups, replicas=replicas, proxies=proxies)
    network = None
    if delay_ms is None:
        offsets = random.sample(
            range(10_000, 22_600, 300), 30
        )  # below the ports that clients get; others start some too
        plan = next(one for offset in offsets if _free(one := plan._replace(port_offset=offset)))
        cluster = LocalCluster(plan)
    else:
        names = [node.name for node in nodes(plan)]
        network = Network(names, mtu=MTU)
        cluster = LocalCluster(
            plan._replace(hosts={name: network.addresses[name] for name in names}), under=network.under
        )
    controller = RemoteController(list(cluster.plan.addresses.values()), now_ms=_now_ms, budget_s=60)
    try:
        cluster.write()
        await _start(cluster, "controller")
        await controller.ready()
        config = GroupConfig(replicas=replicas, min_in_sync=min(2, replicas))
        for number in range(groups):
            await controller.do(AddGroup(number=number, config=config))
        await controller.do(CreateTopic(name="load", queues=QUEUES))
        await _start(cluster, "store")
        await _start(cluster, "proxy")
        rig = BenchCluster(cluster, controller, network)
        await rig.whole()
        if network is not None and delay_ms:
            network.trouble(delay_ms=delay_ms, clients=False)
        yield rig
    finally:
        await controller.close()
        await asyncio.to_thread(cluster.stop_all)
        if network is not None:
            network.close()


async def _start(cluster: LocalCluster, role: str) -> None:
    names = [node.name for node in cluster.nodes if node.role == role]
    for name in names:
        cluster.start(name)
    await asyncio.to_thread(until_ready, cluster, names, timeout_s=PATIENCE_S)


def _free(plan: ClusterPlan) -> bool:
    for node in nodes(plan):
        more = [node.port - MQTT_PORT + port for port in PROXY_PORTS] if node.role == "proxy" else []
        for port in (node.port, node.admin_port, *more):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return False
    return True


async def load_on(proxies: Sequence[ClusterProcess], loads: Sequence[Load]) -> Sequence[Measured]:
    """Puts a load on each proxy at the same time, each from another process. Raises RuntimeError when one fails."""
    return await asyncio.gather(
        *(
            asyncio.to_thread(_load, msgspec.structs.replace(load, host=node.host, port=node.port))
            for node, load in zip(proxies, loads, strict=True)
        )
    )


def _load(load: Load) -> Measured:
    command = (sys.executable, "-m", "tests.bench.load", msgspec.json.encode(load).decode())
    done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_S, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1:])
    return msgspec.json.decode(done.stdout, type=Measured)
