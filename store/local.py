"""A store group in this process: `StoreClient` over the engine, on an asyncio loop.

All methods belong to the thread of the loop. What is in memory is answered at once; what may wait for a disk runs in
a small pool of threads. With the engine's threads a write is handed between threads twice, so a program that cares
for latency under load lowers `sys.setswitchinterval` from 5 ms to 0.5 ms.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from store.arrivals import WAIT_MS_MAX, Arrivals
from store.cache import CACHE_BYTES_MAX, FrameCache
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
from store.clock import RisingClock, SteadyClock
from store.damage import Damage
from store.engine import Committed, Engine
from store.errors import (
    FrameTooLarge,
    OffsetOutOfRange,
    RevisionConflict,
    StoreClosed,
    StoreError,
    StoreOverloaded,
)
from store.finder import Finder
from store.format import (
    FRAME_BYTES_MAX,
    Frame,
    LogOffset,
    Position,
    QueueNumber,
    QueueOffset,
    UnplacedFrame,
    group_of,
)
from store.handle import KEY_BYTES
from store.kv.keyvalue import KeyValue, Log
from store.lease_handles import LeaseHandles
from store.lending import Lending, StoredLeases
from store.policy import LeasePolicy
from store.queue_config import QueueConfig
from store.ranges import Range
from store.reader import Located, NotInMemory, Reader
from store.recent import Recent
from store.recorder import Recorder
from store.records import (
    AddressesSeen,
    GroupDeleted,
    GroupOffsets,
    QueueDeleted,
)
from store.retention import UNLIMITED, Kept, Limits, LimitsTable
from store.scrub import Scrubbed
from store.segment import BadRange
from store.ticker import RETRY_MS, Ticker
from store.timers import TimerLimits, Timers
from store.views.index import Wanted
from store.views.kv import check_key

__all__ = ["PENDING_BYTES_MAX", "LocalStore"]

logger = logging.getLogger(__name__)

PENDING_BYTES_MAX = 64 << 20
_LEASES = "$leases"  # the KV's namespace of the key that handles are signed with
READERS = 4  # threads that may wait for a disk

P = ParamSpec("P")
T = TypeVar("T")


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


class LocalStore:
    """A `StoreClient` in process. `async with await LocalStore.open(data_dir) as store: ...`"""

    def __init__(
        self,
        data_dir: Path,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int] = _clock_ms,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        timer_limits: TimerLimits | None = None,
        retention: Limits = UNLIMITED,
        **engine: Any,
    ) -> None:
        """Open and recover; blocks. Programs use `open`."""
        wall_ms = now_ms  # what is due at a time waits again when the clock is set back
        now_ms = self._now_ms = clock = RisingClock(wall_ms)
        self._loop = loop
        self._pending_bytes_max = pending_bytes_max
        self._pending_bytes = 0  # handed to the engine and not yet answered
        self._engine = Engine(
            data_dir,
            now_ms=now_ms,
            on_committed=partial(self._post, self._committed),
            on_dispatched=partial(self._post, self._dispatched),
            on_failed=partial(self._post, self._fail_waiters),
            retention=retention,
            **engine,
        )
        self._logs: Mapping[int, StoreClient] = {self.group: self}
        self._cache = FrameCache(cache_bytes_max)
        self._reader = Reader(self._engine.log, self._engine.views, self._cache, busy=lambda: self._pending_bytes > 0)
        with self._engine.views.reading() as txn:
            limits = LimitsTable(retention, self._engine.views.configs.all(txn))
        self._recent = Recent(self._engine.log.confirmed, self._engine.log.first, limits)
        self._finder = Finder(self._engine)
        self._arrivals = Arrivals(loop)
        self._pool = ThreadPoolExecutor(READERS, "store-read")
        self._listeners: dict[int, TailListener] = {}  # by the order of their calls to tail
        self._listener_count = 0
        self._queue_listeners: dict[int, QueuesListener] = {}
        self._recorder = Recorder(self.append, loop, now_ms)
        self._steady_ms = SteadyClock(wall_ms)
        self._wall_ms = wall_ms
        self._lending = Lending(
            self._recent,
            locate=self._locate,
            stored=self._stored_leases,
            record=self._recorder.record,
            append=self.append,
            key=self._handle_key,
            steady_ms=self._steady_ms,
            awakened=self._awakened,
        )
        self._handles = LeaseHandles(self._lending, key=self._handle_key, steady_ms=self._steady_ms)
        self._recent.leases.on_deadline = self._lease_deadline
        self._leased_from = self._engine.log.first  # what lies before is not lent any more
        self._lease_key = b""  # not looked up yet
        clock.reached(self._engine.views.stored_at_ms)
        self._kv = KeyValue(
            loop,
            self._engine.views,
            self._recent.kv,
            Log(
                first=lambda: self._recent.first,
                confirmed=lambda: self._recent.confirmed,
                chunks=self._recent.chunks,
                fetch=self.fetch,
                bounds=self.bounds,
                until_dispatched=self._until_dispatched,
                check_open=self._check_open,
            ),
            record=self._recorder.record,
            pool=self._pool,
            clock=clock,
        )
        self._timers = Timers(
            self._recent.timers,
            views=self._engine.views,
            blocking=self._blocking,
            append=self.append,
            record=self._recorder.record,
            fired=self._awakened,
            now_ms=wall_ms,
            limits=timer_limits,
        )
        self._ticker = Ticker(loop, wall_ms, self._tick)
        self._timers_left = False  # some were due when the last tick ended
        self._dispatch_waiters: list[tuple[LogOffset, asyncio.Future[None]]] = []
        self._closing: asyncio.Future[None] | None = None
        loop.call_soon_threadsafe(self._ticker.wake_by, 0)  # what became due while it was closed
        loop.call_soon_threadsafe(self._kv.start)

    @classmethod
    async def open(cls, data_dir: Path, **options: Any) -> "LocalStore":
        """Open a data directory, creating and recovering it as needed, off the loop.

        Options: `now_ms`, `pending_bytes_max`, `cache_bytes_max`, and those of `Engine`. Raises `DataDirLocked`,
        OSError.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, partial(cls, data_dir, loop=loop, **options))

    async def __aenter__(self) -> "LocalStore":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Store what was appended and answer for it, bring the views up, close. Again waits for the first call."""
        if self._closing is None:
            self._recorder.flush()
            self._arrivals.wake_all()
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._ticker.close()
        await self._lending.close()
        await self._kv.close()
        # What a thread reports while it ends has been taken in on the loop before the next step.
        await self._loop.run_in_executor(None, self._engine.end_appends)
        await self._loop.run_in_executor(None, self._engine.end_dispatch)
        self._fail_waiters()
        await self._loop.run_in_executor(None, self._close_blocking)

    def _close_blocking(self) -> None:
        self._pool.shutdown(wait=True)
        self._engine.close()

    @property
    def error(self) -> StoreError | None:
        """Why nothing can be stored any more, None while all is well."""
        return self._engine.error

    @property
    def full(self) -> StoreError | None:
        """Why nothing can be stored for now: the disk has no room. None as soon as it has."""
        return self._engine.full

    @property
    def corruptions(self) -> Sequence[BadRange]:
        """Damage that recovery met in front of valid frames."""
        return self._engine.log.corruptions

    @property
    def damages(self) -> Sequence[Damage]:
        """Damage that anybody met in what the log keeps: recovery, a reader, the scrub."""
        return [damage for damage in self._engine.log.damages.all() if damage.end > self._engine.log.first]

    @property
    def scrubbed(self) -> Scrubbed:
        """How far the scrub is."""
        return self._engine.scrub.progress

    # ---- the log

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return group_of(self._engine.log.first)

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return self._logs

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """See `StoreClient.append`. A refusal comes on the next turn of the loop, ahead of what is being written."""
        size = frame.size_bytes
        refused = self._refusal(size)
        if refused is not None:
            self._loop.call_soon(done, refused)
            return
        self._pending_bytes += size
        self._engine.append(frame, done)

    def _refusal(self, size: int) -> StoreError | None:
        if self._closing is not None:
            return StoreClosed("the store is shut down")
        if self._engine.error is not None:
            return self._engine.error
        if self._engine.full is not None:
            return self._engine.full
        if size > FRAME_BYTES_MAX:
            return FrameTooLarge(f"{size} bytes in one frame, which may have {FRAME_BYTES_MAX}")
        if self._pending_bytes and self._pending_bytes + size > self._pending_bytes_max:
            return StoreOverloaded(f"{self._pending_bytes} bytes wait to be written")
        return None

    @property
    def pending_bytes(self) -> int:
        """See `StoreClient.pending_bytes`."""
        return self._pending_bytes

    @property
    def confirmed(self) -> LogOffset:
        """See `StoreClient.confirmed`."""
        return self._recent.confirmed

    @property
    def end(self) -> LogOffset:
        """The log offset behind the last frame that was placed, durable or not: end >= confirmed."""
        return self._engine.log.end

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `StoreClient.tail`."""
        number = self._listener_count
        self._listener_count += 1
        self._listeners[number] = listener

        def stop() -> None:
            self._listeners.pop(number, None)

        return stop

    def watch_queues(self, listener: QueuesListener) -> Callable[[], None]:
        """See `StoreClient.watch_queues`."""
        number = self._listener_count
        self._listener_count += 1
        self._queue_listeners[number] = listener

        def stop() -> None:
            self._queue_listeners.pop(number, None)

        return stop

    def _awakened(self, queues: Sequence[QueueNumber]) -> None:
        for listener in list(self._queue_listeners.values()):
            try:
                listener(queues)
            except Exception:
                logger.exception("a listener on queues has failed")

    async def tick(self) -> None:
        """Do what is due by now without waiting for the loop's own timer; returns when it is done."""
        self._check_open()
        await self._ticker.look()
        while self._timers_left and self._closing is None:
            await self._ticker.look()
        await self._kv.look()

    async def _tick(self, now_ms: int) -> int | None:
        """Do what is due; when to come again. Leases first, as they wait for no disk; neither stops the other."""
        times: list[int | None] = []
        timers_left = False
        try:
            lease_ms = self._lending.expire()
            times.append(None if lease_ms is None else self._wall_ms() + lease_ms)
        except Exception:
            logger.exception("leases that have ended could not be taken back")
            times.append(now_ms + RETRY_MS)
        try:
            times.append(timer_ms := await self._timers.tick(now_ms))
            timers_left = timer_ms is not None and timer_ms <= now_ms
        except StoreClosed:
            return None
        except Exception:
            logger.exception("timers that are due could not be fired")
            times.append(now_ms + RETRY_MS)
        finally:
            self._timers_left = timers_left  # until then it says what the last one left: `tick` may look meanwhile
        return min((ms for ms in times if ms is not None), default=None)

    def _lease_deadline(self, at_ms: int) -> None:
        self._ticker.wake_by(self._wall_ms() + at_ms - self._steady_ms())

    def _post(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.warning("the event loop ended before the store was closed")

    def _committed(self, committed: Committed) -> None:
        """A group is durable, or has failed: first what reads see, then the senders, then the listeners."""
        self._pending_bytes -= committed.size_bytes
        run, outcomes = committed.run, {}
        if run is not None:
            self._cache.put(*run.placed)
            with self._kv.lookups() as stored:
                outcomes = self._recent.add(run, stored)
            self._engine.dispatch(run)  # only now: the revisions looked up were those before the run
            self._arrivals.arrived(run)
            if run.records and (due_ms := self._recent.timers.next_due_ms()) is not None:
                self._ticker.wake_by(due_ms)
        self._recorder.report(outcomes)
        for done, outcome in committed.outcomes:
            try:
                done(outcome)
            except Exception:
                logger.exception("an append's callback has failed")
        if run is None or not self._listeners:
            return
        frames = [self._cache.get(placed.start) or placed.whole() for placed in run.placed]
        for listener in list(self._listeners.values()):
            try:
                listener(frames)
            except Exception:
                logger.exception("a listener on the log's tail has failed")

    def _dispatched(self, dispatched: LogOffset) -> None:
        self._recent.trim(dispatched)
        if self._engine.views.first > self._leased_from and self._closing is None:
            self._leased_from = self._engine.views.first
            self._pool.submit(self._look_for_trimmed, self._recent.leases.queues)
        waiting = []
        for until, waiter in self._dispatch_waiters:
            if until > dispatched:
                waiting.append((until, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._dispatch_waiters = waiting

    def _fail_waiters(self) -> None:
        """Nothing more will be dispatched."""
        waiting, self._dispatch_waiters = self._dispatch_waiters, []
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(self._engine.error or StoreClosed("the store is shut down"))

    async def _until_dispatched(self, until: LogOffset) -> None:
        """Wait until the views hold everything before a log offset."""
        if self._engine.error is not None:
            raise self._engine.error
        if until <= self._recent.start:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._dispatch_waiters.append((until, waiter))
        self._engine.hurry(until)
        await waiter

    # ---- reading

    async def _read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the reader: here when memory is enough, else in a thread."""
        try:
            return call(*args, **kwargs, in_memory=True)  # type: ignore[arg-type]
        except NotInMemory:
            return await self._blocking(call, *args, **kwargs)

    async def _blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return await self._loop.run_in_executor(self._pool, partial(call, *args, **kwargs))

    def _check_open(self) -> None:
        if self._closing is not None:
            raise StoreClosed("the store is shut down")

    async def _queue(self, queue: QueueNumber) -> None:
        """Wait while the views still hold what a deleted queue had."""
        self._check_open()
        while (at := self._recent.deletion(queue)) is not None:
            await self._until_dispatched(LogOffset(at + 1))

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `StoreClient.scan`."""
        self._check_open()
        end = self._recent.confirmed
        if queues is None:
            return await self._read(self._reader.scan, start.frame, end, max_bytes=max_bytes)
        for queue in queues:
            await self._queue(queue)
        recent = {queue: self._recent.chunks(queue) for queue in queues}
        end = self._recent.confirmed
        return await self._read(
            self._reader.scan_queues,
            start.frame,
            end,
            recent,
            self._recent.start,
            max_bytes=max_bytes,
            kept={queue: self._kept(queue) for queue in queues},
        )

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `StoreClient.fetch`. Raises `CorruptFrame` when the first record is in a damaged frame."""
        fetched = await self._fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
        if fetched.next > offset or max_wait_ms <= 0:
            return fetched
        deadline = self._loop.time() + min(max_wait_ms, WAIT_MS_MAX) / 1000
        while fetched.next == offset:
            if self._recent.next_offset(queue) in {None, offset} and not await self._arrivals.wait(queue, deadline):
                break
            fetched = await self._fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
        return fetched

    async def _fetch(self, queue: QueueNumber, offset: QueueOffset, *, max_bytes: int, max_rows: int) -> Fetched:
        await self._queue(queue)
        if offset < 0:
            bounds = await self.bounds(queue)
            raise OffsetOutOfRange(offset, bounds.first, bounds.next)
        if offset == self._recent.next_offset(queue):
            return Fetched((), (), offset, offset)
        recent = self._recent.chunks(queue)
        return await self._read(
            self._reader.fetch,
            queue,
            offset,
            recent,
            max_bytes=max_bytes,
            max_rows=max(max_rows, 1),
            kept=self._kept(queue),
        )

    async def read(self, position: Position) -> bytes | None:
        """See `StoreClient.read`. Raises `CorruptFrame` when the record's frame is damaged."""
        self._check_open()
        if not self._recent.first <= position.frame < self._recent.confirmed:
            return None
        frame = await self._read(self._reader.frame, position.frame)
        if frame is None or not 0 <= position.row < frame.header.row_count:
            return None
        return frame.record(position.row)

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """See `StoreClient.bounds`."""
        await self._queue(queue)
        return await self._read(self._reader.bounds, queue, self._recent.chunks(queue), kept=self._kept(queue))

    def _kept(self, queue: QueueNumber) -> Kept:
        """What can be read of a queue now."""
        return self._recent.limits.kept(queue, self._recent.first, self._now_ms())

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """See `StoreClient.offset_at_time`."""
        await self._queue(queue)
        recent = self._recent.chunks(queue)
        return await self._blocking(self._reader.offset_at_time, queue, time_ms, recent, kept=self._kept(queue))

    async def last(self, address_hash: int) -> Position | None:
        """See `StoreClient.last`."""
        self._check_open()
        found = self._recent.last(address_hash)
        if found is not None:
            return found
        with self._engine.views.reading() as txn:  # a lookup takes 5 us, a thread 50 to 100 us
            found = self._engine.views.last.get(txn, address_hash)
        return found if found is not None and found.frame >= self._recent.first else None

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
        wanted = Wanted.of(kind, hash_, from_ms=from_ms, until_ms=until_ms, below=below)
        return await self._blocking(self._finder.find, wanted, self._recent.runs(), limit)

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `StoreClient.addresses`."""
        recent = self._recent.addresses(prefix, after)
        return await self._blocking(self._finder.addresses, prefix, after, recent, limit)

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """See `StoreClient.note_addresses`. Those too long for the view's keys are passed over."""
        unknown = self._recent.unlisted(addresses)
        new = await self._blocking(self._finder.unlisted, unknown) if unknown else ()
        if new:
            await self._recorder.record(AddressesSeen(tuple(new)))

    # ---- the key-value view

    async def kv_get(self, key: str, *, namespace: str = "") -> Entry | None:
        """See `StoreClient.kv_get`."""
        return await self._kv.get(key, namespace)

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
        """See `StoreClient.kv_put`. Raises `RevisionConflict`, `KeyTooLong`, `FrameTooLarge`, `NamespaceFull`."""
        return await self._kv.put(
            key,
            value,
            expected_revision=expected_revision,
            namespace=namespace,
            ttl_ms=ttl_ms,
            expires_at_ms=expires_at_ms,
        )

    async def kv_delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """See `StoreClient.kv_delete`. Raises `RevisionConflict`, `KeyTooLong`."""
        return await self._kv.delete(key, expected_revision=expected_revision, namespace=namespace)

    async def kv_transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """See `StoreClient.kv_transact`."""
        return await self._kv.transact(compares, operations, namespace)

    async def kv_prefix(
        self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = ""
    ) -> Sequence[Entry]:
        """See `StoreClient.kv_prefix`."""
        return await self._kv.prefix(prefix, after=after, limit=limit, namespace=namespace)

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
        return await self._kv.range(start, end, namespace=namespace, after=after, limit=limit, at_revision=at_revision)

    async def kv_count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """See `StoreClient.kv_count`."""
        return await self._kv.count(start, end, namespace)

    async def kv_hold(self) -> int:
        """See `StoreClient.kv_hold`."""
        return await self._kv.hold()

    def kv_release(self, revision: int) -> None:
        """See `StoreClient.kv_release`."""
        self._kv.release(revision)

    def kv_watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """See `StoreClient.kv_watch`."""
        return self._kv.watch(start, end, namespace=namespace, from_revision=from_revision)

    async def kv_namespaces(self) -> Sequence[Namespace]:
        """See `StoreClient.kv_namespaces`."""
        return await self._kv.namespaces()

    async def kv_limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """See `StoreClient.kv_limit`."""
        await self._kv.limit(namespace, keys_max=keys_max, size_bytes_max=size_bytes_max)

    # ---- groups

    async def commit_offsets(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """See `StoreClient.commit_offsets`. Raises `KeyTooLong`, and ValueError for an offset beyond 63 bits."""
        if any(abs(at) >> 63 for at in offsets.values()):
            raise ValueError(f"an offset of group {group!r} has more than 63 bits")
        await self._recorder.record(GroupOffsets(check_key(group), {int(queue): at for queue, at in offsets.items()}))

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """See `StoreClient.offsets`."""
        self._check_open()
        change = self._recent.group(check_key(group))
        if change is not None and change.cleared:
            return dict(change.offsets)

        def stored() -> dict[QueueNumber, int]:
            with self._engine.views.reading() as txn:
                return self._engine.views.groups.get(txn, group)

        found = await self._blocking(stored)
        return {**found, **change.offsets} if change is not None else found

    async def delete_group(self, group: str) -> None:
        """See `StoreClient.delete_group`."""
        await self._recorder.record(GroupDeleted(check_key(group)))

    # ---- timers

    def admit_timer(self, due_ms: int, size_bytes: int) -> None:
        """See `StoreClient.admit_timer`."""
        self._timers.admit(due_ms, size_bytes)

    @property
    def timers_held(self) -> TimersHeld:
        """See `StoreClient.timers_held`."""
        return self._timers.held

    async def cancel_timer(self, timer: str) -> bool:
        """See `StoreClient.cancel_timer`."""
        self._check_open()
        return await self._timers.cancel(timer)

    async def timers(self, *, after: str = "", limit: int = 1000) -> Sequence[TimerEntry]:
        """See `StoreClient.timers`. Raises `NoSuchTimer` when `after` is no id."""
        return await self._timers.entries(after, limit)

    # ---- leases

    async def _stored_leases(self, queue: QueueNumber, group: str) -> StoredLeases:
        def stored() -> StoredLeases:
            views = self._engine.views
            with views.reading() as txn:
                settled, policy = views.settled.get(txn, queue, group), views.settled.policy(txn, queue, group)
                gone = (0, views.queues.first_offset(txn, queue))
                deleted_at = views.settled.deleted_at(txn, queue, group)
                return StoredLeases([gone, *settled], policy, views.queues.next_offset(txn, queue), deleted_at)

        await self._queue(queue)
        forgotten = self._recent.group(group)
        if group and forgotten is not None and forgotten.cleared:  # the view may still have what it had settled
            await self._until_dispatched(self._recent.confirmed)
        return await self._blocking(stored)

    def _look_for_trimmed(self, queues: Sequence[QueueNumber]) -> None:
        """Find where some queues begin now; on a thread of the pool."""
        views = self._engine.views
        with views.reading() as txn:
            firsts = [(queue, views.queues.first_offset(txn, queue)) for queue in queues]
        self._post(self._trim_leases, firsts)

    def _trim_leases(self, firsts: Sequence[tuple[QueueNumber, QueueOffset]]) -> None:
        for queue, first in firsts:
            self._recent.leases.trim(queue, first)

    async def _handle_key(self) -> bytes:
        """What handles are signed with: made once for the store group, and kept in its KV."""
        while not self._lease_key:
            entry = await self.kv_get("handles", namespace=_LEASES)
            if entry is not None:
                self._lease_key = entry.value
                break
            with suppress(RevisionConflict):  # somebody else was faster
                await self.kv_put("handles", secrets.token_bytes(KEY_BYTES), expected_revision=0, namespace=_LEASES)
        return self._lease_key

    async def _locate(self, queue: QueueNumber, ranges: Sequence[Range], *, max_bytes: int) -> Located:
        return await self._read(self._reader.locate, queue, ranges, self._recent.chunks(queue), max_bytes=max_bytes)

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
        await self._queue(queue)
        return await self._lending.take(
            queue, owner, max_count=max_count, max_bytes=max_bytes, group=check_key(group), invisible_ms=invisible_ms
        )

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """See `StoreClient.settle`. When it raises, the messages will be lent again."""
        self._check_open()
        await self._lending.settle(queue, owner, offsets, group)

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
        """See `StoreClient.forward`. When it raises, the messages will be lent again."""
        self._check_open()
        await self._lending.forward(queue, owner, offsets, rows, payload, group=group)

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """See `StoreClient.reject`. When it raises, the messages will be lent again."""
        self._check_open()
        await self._lending.reject(queue, owner, offsets, reason=reason, group=group)

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
        self._lending.requeue(queue, owner, offsets, delivered=delivered, delay_ms=delay_ms, group=group)

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """See `StoreClient.extend`."""
        self._check_open()
        key = await self._handle_key()
        return self._lending.extend(queue, owner, offsets, invisible_ms=invisible_ms, group=group, key=key)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `StoreClient.release`."""
        return self._lending.release(owner)

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """See `StoreClient.settle_handles`."""
        self._check_open()
        return await self._handles.settle(handles)

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """See `StoreClient.requeue_handles`."""
        self._check_open()
        return await self._handles.requeue(handles, delay_ms)

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """See `StoreClient.extend_handles`."""
        self._check_open()
        return await self._handles.extend(handles, invisible_ms)

    async def set_lease_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """See `StoreClient.set_lease_policy`."""
        await self._queue(queue)
        await self._lending.set_policy(queue, policy, check_key(group))

    async def lease_policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """See `StoreClient.lease_policy`."""
        await self._queue(queue)
        return await self._lending.policy(queue, check_key(group))

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.waiting`."""
        await self._queue(queue)
        return await self._lending.waiting(queue, check_key(group))

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """See `StoreClient.purge`."""
        await self._queue(queue)
        return await self._lending.purge(queue, check_key(group))

    async def configure_queues(self, configs: Sequence[QueueConfig]) -> None:
        """See `StoreClient.configure_queues`."""
        await asyncio.gather(*map(self._recorder.record, configs))

    def queue_config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `StoreClient.queue_config`."""
        return self._recent.limits.get(queue)

    async def delete_queue(self, queue: QueueNumber) -> None:
        """See `StoreClient.delete_queue`."""
        await self._recorder.record(QueueDeleted(queue))
        await self._queue(queue)
