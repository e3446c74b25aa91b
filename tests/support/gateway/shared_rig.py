"""Shared subscriptions over one store."""

import asyncio

from gateway.ownership.owners import LocalOwners
from gateway.port.shared import JoinShared, LeaveShared, SharedName
from gateway.queues.shared.subscriptions import SharedSubscriptions
from tests.support.gateway.queues_rig import QueuesRig

LIGHTS = SharedName("g", "a/+/light")


class Sessions:
    """The sessions by connection: `s{id}`, unless the connection has none."""

    def __init__(self):
        self.without = set()
        self.there = set()

    def key_of(self, conn):
        return None if conn.id in self.without else f"s{conn.id}"

    def holds(self, key):
        return key in self.there


class SharedRig(QueuesRig):
    """One process with shared subscriptions."""

    groups_max = 3

    def begin(self):
        super().begin()
        self.sessions = Sessions()
        self.tasks = set()
        owners = getattr(self, "owners", None) or LocalOwners(self.store)
        self.shared = SharedSubscriptions(
            self.store, owners, self.queues.registry, self.sessions, groups_max=self.groups_max, spawn=self.spawn
        )

    def spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def rest(self):
        """Waits until no removal is in flight."""
        while self.tasks:
            await asyncio.gather(*self.tasks)

    async def join(self, conn, *names):
        self.sessions.there.add(f"s{conn.id}")
        answers = await self.shared.join(conn, JoinShared(names=names))
        return answers[0] if len(names) == 1 else answers

    async def leave(self, conn, *names):
        await self.shared.leave(conn, LeaveShared(names=names))
        await self.rest()

    async def end(self, conn, *, lasting=True):
        self.sessions.there.discard(f"s{conn.id}")
        await self.shared.ended(f"s{conn.id}", lasting=lasting)
        await self.rest()

    @property
    def names(self):
        return [queue.definition.name for queue in self.queues.registry.shared]
