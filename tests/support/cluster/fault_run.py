"""A cluster of processes that is hurt again and again while clients work, and what they were told meanwhile."""

import asyncio
import bisect
import itertools
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

from gateway.process.local_cluster import ClusterProcess, LocalCluster
from store.integrity.views import DEATHS_MAX
from tests.support.cluster.faults import Fault
from tests.support.cluster.readiness import ControllerReadiness, Readiness, StoreReadiness
from tests.support.cluster.resenders import RESENDERS, Resender, misplaced
from tests.support.cluster.senders import KINDS, Refused, Sender, stored
from tests.support.cluster.small_disks import LITTLE_ROOM_BYTES
from tests.support.histories.kv_workload import Conflict, KvClient
from tests.support.histories.linearizability import NotDone, Recording, check_history

LMDB_SOURCE = "mdb.c:"  # in the words of an assertion that has ended a process
QUIET_S = 120.0  # until everything works again, beside other tests; nobody waits so long where all is well
STOP_S = 15.0
REST_S = 0.1  # after a refusal
LEFT_GAP = 1_000  # numbers that a client skips when it leaves a connection: the thread there may have begun with some
FULL_BYTES = LITTLE_ROOM_BYTES + (1 << 20)  # left on a disk that is full: less than a store keeps in reserve
PACE_S = (
    0.02  # between what a client asks for: faults are to be met in the middle of work, not of a queue for the processor
)

logging.getLogger("pika").setLevel(logging.CRITICAL)  # connections that end are what happens here
PORTS = {"mqtt": 1883, "amqp": 5672, "http": 8080, "coap": 5683, "rpc": 8081}


class ProxyAddress:
    """A proxy, as senders see a gateway."""

    def __init__(self, node: ClusterProcess) -> None:
        self.name, self.host = node.name, node.host
        self.offset = node.port - PORTS["mqtt"]

    def port(self, name: str) -> int:
        return PORTS[name] + self.offset

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port('http')}"


class LoadPublisher:
    """A sender that begins anew, at any proxy, whenever its connection ends. `errors` counts why, `refused` is what it
    was told where a server was there and said no."""

    def __init__(self, kind: type[Sender], name: str, proxies: Sequence[ProxyAddress], chance: random.Random) -> None:
        self.name, self.kind, self.acked, self.lives = name, name.rpartition("-")[2], [], 0
        self.errors: Counter[str] = Counter()
        self.refused: list[str] = []
        self._sends, self._proxies, self._chance, self.logged = kind, proxies, chance, kind.logged
        self.readiness: Readiness | None = None
        self._next = 0
        self._firsts: list[int] = []  # of each life
        self._rest_until = 0.0
        self._sender: Sender | None = None
        self._left: list[Sender] = []  # that may be answered still
        self._avoided = ""  # a proxy that it does not go to
        self.memory = kind.Memory() if issubclass(kind, Resender) else None

    def keep_going(self) -> None:
        """See that it is sending."""
        if self._sender is not None and not self._sender.is_alive():
            self.gather()
        if self._sender is None and time.monotonic() >= self._rest_until:
            proxy = self._chance.choice([one for one in self._proxies if one.name != self._avoided])
            known = () if self.memory is None else (self.memory,)
            self._sender = self._sends(proxy, self.name, self._next, *known)
            self._sender.pace_s = PACE_S
            self._sender.start()
            self._firsts.append(self._next)
            self.lives += 1

    def leave(self, proxy: str) -> None:
        """Goes to another proxy now, whatever is not answered, and never to this one; "": to any again."""
        self._avoided = proxy
        if proxy and self._sender is not None and self._sender.gateway.name == proxy:
            self._sender.stopping = True
            self._left.append(self._sender)
            self._next, self._sender = self._sender.next + LEFT_GAP, None

    def stop(self) -> None:
        """Ends the senders, also those that it has left, and counts what they were acknowledged."""
        for one in (*self._left, *filter(None, [self._sender])):
            one.stopping = True
            one.join(STOP_S)
            assert not one.is_alive(), self.name
        self.acked += [number for one in self._left for number in one.acked]
        self._left = []
        self.gather()

    def gather(self) -> None:
        """Adds what the last sender was acknowledged, and how it ended."""
        if self._sender is not None:
            self._next = self._sender.next
            self.acked += self._sender.acked
            if self._sender.ended is not None:
                self.errors[type(self._sender.ended).__name__] += 1
            if self._sender.ended is not None and self.readiness is not None:
                self.readiness.refused(self._sender.gateway.name)
            if isinstance(self._sender.ended, Refused):
                self.refused.append(str(self._sender.ended))
                self._rest_until = time.monotonic() + REST_S
            self._sender = None

    def served(self) -> None:
        """Notes that this publisher was acknowledged one more message."""
        if self._sender is not None and self.readiness is not None:
            self.readiness.served(self._sender.gateway.name)

    def life(self, number: int) -> int:
        """Returns the life that sent a number."""
        return bisect.bisect_right(self._firsts, number)

    @property
    def count(self) -> int:
        return len(self.acked) + sum(len(one.acked) for one in (*self._left, *filter(None, [self._sender])))


