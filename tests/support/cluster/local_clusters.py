"""Clusters of processes for tests: on ports that are free, started in order, and stopped whatever happens."""

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup
from controller.remote.remote import RemoteController
from gateway.process.local_cluster import ClusterPlan, LocalCluster, nodes
from gateway.process.supervisor import READY_POLL_S
from store.base.clock import now_ms
from tests.support.process.child import in_a_child
from tests.support.process.ports import PORTS, free_offset

ROLES = ("controller", "store", "proxy")  # in the order in which they need each other
PATIENCE_S = 240.0  # until those of a role are ready, however busy the machine is


def ports_of(plan: ClusterPlan) -> set[int]:
    """Returns every port that a cluster takes."""
    taken = set()
    for node in nodes(plan):
        taken |= {node.port, node.admin_port}
        if node.role == "proxy":
            taken |= {node.port - PORTS["mqtt"] + port for port in PORTS.values()}
    return taken


def on_free_ports(plan: ClusterPlan, *, but: Collection[int] = ()) -> ClusterPlan:
    """Returns the same plan on ports that are free now and are not in `but`."""

    def ports(offset: int) -> set[int]:
        return ports_of(plan._replace(port_offset=offset))

    return plan._replace(port_offset=free_offset(ports, but=but))


@contextlib.asynccontextmanager
async def controller_of(plan: ClusterPlan) -> AsyncIterator[RemoteController]:
    """Yields a client of a cluster's controllers."""
    controller = RemoteController(list(plan.addresses.values()), now_ms=now_ms)
    try:
        await controller.ready()
        yield controller
    finally:
        await controller.close()


async def all_groups(plan: ClusterPlan) -> None:
    """Adds the planned groups, with as many replicas as are planned."""
    config = GroupConfig(replicas=plan.replicas, min_in_sync=plan.min_in_sync)
    async with controller_of(plan) as controller:
        for group in range(plan.groups):
            await controller.do(AddGroup(number=group, config=config))


def until_ready(cluster: LocalCluster, names: Sequence[str], *, timeout_s: float = 60.0) -> None:
    """Waits until processes can serve. Raises `ChildFailed`."""
    for _ in cluster.becoming_ready(names, cluster.trouble, timeout_s=timeout_s):
        time.sleep(READY_POLL_S)


@contextlib.contextmanager
def started(
    plan: ClusterPlan,
    prepare: Callable[[ClusterPlan], Coroutine[Any, Any, None]] | None = None,
    *,
    roles: Sequence[str] = ROLES,
    every: str = "",
    proxies: str = "",
    stores: str = "",
    under: Callable[[str], Sequence[str]] = lambda name: (),
) -> Iterator[LocalCluster]:
    """Yields a cluster whose processes of these roles are ready, and stops it at the end.

    `prepare`, a function of a module, is called in a process of its own as soon as there are controllers. `every` is
    configuration of every process's, `proxies` of every proxy's, `stores` of every store's section `[store]`, `under`
    as for `LocalCluster`.
    """
    cluster = LocalCluster(plan, under=under)
    cluster.write()
    for node in cluster.nodes:
        if node.role == "store" and stores:
            path = plan.directory / f"{node.name}.toml"
            path.write_text(path.read_text().replace("[store]\n", f"[store]\n{stores}"))
        with (plan.directory / f"{node.name}.toml").open("a") as file:
            file.write(every + (proxies if node.role == "proxy" else ""))
    try:
        for role in roles:
            names = [node.name for node in cluster.nodes if node.role == role]
            for name in names:
                cluster.start(name)
            until_ready(cluster, names, timeout_s=PATIENCE_S)
            if role == "controller" and prepare is not None:
                in_a_child(prepare, plan)
        yield cluster
    finally:
        cluster.stop_all()
