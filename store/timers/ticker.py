"""Work that is due at certain times, on an event loop whose wall clock may be set while it waits."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from store.base.errors import NotWritable, StoreFull
from store.base.rhythm import until_next_s

logger = logging.getLogger(__name__)

RECHECK_S = 1.0  # the wall clock is looked at this often while something is due: it may have been set
RETRY_MS = 1_000  # after a failure of ours


class Ticker:
    """Calls `work(now_ms)` when it is due; `work` says when that is next, None for not at all.

    Belongs to the thread of the loop. One call at a time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        work: Callable[[int], Awaitable[int | None]],
    ) -> None:
        self._loop = loop
        self._now_ms = now_ms
        self._work = work
        self._due_ms: int | None = None  # the time of the next work; None: there is none
        self._timer: asyncio.TimerHandle | None = None
        self._working: asyncio.Task[None] | None = None
        self._closed = False
        self._put_off = False  # for the time being nothing can be written, which is logged once

    def wake_by(self, due_ms: int) -> None:
        """Wakes at a time, or now if that has passed."""
        if self._due_ms is None or due_ms < self._due_ms:
            self._due_ms = due_ms
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed or self._due_ms is None or self._working is not None:
            return
        wait_s = min(max(self._due_ms - self._now_ms(), 0) / 1000, until_next_s(RECHECK_S, self._loop))
        self._timer = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        if self._due_ms is None or now_ms < self._due_ms:
            self._arm()
            return
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> "asyncio.Task[None]":
        self._due_ms = None
        self._working = self._loop.create_task(self._run(now_ms), name="store ticker")
        return self._working

    async def look(self) -> None:
        """Does the work that is due now: the clock may have been set. Returns when it is done."""
        while self._working is not None:
            await asyncio.wait([self._working])
        if not self._closed:
            await asyncio.wait([self._begin(self._now_ms())])

    async def _run(self, now_ms: int) -> None:
        following: int | None
        try:
            following = await self._work(now_ms)
            self._put_off = False
        except (NotWritable, StoreFull) as error:
            (logger.debug if self._put_off else logger.warning)("work that is due has to wait: %s", error)
            self._put_off = True
            following = now_ms + RETRY_MS
        except Exception:
            logger.exception("work that was due has failed")
            following = now_ms + RETRY_MS
        finally:
            self._working = None
        if following is not None:
            self.wake_by(following)
        self._arm()

    async def close(self) -> None:
        """Begins nothing more and waits for work in progress."""
        self._closed = True
        self._arm()
        if self._working is not None:
            await asyncio.wait([self._working])
