"""A store group in this process: `StoreClient` over the engine, on an asyncio loop.

All methods belong to the thread of the loop. Calls that memory can answer are answered at once; those that may wait for
a disk run in a small pool of threads. With the engine's threads a write is handed between threads twice, so a program
that cares for latency under load lowers `sys.setswitchinterval` from 5 ms to 0.5 ms.

Each subject of the interface has its file in this room; they share a `Core`. This puts the parts together, opens and
closes them, and reports damage.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from store.api.client import StoreClient
from store.api.lost import LostMessages
from store.base.clock import RisingClock, SteadyClock
from store.base.clock import now_ms as machine_ms
from store.base.closing import AsyncClosing
from store.base.errors import StoreError
from store.engine.engine import Engine
from store.engine.replication_hooks import ReplicationHooks
from store.format.frame import LogOffset
from store.integrity.ledger import Damage
from store.integrity.seals import Seal
from store.integrity.views import ViewDamage
from store.local.cache import CACHE_BYTES_MAX, FrameCache
from store.local.core import Core
from store.local.due import Due
from store.local.groups import LocalGroups
from store.local.keys import LocalKeys
from store.local.leases import LocalLeases
from store.local.log import PENDING_BYTES_MAX, LocalLog
from store.local.queues import LocalQueues
from store.local.reader import StoreReader
from store.local.recorder import Recorder
from store.local.replication import LocalReplication
from store.log.retention import UNLIMITED, LimitsTable, RetentionLimits
from store.log.scrub import Scrubbed
from store.log.segment import BadRange
from store.recent.arrivals import Arrivals
from store.recent.recent import Recent
from store.timers.timers import TimerLimits, Timers

CONFIRM_WAIT_S = 1.0  # longest time that a closing master waits for the replicas to catch up


class LocalStore(AsyncClosing):
    """A `StoreClient` in process. `async with await LocalStore.open(data_dir) as store: ...`

    `replication` serves replication's driver, `core` has the parts that the subjects share.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int] | None = None,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        timer_limits: TimerLimits | None = None,
        hold_timers: bool = False,
        retention: RetentionLimits = UNLIMITED,
        replication: ReplicationHooks | None = None,
        **engine: Any,
    ) -> None:
        """Opens and recovers; blocks. Programs use `open`."""
        wall_ms = now_ms or machine_ms  # a clock that is set back delays timed work anew
        clock = RisingClock(wall_ms)
        core = self.core = Core(loop, clock, replication)
        cache = FrameCache(cache_bytes_max)
        self.arrivals = Arrivals(loop)
        gated = replication is not None and engine.get("role", "master") == "master"
        self.log = LocalLog(
            core,
            cache,
            self.arrivals,
            wake_by=self._wake_by,
            pending_bytes_max=pending_bytes_max,
            commits_here=not gated,
        )
        self.replication = LocalReplication(core, self.log.committed)
        core.engine = Engine(
            data_dir,
            now_ms=clock,
            on_committed=partial(core.post, self.replication.reported) if gated else self.log.report,
            on_dispatched=partial(core.post, self._dispatched),
            on_failed=partial(core.post, self._failed),
            on_written=partial(core.post, replication.written) if replication is not None and gated else None,
            on_flushed=partial(core.post, self._flushed),
            on_damaged=partial(core.post, self._damaged),
            on_repaired=partial(core.post, core.repaired),
            lost=core.is_lost,
            retention=retention,
            **engine,
        )
        try:
            log, views = core.engine.log, core.engine.views
            self.replication.begin(gated=gated)
            core.predecessor_end = log.end
            self._logs: Mapping[int, StoreClient] = {self.group: self}
            core.reader = StoreReader(log, views, cache, busy=lambda: self.log.pending_bytes > 0, lost=core.is_lost)
            with views.reading() as txn:
                limits = LimitsTable(retention, views.configs.all(txn))
            # A replica's views may be further than its log, and segments of its own end elsewhere than its master's.
            core.recent = Recent(max(log.confirmed, views.dispatched), max(log.first, views.first), limits)
            core.recorder = Recorder(self.log.append, loop, clock)
            clock.reached(views.stored_at_ms)
            self.queues = LocalQueues(core, self.arrivals)
            self.keys = LocalKeys(core, self.queues)
            self.groups = LocalGroups(core)
            steady_ms = SteadyClock(wall_ms)
            self.leases = LocalLeases(core, self.log, self.queues, self.keys, steady_ms)
            self.timers = Timers(
                core.recent.timers,
                views=views,
                blocking=core.blocking,
                append=self.log.append,
                record=core.recorder.record,
                fired=self.queues.wake,
                deleted_at=self.queues.deleted_at,
                now_ms=wall_ms,
                limits=timer_limits,
                check_open=core.check_open,
            )
            self.due = Due(core, self.leases, self.timers, wall_ms=wall_ms, steady_ms=steady_ms)
            self.due.holds_timers = hold_timers
            if self.replication.role == "master":
                loop.call_soon_threadsafe(self.due.wake_by, 0)  # for timers that became due while the store was closed
                loop.call_soon_threadsafe(self.keys.start)
        except BaseException:
            self._close_blocking()  # there is no one else to, and the directory would stay locked
            raise

    @classmethod
    async def open(cls, data_dir: Path, **options: Any) -> "LocalStore":
        """Opens a data directory, creating and recovering it as needed, off the loop.

        Options: `now_ms`, `pending_bytes_max`, `cache_bytes_max`, `timer_limits`, `hold_timers` (none fires until
        `begin_timers`), and those of `Engine`, which lists the errors: which `group`'s it is, its `role`, as master the
        `epoch` and the end of the log that is known to be `confirmed`, as replica where to cut the log first
        (`truncate_to`). With `replication` a master answers and serves frames up to the offsets of `confirm`.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, partial(cls, data_dir, loop=loop, **options))

    async def close(self) -> None:
        """Stores appended frames and answers for them, brings the views up, closes. A second call waits for the first.

        A master waits a moment for unconfirmed frames, and then answers that their outcome is unknown.
        """
        core = self.core
        if core.closing is None:
            core.recorder.flush()
            self.arrivals.wake_all()
            core.closing = asyncio.ensure_future(self._close())
        await asyncio.shield(core.closing)

    async def step_down(self) -> None:
        """Closes at once. Unconfirmed appends are answered `AppendOutcomeUnknown`, and views do not follow them."""
        if self.core.closing is None:
            self.replication.give_up()
        await self.close()

    async def _close(self) -> None:
        loop, engine = self.core.loop, self.core.engine
        giving_up = loop.call_later(CONFIRM_WAIT_S, self.replication.give_up)
        await self.due.close()
        await self.leases.close()
        await self.keys.close()
        # The loop takes in the last reports of the engine's threads before the next step.
        await loop.run_in_executor(None, engine.end_appends)
        if self.replication.gate is not None:
            await self.replication.gate.emptied()
        giving_up.cancel()
        await loop.run_in_executor(None, engine.end_dispatch)
        self.core.fail_waiters()
        await loop.run_in_executor(None, self._close_blocking)

    def _close_blocking(self) -> None:
        self.core.pool.shutdown(wait=True)
        self.core.engine.close()

    @property
    def error(self) -> StoreError | None:
        """Returns why nothing can be stored any more, None while all is well."""
        return self.core.engine.error

    @property
    def full(self) -> StoreError | None:
        """Returns why nothing can be stored for now: the disk has no room. None as soon as it has."""
        return self.core.engine.full

    @property
    def low(self) -> bool:
        """Returns whether the disk has little room, or none: writes may be refused soon."""
        return self.core.engine.low

    @property
    def corruptions(self) -> Sequence[BadRange]:
        """Damage that recovery met in front of valid frames."""
        return self.core.engine.log.corruptions

    @property
    def damages(self) -> Sequence[Damage]:
        """The open damages of the log, missing ranges too, by log offset; repaired ones are gone from here."""
        return self.core.damages

    @property
    def is_damaged(self) -> bool:
        """Returns whether the log or the views have open damage; then other replicas must not copy from it."""
        engine = self.core.engine
        return engine.views.health.is_damaged or (bool(engine.log.damages.count) and bool(self.damages))

    @property
    def view_damages(self) -> Sequence[ViewDamage]:
        """The damage of the views, which is never served; opening the store again makes them anew, if it can."""
        return self.core.engine.views.health.damages

    @property
    def views_rebuildable(self) -> bool:
        """Returns whether the log has all frames that the views are made from."""
        return self.core.engine.views.rebuildable

    @property
    def verifying(self) -> bool:
        """Returns whether a log of up to `START_BYTES_MAX` is being read for the first time since the start."""
        return self.core.engine.scrub.verifying

    def verify(self) -> None:
        """Starts reading the whole log for damage; `hastened` until it is done. Raises `StoreError`."""
        if not self.core.engine.scrub.hasten():
            raise StoreError("store.scrub_bytes_per_s is 0: stop the node, and use headgate store verify")

    @property
    def hastened(self) -> bool:
        """Returns whether the whole log is being read now, after a start or because of `verify`."""
        return self.core.engine.scrub.hastened

    async def lost(self) -> LostMessages:
        """See `QueueCalls.lost`."""
        return await self.queues.lost()

    def lost_known(self) -> LostMessages | None:
        """Returns the same without reading; None where `lost` has to be asked first."""
        return self.queues.lost_known()

    @property
    def messages_lost(self) -> int:
        """The number of messages that consumers with leases were not given because they are lost, since the start."""
        return self.core.reader.lost_count

    @property
    def damages_repaired(self) -> int:
        """The number of damages that were repaired in place since the directory was created."""
        return self.core.engine.log.damages.repaired_count

    def seals(self) -> list[Seal]:
        """Returns the seals of closed segments, oldest first.

        Those of another replica are to be the same where both agree on the segment's bounds. A segment that was just
        closed gets its own within seconds.
        """
        return list(self.core.engine.seals.all)

    @property
    def scrubbed(self) -> Scrubbed:
        """Returns how far the scrub has read."""
        return self.core.engine.scrub.progress

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self.core.engine.group

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return self._logs

    async def tick(self) -> None:
        """Does the due work without waiting for the loop's own timers; returns when it is done."""
        self.core.check_open()
        await self.due.look()
        await self.keys.look()

    def begin_timers(self) -> None:
        """Fires timers from now on, where `hold_timers` was said."""
        self.due.begin_timers()

    def _wake_by(self, due_ms: int) -> None:
        self.due.wake_by(due_ms)

    # ---- from the engine

    def _dispatched(self, dispatched: LogOffset) -> None:
        self.core.recent.trim(dispatched)
        self.leases.trim()
        self.core.dispatched(dispatched)

    def _failed(self) -> None:
        self.core.fail_waiters()
        if self.core.hooks is not None and self.core.engine.error is not None:
            self.core.hooks.failed(self.core.engine.error)

    def _damaged(self) -> None:
        if self.core.hooks is not None:
            self.core.hooks.damaged()

    def _flushed(self, end: LogOffset) -> None:
        if self.core.hooks is not None:
            self.core.hooks.flushed(end)
