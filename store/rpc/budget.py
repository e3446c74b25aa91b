"""A number of bytes that many may use at a time, first come, first served."""

import asyncio
from collections import deque


class Budget:
    """`size` bytes to share. Belongs to the thread of the event loop."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free = size  # 0 <= free <= size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, size: int) -> int:
        """Waits for that many bytes, or for all there are when it is more; returns how many to give back."""
        size = min(size, self.size)
        if not self._waiting and size <= self.free:
            self.free -= size
            return size
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            self.release(0 if granted.cancelled() else size)  # those behind it may fit now
            raise
        return size

    def release(self, size: int) -> None:
        """Gives back the bytes that `acquire` returned."""
        self.free += size
        waiting = self._waiting
        while waiting and (waiting[0][1].done() or waiting[0][0] <= self.free):
            size, granted = waiting.popleft()
            if not granted.done():  # otherwise the caller that waited has gone away
                self.free -= size
                granted.set_result(None)


class Share:
    """The part of a budget that one call has. Empty until something is acquired."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0

    async def acquire(self, size: int) -> None:
        """Takes `size` bytes, which replace nothing: the share has to be empty."""
        assert self._held == 0
        self._held = await self._budget.acquire(size)

    def release(self) -> None:
        """Gives all of it back; again does nothing."""
        held, self._held = self._held, 0
        if held:
            self._budget.release(held)
