"""A cluster of processes that is hurt again and again while clients work, and what they were told meanwhile."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable

import httpx
from kv_workload import Client, Conflict
from linearizability import Recording
from senders import KINDS, Sender

from gateway.local_cluster import LocalCluster, Node

__all__ = ["FaultRun", "Proxy", "Publisher"]

HURT_S = (0.5, 4.0)  # how long something stays away
QUIET_S = 30.0  # until everything works again
PORTS = {"mqtt": 1883, "amqp": 5672, "http": 8080, "coap": 5683, "rpc": 8081}


class Proxy:
    """A proxy, as senders see a gateway."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.offset = node.port - PORTS["mqtt"]

    def port(self, name: str) -> int:
        return PORTS[name] + self.offset

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port('http')}"


class Publisher:
    """A sender that begins anew, at any proxy, whenever its connection ends."""

    def __init__(self, kind: type[Sender], name: str, proxies: list[Proxy], chance: random.Random) -> None:
        self.name, self.acked, self.lives = name, [], 0
        self._kind, self._proxies, self._chance = kind, proxies, chance
        self._next = 0
        self._sender: Sender | None = None

    def keep_going(self) -> None:
        """See that it is sending."""
        if self._sender is None or not self._sender.is_alive():
            self.gather()
            self._sender = self._kind(self._chance.choice(self._proxies), self.name, self._next)
            self._sender.start()
            self.lives += 1

    def gather(self) -> None:
        """Take over what its last life has come to."""
        if self._sender is not None:
            self._next = self._sender.next
            self.acked += self._sender.acked
            self._sender = None

    @property
    def count(self) -> int:
        return len(self.acked) + (len(self._sender.acked) if self._sender is not None else 0)


class Keys:
    """The KV over HTTP, at any proxy; what a call has come to is unknown when it fails."""

    def __init__(self, proxies: list[Proxy], chance: random.Random) -> None:
        self._clients = [httpx.AsyncClient(base_url=proxy.url, timeout=15, trust_env=False) for proxy in proxies]
        self._chance = chance

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    def _any(self) -> httpx.AsyncClient:
        return self._chance.choice(self._clients)

    async def get(self, key: str) -> tuple[bytes, int] | None:
        answer = await self._any().get(f"/kv/{key}")
        if answer.status_code == 404:
            return None
        return answer.raise_for_status().content, int(answer.headers["etag"].strip('"'))

    async def put(self, key: str, value: bytes, expected: int | None) -> int:
        return int(
            self._done(await self._any().put(f"/kv/{key}", content=value, headers=_if(expected))).json()["revision"]
        )

    async def delete(self, key: str, expected: int | None) -> bool:
        answer = await self._any().delete(f"/kv/{key}", headers=_if(expected))
        return answer.status_code != 404 and self._done(answer).status_code == 204

    @staticmethod
    def _done(answer: httpx.Response) -> httpx.Response:
        if answer.status_code == 412:
            raise Conflict(answer.json()["revision"])
        return answer.raise_for_status()


def _if(expected: int | None) -> dict[str, str]:
    if expected is None:
        return {}
    return {"if-match": f'"{expected}"'} if expected else {"if-none-match": "*"}


class FaultRun:
    """`hurt` does one thing at random and waits until the cluster is whole again; `said` counts what was done."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.proxies = [Proxy(node) for node in cluster.nodes if node.role == "proxy"]
        self.publishers = [
            Publisher(kind, name, self.proxies, self.chance) for name, kind in KINDS.items() if name != "coap"
        ]
        self.recording = Recording()
        self.said: Counter[str] = Counter()
        self.longest_s = 0.0  # that no publisher was acknowledged anything
        self._keys = Keys(self.proxies, self.chance)
        self._clients: list[asyncio.Task[None]] = []

    # ---- clients

    def start_clients(self, count: int) -> None:
        """Let clients of the KV work until `stop_clients`."""
        self._clients = [
            asyncio.ensure_future(self._work(Client(n, self._keys, self.recording, self.chance))) for n in range(count)
        ]

    async def stop_clients(self) -> None:
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._keys.close()

    async def _work(self, client: Client) -> None:
        while True:
            try:
                await client.step()
            except httpx.HTTPError:
                await asyncio.sleep(0.05)

    async def keep_going(self, seconds: float = 0.0, *, until: Callable[[], bool] = lambda: True) -> bool:
        """Keep the publishers at work for a time, and then until something is so; whether it came to be."""
        began = last = time.monotonic()
        count = sum(one.count for one in self.publishers)
        while True:
            for one in self.publishers:
                one.keep_going()
            await asyncio.sleep(0.02)
            now = time.monotonic()
            if (more := sum(one.count for one in self.publishers)) > count:
                count, last = more, now
            self.longest_s = max(self.longest_s, now - last)
            if now - began >= seconds and await asyncio.to_thread(until):
                return True
            if now - began > seconds + QUIET_S:
                return False

    # ---- faults

    async def hurt(self) -> str:
        """One fault, and its end; what it was. Fails when the cluster does not recover."""
        chance = self.chance
        node = chance.choice(self.cluster.nodes)
        how = chance.choice([self._killed, self._killed, self._frozen, self._restarted])
        what = f"{how.__name__.strip('_')} {node.name}"
        self.said[f"{how.__name__.strip('_')} {node.role}"] += 1
        await how(node.name)
        counts = {one.name: one.count for one in self.publishers}
        assert await self.keep_going(until=self._whole), f"after {what}: not ready: {self._not_ready()}"
        again = await self.keep_going(until=lambda: all(one.count > counts[one.name] for one in self.publishers))
        assert again, (
            f"after {what}: {[one.name for one in self.publishers if one.count <= counts[one.name]]} stand still"
        )
        return what

    async def _killed(self, name: str) -> None:
        await asyncio.to_thread(self.cluster.stop, name, kill=True)
        await self.keep_going(self.chance.uniform(*HURT_S))
        self.cluster.start(name)

    async def _frozen(self, name: str) -> None:
        pid = self.cluster.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            await self.keep_going(self.chance.uniform(*HURT_S))
        finally:
            os.kill(pid, signal.SIGCONT)

    async def _restarted(self, name: str) -> None:
        stopping = asyncio.ensure_future(asyncio.to_thread(self.cluster.stop, name))
        while not stopping.done():
            await self.keep_going(0.1)
        self.cluster.start(name)

    def _not_ready(self) -> list[str]:
        return [node.name for node in self.cluster.nodes if not self.cluster.ready(node.name)]

    def _whole(self) -> bool:
        return not self._not_ready()
