"""A store group over the network: `StoreClient` over gRPC to whoever is the group's master.

There is one connection at a time. When it breaks, or the node it leads to is no master any more, another one is made
to where `resolve` says the master is; meanwhile appends and calls wait, for `budget_s` at most
(`store.remoting.appender`, `store.remoting.caller`). Leases end with the connection: what was held is lost, which
`settle` says and watchers of queues are told of. A tail and watches of keys go on where they were.

What is answered at once is answered from what was heard last: `confirmed` is never behind an answer or an
acknowledgement that this client has got, nor behind what its tail has delivered; timers are admitted by what was
pending then, and the store has the last word; `queue_config` knows what this client has set or asked for.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any

import msgspec

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
from store.errors import (
    FrameTooLarge,
    LeaseLost,
    StoreClosed,
    StoreError,
    StoreUnreachable,
    TimersFull,
    TimerTooFar,
)
from store.format import Frame, LogOffset, Position, QueueNumber, QueueOffset, UnplacedFrame
from store.policy import LeasePolicy
from store.queue_config import QueueConfig
from store.remoting import calls
from store.remoting.appender import PENDING_BYTES_MAX
from store.remoting.caller import AGAIN, HELD, ONCE, SESSION, SessionLost, nothing
from store.remoting.connection import BUDGET_S, Connection, Resolve
from store.remoting.frames import FetchedAnswer, ScannedAnswer, TakenAnswer, fetched_of, leases_of
from store.remoting.held import Held
from store.wire import failure_of, revive

__all__ = ["RemoteStore"]

CLOSE_S = 5.0  # that appends under way have when the client is closed
CONFIGS_IN_CALL = 10_000
DAY_MS = 24 * 3600 * 1000


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _decoder(kind: Any) -> Callable[[Any], Any]:
    return msgspec.msgpack.Decoder(kind).decode


_a_fetched: Callable[[Any], FetchedAnswer] = _decoder(FetchedAnswer)
_a_scanned: Callable[[Any], ScannedAnswer] = _decoder(ScannedAnswer)
_a_taken: Callable[[Any], TakenAnswer] = _decoder(TakenAnswer)
_a_record: Callable[[Any], bytes | None] = _decoder(bytes | None)
_an_entry: Callable[[Any], Entry | None] = _decoder(Entry | None)
_a_position: Callable[[Any], Position | None] = _decoder(Position | None)
_an_int: Callable[[Any], int] = _decoder(int)
_a_bool: Callable[[Any], bool] = _decoder(bool)
_strings: Callable[[Any], list[str]] = _decoder(list[str])
_positions: Callable[[Any], list[Position]] = _decoder(list[Position])
_a_bounds: Callable[[Any], Bounds] = _decoder(Bounds)
_entries: Callable[[Any], list[Entry]] = _decoder(list[Entry])
_a_page: Callable[[Any], Page] = _decoder(Page)
_some_changes: Callable[[Any], Changes] = _decoder(Changes)
_a_transacted: Callable[[Any], Transacted] = _decoder(Transacted)
_namespaces: Callable[[Any], list[Namespace]] = _decoder(list[Namespace])
_cursors: Callable[[Any], dict[QueueNumber, int]] = _decoder(dict[QueueNumber, int])
_timers: Callable[[Any], list[TimerEntry]] = _decoder(list[TimerEntry])
_a_policy: Callable[[Any], LeasePolicy] = _decoder(LeasePolicy)
_offsets: Callable[[Any], list[QueueOffset]] = _decoder(list[QueueOffset])
_configs: Callable[[Any], list[QueueConfig | None]] = _decoder(list[QueueConfig | None])
_handled: Callable[[Any], list[tuple[str | None, bytes | None]]] = _decoder(list[tuple[str | None, bytes | None]])


class RemoteStore:
    """A `StoreClient` of one group over gRPC. `async with await RemoteStore.open(group, resolve) as store: ...`

    `resolve` says where the group's master is thought to be ("host:port", None: nobody knows). It is asked before each
    attempt to connect; call `moved` when its answer has changed. `credentials` are `grpc.ChannelCredentials`
    (`store.credentials`). With `reading` a slave will do, and only what a slave answers can be asked.
    """

    def __init__(
        self,
        group: int,
        resolve: Resolve,
        *,
        credentials: Any = None,
        budget_s: float = BUDGET_S,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        reading: bool = False,
        now_ms: Callable[[], int] = _clock_ms,
    ) -> None:
        """Begin to connect; the event loop has to be running."""
        self._group = group
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._held = Held()
        self._connection = Connection(
            group,
            resolve,
            credentials=credentials,
            budget_s=budget_s,
            pending_bytes_max=pending_bytes_max,
            reading=reading,
            lost=self._held.lose,
        )
        self._budget_s = budget_s
        self._call = self._connection.caller.call
        self._tell = self._connection.caller.tell
        self._queue_configs: dict[QueueNumber, QueueConfig] = {}  # as far as they are known here
        self._unknown_configs: dict[QueueNumber, None] = {}  # asked for
        self._closed = StoreClosed("the client is closed")
        self._closing: asyncio.Future[None] | None = None

    @classmethod
    async def open(cls, group: int, resolve: Resolve, **options: Any) -> "RemoteStore":
        """Connect. Options as of the class. Raises `StoreUnreachable` when that takes longer than `budget_s`."""
        store = cls(group, resolve, **options)
        try:
            await store.connected()
        except BaseException:
            await store.close()
            raise
        return store

    async def connected(self) -> None:
        """Wait until a connection stands. Raises `StoreUnreachable` after `budget_s`."""
        try:
            async with asyncio.timeout(self._budget_s):
                await self._connection.up.wait()
        except TimeoutError as error:
            text = f"store group {self._group} could not be reached at {self._connection.target}"
            raise StoreUnreachable(text) from error

    async def __aenter__(self) -> "RemoteStore":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait a moment for what is under way, and disconnect; leases end. Again waits for the first call."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        connection = self._connection
        connection.caller.refuse(self._closed)
        connection.appender.refuse(self._closed)
        await connection.wait_while(lambda: connection.up.is_set() and connection.busy, CLOSE_S)
        await connection.close(self._closed)

    def moved(self) -> None:
        """What `resolve` answers may have changed: look, and connect to there if it has."""
        self._connection.moved()

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self._group

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return MappingProxyType({self._group: self})

    @property
    def is_connected(self) -> bool:
        """Whether a connection stands."""
        return self._connection.up.is_set()

    @property
    def target(self) -> str | None:
        """Where it is connected to, or was tried last."""
        return self._connection.target

    # ---- the log

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """See `StoreClient.append`. Raises nothing; `AppendOutcomeUnknown` is told where retrying was not safe."""
        self._connection.appender.append(frame, done)

    @property
    def pending_bytes(self) -> int:
        """See `StoreClient.pending_bytes`."""
        return self._connection.appender.pending_bytes

    @property
    def confirmed(self) -> LogOffset:
        """See `StoreClient.confirmed`: as it was heard last. Raises `StoreUnreachable` before the first connection."""
        if not self._connection.sessions:
            raise StoreUnreachable(f"store group {self._group} has not been reached yet")
        return self._connection.confirmed

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `StoreClient.tail`: every frame from `confirmed` on, also over broken connections."""
        return self._connection.tail(listener)

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `StoreClient.scan`."""
        asked = calls.Scan(start.frame, start.row, None if queues is None else tuple(queues), max_bytes)
        return await self._call("scan", asked, self._scanned, AGAIN)

    def _scanned(self, body: Any) -> tuple[Sequence[Frame], LogOffset]:
        answer: ScannedAnswer = _a_scanned(body)
        return self._connection.frames.frames(answer.frames), LogOffset(answer.following)

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `StoreClient.fetch`. What one call brings is limited to some MiB."""
        asked = calls.Fetch(queue, offset, max_bytes, max_rows, max_wait_ms)
        return await self._call("fetch", asked, self._fetched, AGAIN)

    def _fetched(self, body: Any) -> Fetched:
        return fetched_of(_a_fetched(body), self._connection.frames)

    async def read(self, position: Position) -> bytes | None:
        """See `StoreClient.read`."""
        return await self._call("read", calls.Read(*position), _a_record, AGAIN)

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """See `StoreClient.bounds`."""
        return await self._call("bounds", calls.OfQueue(queue), _a_bounds, AGAIN)

    async def configure_queues(self, configs: Sequence[QueueConfig]) -> None:
        """See `StoreClient.configure_queues`. What the store knows already is not stored again."""
        for start in range(0, len(configs), CONFIGS_IN_CALL):
            some = tuple(configs[start : start + CONFIGS_IN_CALL])
            await self._call("configure_queues", calls.ConfigureQueues(some), nothing, AGAIN)
            self._queue_configs.update({QueueNumber(config.queue): config for config in some})

    def queue_config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `StoreClient.queue_config`: what was set or asked for here. What is not known is asked for now."""
        found = self._queue_configs.get(queue)
        if found is None and queue not in self._unknown_configs and self.is_connected:
            if not self._unknown_configs:
                self._loop.call_soon(self._ask_configs)
            self._unknown_configs[queue] = None
        return found

    def _ask_configs(self) -> None:
        queues, self._unknown_configs = list(self._unknown_configs), {}
        for start in range(0, len(queues), CONFIGS_IN_CALL):
            some = tuple(queues[start : start + CONFIGS_IN_CALL])

            def learned(
                answer: "asyncio.Future[Sequence[QueueConfig | None]]", some: Iterable[QueueNumber] = some
            ) -> None:
                if answer.cancelled() or answer.exception() is not None:
                    return
                for queue, config in zip(some, answer.result(), strict=False):
                    if config is not None:
                        self._queue_configs.setdefault(queue, config)

            try:
                asked = self._connection.caller.begin("queue_configs", calls.QueueConfigs(some), _configs, SESSION)
            except StoreError:
                return
            asked.future.add_done_callback(learned)

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """See `StoreClient.offset_at_time`."""
        asked = calls.OffsetAtTime(queue, time_ms)
        return QueueOffset(await self._call("offset_at_time", asked, _an_int, AGAIN))

    async def last(self, address_hash: int) -> Position | None:
        """See `StoreClient.last`."""
        return await self._call("last", calls.Last(address_hash), _a_position, AGAIN)

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
        """See `StoreClient.find`."""
        asked = calls.Find(int(kind), hash_, from_ms, until_ms, below, limit)
        return await self._call("find", asked, _positions, AGAIN)

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `StoreClient.addresses`."""
        asked = calls.Addresses(prefix, after, limit)
        return await self._call("addresses", asked, _strings, AGAIN)

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """See `StoreClient.note_addresses`."""
        await self._call("note_addresses", calls.NoteAddresses(tuple(addresses)), nothing, AGAIN)

    # ---- the key-value view

    async def kv_get(self, key: str, *, namespace: str = "") -> Entry | None:
        """See `StoreClient.kv_get`."""
        return await self._call("kv_get", calls.KvGet(key, namespace), _an_entry, AGAIN)

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
        """See `StoreClient.kv_put`. Raises `AppendOutcomeUnknown`, as all that is not safe to do twice."""
        asked = calls.KvPut(key, value, expected_revision, namespace, ttl_ms, expires_at_ms)
        return await self._call("kv_put", asked, _an_int, ONCE)

    async def kv_delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """See `StoreClient.kv_delete`."""
        asked = calls.KvDelete(key, expected_revision, namespace)
        return await self._call("kv_delete", asked, _a_bool, ONCE)

    async def kv_transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """See `StoreClient.kv_transact`."""
        asked = calls.KvTransact(dict(compares), calls.packed_operations(operations), namespace)
        done = await self._call("kv_transact", asked, _a_transacted, ONCE)
        return done._replace(existed=tuple(done.existed))

    async def kv_prefix(
        self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = ""
    ) -> Sequence[Entry]:
        """See `StoreClient.kv_prefix`."""
        asked = calls.KvPrefix(prefix, after, limit, namespace)
        return await self._call("kv_prefix", asked, _entries, AGAIN)

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
        """See `StoreClient.kv_range`. A state that was held is lost with the connection."""
        asked = calls.KvRange(start, end, namespace, after, limit, at_revision)
        return await self._call("kv_range", asked, _a_page, AGAIN)

    async def kv_count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """See `StoreClient.kv_count`."""
        return await self._call("kv_count", calls.KvCount(start, end, namespace), _an_int, AGAIN)

    async def kv_hold(self) -> int:
        """See `StoreClient.kv_hold`."""
        return await self._call("kv_hold", calls.Nothing(), _an_int, AGAIN, orphaned=self.kv_release)

    def kv_release(self, revision: int) -> None:
        """See `StoreClient.kv_release`."""
        self._tell("kv_release", calls.KvRelease(revision))

    def kv_watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """See `StoreClient.kv_watch`. What is to be refused is, when the first changes are asked for."""
        self._check_open()
        if from_revision is None and self._connection.sessions:
            from_revision = self.confirmed + 1
        return self._watch(start, end, namespace, from_revision)

    async def _watch(
        self, start: str, end: str | None, namespace: str, at: int | None
    ) -> AsyncGenerator[Changes, None]:
        connection = self._connection
        if at is None:
            await self.connected()
            at = self.confirmed + 1
        while True:
            watching = connection.caller.begin("kv_watch", calls.KvWatch(start, end, namespace, at), nothing, AGAIN)
            try:
                await watching.future
                sessions = connection.sessions
                asked = calls.KvWatched(watching.number)
                while connection.sessions == sessions:
                    changes: Changes = await self._call("kv_watched", asked, _some_changes, SESSION)
                    at = changes.next
                    yield changes
            except SessionLost:
                continue  # on another connection, from where it was
            finally:
                self._tell("kv_unwatch", calls.KvWatched(watching.number))

    async def kv_namespaces(self) -> Sequence[Namespace]:
        """See `StoreClient.kv_namespaces`."""
        return await self._call("kv_namespaces", calls.Nothing(), _namespaces, AGAIN)

    async def kv_limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """See `StoreClient.kv_limit`."""
        await self._call("kv_limit", calls.KvLimit(namespace, keys_max, size_bytes_max), nothing, AGAIN)

    # ---- groups

    async def commit_offsets(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """See `StoreClient.commit_offsets`."""
        await self._call(
            "commit_offsets",
            calls.CommitOffsets(group, {int(queue): at for queue, at in offsets.items()}),
            nothing,
            AGAIN,
        )

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """See `StoreClient.offsets`."""
        return await self._call("offsets", calls.OfGroup(group), _cursors, AGAIN)

    async def delete_group(self, group: str) -> None:
        """See `StoreClient.delete_group`."""
        await self._call("delete_group", calls.OfGroup(group), nothing, AGAIN)

    # ---- timers

    def admit_timer(self, due_ms: int, size_bytes: int) -> None:
        """See `StoreClient.admit_timer`: by what was pending when the store was heard last, which decides again."""
        limits, held = self._connection.admission, self.timers_held
        if limits is None:
            raise StoreUnreachable(f"store group {self._group} was not reached yet")
        if held.timers >= limits.timers:
            raise TimersFull(f"{held.timers} timers are pending already")
        if held.size_bytes + size_bytes > limits.size_bytes:
            raise TimersFull(f"the pending timers hold {held.size_bytes} bytes of {limits.size_bytes} already")
        if size_bytes > limits.timer_bytes:
            raise FrameTooLarge(f"{size_bytes} bytes in one timer, which may have {limits.timer_bytes}")
        if due_ms - self._now_ms() > limits.horizon_ms:
            raise TimerTooFar(f"a timer is due in {limits.horizon_ms // DAY_MS} days at most")

    @property
    def timers_held(self) -> TimersHeld:
        """See `StoreClient.timers_held`: as it was heard last."""
        return self._connection.timers

    async def cancel_timer(self, timer: str) -> bool:
        """See `StoreClient.cancel_timer`."""
        return await self._call("cancel_timer", calls.CancelTimer(timer), _a_bool, ONCE)

    async def timers(self, *, after: str = "", limit: int = 1000) -> Sequence[TimerEntry]:
        """See `StoreClient.timers`."""
        return await self._call("timers", calls.Timers(after, limit), _timers, AGAIN)

    def watch_queues(self, listener: QueuesListener) -> Callable[[], None]:
        """See `StoreClient.watch_queues`. Told of what was lost with a connection too, and, after it, of all queues."""
        return self._connection.watch_queues(listener)

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
        """See `StoreClient.take`. Owners are this client's own: another one's with the same number is somebody else."""
        self._connection.lends(queue)
        asked = calls.Take(queue, owner, max_count, max_bytes, group, invisible_ms)

        def taken(body: Any) -> Sequence[Lease]:
            answer: TakenAnswer = _a_taken(body)
            return leases_of(answer, self._connection.frames, queue=queue, group=group, owner=owner)

        def give_back(leases: Sequence[Lease]) -> None:
            self._requeue(queue, owner, [lease.offset for lease in leases], group)

        take = self._held.begin_take(owner, queue)
        leases: Sequence[Lease] = ()
        kept = False
        try:
            leases = await self._call("take", asked, taken, AGAIN, orphaned=give_back)
        finally:
            kept = self._held.end_take(take, owner, queue, group, leases)
        return (leases or ()) if kept else []

    def _requeue(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], group: str) -> None:
        """What nobody waits for any more."""
        if offsets:
            self.requeue(queue, owner, offsets, delivered=False, group=group)

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `StoreClient.settle`. Raises `LeaseLost` when some were lost with a connection; others are settled."""
        ranges, lost = self._held.drop(owner, queue, group, offsets)
        if ranges:
            await self._call("settle", calls.Settle(queue, owner, tuple(ranges), group), nothing, HELD)
        _check_lost(queue, lost)

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
        """See `StoreClient.forward`."""
        ranges, lost = self._held.known(owner, queue, group, offsets)
        _check_lost(queue, lost)
        asked = calls.Forward(queue, owner, tuple(ranges), rows, payload, group)
        await self._call("forward", asked, nothing, HELD)
        self._held.drop(owner, queue, group, offsets)

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """See `StoreClient.reject`. Raises `LeaseLost` as `settle` does."""
        ranges, lost = self._held.drop(owner, queue, group, offsets)
        if ranges:
            await self._call("reject", calls.Reject(queue, owner, tuple(ranges), reason, group), nothing, HELD)
        _check_lost(queue, lost)

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
        """See `StoreClient.requeue`. What was lost with a connection was given back by that."""
        ranges, _ = self._held.drop(owner, queue, group, offsets)
        if ranges:
            self._tell("requeue", calls.Requeue(queue, owner, tuple(ranges), delivered, delay_ms, group))

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `StoreClient.extend`."""
        ranges, _ = self._held.known(owner, queue, group, offsets)
        asked = calls.Extend(queue, owner, tuple(ranges), invisible_ms, group)
        try:
            return await self._call("extend", asked, _offsets, HELD)
        except LeaseLost:
            return ()

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `StoreClient.release`."""
        if self._held.has_taken(owner):
            self._tell("release", calls.Release(owner))
        return self._held.release(owner)

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `StoreClient.settle_handles`."""
        found = await self._call("settle_handles", calls.SettleHandles(tuple(handles)), _handled, ONCE)
        return [_error(described) if described is not None else None for _, described in found]

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `StoreClient.requeue_handles`."""
        found = await self._call("requeue_handles", calls.RequeueHandles(tuple(handles), delay_ms), _handled, ONCE)
        return [_error(described) if described is not None else None for _, described in found]

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `StoreClient.extend_handles`."""
        found = await self._call("extend_handles", calls.ExtendHandles(tuple(handles), invisible_ms), _handled, AGAIN)
        return [_error(described) if described is not None else text or "" for text, described in found]

    async def set_lease_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `StoreClient.set_lease_policy`."""
        await self._call("set_lease_policy", calls.SetLeasePolicy(queue, policy, group), nothing, AGAIN)

    async def lease_policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """See `StoreClient.lease_policy`."""
        asked = calls.OfQueueGroup(queue, group)
        return await self._call("lease_policy", asked, _a_policy, AGAIN)

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.waiting`."""
        return await self._call("waiting", calls.OfQueueGroup(queue, group), _an_int, AGAIN)

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.purge`."""
        return await self._call("purge", calls.OfQueueGroup(queue, group), _an_int, ONCE)

    async def delete_queue(self, queue: QueueNumber) -> None:
        """See `StoreClient.delete_queue`."""
        await self._call("delete_queue", calls.OfQueue(queue), nothing, AGAIN)
        self._connection.forget(queue)
        self._queue_configs.pop(queue, None)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._closed


def _check_lost(queue: QueueNumber, lost: Sequence[int]) -> None:
    if lost:
        raise LeaseLost(f"{len(lost)} messages of queue {queue} were given back when the connection broke")


def _error(described: bytes) -> StoreError:
    """What became of a handle."""
    error = revive(described)
    return error if isinstance(error, StoreError) else failure_of(described, "a handle")
