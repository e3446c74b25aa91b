"""A whole cluster on this machine: its processes are started in order, watched, and stopped."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

from controller.api.client import ControllerUnreachable, GroupConfig
from controller.api.commands import AddGroup
from controller.remote.remote import RemoteController
from gateway.operating.asking import asked
from gateway.process.local_cluster import ClusterPlan, LocalCluster
from gateway.process.supervisor import READY_POLL_S
from store.base.runner import ServerRun
from store.base.streams.event_wait import wait_at_most

ROLES = ("controller", "store", "proxy")  # in the order in which they are started
WATCH_S = 0.5  # between two looks whether all processes run

# Shows a line to the operator: of progress, of a process that is waited for, or of one that has ended.
Show: TypeAlias = Callable[[str, Literal["progress", "waiting", "ended"]], object]


async def run_cluster(run: ServerRun, cluster: LocalCluster, show: Show) -> None:
    """Runs a cluster until the process is asked to stop. Raises `ChildFailed`, `ControllerError`, OSError."""
    run.stack.push_async_callback(asyncio.to_thread, cluster.stop_all)
    await run.start(_started(cluster, show))
    gone: set[str] = set()
    while not run.stopped.is_set():
        for node in cluster.nodes:
            if not cluster.running(node.name) and node.name not in gone:
                gone.add(node.name)
                show(cluster.describe_end(node.name), "ended")
        await wait_at_most(run.stopped, WATCH_S)


async def _started(cluster: LocalCluster, show: Show) -> None:
    """Starts the processes, those of a role when all of the one before are ready."""

    def waiting(left: Mapping[str, str]) -> None:
        for name, why in left.items():
            show(f"waiting for {name}: {why}", "waiting")

    cluster.write()
    for role in ROLES:
        names = cluster.of_role(role)
        for name in names:
            cluster.start(name)
        await _ready(cluster, names, show, waiting)
        if role == "controller":
            await _make_groups(cluster, names, waiting)
    ports = ", ".join(str(node.port) for node in cluster.nodes if node.role == "proxy")
    show(
        f"\nready: MQTT on {ports}; all in {cluster.plan.directory}; stop with Ctrl-C\n"
        f"look at it: headgate cluster status --controllers {','.join(cluster.plan.addresses.values())}",
        "progress",
    )


async def _ready(
    cluster: LocalCluster, names: Sequence[str], show: Show, waiting: Callable[[Mapping[str, str]], object]
) -> None:
    """Waits for processes as long as they run, and shows each that is ready. Raises `ChildFailed`."""
    troubles: dict[str, str | None] = dict.fromkeys(names, "starting")
    for ready in cluster.becoming_ready(names, troubles.__getitem__, timeout_s=None, waiting=waiting):
        for name in ready:
            node = cluster.node(name)
            show(f"{name:14} port {node.port}, admin {node.admin_port}", "progress")
        left = [name for name, trouble in troubles.items() if trouble is not None]
        found = await asyncio.gather(*(asyncio.to_thread(cluster.trouble, name) for name in left))
        troubles.update(zip(left, found, strict=True))
        await asyncio.sleep(READY_POLL_S)


async def _make_groups(
    cluster: LocalCluster, controllers: Sequence[str], waiting: Callable[[Mapping[str, str]], object]
) -> None:
    """Creates the groups at the controllers; waits as long as these run. Raises `ChildFailed`."""
    plan = cluster.plan
    while True:
        try:
            await asked(list(plan.addresses.values()), partial(_add_groups, plan))
        except ControllerUnreachable as error:
            cluster.check_running(controllers)
            waiting(dict.fromkeys(controllers, str(error)))
        else:
            return


async def _add_groups(plan: ClusterPlan, controller: RemoteController) -> None:
    config = GroupConfig(replicas=plan.replicas, min_in_sync=plan.min_in_sync)
    for number in range(plan.groups):
        if controller.group(number) is None:
            await controller.do(AddGroup(number=number, config=config))
