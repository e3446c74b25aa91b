"""Rejected messages on their way: those that one owner rejects of a queue become dead letters in that order.

Owners do not wait for each other. What an owner rejects while earlier ones are being moved follows together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from gateway.queues.model.queue import Queue
from store.format.frame import QueueOffset


class _Batch:
    """Messages that are moved together."""

    __slots__ = ("begun", "offsets", "reason", "task")

    task: asyncio.Task[None]

    def __init__(self, offsets: Sequence[QueueOffset], reason: str) -> None:
        self.offsets = list(offsets)
        self.reason = reason
        self.begun = False


class Rejections:
    """Calls `move` for the messages that owners reject, one call at a time for each owner and queue."""

    def __init__(self, move: Callable[[Queue, int, Sequence[QueueOffset], str], Awaitable[None]]) -> None:
        self._move = move
        self._last: dict[tuple[int, int], _Batch] = {}  # by owner and queue, the newest that has not ended

    async def add(self, queue: Queue, owner: int, offsets: Sequence[QueueOffset], reason: str) -> None:
        """Moves messages behind those that the owner has rejected before. Raises the errors of `move`."""
        key = (owner, queue.number)
        last = self._last.get(key)
        if last is None or last.begun or last.reason != reason:
            batch = self._last[key] = _Batch(offsets, reason)
            batch.task = asyncio.create_task(self._run(queue, owner, batch, last), name="rejected messages")
        else:
            batch = last
            batch.offsets += offsets
        await batch.task

    async def _run(self, queue: Queue, owner: int, batch: _Batch, before: _Batch | None) -> None:
        if before is not None:
            await asyncio.wait([before.task])
        batch.begun = True
        try:
            await self._move(queue, owner, batch.offsets, batch.reason)
        finally:
            key = (owner, queue.number)
            if self._last.get(key) is batch:
                del self._last[key]

    def of(self, owner: int) -> Iterator[asyncio.Task[None]]:
        """Yields what moves an owner's messages, to be waited for."""
        return (batch.task for (one, _), batch in self._last.items() if one == owner)
