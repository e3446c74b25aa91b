"""Timers, and all that is due at a time."""

import logging
from collections.abc import Callable, Sequence

from store.api.client import TimerEntry, TimersHeld
from store.base.errors import StoreClosed
from store.disk.clock import SteadyClock
from store.local.calls.leases import LeaseCalls
from store.timers.ticker import RETRY_MS, Ticker
from store.timers.timers import Timers

__all__ = ["TimerCalls"]

logger = logging.getLogger(__name__)


class TimerCalls(LeaseCalls):
    """The calls of timers, and the tick that does all that is due."""

    _timers: Timers
    _timers_left: bool  # some were due when the last tick ended
    _ticker: Ticker
    _wall_ms: Callable[[], int]
    _steady_ms: SteadyClock

    async def tick(self) -> None:
        """Do what is due by now without waiting for the loop's own timer; returns when it is done."""
        self._check_open()
        await self._ticker.look()
        while self._timers_left and self._closing is None:
            await self._ticker.look()
        await self._kv.look()

    async def _tick(self, now_ms: int) -> int | None:
        """Do what is due; when to come again. Leases first, as they wait for no disk; neither stops the other.

        On a replica nothing is: that is its master's to do.
        """
        if self._engine.role == "replica":
            return None
        times: list[int | None] = []
        timers_left = False
        try:
            lease_ms = self._lending.expire()
            times.append(None if lease_ms is None else self._wall_ms() + lease_ms)
        except Exception:
            logger.exception("messages of expired leases could not be returned to their queues")
            times.append(now_ms + RETRY_MS)
        try:
            waits = self._engine.refusal is not None or self._inherits  # what has fired may be in what is not confirmed
            timer_ms = now_ms + RETRY_MS if waits else await self._timers.tick(now_ms)
            times.append(timer_ms)
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
