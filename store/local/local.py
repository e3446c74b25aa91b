"""A store group in this process: `StoreClient` over the engine, on an asyncio loop.

All methods belong to the thread of the loop. What is in memory is answered at once; what may wait for a disk runs in
a small pool of threads. With the engine's threads a write is handed between threads twice, so a program that cares
for latency under load lowers `sys.setswitchinterval` from 5 ms to 0.5 ms.

What is asked of it is in `store.local.calls`, by what it is about; this puts the parts together and lets appends in and
out.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from store.api.client import OnAppended, QueuesListener, StoreClient, TailListener
from store.base.errors import (
    AppendOutcomeUnknown,
    BadArgument,
    FrameTooLarge,
    StoreClosed,
    StoreError,
    StoreOverloaded,
    ViewsDamaged,
)
from store.disk.clock import RisingClock, SteadyClock, WallClock
from store.engine.engine import Committed, Engine
from store.engine.gate import Gate
from store.engine.lost import LostRange, lost_ranges
from store.engine.replication_hooks import ReplicationHooks
from store.format.frame import FRAME_BYTES_MAX, ROW, LogOffset, Position, UnplacedFrame
from store.integrity.ledger import Damage
from store.integrity.seals import Seal
from store.integrity.views import ViewDamage
from store.local.cache import CACHE_BYTES_MAX, FrameCache, NewFrames
from store.local.calls.reads import ReadCalls
from store.local.calls.replica import ReplicaCalls
from store.local.calls.timers import TimerCalls
from store.local.finder import Finder
from store.local.kv.keyvalue import KeyValue, Log
from store.local.lease_handles import LeaseHandles
from store.local.lending import Lending
from store.local.reader import Reader
from store.local.recorder import Recorder
from store.log.retention import UNLIMITED, Limits, LimitsTable
from store.log.run import Run
from store.log.scrub import Scrubbed
from store.log.segment import BadRange
from store.recent.arrivals import Arrivals
from store.recent.recent import Outcome, Recent
from store.timers.ticker import Ticker
from store.timers.timers import TimerLimits, Timers

__all__ = ["PENDING_BYTES_MAX", "LocalStore"]

logger = logging.getLogger(__name__)

PENDING_BYTES_MAX = 64 << 20
READERS = 4  # threads that may wait for a disk
CONFIRM_WAIT_S = 1.0  # a master that is closed waits so long for the other replicas to have what it has


class LocalStore(ReplicaCalls, ReadCalls, TimerCalls):
    """A `StoreClient` in process. `async with await LocalStore.open(data_dir) as store: ...`"""

    def __init__(
        self,
        data_dir: Path,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int] | None = None,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        timer_limits: TimerLimits | None = None,
        retention: Limits = UNLIMITED,
        replication: ReplicationHooks | None = None,
        **engine: Any,
    ) -> None:
        """Open and recover; blocks. Programs use `open`."""
        wall_ms = now_ms or WallClock()  # what is due at a time waits again when the clock is set back
        now_ms = self._now_ms = clock = RisingClock(wall_ms)
        self._loop = loop
        self._pending_bytes_max = pending_bytes_max
        self._pending_bytes = 0  # handed to the engine and not yet answered
        self._hooks = replication
        self._repairs = 0
        self._lost_known: tuple[tuple[Damage, ...], tuple[LostRange, ...]] = (), ()
        self._repair_waiters = []
        self._gate: Gate | None = None
        gated = replication is not None and engine.get("role", "master") == "master"
        self._engine = Engine(
            data_dir,
            now_ms=now_ms,
            on_committed=partial(self._post, self._reported if gated else self._committed),
            on_dispatched=partial(self._post, self._dispatched),
            on_failed=partial(self._post, self._failed),
            on_written=partial(self._post, replication.written) if replication is not None and gated else None,
            on_flushed=partial(self._post, self._flushed),
            on_damaged=partial(self._post, self._damaged),
            on_repaired=partial(self._post, self._repaired),
            lost=self._is_lost,
            retention=retention,
            **engine,
        )
        log, views = self._engine.log, self._engine.views
        if gated:
            self._gate = Gate(log.confirmed, self._let_through)
            for run in self._engine.inherit():
                self._gate.add(Committed([], 0, run))
        self._inherited_end = log.end
        self._received = log.end
        self._logs: Mapping[int, StoreClient] = {self.group: self}
        self._cache = FrameCache(cache_bytes_max)
        self._reader = Reader(log, views, self._cache, busy=lambda: self._pending_bytes > 0, lost=self._is_lost)
        with views.reading() as txn:
            limits = LimitsTable(retention, views.configs.all(txn))
        # A replica's views may be further than its log, and segments of its own end elsewhere than its master's.
        self._recent = Recent(max(log.confirmed, views.dispatched), max(log.first, views.first), limits)
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
        self._leased_from = self._recent.first  # what lies before is not lent any more
        self._lease_key = b""  # not looked up yet
        clock.reached(views.stored_at_ms)
        self._kv = KeyValue(
            loop,
            views,
            self._recent.kv,
            Log(
                first=lambda: self._recent.first,
                confirmed=lambda: self._recent.confirmed,
                chunks=self._recent.chunks,
                fetch=self.fetch,
                bounds=self.bounds,
                until_dispatched=self._until_dispatched,
                check_open=self._check_open,
                writable=lambda: self.writable,
            ),
            record=self._recorder.record,
            pool=self._pool,
            clock=clock,
        )
        self._timers = Timers(
            self._recent.timers,
            views=views,
            blocking=self._blocking,
            append=self.append,
            record=self._recorder.record,
            fired=self._awakened,
            now_ms=wall_ms,
            limits=timer_limits,
        )
        self._ticker = Ticker(loop, wall_ms, self._tick)
        self._timers_left = False
        self._dispatch_waiters = []
        self._closing = None
        if self.role == "master":
            loop.call_soon_threadsafe(self._ticker.wake_by, 0)  # what became due while it was closed
            loop.call_soon_threadsafe(self._kv.start)

    @classmethod
    async def open(cls, data_dir: Path, **options: Any) -> "LocalStore":
        """Open a data directory, creating and recovering it as needed, off the loop.

        Options: `now_ms`, `pending_bytes_max`, `cache_bytes_max`, `timer_limits`, and those of `Engine`, which says
        what is raised: which `group`'s it is, its `role`, as master the `epoch` and what of the log is known to be
        `confirmed`, as replica where to cut the log first (`truncate_to`). With `replication` a master answers, and
        lets be read, what `confirm` says.
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
        """Store what was appended and answer for it, bring the views up, close. Again waits for the first call.

        A master waits a moment for what is not confirmed, and then answers that nobody knows.
        """
        if self._closing is None:
            self._recorder.flush()
            self._arrivals.wake_all()
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        giving_up = self._loop.call_later(CONFIRM_WAIT_S, self._give_up)
        await self._ticker.close()
        await self._lending.close()
        await self._kv.close()
        # What a thread reports while it ends has been taken in on the loop before the next step.
        await self._loop.run_in_executor(None, self._engine.end_appends)
        if self._gate is not None:
            await self._gate.emptied()
        giving_up.cancel()
        await self._loop.run_in_executor(None, self._engine.end_dispatch)
        self._fail_waiters()
        await self._loop.run_in_executor(None, self._close_blocking)

    def _close_blocking(self) -> None:
        self._pool.shutdown(wait=True)
        self._engine.close()

    @property
    def error(self) -> StoreError | None:
        """Returns why nothing can be stored any more, None while all is well."""
        return self._engine.error

    @property
    def full(self) -> StoreError | None:
        """Returns why nothing can be stored for now: the disk has no room. None as soon as it has."""
        return self._engine.full

    @property
    def corruptions(self) -> Sequence[BadRange]:
        """Damage that recovery met in front of valid frames."""
        return self._engine.log.corruptions

    @property
    def damages(self) -> Sequence[Damage]:
        """The open damages of what the log keeps, or should, by log offset; repaired ones are gone from here."""
        first = min(self._engine.log.first, self._engine.views.first)
        return [damage for damage in self._engine.log.damages.open() if damage.end > first]

    @property
    def is_damaged(self) -> bool:
        """Returns whether the log or the views have open damage; then the store is no source of all it should hold."""
        return self._engine.views.health.is_damaged or (bool(self._engine.log.damages.count) and bool(self.damages))

    @property
    def view_damages(self) -> Sequence[ViewDamage]:
        """The damage of the views, which is never served; opening the store again makes them anew, if it can."""
        return self._engine.views.health.damages

    @property
    def views_rebuildable(self) -> bool:
        """Returns whether the log has all of what the views are made from."""
        return self._engine.views.rebuildable

    @property
    def verifying(self) -> bool:
        """Returns whether a log of up to `START_BYTES_MAX` is being read for the first time since the start."""
        return self._engine.scrub.verifying

    def verify(self) -> None:
        """Have the whole log read now, for damage; `hastened` until it has. Raises `StoreError`."""
        if not self._engine.scrub.hasten():
            raise StoreError("store.scrub_bytes_per_s is 0: stop the node, and use headgate store verify")

    @property
    def hastened(self) -> bool:
        """Returns whether the whole log is being read now, after a start or because of `verify`."""
        return self._engine.scrub.hastened

    async def lost(self) -> Sequence[LostRange]:
        """The messages in the open damages, by queue and offsets: of a store alone they are lost."""
        damages = tuple(self.damages)
        if damages and damages != self._lost_known[0]:
            self._check_running()
            found = await self._loop.run_in_executor(self._pool, lost_ranges, self._engine.views, damages)
            self._lost_known = damages, tuple(found)
        return self._lost_known[1] if damages else ()

    @property
    def messages_lost(self) -> int:
        """The number of messages that consumers with leases were not given because they are lost, since the start."""
        return self._reader.lost_count

    @property
    def damages_repaired(self) -> int:
        """The number of damages that were repaired in place since the directory was begun."""
        return self._engine.log.damages.repaired_count

    def seals(self) -> list[Seal]:
        """The seals of closed segments, oldest first; those of another replica are to be the same where both agree
        on the segment's bounds. A segment that was just closed gets its own within seconds."""
        return list(self._engine.seals.all)

    @property
    def scrubbed(self) -> Scrubbed:
        """Returns how far the scrub has read."""
        return self._engine.scrub.progress

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self._engine.group

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return self._logs

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """See `StoreClient.append`. A refusal comes on the next turn of the loop, ahead of what is being written."""
        size = frame.size_bytes
        refused = self._refusal(size)
        if len(frame.rows) != frame.row_count * ROW.size:  # it would stop the store; checksums are readers' to check
            refused = BadArgument(f"{len(frame.rows)} bytes are not {frame.row_count} rows")
        if refused is not None:
            self._loop.call_soon(done, refused)
            return
        self._pending_bytes += size
        self._engine.append(frame, done)

    def _refusal(self, size: int) -> StoreError | None:
        if self._engine.refusal is not None:
            return self._engine.refusal
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
        return min(self._recent.confirmed, self._engine.log.confirmed)

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `StoreClient.tail`."""
        number = self._listener_count
        self._listener_count += 1
        self._listeners[number] = listener

        def stop() -> None:
            self._listeners.pop(number, None)

        return stop

    def _failed(self) -> None:
        self._fail_waiters()
        if self._hooks is not None and self._engine.error is not None:
            self._hooks.failed(self._engine.error)

    def _damaged(self) -> None:
        if self._hooks is not None:
            self._hooks.damaged()

    def _flushed(self, end: LogOffset) -> None:
        if self._hooks is not None:
            self._hooks.flushed(end)

    def _reported(self, committed: Committed) -> None:
        """A group is on this disk, or has failed, and now waits for the other replicas."""
        assert self._gate is not None
        self._gate.add(committed)
        if committed.run is not None:
            self._flushed(committed.run.end)

    def _let_through(self, committed: Committed) -> None:
        if committed.run is not None:
            self._engine.log.confirm(committed.run.end)
        self._committed(committed)

    def _committed(self, committed: Committed) -> None:
        """A group is durable, or has failed: first what reads see, then the senders, then the listeners."""
        self._pending_bytes -= committed.size_bytes
        run = committed.run
        outcomes: dict[Position, Outcome] = {}
        if run is not None:
            self._cache.put(*run.placed)
            decided = self._decide(run)
            if decided is None:
                unknown = AppendOutcomeUnknown("it is in the log, and what it does cannot be decided by damaged views")
                for done, _ in committed.outcomes:
                    done(unknown)
                return
            outcomes = decided
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
        frames = NewFrames(self._cache, run.placed)
        for listener in list(self._listeners.values()):
            try:
                listener(frames)
            except Exception:
                logger.exception("a listener on the log's tail has failed")

    def _decide(self, run: Run) -> dict[Position, Outcome] | None:
        """Take a run in; what its records came to. None, from then on, where the views cannot tell what was before."""
        if isinstance(self._engine.error, ViewsDamaged):
            return None
        try:
            with self._kv.lookups() as stored:
                return self._recent.add(run, stored)
        except ViewsDamaged as error:
            self._engine.fail(error)
            return None

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
