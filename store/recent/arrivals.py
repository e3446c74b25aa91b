"""Waiting for the next record of a queue, without asking again and again."""

import asyncio

from store.format.frame import QueueNumber
from store.format.records import QueueDeleted
from store.log.run import FrameRun

WAITERS_MAX = 1 << 17  # beyond, calls do not wait: a call returns as if its time were up
WAIT_MS_MAX = 60_000


class Arrivals:
    """The waiters for each queue. Belongs to the thread of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.waiting: dict[QueueNumber, list[asyncio.Future[None]]] = {}
        self.count = 0  # of all of them; <= WAITERS_MAX

    async def wait(self, queue: QueueNumber, deadline: float) -> bool:
        """Waits for a change of a queue, or the deadline by the loop's clock; returns whether there is time left."""
        left = deadline - self._loop.time()
        if left <= 0 or self.count >= WAITERS_MAX:
            return False
        future: asyncio.Future[None] = self._loop.create_future()
        self.waiting.setdefault(queue, []).append(future)
        self.count += 1
        timer = self._loop.call_later(left, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            self.count -= 1
            waiting = self.waiting.get(queue)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self.waiting[queue]
        return self._loop.time() < deadline

    def arrived(self, run: FrameRun) -> None:
        """Wakes those who wait for a run that readers can see now. Costs a look-up for each chunk while one waits."""
        if not self.waiting:
            return
        for queue in run.chunks.queues():
            self._wake(QueueNumber(queue))
        for _, record in run.records:
            if isinstance(record, QueueDeleted):
                self._wake(QueueNumber(record.queue))

    def wake_all(self) -> None:
        """Wakes all waiters, as nothing more will arrive."""
        for queue in list(self.waiting):
            self._wake(queue)

    def _wake(self, queue: QueueNumber) -> None:
        for future in self.waiting.pop(queue, ()):
            _wake(future)


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
