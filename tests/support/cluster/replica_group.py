"""A store group of real processes, as its controller and each replica's admin port tell of it."""

import asyncio
import contextlib
import json
import urllib.request
from pathlib import Path
from typing import Any

from controller.api.client import ControllerError, Group
from controller.api.commands import RaiseQueues
from gateway.operating.switching import CannotHandOver, switch_over
from store.remoting import RemoteStore
from tests.support.process.waiting import until

PATIENCE_S = 60.0
NEXT_QUEUE = 1_000  # tests write to queues below, as if controllers had given their numbers to topics


class ReplicaGroup:
    """Group 0 of a cluster of processes, a client of its store, and the controllers."""

    def __init__(self, cluster: Any, controller: Any) -> None:
        self.cluster, self.controller = cluster, controller
        self.names: list[str] = [node.name for node in cluster.nodes if node.role == "store"]

        def resolve() -> str | None:
            replica = self.group.replica(self.group.master) if self.group.master is not None else None
            return replica.address if replica is not None else None

        self.store = RemoteStore(0, resolve, budget_s=PATIENCE_S)
        controller.watch(self.store.moved)

    @property
    def group(self) -> Group:
        found: Group = self.controller.group(0)
        return found

    @property
    def master(self) -> str:
        """Returns the master's name, "" while there is none."""
        replica = self.group.replica(self.group.master) if self.group.master is not None else None
        return replica.node if replica is not None else ""

    @property
    def in_sync(self) -> set[str]:
        return {self.group.replica(id_).node for id_ in self.group.sync_set}

    def status(self, name: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.cluster.node(name).admin_port}/status"
        with urllib.request.urlopen(url, timeout=90) as page:
            found: dict[str, Any] = json.load(page)
            return found

    def segments(self, name: str) -> list[Path]:
        return sorted((self.cluster.plan.directory / "data" / name / "log").iterdir())

    async def begin(self) -> None:
        """Waits until all replicas are in sync, and lets tests write to queues without topics."""
        await self.whole()
        await self.controller.do(RaiseQueues(next_queue=NEXT_QUEUE))

    async def whole(self) -> None:
        """Waits until all replicas are in sync."""
        await until(lambda: self.in_sync == set(self.names), PATIENCE_S)

    async def stop(self, name: str) -> None:
        """Stops a replica, and waits until another one is the master."""
        await asyncio.to_thread(self.cluster.stop, name)
        await until(lambda: self.master not in {name, ""}, PATIENCE_S)

    async def lead(self, name: str) -> None:
        """Switches over to a replica, as soon as its master takes it for sound."""
        async with asyncio.timeout(PATIENCE_S):
            while self.master != name:
                ids = [one.id for one in self.group.replicas if one.node == name]
                with contextlib.suppress(CannotHandOver, ControllerError):
                    await switch_over(self.controller, 0, max(ids))
                await asyncio.sleep(0.05)

    async def ready(self, name: str) -> None:
        await until(lambda: self.cluster.ready(name), PATIENCE_S)