class Keys:
    """The KV over HTTP, at any proxy, below a prefix. A call raises `NotDone` when it has had no effect; with any other
    error its outcome is unknown."""

    def __init__(self, proxies: Sequence[ProxyAddress], chance: random.Random) -> None:
        self.prefix = ""
        self._clients = [httpx.AsyncClient(base_url=proxy.url, timeout=15, trust_env=False) for proxy in proxies]
        self._chance = chance

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def get(self, key: str) -> tuple[bytes, int] | None:
        answer = await self._ask("GET", key)
        if answer.status_code == 404:
            return None
        return self._done(answer).content, int(answer.headers["etag"].strip('"'))

    async def put(self, key: str, value: bytes, expected: int | None) -> int:
        answer = await self._ask("PUT", key, content=value, headers=_if(expected))
        return int(self._done(answer).json()["revision"])

    async def delete(self, key: str, expected: int | None) -> bool:
        answer = await self._ask("DELETE", key, headers=_if(expected))
        return answer.status_code != 404 and self._done(answer).status_code == 204

    async def _ask(self, method: str, key: str, **rest: Any) -> httpx.Response:
        try:
            return await self._chance.choice(self._clients).request(method, f"/kv/{self.prefix}-{key}", **rest)
        except httpx.ConnectError as error:
            raise NotDone("no connection") from error

    @staticmethod
    def _done(answer: httpx.Response) -> httpx.Response:
        if answer.status_code == 412:
            raise Conflict(answer.json()["revision"])
        if answer.status_code == 503:  # 503 means that it was not done; 504 answers the others
            raise NotDone(f"{answer.status_code} {answer.text[:100]}")
        return answer.raise_for_status()


def _if(expected: int | None) -> dict[str, str]:
    if expected is None:
        return {}
    return {"if-match": f'"{expected}"'} if expected else {"if-none-match": "*"}


