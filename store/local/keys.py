"""The keys and values of a `LocalStore`."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from store.api.keys import Changes, Delete, Entry, Namespace, Page, Put, Transacted
from store.api.kv_rules import OPERATIONS_COUNT_MAX, KeySpace, check_key, check_slot, end_of_prefix, slot_range, split
from store.base.errors import StoreClosed, StoreError, TransactionTooLarge
from store.format.frame import LogOffset, QueueOffset
from store.format.records import KV_QUEUE, KvDelete, KvExpired, KvLimits, KvPut, KvTransaction
from store.local.core import Core
from store.local.key_reading import Holds, KeysAtRevision
from store.local.key_watch import Keys, Watching, offset_before
from store.local.queues import LocalQueues
from store.timers.ticker import RETRY_MS, Ticker

RANGES_COUNT_MAX = 32  # read at a time: each has a transaction of its own
SWEEP_COUNT_MAX = 512  # expired keys removed by one record
SWEEP_INTERVAL_MS = 100  # at least between two looks for expired keys, so that many go at once
T = TypeVar("T")


class LocalKeys:
    """`KeyCalls` of one group in this process. Belongs to the thread of the event loop; ranges are read in threads."""

    def __init__(self, core: Core, queues: LocalQueues) -> None:
        self._core = core
        self._loop = core.loop
        self._views = core.engine.views
        self._recent = core.recent.kv
        self.clock = core.now_ms
        self.holds = Holds()
        self._ranges = asyncio.Semaphore(RANGES_COUNT_MAX)
        self._watching = Watching(_History(core, queues), self._recent.feeds)
        self._ticker = Ticker(core.loop, core.now_ms, self.tick)
        self._recent.on_expiry = self._ticker.wake_by

    def start(self) -> None:
        """Begins to remove expired keys."""
        self._ticker.wake_by(0)

    async def close(self) -> None:
        """Ends the watches, the holds and the sweeping."""
        self._recent.feeds.close()
        self.holds.close()
        await self._ticker.close()

    # ---- single keys

    async def get(self, key: str, *, namespace: str = "") -> Entry | None:
        """See `KeyCalls.get`. Raises `NotMaster`, `NotWritable` of a master that too few replicas answer."""
        await self._core.agreed()
        self._core.check_open()
        at = check_slot(namespace, key)
        held = self._recent.slot(at)
        if held is None:
            with self._views.reading() as txn:  # a lookup takes 5 us, a thread 50 to 100 us
                held = self._views.kv.held(txn, at)
        return held.entry(at) if held is not None and held.live(self.clock()) else None

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        namespace: str = "",
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> int:
        """See `KeyCalls.put`. Raises `RevisionConflict`, `KeyTooLong`, `FrameTooLarge`, `NamespaceFull`."""
        check_slot(namespace, key)
        expires = self._expiry(ttl_ms, expires_at_ms)
        outcome = await self._core.recorder.record(KvPut(key, value, expected_revision, namespace, expires))
        assert isinstance(outcome, int)
        return outcome

    async def delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """See `KeyCalls.delete`. Raises `RevisionConflict`, `KeyTooLong`."""
        check_slot(namespace, key)
        return bool(await self._core.recorder.record(KvDelete(key, expected_revision, namespace)))

    async def transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """See `KeyCalls.transact`."""
        if max(len(compares), len(operations)) > OPERATIONS_COUNT_MAX:
            raise TransactionTooLarge(f"a transaction has at most {OPERATIONS_COUNT_MAX} compares and operations")
        for key in (*compares, *(operation.key for operation in operations)):
            check_slot(namespace, key)
        if len({operation.key for operation in operations}) < len(operations):
            raise TransactionTooLarge("two operations of a transaction name the same key")
        written = tuple(
            (one.key, one.value, self._expiry(one.ttl_ms, one.expires_at_ms))
            if isinstance(one, Put)
            else (one.key, None, 0)
            for one in operations
        )
        outcome = await self._core.recorder.record(KvTransaction(namespace, tuple(compares.items()), written))
        assert isinstance(outcome, Transacted)
        return outcome

    def _expiry(self, ttl_ms: int | None, expires_at_ms: int | None) -> int:
        """Returns when a key expires, as records have it (0: never). Raises ValueError."""
        if ttl_ms is not None:
            if ttl_ms <= 0:
                raise ValueError(f"a time to live of {ttl_ms} ms")
            expires_at_ms = self.clock() + ttl_ms
        if expires_at_ms is None:
            return 0
        if not 0 < expires_at_ms < 1 << 63:
            raise ValueError(f"a key cannot expire at {expires_at_ms}")
        return expires_at_ms

    # ---- ranges

    async def prefix(self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = "") -> Sequence[Entry]:
        """See `KeyCalls.prefix`. Raises like `get`."""
        await self._core.agreed()
        read = partial(self._page, check_key(prefix), end_of_prefix(prefix), namespace=namespace, at_revision=None)
        page = await read(after=after or None, limit=limit)
        found = list(page.entries)
        while page.more and len(found) < limit:
            page = await read(after=found[-1].key, limit=limit - len(found))
            found += page.entries
        return found

    async def range(
        self,
        start: str = "",
        end: str | None = None,
        *,
        namespace: str = "",
        after: str | None = None,
        limit: int = 1000,
        at_revision: int | None = None,
    ) -> Page:
        """See `KeyCalls.range`. Raises like `get`."""
        if at_revision is None:
            await self._core.agreed()
        return await self._page(start, end, namespace=namespace, after=after, limit=limit, at_revision=at_revision)

    async def _page(
        self, start: str, end: str | None, *, namespace: str, after: str | None, limit: int, at_revision: int | None
    ) -> Page:
        first, last = slot_range(namespace, start, end)
        behind = b"" if after is None else check_slot(namespace, after)
        return await self._reading(at_revision, lambda state: state.page(first, last, behind, limit))

    async def count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """See `KeyCalls.count`. Raises like `get`."""
        await self._core.agreed()
        first, last = slot_range(namespace, start, end)
        return await self._reading(None, lambda state: state.number(first, last))

    async def _reading(self, at_revision: int | None, read: Callable[[KeysAtRevision], T]) -> T:
        """Reads a state in a thread: the one now, or one that is held."""
        async with self._ranges:
            self._core.check_open()
            if at_revision is not None:
                state = self.holds.get(at_revision, self.clock())
                return await self._loop.run_in_executor(self._core.pool, read, state)
            state = self._state()
            reading = self._core.pool.submit(read, state)
            reading.add_done_callback(lambda _: state.snapshot.close())  # also when it was cancelled before it began
            return await asyncio.wrap_future(reading)

    def _state(self) -> KeysAtRevision:
        """Returns all keys as they are now. Nothing may come between the transaction and the changes laid over it."""
        snapshot = self._views.snapshot()
        return KeysAtRevision(
            snapshot, self._views, self._recent.all_slots(), self._core.recent.confirmed, self.clock()
        )

    async def hold(self) -> int:
        """See `KeyCalls.hold`. Raises like `get`."""
        await self._core.agreed()
        self._core.check_open()
        self.holds.check()
        confirmed = self._core.recent.confirmed
        if self._views.dispatched < confirmed:
            with suppress(StoreError):  # then more is laid over the view, that is all
                await self._core.until_dispatched(confirmed)
        self._core.check_open()
        self.holds.check()
        now_ms = self.clock()
        revision = self.holds.add(self._state(), now_ms)
        self._ticker.wake_by(now_ms + SWEEP_INTERVAL_MS)
        return revision

    def release(self, revision: int) -> None:
        """See `KeyCalls.release`."""
        self.holds.release(revision)

    # ---- namespaces

    async def namespaces(self) -> Sequence[Namespace]:
        """See `KeyCalls.namespaces`."""
        self._core.check_open()
        recent = self._recent.spaces()
        with self._views.reading() as txn:
            found = {**dict(self._views.kv.spaces(txn)), **recent}
        return [Namespace(name, *space) for name, space in sorted(found.items()) if space != KeySpace()]

    async def limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """See `KeyCalls.limit`."""
        check_slot(namespace, "")
        await self._core.recorder.record(KvLimits(namespace, keys_max, size_bytes_max))

    # ---- watching

    def watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """See `KeyCalls.watch`."""
        self._core.check_open()
        slot_range(namespace, start, end)
        at = self._core.recent.confirmed + 1 if from_revision is None else from_revision
        self._watching.check_kept(at)
        return self._watching.watch(Keys(namespace, start, end), at)

    # ---- expiry

    async def tick(self, now_ms: int) -> int | None:
        """Removes expired keys, releases holds that are not read, and returns when to come again.

        On a replica nothing expires: its master removes the keys.
        """
        again = self.holds.tick(now_ms)
        if self._core.engine.role == "replica":
            return again
        if not self._core.writable:
            return now_ms + RETRY_MS if again is None else min(again, now_ms + RETRY_MS)
        try:
            await self.sweep(now_ms)
        except StoreClosed:
            return None
        ahead_ms = self._recent.next_due_ms()  # first: changes that are not here any more are in the view
        with self._views.reading() as txn:
            due_ms = self._views.kv.next_due_ms(txn)
        times = [ms for ms in (again, ahead_ms, due_ms) if ms is not None]
        return max(min(times), now_ms + SWEEP_INTERVAL_MS) if times else None

    async def look(self) -> None:
        """Does the work that is due now."""
        await self._ticker.look()

    async def sweep(self, now_ms: int) -> int:
        """Removes expired keys by records that watchers see, and returns how many there were."""
        removed = 0
        while batch := self._due(now_ms):
            outcome = await self._core.recorder.record(KvExpired(tuple(batch)))
            assert isinstance(outcome, int)
            removed += outcome
            if len(batch) < SWEEP_COUNT_MAX or not outcome:
                break
        return removed

    def _due(self, now_ms: int) -> list[tuple[str, str, int]]:
        """Returns some expired keys: (namespace, key, revision)."""
        recent = self._recent.all_slots()
        over = ((at, held.revision) for at, held in recent.items() if 0 < held.expires_at_ms <= now_ms)
        with self._views.reading() as txn:
            stored = ((at, number) for at, number in self._views.kv.due(txn, now_ms) if at not in recent)
            return [(*split(at), number) for at, number in islice(chain(over, stored), SWEEP_COUNT_MAX)]


class _History:
    """`store.local.key_watch.LogSource` of this store."""

    def __init__(self, core: Core, queues: LocalQueues) -> None:
        self._core = core
        self._views = core.engine.views
        self.fetch = queues.fetch
        self.bounds = queues.bounds

    @property
    def confirmed(self) -> LogOffset:
        """See `LogSource.confirmed`."""
        return self._core.recent.confirmed

    @property
    def first(self) -> LogOffset:
        """See `LogSource.first`."""
        return self._core.recent.first

    async def offset_before(self, log_offset: LogOffset) -> QueueOffset:
        """See `LogSource.offset_before`."""
        core = self._core
        core.check_open()
        chunks = core.recent.chunks(KV_QUEUE)
        return await core.loop.run_in_executor(core.pool, partial(offset_before, self._views, log_offset, chunks))

    def voids(self, first: int, end: int) -> Mapping[int, bytes]:
        """See `LogSource.voids`."""
        self._core.check_open()
        recent = self._core.recent.kv.voids()  # first: changes that are not here any more are in the view
        with self._views.reading() as txn:
            return {**dict(self._views.kv.voids(txn, first, end)), **recent}
