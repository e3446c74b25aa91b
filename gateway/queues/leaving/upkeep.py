"""The upkeep of queues whose messages leave by themselves: when each is looked at next, and one task that looks.

A queue is looked at when something has changed at its head, and when the message there expires. Looks at several queues
go on beside each other: one that waits for the store holds up no others. Each of several proxies
maintains all queues by its own knowledge of them; leases ensure that one proxy moves a message. A look at every such
queue once in a while makes up for proxies that are gone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from store.base import logs
from store.base.clock import SteadyClock
from store.base.errors import StoreError
from store.base.streams.event_wait import wait_at_most

OWNER: Final = 0  # of messages leased meanwhile: no connection has this number
LOOKS_COUNT_MAX: Final = 32  # at once
AGAIN_MS: Final = 20  # between two looks at a queue that changes all the time
RETRY_MS: Final = 1_000  # after the store has failed
SWEEP_MS: Final = 60_000  # between two looks at a queue without events
IDLE_MS: Final = 3_600_000
COMPACT_COUNT_MIN: Final = 64  # entries of queues that are gone, or were looked at before: so many do no harm

log = logs.get(__name__)


class Upkeep:
    """Looks at queues, by number, when they are due.

    `now_ms` is the clock by which messages expire. All times kept here are of a clock that does not go back with it.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._wall_ms = now_ms
        self._now_ms = SteadyClock(now_ms)
        self._due: dict[int, int] = {}  # by queue: its one valid entry in the heap
        self._heap: list[tuple[int, int]] = []
        self._looking: set[int] = set()  # the heap has none of these until their looks have ended
        self._looked: dict[int, int] = {}  # when, of those, and of queues looked at within AGAIN_MS
        self._failing: set[int] = set()  # queues that the last look has failed at: that is logged once
        self._sweep_ms = 0
        self._wake = asyncio.Event()

    def changed(self, number: int) -> None:
        """Schedules a look at a queue whose messages have changed."""
        now_ms = self._now_ms()
        self._schedule(number, max(now_ms, self._looked.get(number, 0) + AGAIN_MS))

    def _schedule(self, number: int, due_ms: int) -> None:
        if self._due.get(number, due_ms + 1) > due_ms:
            self._due[number] = due_ms
            if number not in self._looking:
                heappush(self._heap, (due_ms, number))
                self._wake.set()

    def forget(self, number: int) -> None:
        """Looks at a queue no more: it is gone."""
        self._looked.pop(number, None)
        self._failing.discard(number)
        if self._due.pop(number, None) is not None and len(self._heap) > 2 * len(self._due) + COMPACT_COUNT_MIN:
            self._heap = [(due_ms, one) for one, due_ms in self._due.items() if one not in self._looking]
            heapify(self._heap)

    async def run(self, look: Callable[[int], Awaitable[int | None]], every: Callable[[], Iterable[int]]) -> None:
        """Looks, forever.

        `look` returns when to look again, by the clock of messages, None if nothing is to be expected; `every` gives
        the queues to be swept.
        """
        async with asyncio.TaskGroup() as looks:
            while True:
                self._wake.clear()
                now_ms = self._now_ms()
                if now_ms >= self._sweep_ms:
                    self._sweep_ms = now_ms + SWEEP_MS
                    for number in every():
                        self._schedule(number, now_ms)
                for number in self._take(now_ms):
                    self._looking.add(number)
                    looks.create_task(self._look_at(look, number), name=f"upkeep of queue {number}")
                following_ms = self._sweep_ms
                if self._heap and len(self._looking) < LOOKS_COUNT_MAX:
                    following_ms = min(self._heap[0][0], following_ms)
                await wait_at_most(self._wake, min(following_ms - now_ms, IDLE_MS) / 1_000)

    def _take(self, now_ms: int) -> list[int]:
        """Takes queues that are due, as many as may be looked at."""
        due: list[int] = []
        room = LOOKS_COUNT_MAX - len(self._looking)
        while self._heap and self._heap[0][0] <= now_ms and len(due) < room:
            at_ms, number = heappop(self._heap)
            if self._due.get(number) == at_ms and number not in self._looking:
                del self._due[number]
                due.append(number)
        self._looked = {
            number: at_ms
            for number, at_ms in self._looked.items()
            if at_ms + AGAIN_MS > now_ms or number in self._looking
        }
        return due

    async def _look_at(self, look: Callable[[int], Awaitable[int | None]], number: int) -> None:
        """Looks at a queue, and schedules the next look."""
        self._looked[number] = self._now_ms()
        try:
            due_ms = await self._look(look, number)
            looked_ms = self._looked.get(number)
            if due_ms is not None and looked_ms is not None:  # else the queue is gone since
                self._schedule(number, max(due_ms, looked_ms + 1))
        finally:
            self._looking.discard(number)
            if number in self._due:
                heappush(self._heap, (self._due[number], number))
            self._wake.set()

    async def _look(self, look: Callable[[int], Awaitable[int | None]], number: int) -> int | None:
        """Returns when to look again, None if nothing is to be expected."""
        try:
            due_ms = await look(number)
        except StoreError as error:
            if number not in self._failing and number in self._looked:  # else the queue is gone since
                self._failing.add(number)
                log.warning(
                    "limits and expiry of a queue cannot be applied now",
                    queue=number,
                    error=str(error),
                    retry_s=RETRY_MS / 1_000,
                )
            return self._now_ms() + RETRY_MS
        except Exception:  # our own bug: it concerns one queue, and the others go on
            log.exception("applying limits and expiry of a queue has failed", queue=number)
            return self._now_ms() + SWEEP_MS
        self._failing.discard(number)
        return None if due_ms is None else self._now_ms() + due_ms - self._wall_ms()
