"""The timers that retired queues wait for.

There may be millions of timers, and a queue that is retired is asked for again and again. So one pass over the timers
answers for all queues that were asked for until then. It remembers the timer of each queue that is due last: as long
as that one is pending, the queue waits. A retired queue gets no new timers, so a queue without one stays so.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, NamedTuple

from store.api.timers import TimersHeld
from store.format.timer_key import TimerKey

FEW_TIMERS: Final = 10_000  # a pass over so many takes some hundredths of a second
REST: Final = 9  # passes over more of them take a tenth of the time at most


class Awaited(NamedTuple):
    """The last timer of each queue in a part of the timers, how many these are, and where the next part begins."""

    last: Mapping[int, TimerKey]
    looked_at: int
    following: TimerKey | None


class AwaitedTimers:
    """Answers which retired queues timers wait to put something into. It belongs to the thread of the event loop.

    `look` reads a part of the timers, from a key on, for some queues.
    """

    def __init__(
        self,
        *,
        held: Callable[[], TimersHeld],
        is_pending: Callable[[TimerKey], bool],
        look: Callable[[TimerKey | None, Collection[int]], Awaitable[Awaited]],
        now_s: Callable[[], float],
    ) -> None:
        self._held = held
        self._is_pending = is_pending
        self._look = look
        self._now_s = now_s
        self._last: dict[int, TimerKey | None] = {}  # by queue; as of the last pass that began after it was asked for
        self._asked: set[int] = set()  # the queues that the next pass answers for; no more than are retired
        self._rest_until_s = 0.0
        self._passing = asyncio.Lock()

    async def is_awaited(self, queue: int) -> bool:
        """Returns whether a timer will put something into a retired queue, or may: then it is asked again later.

        All timers from before the queue was retired must be where `look` finds them.
        """
        if not self._held().timers:
            return False
        self._asked.add(queue)
        async with self._passing:
            last = self._last.get(queue)
            if last is None and queue in self._last:
                return False
            if last is not None and self._is_pending(last):
                return True
            if self._now_s() < self._rest_until_s:
                return True
            await self._pass()
            return self._last[queue] is not None

    async def _pass(self) -> None:
        """Looks at all timers, for the queues asked for so far."""
        asked, began_s = frozenset(self._asked), self._now_s()
        found: dict[int, TimerKey] = {}
        part = await self._look(None, asked)
        count = part.looked_at
        found.update(part.last)
        while part.following is not None:
            part = await self._look(part.following, asked)
            count += part.looked_at
            found.update(part.last)
        self._last |= {queue: found.get(queue) for queue in asked}
        if count > FEW_TIMERS:
            now_s = self._now_s()
            self._rest_until_s = now_s + REST * (now_s - began_s)
