"""Named queues of several proxies over one store."""

import asyncio
import random

from gateway.ownership.cluster_owners import ClusterOwners
from gateway.port.queues import (
    address_of,
)
from gateway.publishing.routing.router import Router
from gateway.queues.queues import NamedQueues
from store.api.message import Message
from store.remoting import RemoteStore
from tests.support.gateway.asking import ask
from tests.support.gateway.proxies_rig import TTL_S, renew
from tests.support.gateway.queues_rig import QueuesRig


class QueuesProxy(QueuesRig):
    """One process with a connection of its own to the store."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.store = RemoteStore(0, lambda: cluster.node.target, budget_s=60.0)
        self.controller = cluster.controller
        self.now_ms = 1_000
        self.conns = number * 100
        self.tasks = set()
        chance = random.Random(number)
        self.owners = ClusterOwners(self.store, ttl_s=TTL_S, random=chance, clock=cluster.clock.now_s, takeover_s=0.2)
        self.router = Router(self.controller)
        self.queues = NamedQueues(
            self.store, self.controller, self.router, owners=self.owners, random=chance, now_ms=lambda: self.now_ms
        )

    def spawn(self, work):
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def start(self):
        await self.store.connected()
        await self.queues.load()
        self.stop_watching = self.store.queues.watch(self.queues.appended)
        await self.owners.start(self.spawn)
        self.spawn(self.queues.follow())
        return self

    async def die(self):
        """Ends the process as kill -9 does."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.queues.close()
        await self.store.close()

    async def ask(self, request, conn=None):
        return await ask(conn or self.conn(), request, queues=self.queues)

    def routes(self, exchange, key):
        return self.router.named_queues(Message(address_of(exchange, key), b""))


class QueuesProxies:
    def __init__(self, store, node, controller, clock):
        self.store, self.node, self.controller, self.clock = store, node, controller, clock
        self.proxies = []

    async def proxy(self):
        proxy = QueuesProxy(self, len(self.proxies) + 1)
        self.proxies.append(proxy)
        return await proxy.start()

    async def lose(self, proxy, *living):
        await proxy.die()
        self.proxies.remove(proxy)
        for _ in range(int(TTL_S) + 1):
            self.clock.ms += 1_000
            for one in living:
                await renew(one.owners)
        while not all(one.owners.presence.settled for one in living):  # a busy machine was too slow in between
            self.clock.ms += 1_000
            for one in living:
                await renew(one.owners)
        await self.store.keys.look()

    async def keys(self, prefix):
        return [entry.key for entry in await self.store.keys.prefix(prefix)]
