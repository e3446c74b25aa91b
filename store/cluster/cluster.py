"""All store groups of a cluster as one `StoreClient`.

Whatever names a queue goes to the group in which the queue lies; keys and values, group offsets and addresses are in
the home group; what is looked up without a queue, in all groups. What is of one log (`scan`, `read`) goes to the log
that its position is in. Groups come and go with what the controller says.

Orders across groups mean nothing: what is merged is ordered by position, so pages go on where they ended, and what is
"newest first" is that within each group.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain, islice
from types import TracebackType
from typing import Any

from controller.api.client import ControllerClient, Group, Replica
from store.api.client import (
    Bounds,
    Fetched,
    IndexKind,
    OnAppended,
    QueuesListener,
    StoreClient,
    TailListener,
    TimerEntry,
    TimersHeld,
)
from store.base.errors import NoSuchTimer, StoreError
from store.cluster.groups import Connect
from store.cluster.keys import ClusterKeys
from store.cluster.leases import ClusterLeases
from store.format.frame import ROW, Frame, LogOffset, Position, QueueNumber, QueueOffset, UnplacedFrame, group_of
from store.format.queue_config import QueueConfig
from store.format.timer_key import TimerKey
from store.remoting import NearStore, RemoteStore

__all__ = ["ClusterStore", "Connect", "connect_remote"]


def connect_remote(controller: ControllerClient, *, zone: str | None = None, **options: Any) -> Connect:
    """Makes the clients of groups: over the network to whoever the controller says is master.

    With `zone` reads are answered by a replica in that zone that is in sync, if there is one. Options are those of
    `RemoteStore`.
    """

    def connect(number: int) -> StoreClient:
        def master() -> str | None:
            group = controller.group(number)
            replica = None if group is None or group.master is None else group.replica(group.master)
            return (replica.address or None) if replica is not None else None

        def near() -> str | None:
            group = controller.group(number)
            found = None if group is None else _near(group, zone)
            return (found.address or None) if found is not None else None

        def cluster() -> str:
            return controller.cluster

        if zone is None:
            return RemoteStore(number, master, cluster=cluster, **options)
        return NearStore(number, master, near=near, cluster=cluster, **options)

    return connect


def _near(group: Group, zone: str | None) -> Replica | None:
    """A replica in a zone that has all that was acknowledged; None when the master is there itself, or nobody is."""
    there = [one for one in group.replicas if one.zone == zone and one.id in group.sync_set]
    if any(one.id == group.master for one in there):
        return None
    return there[0] if there else None


class ClusterStore(ClusterKeys, ClusterLeases):
    """A `StoreClient` of all groups. `async with await ClusterStore.open(controller, connect) as store: ...`

    `connect` makes the client of a group, as `connect_remote` does; what it returns is closed here. The controller's
    cache says which groups there are, and is watched.
    """

    @classmethod
    async def open(cls, controller: ControllerClient, connect: Connect) -> "ClusterStore":
        """Connect, and wait for the home group. Raises `StoreUnreachable`."""
        store = cls(controller, connect)
        try:
            home = store._home
            if isinstance(home, RemoteStore):
                await home.connected()
        except BaseException:
            await store.close()
            raise
        return store

    async def __aenter__(self) -> "ClusterStore":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ---- the log

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """Append to the log of the first row's queue, where all of the frame's have to lie."""
        try:
            log = self._of(QueueNumber(ROW.unpack_from(frame.rows)[0])) if frame.rows else self._home
        except StoreError as error:
            asyncio.get_running_loop().call_soon(done, error)
            return
        log.append(frame, done)

    @property
    def pending_bytes(self) -> int:
        """See `StoreClient.pending_bytes`: of all groups."""
        return sum([log.pending_bytes for log in self._logs.values()])

    @property
    def confirmed(self) -> LogOffset:
        """See `StoreClient.confirmed`: of the home group's log."""
        return self._home.confirmed

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `StoreClient.tail`: of all logs, each in its order."""
        return self._listen(self._tail_listeners, listener, lambda log: log.tail(listener))

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `StoreClient.scan`: of the log that `start` is in, for those of the queues that lie in it."""
        group = group_of(start.frame)
        mine = None if queues is None else [queue for queue in queues if self._group(queue) == group]
        return await self._log(group).scan(start, mine, max_bytes=max_bytes)

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `StoreClient.fetch`."""
        return await self._of(queue).fetch(
            queue, offset, max_bytes=max_bytes, max_rows=max_rows, max_wait_ms=max_wait_ms
        )

    async def read(self, position: Position) -> bytes | None:
        """See `StoreClient.read`. In the log of a group that is gone there is nothing."""
        log = self._logs.get(group_of(position.frame))
        return None if log is None else await log.read(position)

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """See `StoreClient.bounds`."""
        return await self._of(queue).bounds(queue)

    async def configure_queues(self, configs: Sequence[QueueConfig]) -> None:
        """See `StoreClient.configure_queues`."""
        by_group: dict[int, list[QueueConfig]] = {}
        for config in configs:
            by_group.setdefault(self._group(QueueNumber(config.queue)), []).append(config)
        await asyncio.gather(*(self._log(group).configure_queues(some) for group, some in by_group.items()))

    def queue_config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `StoreClient.queue_config`."""
        return self._of(queue).queue_config(queue)

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """See `StoreClient.offset_at_time`."""
        return await self._of(queue).offset_at_time(queue, time_ms)

    async def last(self, address_hash: int) -> Position | None:
        """See `StoreClient.last`: of several groups' the one that was stored last by their clocks."""
        found = [at for at in await self._all(lambda log: log.last(address_hash)) if at is not None]
        if len(found) < 2:
            return found[0] if found else None
        times = await asyncio.gather(*map(self._stored_at_ms, found))
        return max(zip(times, found, strict=True))[1]

    async def _stored_at_ms(self, position: Position) -> int:
        frames, _ = await self.scan(position, None, max_bytes=1)
        return frames[0].header.stored_at_ms if frames and frames[0].start == position.frame else 0

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
    ) -> Sequence[Position]:
        """See `StoreClient.find`: newest first within each group, group by group."""
        logs = [log for n, log in self._logs.items() if below is None or n <= group_of(below.frame)]
        found = await asyncio.gather(
            *(log.find(kind, hash_, from_ms=from_ms, until_ms=until_ms, below=below, limit=limit) for log in logs)
        )
        return sorted(chain.from_iterable(found), reverse=True)[: max(limit, 0)]

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `StoreClient.addresses`."""
        return await self._home.addresses(prefix, after=after, limit=limit)

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """See `StoreClient.note_addresses`."""
        await self._home.note_addresses(addresses)

    # ---- timers

    def admit_timer(self, due_ms: int, size_bytes: int) -> None:
        """See `StoreClient.admit_timer`: of the home group; where the timer will lie, its own log says."""
        self._home.admit_timer(due_ms, size_bytes)

    @property
    def timers_held(self) -> TimersHeld:
        """See `StoreClient.timers_held`: of all groups."""
        held = [log.timers_held for log in self._logs.values()]
        return TimersHeld(sum([one.timers for one in held]), sum([one.size_bytes for one in held]))

    async def cancel_timer(self, timer: str) -> bool:
        """See `StoreClient.cancel_timer`."""
        log = self._logs.get(group_of(_timer_key(timer).frame))
        return False if log is None else await log.cancel_timer(timer)

    async def timers(self, *, after: str = "", limit: int = 1000) -> Sequence[TimerEntry]:
        """See `StoreClient.timers`."""
        if after:
            _timer_key(after)
        found = await self._all(lambda log: log.timers(after=after, limit=limit))
        return list(islice(sorted(chain.from_iterable(found), key=lambda one: _timer_key(one.id)), max(limit, 0)))

    def watch_queues(self, listener: QueuesListener) -> Callable[[], None]:
        """See `StoreClient.watch_queues`."""
        return self._listen(self._listeners, listener, lambda log: log.watch_queues(listener))


def _timer_key(timer: str) -> TimerKey:
    try:
        return TimerKey.parse(timer)
    except ValueError as error:
        raise NoSuchTimer(timer) from error
