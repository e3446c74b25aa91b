"""Consumer groups in virtual time: proxies that die, members that come, go, freeze and die, and keys that answer late.

The proxies' code is the product's own. The store is a dict with the rules of its keys: revisions, compares, times to
live. After every change of an owner it is checked that whoever else believes to have the queue has lost it for certain.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from gateway.domain.errors import Cause, Refusal
from gateway.groups.consumer_groups import ConsumerGroups
from gateway.groups.environment import GroupEnvironment
from gateway.groups.settings import GroupsConfig
from gateway.groups.state import STATE, QueueRecord, decode_queue
from gateway.port.groups import CommitOffsets, DescribeGroup, GroupCursor, JoinGroup, LeaveGroup, PollGroup, RenewMember
from store.api.keys import EXISTS, Change, Changes, Delete, Entry, Page, Put, Transacted
from store.api.message import Message
from store.base.errors import AppendOutcomeUnknown, RevisionConflict, StoreError, StoreUnreachable
from tests.sim.joint.joint_loop import JointLoop, Process
from tests.support.gateway.asking import ask
from tests.support.gateway.groups_rig import FIRST, Connection, Topics
from tests.support.store.fake_store import FakeStore

GROUP = "g"
REQUEST_TIMEOUT_S = 10.0
RELEASE_S = 6


class SlowStore(FakeStore):
    """Queues as `FakeStore` has them, and keys. Every call takes a while, before and after it takes effect."""

    def __init__(self, world: "GroupsWorld") -> None:
        super().__init__()
        self.keys = SimpleNamespace(
            range=self._range, count=self._count, put=self._put, transact=self._transact, watch=self._watch
        )
        self.world = world
        self.held: dict[str, Entry] = {}
        self.revision = 0
        self.watchers: list[asyncio.Queue[Change]] = []
        self.arrivals: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    # ---- keys

    def _live(self, key: str) -> Entry | None:
        found = self.held.get(key)
        if found is None or (found.expires_at_ms is not None and found.expires_at_ms <= self.world.now_ms):
            return None
        return found

    def _change(self, kind: str, key: str, value: bytes = b"", expires_at_ms: int | None = None) -> None:
        change = Change(kind, key, value, self.revision, expires_at_ms)
        for watcher in self.watchers:
            watcher.put_nowait(change)

    def sweep(self) -> None:
        """Removes keys whose time is over, and tells watchers a moment later."""
        for key in [key for key in self.held if self._live(key) is None]:
            self.revision += 1
            del self.held[key]
            self._change("expire", key)

    async def _range(
        self, start: str = "", end: str | None = None, *, after: str | None = None, limit: int = 1000
    ) -> Page:
        await self.world.some_time()
        keys = [key for key in sorted(self.held) if start <= key and (end is None or key < end)]
        found = [entry for key in keys if (after is None or key > after) and (entry := self._live(key)) is not None]
        page = Page(found[:limit], self.revision, len(found) > limit)
        await self.world.some_time()
        return page

    async def _count(self, start: str = "", end: str | None = None) -> int:
        return len((await self._range(start, end, limit=1 << 30)).entries)

    async def _put(self, key: str, value: bytes, *, expected_revision: int | None = None, ttl_ms: int) -> int:
        compares = {} if expected_revision is None else {key: expected_revision}
        return (await self._transact(compares, [Put(key, value, ttl_ms=ttl_ms)])).revision

    async def _transact(self, compares: Mapping[str, int], operations: Sequence[Put | Delete]) -> Transacted:
        await self.world.some_time()
        self.world.may_fail(StoreUnreachable("lost on the way there"))
        for key, expected in compares.items():
            entry = self._live(key)
            actual = 0 if entry is None else entry.revision
            if actual != expected and not (expected == EXISTS and entry is not None):
                raise RevisionConflict(key, expected, actual)
        self.revision += 1
        existed = tuple(self._live(one.key) is not None for one in operations)
        for one in operations:
            if isinstance(one, Put):
                expires = None if one.ttl_ms is None else self.world.now_ms + one.ttl_ms
                self.world.was_put(one.key, self._live(one.key), one.value)
                self.held[one.key] = Entry(one.key, one.value, self.revision, 0, 0, expires)
                self._change("put", one.key, one.value, expires)
            elif self.held.pop(one.key, None) is not None:
                self._change("delete", one.key)
        done = Transacted(self.revision, existed)
        await self.world.some_time()
        self.world.may_fail(AppendOutcomeUnknown("lost on the way back"))
        return done

    async def _watch(self, start: str, end: str) -> Any:
        watcher: asyncio.Queue[Change] = asyncio.Queue()
        self.watchers.append(watcher)
        try:
            while True:
                change = await watcher.get()
                await self.world.some_time()
                if start <= change.key < end:
                    yield Changes([change], change.revision + 1)
        finally:
            self.watchers.remove(watcher)

    # ---- queues

    def append(self, messages: Sequence[tuple[int, Message]], stored_at_ms: int = 1_000) -> Any:
        done = super().append(messages, stored_at_ms)
        for queue in {queue for queue, _ in messages}:
            self.arrivals.pop(queue, asyncio.Event()).set()
        return done

    async def fetch(  # type: ignore[override]
        self, queue: int, offset: int, *, max_bytes: int, max_rows: int = 1 << 30, max_wait_ms: int = 0
    ) -> Any:
        await self.world.some_time()
        found = await super().fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
        if found.next > offset or not max_wait_ms:
            return found
        try:
            async with asyncio.timeout(max_wait_ms / 1_000):
                await self.arrivals[queue].wait()
        except TimeoutError:
            return found
        return await super().fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)


class GroupConsumer:
    """A member's client. `believed` are queues of which it may be working on something; until when, its lease says."""

    def __init__(self, world: "GroupsWorld", number: int) -> None:
        self.world = world
        self.random = random.Random(f"{world.seed}/{number}")
        self.member = ""
        self.ttl_ms = 0
        self.until_ms = 0  # it stops working then, unless it was answered since
        self.believed: set[int] = set()
        self.alive = True

    def has(self, queue: int) -> bool:
        return self.alive and queue in self.believed and self.world.now_ms < self.until_ms

    async def ask(self, request: Any) -> Any:
        """Sends a request to some proxy; raises `TimeoutError` where that has died."""
        asked_ms = self.world.now_ms
        answer = await self.world.request(self.random, request)
        self.until_ms = asked_ms + self.ttl_ms
        return answer

    async def run(self) -> None:
        while self.alive:
            try:
                if self.member:
                    await self._consume()
                else:
                    await self._join()
            except (TimeoutError, StoreError):
                self.believed = set()  # it begins anew, with what is committed
                await asyncio.sleep(self.random.uniform(0, 1))
            except Refusal as refusal:
                if refusal.cause not in {Cause.NOT_FOUND, Cause.CONFLICT, Cause.OVERLOAD}:
                    raise
                if refusal.cause is Cause.NOT_FOUND:
                    self.member, self.believed = "", set()

    async def _join(self) -> None:
        self.ttl_ms = self.random.choice((2, 5, 15)) * 1_000
        joined = await self.ask(
            JoinGroup(group=GROUP, topic="t", strategy=self.world.strategy, ttl_s=self.ttl_ms // 1_000)
        )
        self.member, self.believed = joined.member, set()

    async def _consume(self) -> None:
        """Reads, works and commits, as some clients do; others read on before they commit."""
        chance = self.random
        after: GroupCursor | None = None
        for _ in range(chance.choice((1, 1, 2, 3))):
            self.believed &= set() if after is None else set(after.offsets)  # with all else it is done
            wait_ms = chance.choice((0, 0, 1_000, 8_000))
            limit = chance.choice((1, 5, 50))
            got = await self.ask(PollGroup(group=GROUP, member=self.member, after=after, limit=limit, wait_ms=wait_ms))
            after = got.after
            assert set(got.revoked) <= set(got.queues)
            self.believed = (set(got.queues) - set(got.revoked)) | set(after.offsets)
            if not self._works(0):
                return
            self.world.delivered(got.messages)
            await asyncio.sleep(0.1 if self.world.quiet else chance.choice((0, 0.1, 1, 4)))
            self._may_end()
            if chance.random() < 0.2:
                renewed = await self.ask(RenewMember(group=GROUP, member=self.member))
                self.believed &= set(renewed.queues)
        if after is not None and after.offsets and self._works(0):
            await self.ask(CommitOffsets(group=GROUP, member=self.member, cursor=after))

    def _works(self, left_ms: int) -> bool:
        return self.world.now_ms + left_ms < self.until_ms

    def _may_end(self) -> None:
        """Ends the consumer by chance, or freezes it until it is taken for dead."""
        chance = self.random.random()
        if self.world.quiet:
            return
        if chance < 0.02:
            self.alive = False
            self.world.spawn_consumer()

    async def leave(self) -> None:
        member, self.believed = self.member, set()
        if member:
            await self.ask(LeaveGroup(group=GROUP, member=member))
            self.member = ""


class GroupsWorld:
    """Everything, from one seed."""

    def __init__(self, seed: int, *, queues: int = 6, strategy: str = "averaged") -> None:
        self.seed = seed
        self.strategy = strategy
        self.random = random.Random(seed)
        self.loop = JointLoop()
        self.topics = Topics(t=queues)
        self.queues = list(range(FIRST, FIRST + queues))
        self.store = SlowStore(self)
        self.proxies: list[tuple[Process, ConsumerGroups]] = []
        self.consumers: list[GroupConsumer] = []
        self.running: list[asyncio.Task[None]] = []
        self.clients = Process(self.loop, "clients")
        self.quiet = False
        self.published: dict[int, int] = dict.fromkeys(self.queues, 0)
        self.seen: dict[int, set[int]] = {queue: set() for queue in self.queues}
        self.committed: dict[int, int] = dict.fromkeys(self.queues, 0)
        self.handed_over = 0
        self.taken_away = 0  # from who did not let go in time
        self.proxies_died = 0

    @property
    def now_ms(self) -> int:
        return self.loop.now_ms

    async def some_time(self) -> None:
        slow = 0 if self.quiet else self.random.random() < 0.02
        await asyncio.sleep(self.random.uniform(0, 2.0 if slow else 0.02))

    def may_fail(self, error: StoreError) -> None:
        if not self.quiet and self.random.random() < 0.03:
            raise error

    # ---- what is checked

    def was_put(self, key: str, before: Entry | None, value: bytes) -> None:
        """Checks a written key. A member that believes that it has a queue loses it only after the time in which it
        could release it, and an offset never goes back.
        """
        kind, _, rest = key.removeprefix(f"{STATE}/{GROUP}/").partition("/")
        if not key.startswith(f"{STATE}/{GROUP}/") or kind != "q":
            return
        queue, record = int(rest), decode_queue(value)
        held = QueueRecord(0) if before is None else decode_queue(before.value)
        assert record.offset >= self.committed[queue], f"queue {queue} goes back from {self.committed[queue]}"
        self.committed[queue] = record.offset
        if record.member == held.member:
            return
        self.handed_over += 1
        for one in self.consumers:
            if one.member == held.member and 0 < held.revoked_ms <= self.now_ms - RELEASE_S * 1_000:
                self.taken_away += 1
                one.believed.discard(queue)
        others = [one for one in self.consumers if one.member != record.member and one.has(queue)]
        assert not others, f"queue {queue} has two owners at {self.now_ms} ms: {record.member}, {others[0].member}"

    def delivered(self, messages: Sequence[tuple[int, int, Message]]) -> None:
        for queue, offset, message in messages:
            assert message.body == b"%d/%d" % (queue, offset)
            self.seen[queue].add(offset)

    # ---- who is there

    async def request(self, chance: random.Random, request: Any) -> Any:
        """Sends a request to one of the proxies; one that dies never answers. Raises `TimeoutError`."""
        process, groups = chance.choice(self.proxies)
        asked = process.run(ask(Connection(), request, groups=groups))
        await asyncio.wait([asked], timeout=REQUEST_TIMEOUT_S)
        if not asked.done():
            asked.cancel()
            raise TimeoutError
        return asked.result()

    def spawn_proxy(self) -> None:
        process = Process(self.loop, f"proxy {len(self.proxies)}")
        groups = process.context.run(self._groups, process)
        self.proxies.append((process, groups))

    def _groups(self, process: Process) -> ConsumerGroups:
        environment = GroupEnvironment(
            store=self.store,  # type: ignore[arg-type]
            controller=self.topics,  # type: ignore[arg-type]
            config=GroupsConfig(release_s=RELEASE_S),
            random=random.Random(self.random.getrandbits(64)),
            now_ms=lambda: self.now_ms,
            clock=self.loop.time,
        )
        return ConsumerGroups(environment, spawn=process.run)

    def spawn_consumer(self) -> None:
        consumer = GroupConsumer(self, len(self.consumers))
        self.consumers.append(consumer)
        self.running.append(self.clients.run(consumer.run()))

    async def _churn(self) -> None:
        """Disturbs everybody until it is quiet."""
        while not self.quiet:
            await asyncio.sleep(self.random.uniform(0, 4))
            chance = self.random.random()
            living = [one for one in self.consumers if one.alive]
            if chance < 0.25 and len(living) < 7:
                self.spawn_consumer()
            elif chance < 0.4 and len(living) > 1:
                leaving = self.random.choice(living)
                leaving.alive = False
                leaving.believed = set()
                self.clients.run(self._leave(leaving))
            elif chance < 0.5:
                process, _ = self.proxies.pop(self.random.randrange(len(self.proxies)))
                process.die()
                self.proxies_died += 1
                self.spawn_proxy()

    async def _leave(self, consumer: GroupConsumer) -> None:
        try:
            await consumer.leave()
        except (TimeoutError, StoreError, Refusal):
            return

    async def _publish(self) -> None:
        while not self.quiet:
            await asyncio.sleep(self.random.uniform(0, 0.5))
            queue = self.random.choice(self.queues)
            count = self.random.randrange(1, 20)
            first = self.published[queue]
            self.published[queue] += count
            some = range(first, first + count)
            self.store.log.append([(queue, Message(address="t/x", body=b"%d/%d" % (queue, n))) for n in some])

    async def _sweeps(self) -> None:
        while True:
            await asyncio.sleep(0.1)
            self.store.sweep()

    # ---- from beginning to end

    def run(self, length_s: float = 80) -> None:
        for _ in range(3):
            self.spawn_proxy()
        for _ in range(self.random.randrange(1, 4)):
            self.spawn_consumer()
        for work in (self._churn(), self._publish(), self._sweeps()):
            self.clients.run(work)
        self._until(length_s, self._failed)
        self.quiet = True
        assert self._until(300, self._settled), self._state()
        described = self.loop_result(ask(Connection(), DescribeGroup(group=GROUP), groups=self.proxies[0][1]))
        living = {one.member for one in self.consumers if one.alive}
        assert {one.member for one in described.queues} <= living
        for queue, count in self.published.items():
            assert self.seen[queue] == set(range(count)), f"queue {queue} was not read whole"

    def _until(self, length_s: float, done: Callable[[], bool]) -> bool:
        """Lets time pass, and returns whether the condition came true."""
        until_s = self.loop.now_s + length_s
        while not done() and self.loop.now_s < until_s:
            self.loop.run(0.1)
        return done()

    def _failed(self) -> bool:
        """Raises what a consumer has met."""
        for task in self.running:
            if task.done():
                task.result()
        return False

    def _settled(self) -> bool:
        """Returns whether everything is committed, and the members that are there share all queues evenly."""
        if self._failed() or self.committed != self.published:
            return False
        members = {one.member for one in self.consumers if one.alive}
        owners = [self._owner(queue) for queue in self.queues]
        if "" in members or not set(owners) <= members:
            return False
        counts = [owners.count(member) for member in members]
        return self.strategy != "averaged" or max(counts) - min(counts) <= 1

    def _owner(self, queue: int) -> str:
        entry = self.store.held.get(f"{STATE}/{GROUP}/q/{queue}")
        return "" if entry is None else decode_queue(entry.value).member

    def _state(self) -> str:
        owners = {queue: self._owner(queue) for queue in self.queues}
        members = [one.member for one in self.consumers if one.alive]
        return f"not settled: {self.committed} of {self.published}, owners {owners}, members {members}"

    def loop_result(self, coroutine: Any) -> Any:
        task = self.clients.run(coroutine)
        assert self._until(30, task.done)
        return task.result()

    def end(self) -> None:
        for process, _ in self.proxies:
            process.die()
        self.clients.die()
        self.loop.forget()
