"""Several proxies over one store in one process: owners, sessions and wills, with clocks that the test sets."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from gateway.delivery.fanout import Fanout
from gateway.domain.address import hash64
from gateway.domain.session_user import SessionUser
from gateway.ownership.cluster_owners import ClusterOwners
from gateway.port.adapter import Outcome, Publish
from gateway.port.sessions import OpenedSession, OpenSession, Will
from gateway.sessions.sessions import Sessions
from gateway.sessions.wills import Wills
from store.api.log import Appended
from store.api.message import Message, decode, encode
from store.format.frame import ROW, Position, QueueNumber, QueueOffset, UnplacedFrame
from store.format.records import TIMERS_QUEUE, TimerSet
from store.format.records import encode as encode_record
from store.local.local import LocalStore
from tests.support.gateway.fanout_rig import SessionHolder
from tests.support.process.clock import Clock

QUEUE = 16
TTL_S = 6.0
RENEWALS_MAX = 3  # at a moment


class Proxy:
    """One process. `die` is kill -9: nothing more is done by it."""

    def __init__(self, store: Any, clock: Clock, *, seed: int, takeover_s: float = 0.2, **owners: Any) -> None:
        self.store = store
        self.clock = clock
        self.tasks: set[asyncio.Task[Any]] = set()
        self.published: list[Message] = []
        self.on_publish: Any = None  # called with each will before it is stored; True: it dies instead
        chance = random.Random(seed)
        self.owners = ClusterOwners(
            store, ttl_s=TTL_S, random=chance, clock=clock.now_s, takeover_s=takeover_s, **owners
        )
        self.fanout = Fanout(store, queues_of=lambda _: None, group_of=lambda _: 0, spawn=self.spawn)
        wills = Wills(store, self.publish, now_ms=clock.now_ms, random=chance)
        self.sessions = Sessions(store, self.fanout, wills, now_ms=clock.now_ms, owners=self.owners)

    async def start(self) -> "Proxy":
        await self.owners.start(self.spawn)
        return self

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Runs a task until the proxy dies. Presence is renewed by `Proxies.pass_time`, as the test's clock goes."""
        if work.__name__ == "_renewals":
            work.close()
            work = asyncio.sleep(0)
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled():
            task.result()

    async def die(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def publish(self, publisher: Any, effect: Publish, size_bytes: int) -> None:
        """Takes a message as `Ingest.publish` does, for one queue."""
        (message,) = effect.messages
        if self.on_publish is not None and self.on_publish(effect):
            return
        self.published.append(message)
        record = encode(message)
        id_hash = hash_of(message)
        if message.deliver_at_ms is not None:
            row = ROW.pack(QUEUE, 0, len(record), 0, 0, 0, id_hash, 0)
            record = encode_record(TimerSet(message.deliver_at_ms, row, record))
            rows = ROW.pack(TIMERS_QUEUE, 0, len(record), 0, 0, 0, 0, 0)
        else:
            rows = ROW.pack(QUEUE, 0, len(record), 0, 0, 0, id_hash, 0)
        frame = UnplacedFrame.build(rows, record, producer_id=effect.once, sequence=1)

        def done(appended: Any) -> None:
            assert isinstance(appended, Appended)
            publisher.published(effect.token, Outcome(first=Position(appended.frame, 0)), size_bytes)

        self.store.log.append(frame, done)

    async def open(
        self,
        session_id: str = "dev",
        *,
        clean: bool = False,
        expiry_s: int | None = None,
        will: Will | None = None,
        holder: SessionHolder | None = None,
        user: SessionUser | None = None,
    ) -> tuple[SessionHolder, OpenedSession]:
        holder = holder or SessionHolder()
        request = OpenSession(session_id=session_id, clean=clean, expiry_s=expiry_s, will=will)
        return holder, await self.sessions.open(holder, request, user)

    async def close(self, holder: SessionHolder) -> None:
        holder.gone = True
        await self.sessions.close(holder)
        self.fanout.leave(holder.subscriber)


async def renew(owners: ClusterOwners) -> None:
    """Renews a proxy's presence, again where a busy machine was too slow: the clock stands still meanwhile.

    In vain where the proxy cannot reach its store.
    """
    for _ in range(RENEWALS_MAX):
        await owners.renew()
        if owners.presence.renewed:
            return


class Proxies:
    """Proxies over one store, each with an own seed, and the clock of all."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self.store, self.clock = store, clock
        self.proxies: list[Proxy] = []

    async def proxy(self, **options: Any) -> Proxy:
        """Starts one more."""
        proxy = Proxy(options.pop("store", self.store), self.clock, seed=len(self.proxies) + 1, **options)
        self.proxies.append(proxy)
        return await proxy.start()

    async def pass_time(self, seconds: float, *living: Proxy) -> None:
        """Moves the clock second by second, in each of which the living are heard of."""
        for _ in range(int(seconds)):
            self.clock.ms += 1_000
            for proxy in living:
                await renew(proxy.owners)
        await self.store.keys.look()

    async def keys(self, prefix: str = "") -> list[str]:
        return [entry.key for entry in await self.store.keys.prefix(prefix)]

    async def die(self) -> None:
        for proxy in self.proxies:
            await proxy.die()


def hash_of(message: Message) -> int:
    return hash64(message.id) if message.id else 0


async def wills_in(store: LocalStore) -> list[bytes]:
    """Returns the bodies of all messages in the log that any client may read."""
    bounds = await store.queues.bounds(QueueNumber(QUEUE))
    fetched = await store.queues.fetch(QueueNumber(QUEUE), QueueOffset(bounds.first), max_bytes=1 << 20)
    return [
        decode(frame.record(row)).body for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows
    ]
