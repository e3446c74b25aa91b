"""All store groups of a cluster as one `StoreClient`.

Whatever names a queue goes to the group in which the queue lies; keys and values, group offsets and addresses are in
the home group; what is looked up without a queue, in all groups. What is of one log (`scan`, `read`) goes to the log
that its position is in. Groups come and go with what the controller says.

Orders across groups mean nothing: what is merged is ordered by position, so pages go on where they ended, and what is
"newest first" is that within each group.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from itertools import chain, islice
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from controller.client import ControllerClient, Group, Replica
from store.client import (
    Bounds,
    Changes,
    Delete,
    Entry,
    Fetched,
    IndexKind,
    Lease,
    Namespace,
    OnAppended,
    Page,
    Put,
    QueuesListener,
    StoreClient,
    TailListener,
    TimerEntry,
    TimersHeld,
    Transacted,
)
from store.errors import BadHandle, NoSuchTimer, StoreError, StoreUnreachable
from store.format import ROW, Frame, LogOffset, Position, QueueNumber, QueueOffset, UnplacedFrame, group_of
from store.handle import queue_of
from store.policy import LeasePolicy
from store.queue_config import QueueConfig
from store.remoting import NearStore, RemoteStore
from store.timer_key import TimerKey

__all__ = ["ClusterStore", "Connect", "connect_remote"]

logger = logging.getLogger(__name__)

ROUTES_COUNT_MAX = 1 << 20  # queues whose group is remembered; a queue never changes its group

Connect = Callable[[int], StoreClient]
T = TypeVar("T")


def connect_remote(controller: ControllerClient, *, zone: str | None = None, **options: Any) -> Connect:
    """Makes the clients of groups: over the network to whoever the controller says is master.

    With `zone` reads are answered by a slave in that zone that is in sync, if there is one. Options are those of
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

        if zone is None:
            return RemoteStore(number, master, **options)
        return NearStore(number, master, near=near, **options)

    return connect


def _near(group: Group, zone: str | None) -> Replica | None:
    """A slave in a zone that has all that was acknowledged; None when the master is there itself, or nobody is."""
    there = [one for one in group.replicas if one.zone == zone and one.id in group.sync_set]
    if any(one.id == group.master for one in there):
        return None
    return there[0] if there else None


