"""The work of a `LocalStore` that is due at a time: leases and delays that end, timers that fire."""

import logging
from collections.abc import Callable

from store.base.errors import StoreClosed
from store.disk.clock import SteadyClock
from store.local.core import Core
from store.local.leases import LocalLeases
from store.timers.ticker import RETRY_MS, Ticker
from store.timers.timers import Timers

logger = logging.getLogger(__name__)


class Due:
    """Ends leases and fires timers when their time has come. Belongs to the thread of the event loop."""

    def __init__(
        self, core: Core, leases: LocalLeases, timers: Timers, *, wall_ms: Callable[[], int], steady_ms: SteadyClock
    ) -> None:
        self._core = core
        self._leases = leases
        self._timers = timers
        self.wall_ms = wall_ms
        self._steady_ms = steady_ms
        self.holds_timers = False  # none fires until `begin_timers`
        self._timers_left = False  # some were due when the last tick ended
        self._ticker = Ticker(core.loop, wall_ms, self._tick)
        core.recent.leases.on_deadline = self._lease_deadline

    def wake_by(self, due_ms: int) -> None:
        """Looks for due work at a time, by the wall clock, or now when that is over."""
        self._ticker.wake_by(due_ms)

    def begin_timers(self) -> None:
        """Fires timers from now on, where they were held."""
        self.holds_timers = False
        self._ticker.wake_by(0)

    def _lease_deadline(self, at_ms: int) -> None:
        self._ticker.wake_by(self.wall_ms() + at_ms - self._steady_ms())

    async def look(self) -> None:
        """Does the due work without waiting for the loop's own timer; returns when it is done."""
        await self._ticker.look()
        while self._timers_left and self._core.closing is None:
            await self._ticker.look()

    async def close(self) -> None:
        """Begins nothing more and waits for work in progress."""
        await self._ticker.close()

    async def _tick(self, now_ms: int) -> int | None:
        """Does all work that is due, and returns when to come again. Leases are first, as they wait for no disk.

        On a replica nothing is: that is its master's to do.
        """
        core = self._core
        if core.engine.role == "replica":
            return None
        times: list[int | None] = []
        timers_left = False
        try:
            lease_ms = self._leases.expire()
            times.append(None if lease_ms is None else self.wall_ms() + lease_ms)
        except Exception:
            logger.exception("messages of expired leases could not be returned to their queues")
            times.append(now_ms + RETRY_MS)
        try:
            # Frames that are not confirmed may have fired timers.
            waits = core.engine.refusal is not None or core.awaits_predecessor
            timer_ms = None
            if not self.holds_timers:
                timer_ms = now_ms + RETRY_MS if waits else await self._timers.tick(now_ms)
            times.append(timer_ms)
            timers_left = timer_ms is not None and timer_ms <= now_ms
        except StoreClosed:
            return None
        except Exception:
            logger.exception("timers that are due could not be fired")
            times.append(now_ms + RETRY_MS)
        finally:
            self._timers_left = timers_left  # until then the previous result stands: `look` may look meanwhile
        return min((ms for ms in times if ms is not None), default=None)