class FaultRun:
    """Clients at work on a cluster. `hurt` lets a fault come and go and waits until the cluster is whole again; `said`
    counts what was done, `silences` are the longest times that a kind of client was acknowledged nothing, by what was
    done."""

    def __init__(self, cluster: LocalCluster, seed: int, *, label: str = "run", quiet_s: float = QUIET_S) -> None:
        self.cluster = cluster
        self.quiet_s = quiet_s
        self.seed = seed
        self.chance = random.Random(seed)
        self.proxies = [ProxyAddress(node) for node in cluster.nodes if node.role == "proxy"]
        self.publishers = [
            LoadPublisher(kind, f"{label}-{name}", self.proxies, self.chance)
            for name, kind in {**KINDS, **RESENDERS}.items()
        ]
        self.said: Counter[str] = Counter()
        self.done: list[str] = []
        self.silences: dict[str, float] = {}
        self.key_errors: Counter[str] = Counter()
        self.aborted: Counter[str] = Counter()  # processes that LMDB has ended since the last fault began
        self._label = label
        self.readiness = Readiness([proxy.name for proxy in self.proxies], cluster.ready)
        stores = [node.name for node in cluster.nodes if node.role == "store"]
        controllers = [node.name for node in cluster.nodes if node.role == "controller"]
        self.nodes = [
            StoreReadiness(stores, self._status, min_in_sync=cluster.plan.min_in_sync, full=self._full),
            ControllerReadiness(controllers, self._controller_status),
        ]
        self._keys = Keys(self.proxies, self.chance)
        self._clients: list[KvClient] = []
        self._working: list[asyncio.Task[None]] = []
        self._recordings: list[Recording] = []
        self._last = {one.name: (0, time.monotonic()) for one in self.publishers}

    # ---- clients

    def start_clients(self, count: int) -> None:
        """Starts clients of the KV, which work until `stop_clients`."""
        self._clients = [KvClient(n, self._keys, Recording(), self.chance) for n in range(count)]
        self._turn_the_page()
        for one in self.publishers:
            one.readiness = self.readiness
        self.readiness.start()
        for watch in self.nodes:
            watch.start()
        self._working = [asyncio.ensure_future(self._work(client)) for client in self._clients]

    def _turn_the_page(self) -> None:
        """Goes on with new keys, because a history with too many unknown outcomes takes too long to check."""
        self._recordings.append(Recording())
        self._keys.prefix = f"{self._label}-{len(self._recordings)}"
        for client in self._clients:
            client.recording = self._recordings[-1]

    async def stop_clients(self) -> None:
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self._keys.close()
        for one in self.publishers:
            await asyncio.to_thread(one.stop)
        if self.readiness.is_alive():
            await asyncio.to_thread(self.readiness.stop)
            for watch in self.nodes:
                await asyncio.to_thread(watch.stop)

    async def _work(self, client: KvClient) -> None:
        while True:
            try:
                await client.step()
                await asyncio.sleep(PACE_S)
            except NotDone as error:
                self.key_errors[f"not done: {str(error)[:40]}"] += 1
                await asyncio.sleep(0.05)
            except httpx.HTTPStatusError as error:
                self.key_errors[f"{error.response.status_code}"] += 1
                await asyncio.sleep(0.05)
            except httpx.HTTPError as error:
                self.key_errors[type(error).__name__] += 1
                await asyncio.sleep(0.05)

    async def keep_going(
        self, seconds: float = 0.0, *, until: Callable[[], bool] = lambda: True, what: str = "nothing"
    ) -> bool:
        """Keeps the publishers at work for a time, and then until a condition holds; returns whether it did."""
        began = time.monotonic()
        while True:
            self._start_aborted()
            for one in self.publishers:
                one.keep_going()
            await asyncio.sleep(0.02)
            now = time.monotonic()
            for one in self.publishers:
                count, last = self._last[one.name]
                if one.count > count:
                    self._last[one.name] = one.count, now
                    one.served()
                self.silences[what] = max(self.silences.get(what, 0.0), now - last)
            if now - began >= seconds and await asyncio.to_thread(until):
                return True
            if now - began > seconds + self.quiet_s:
                return False

    def _start_aborted(self) -> None:
        """Starts processes again that LMDB has ended over damaged views, as a supervisor does: as often as is promised.

        In this thread: a process ends with the thread that has started it.
        """
        for name, child in list(self.cluster.children.items()):
            if child.process.poll() != -signal.SIGABRT or LMDB_SOURCE not in child.last_words():
                continue
            if self.aborted[name] <= DEATHS_MAX:  # once while it served
                self.aborted[name] += 1
                self.cluster.start(name)

    async def all_going(self) -> list[str]:
        """Keeps all publishers at work until each has one more acknowledgement; returns the names of those without."""
        counts = {one.name: one.count for one in self.publishers}
        await self.keep_going(until=lambda: all(one.count > counts[one.name] for one in self.publishers))
        return [one.name for one in self.publishers if one.count <= counts[one.name]]

    # ---- faults

    async def hurt(self, fault: Fault) -> None:
        """Begins a fault, and ends it after its time. Fails when the cluster does not recover."""
        self.said[fault.kind] += 1
        self.done.append(fault.what)
        self.aborted.clear()
        where = f"seed {self.seed}, fault {len(self.done)}, {fault.what}"
        try:
            await self._beside(fault.begin, fault.what)
            for one in self.publishers:
                one.leave(fault.leaves)
            await self.keep_going(fault.seconds, what=fault.what)
            waiting = await self.all_going() if fault.serves else []
            assert not waiting, f"{where}: {waiting} are not served meanwhile; before: {self.done[-6:-1]}"
        finally:
            fault.end()  # in this thread: a process ends with the thread that has started it
            for one in self.publishers:
                one.leave("")
        whole = await self.keep_going(until=self.whole, what=fault.what)
        assert whole, f"{where}: not ready: {self.words_of_the_unready()}; before: {self.done[-6:-1]}"
        lasting = await self._until_over(fault)
        assert not lasting, f"{where}: {lasting}; before: {self.done[-6:-1]}"
        assert await self.keep_going(until=self.whole, what=fault.what), f"{where}: {self.words_of_the_unready()}"
        standing = await self.all_going()
        assert not standing, f"{where}: {standing} stand still; before: {self.done[-6:-1]}"
        self._turn_the_page()
        again = f"; started again over damaged views: {dict(self.aborted)}" if self.aborted else ""
        print(f"{len(self.done)}: {fault.what}; silent for {self.silences[fault.what]:.1f} s{again}", flush=True)

    async def _until_over(self, fault: Fault) -> str:
        """Waits until nothing of a fault lasts any more; returns what does all the same."""
        deadline, lasting = time.monotonic() + self.quiet_s, [""]

        def look() -> None:
            lasting[0] = fault.lasting()

        while True:
            await self._beside(look, fault.what)
            if not lasting[0] or time.monotonic() >= deadline:
                return lasting[0]

    async def _beside(self, work: Callable[[], None], what: str) -> None:
        """Runs work that takes time in a thread, while the publishers go on."""
        doing = asyncio.ensure_future(asyncio.to_thread(work))
        while not doing.done():
            await self.keep_going(0.05, what=what)
        doing.result()

    def not_ready(self) -> list[str]:
        return [node.name for node in self.cluster.nodes if not self.cluster.ready(node.name)]

    def words_of_the_unready(self) -> dict[str, str]:
        """Returns what `/readyz` says, for each process where it does not say 200."""
        return {name: self._readyz(name) for name in self.not_ready()}

    def _full(self, name: str) -> bool:
        """Returns whether a store has less room than it keeps in reserve."""
        found = os.statvfs(self.cluster.plan.directory / "data" / name)
        return found.f_bavail * found.f_frsize <= FULL_BYTES

    def _status(self, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = httpx.get(
                f"http://{self.cluster.admin(name)}/status", timeout=2, trust_env=False
            ).json()
        except (httpx.HTTPError, ValueError):
            return None
        return found

    def _controller_status(self, name: str) -> Mapping[str, Any] | None:
        ready, found = self.cluster.ready(name), self._status(name)
        return None if found is None else {**found, "ready": ready}

    def _readyz(self, name: str) -> str:
        try:
            return httpx.get(f"http://{self.cluster.admin(name)}/readyz", timeout=2, trust_env=False).text[:500]
        except httpx.HTTPError as error:
            return str(error)

    def whole(self) -> bool:
        return not self.not_ready()

    # ---- what has come of it

    def check(self) -> None:
        """Checks that all acknowledged messages are stored, in order and once, and that keys and values are
        linearizable. No client may be at work any more.
        """
        self.check_stored()
        for one in self.publishers:
            memory = one.memory
            if memory is not None:
                amiss = memory.wrong if one.logged else misplaced(self.proxies[0], one.name, memory)
                assert not amiss, f"seed {self.seed}: {one.name}: {amiss[:5]}; {self.done}"
        for page, recording in enumerate(self._recordings):
            broken = check_history(recording.history)
            assert not broken, f"seed {self.seed}, behind fault {page}: {broken} are not linearizable; {self.done}"
        wrong = self.readiness.wrong
        assert not wrong, f"seed {self.seed}: proxies said that they were ready and served nobody: {wrong}; {self.done}"
        wrong_nodes = [one for watch in self.nodes for one in watch.wrong]
        assert not wrong_nodes, f"seed {self.seed}: nodes said that they were ready: {wrong_nodes}; {self.done}"

    def check_stored(self) -> None:
        """Reads all acknowledged messages back from the present masters, and checks that each is there in order and
        once.
        """
        found = stored(self.proxies[0])
        for one in [one for one in self.publishers if one.logged]:
            numbers = found.get(f"kill/{one.name}/n", [])
            lost = sorted(set(one.acked) - set(numbers))
            where = f"seed {self.seed}: {one.name}"
            assert not lost, f"{where}: {len(lost)} of {len(one.acked)} are lost: {lost[:5]}; {self.done}"
            if one.kind == "coap":
                continue  # sent again to a proxy that was restarted, the same message is another one (RFC 7252, 4.5)
            doubled = [number for number, count in Counter(numbers).items() if count > 1]
            assert not doubled, f"{where}: {len(doubled)} doubled: {doubled[:5]}; {self.done}"
            # Messages of one life that wait at an unreachable proxy may come behind those that the next life sent by
            # another.
            for a, b in itertools.pairwise(numbers):
                assert a < b or one.life(a) != one.life(b), f"{where}: {b} behind {a}; {self.done}"

    def report(self) -> str:
        """Returns the run's figures as text."""
        worst = sorted(self.silences.items(), key=lambda one: -one[1])[:5]
        lines = [
            f"seed {self.seed}: {sum(self.said.values())} faults: {dict(self.said)}",
            f"longest silences: {', '.join(f'{seconds:.1f} s ({what})' for what, seconds in worst)}",
            f"readiness: {dict(self.readiness.report())}, "
            f"{[watch.samples for watch in self.nodes]} samples of stores and controllers",
            f"operations on keys: {sum(len(one.history) for one in self._recordings)}, failed: {dict(self.key_errors)}",
        ]
        lines += [
            f"{one.name}: {one.count} acknowledged in {one.lives} lives; {dict(one.errors)} {one.refused[:3]}"
            for one in self.publishers
        ]
        return "\n".join(lines)