class ClusterStore:
    """A `StoreClient` of all groups. `async with await ClusterStore.open(controller, connect) as store: ...`

    `connect` makes the client of a group, as `connect_remote` does; what it returns is closed here. The controller's
    cache says which groups there are, and is watched.
    """

    def __init__(self, controller: ControllerClient, connect: Connect) -> None:
        """Begin to connect; the event loop has to be running."""
        self._controller = controller
        self._connect = connect
        self._logs: dict[int, StoreClient] = {}
        self._routes: dict[QueueNumber, int] = {}
        self._listeners: dict[int, QueuesListener] = {}
        self._tail_listeners: dict[int, TailListener] = {}
        self._listener_count = 0
        self._stops: dict[tuple[int, int], Callable[[], None]] = {}  # by group and listener
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._unwatch = controller.watch(self._changed)
        self._changed()

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

    async def close(self) -> None:
        """Disconnect from all groups."""
        self._closed = True
        self._unwatch()
        logs, self._logs = self._logs, {}
        for log in logs.values():
            self._leave(log)
        if self._leaving:
            await asyncio.wait(list(self._leaving))

    # ---- groups

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self._controller.home

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return MappingProxyType(self._logs)

    @property
    def unreachable(self) -> Sequence[int]:
        """The groups to which no connection stands."""
        return [n for n, log in self._logs.items() if isinstance(log, RemoteStore) and not log.is_connected]

    def _changed(self) -> None:
        """The controller says something new: groups may have come or gone, masters be others."""
        if self._closed:
            return
        there = {group.number for group in self._controller.groups()} | {self._controller.home}
        for number in sorted(there.difference(self._logs)):
            log = self._logs[number] = self._connect(number)
            for key, listener in self._listeners.items():
                self._stops[number, key] = log.watch_queues(listener)
            for key, tail in self._tail_listeners.items():
                self._stops[number, key] = log.tail(tail)
        for number in sorted(self._logs.keys() - there):
            for stopped in [one for one in self._stops if one[0] == number]:
                self._stops.pop(stopped)()
            self._routes = {queue: group for queue, group in self._routes.items() if group != number}
            self._leave(self._logs.pop(number))
        for log in self._logs.values():
            if isinstance(log, RemoteStore):
                log.moved()

    def _leave(self, log: StoreClient) -> None:
        close = getattr(log, "close", None)
        if close is not None:
            task = asyncio.ensure_future(close())
            self._leaving.add(task)
            task.add_done_callback(self._left)

    def _left(self, task: "asyncio.Task[None]") -> None:
        self._leaving.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a store group's client could not be closed", exc_info=error)

    def _log(self, group: int) -> StoreClient:
        log = self._logs.get(group)
        if log is None:
            raise StoreUnreachable(f"there is no store group {group}, or it is not known here yet")
        return log

    @property
    def _home(self) -> StoreClient:
        return self._log(self._controller.home)

    def _group(self, queue: QueueNumber) -> int:
        """Where a queue lies, or lay before it was forgotten; of one that nobody knows the home group says so."""
        group = self._routes.get(queue)
        if group is None:
            group = self._controller.group_of_queue(queue)
            if group is None:
                return self._controller.home
            if len(self._routes) >= ROUTES_COUNT_MAX:
                self._routes.clear()
            self._routes[queue] = group
        return group

    def _of(self, queue: QueueNumber) -> StoreClient:
        return self._log(self._group(queue))

    async def _all(self, ask: Callable[[StoreClient], Awaitable[T]]) -> list[T]:
        """Ask all groups, which all have to answer."""
        return await asyncio.gather(*map(ask, self._logs.values()))

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

    def _listen(
        self, listeners: dict[int, T], listener: T, listen: Callable[[StoreClient], Callable[[], None]]
    ) -> Callable[[], None]:
        """Listen to all groups, those that come later too."""
        number = self._listener_count
        self._listener_count += 1
        listeners[number] = listener
        for group, log in self._logs.items():
            self._stops[group, number] = listen(log)

        def stop() -> None:
            listeners.pop(number, None)
            for key in [key for key in self._stops if key[1] == number]:
                self._stops.pop(key)()

        return stop

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

    # ---- the key-value view

    async def kv_get(self, key: str, *, namespace: str = "") -> Entry | None:
        """See `StoreClient.kv_get`."""
        return await self._home.kv_get(key, namespace=namespace)

    async def kv_put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        namespace: str = "",
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> int:
        """See `StoreClient.kv_put`."""
        return await self._home.kv_put(
            key,
            value,
            expected_revision=expected_revision,
            namespace=namespace,
            ttl_ms=ttl_ms,
            expires_at_ms=expires_at_ms,
        )

    async def kv_delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """See `StoreClient.kv_delete`."""
        return await self._home.kv_delete(key, expected_revision=expected_revision, namespace=namespace)

    async def kv_transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """See `StoreClient.kv_transact`."""
        return await self._home.kv_transact(compares, operations, namespace=namespace)

    async def kv_prefix(
        self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = ""
    ) -> Sequence[Entry]:
        """See `StoreClient.kv_prefix`."""
        return await self._home.kv_prefix(prefix, after=after, limit=limit, namespace=namespace)

    async def kv_range(
        self,
        start: str = "",
        end: str | None = None,
        *,
        namespace: str = "",
        after: str | None = None,
        limit: int = 1000,
        at_revision: int | None = None,
    ) -> Page:
        """See `StoreClient.kv_range`."""
        return await self._home.kv_range(
            start, end, namespace=namespace, after=after, limit=limit, at_revision=at_revision
        )

    async def kv_count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """See `StoreClient.kv_count`."""
        return await self._home.kv_count(start, end, namespace=namespace)

    async def kv_hold(self) -> int:
        """See `StoreClient.kv_hold`."""
        return await self._home.kv_hold()

    def kv_release(self, revision: int) -> None:
        """See `StoreClient.kv_release`."""
        self._home.kv_release(revision)

    def kv_watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """See `StoreClient.kv_watch`."""
        return self._home.kv_watch(start, end, namespace=namespace, from_revision=from_revision)

    async def kv_namespaces(self) -> Sequence[Namespace]:
        """See `StoreClient.kv_namespaces`."""
        return await self._home.kv_namespaces()

    async def kv_limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """See `StoreClient.kv_limit`."""
        await self._home.kv_limit(namespace, keys_max=keys_max, size_bytes_max=size_bytes_max)

    # ---- groups

    async def commit_offsets(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """See `StoreClient.commit_offsets`."""
        await self._home.commit_offsets(group, offsets)

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """See `StoreClient.offsets`."""
        return await self._home.offsets(group)

    async def delete_group(self, group: str) -> None:
        """See `StoreClient.delete_group`. What it has settled is in every store group."""
        await self._all(lambda log: log.delete_group(group))

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

    # ---- leases

    async def take(
        self,
        queue: QueueNumber,
        owner: int,
        *,
        max_count: int,
        max_bytes: int = 1 << 20,
        group: str = "",
        invisible_ms: int | None = None,
    ) -> Sequence[Lease]:
        """See `StoreClient.take`."""
        return await self._of(queue).take(
            queue, owner, max_count=max_count, max_bytes=max_bytes, group=group, invisible_ms=invisible_ms
        )

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `StoreClient.settle`."""
        await self._of(queue).settle(queue, owner, offsets, group=group)

    async def forward(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        rows: bytes,
        payload: bytes,
        *,
        group: str = "",
    ) -> None:
        """See `StoreClient.forward`. Raises ValueError for rows of queues in another group: a frame is in one log."""
        here = self._group(queue)
        if any(self._group(QueueNumber(row[0])) != here for row in ROW.iter_unpack(rows)):
            raise ValueError(f"messages of queue {queue} are forwarded within their store group, {here}")
        await self._log(here).forward(queue, owner, offsets, rows, payload, group=group)

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """See `StoreClient.reject`."""
        await self._of(queue).reject(queue, owner, offsets, reason=reason, group=group)

    def requeue(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        delivered: bool = True,
        delay_ms: int | None = None,
        group: str = "",
    ) -> None:
        """See `StoreClient.requeue`."""
        log = self._logs.get(self._group(queue))
        if log is not None:  # otherwise the leases are gone with the group
            log.requeue(queue, owner, offsets, delivered=delivered, delay_ms=delay_ms, group=group)

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `StoreClient.extend`."""
        return await self._of(queue).extend(queue, owner, offsets, invisible_ms=invisible_ms, group=group)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `StoreClient.release`: in all groups."""
        return [queue for log in self._logs.values() for queue in log.release(owner)]

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `StoreClient.settle_handles`."""
        return await self._by_handle(handles, lambda log, some: log.settle_handles(some))

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `StoreClient.requeue_handles`."""
        return await self._by_handle(handles, lambda log, some: log.requeue_handles(some, delay_ms=delay_ms))

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `StoreClient.extend_handles`."""
        return await self._by_handle(handles, lambda log, some: log.extend_handles(some, invisible_ms=invisible_ms))

    async def _by_handle(
        self, handles: Sequence[str], ask: Callable[[StoreClient, Sequence[str]], Awaitable[Sequence[T]]]
    ) -> list[T | StoreError]:
        """Ask the group of each handle; the answers in the order of the handles."""
        answers: list[T | StoreError] = [BadHandle("a handle that was not made here")] * len(handles)
        by_group: dict[int, list[int]] = {}
        for n, handle in enumerate(handles):
            queue = queue_of(handle)
            if queue is not None:
                by_group.setdefault(self._group(queue), []).append(n)
        groups = [(self._log(group), numbers) for group, numbers in by_group.items()]
        asked = [ask(log, [handles[n] for n in numbers]) for log, numbers in groups]
        for (_, numbers), found in zip(groups, await asyncio.gather(*asked), strict=True):
            for n, answer in zip(numbers, found, strict=True):
                answers[n] = answer
        return answers

    async def set_lease_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `StoreClient.set_lease_policy`. Raises ValueError when dead letters would go to another group."""
        target = policy.target
        if target is not None and self._group(target) != self._group(queue):
            raise ValueError(f"dead letters of queue {queue} go to a queue of the same store group, not to {target}")
        await self._of(queue).set_lease_policy(queue, policy, group=group)

    async def lease_policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """See `StoreClient.lease_policy`."""
        return await self._of(queue).lease_policy(queue, group=group)

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.waiting`."""
        return await self._of(queue).waiting(queue, group=group)

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.purge`."""
        return await self._of(queue).purge(queue, group=group)

    async def delete_queue(self, queue: QueueNumber) -> None:
        """See `StoreClient.delete_queue`. One that nobody knows any more is deleted wherever it may have been."""
        if self._routes.get(queue) is None and self._controller.group_of_queue(queue) is None:
            await self._all(lambda log: log.delete_queue(queue))
        else:
            await self._of(queue).delete_queue(queue)


def _timer_key(timer: str) -> TimerKey:
    try:
        return TimerKey.parse(timer)
    except ValueError as error:
        raise NoSuchTimer(timer) from error
