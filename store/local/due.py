"""The work of a `LocalStore` that is due at a time: leases and delays that end, timers that fire."""

import logging
from collections.abc import Callable

from store.base.clock import SteadyClock
from store.base.errors import StoreClosed
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
        self._steady_ms = steady_ms
        self.holds_timers = False  # none fires until `begin_timers`
        self._timers_left = False  # some were due when the last tick ended
        self._expiring = Ticker(core.loop, steady_ms, self._expire)
        self._firing = Ticker(core.loop, wall_ms, self._fire)
        core.recent.leases.on_deadline = self._expiring.wake_by

    def wake_by(self, due_ms: int) -> None:
        """Looks for due timers at a time, by the wall clock, or now when that is over."""
        self._firing.wake_by(due_ms)

    def begin_timers(self) -> None:
        """Fires timers from now on, where they were held."""
        self.holds_timers = False
        self._firing.wake_by(0)

    async def look(self) -> None:
        """Does the due work without waiting for the loop's own timers; returns when it is done."""
        await self._expiring.look()
        await self._firing.look()
        while self._timers_left and self._core.closing is None:
            await self._firing.look()

    async def close(self) -> None:
        """Begins nothing more and waits for work in progress."""
        await self._expiring.close()
        await self._firing.close()

    async def _expire(self, now_ms: int) -> int | None:
        """Ends the leases and delays whose time is over, and returns when to come again.

        On a replica nothing is due, here and below: that is its master's to do.
        """
        if self._core.engine.role == "replica":
            return None
        try:
            following_ms = self._leases.expire()
        except Exception:
            logger.exception("messages of expired leases could not be returned to their queues")
            return now_ms + RETRY_MS
        return None if following_ms is None else self._steady_ms() + following_ms

    async def _fire(self, now_ms: int) -> int | None:
        """Fires the timers that are due, and returns when to come again."""
        core = self._core
        if core.engine.role == "replica" or self.holds_timers:
            return None
        timers_left = False
        try:
            # Frames that are not confirmed may have fired timers.
            waits = core.engine.refusal is not None or core.awaits_predecessor
            following_ms = now_ms + RETRY_MS if waits else await self._timers.tick(now_ms)
            timers_left = following_ms is not None and following_ms <= now_ms
        except StoreClosed:
            return None
        except Exception:
            logger.exception("timers that are due could not be fired")
            return now_ms + RETRY_MS
        finally:
            self._timers_left = timers_left  # until then the previous result stands: `look` may look meanwhile
        return following_ms
