"""The waiters for a queue to have messages to lease: told when another client appends to it or gives some back."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from store.format.frame import Frame, QueueNumber

Waiter = Callable[[Sequence[QueueNumber]], None]


class QueueWaiters:
    """The sessions of a node that have asked a queue for messages and were given none since it was told of them."""

    def __init__(self) -> None:
        self._waiters: dict[QueueNumber, dict[Waiter, None]] = {}

    def wait(self, queue: QueueNumber, waiter: Waiter) -> None:
        """Tells `waiter` once when there may be something."""
        self._waiters.setdefault(queue, {})[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Forgets a session that has ended."""
        for queue in [queue for queue, waiters in self._waiters.items() if waiter in waiters]:
            self._drop(queue, waiter)

    def served(self, queue: QueueNumber, waiter: Waiter) -> None:
        """Forgets a waiter that was given messages, and will ask again by itself."""
        self._drop(queue, waiter)

    def _drop(self, queue: QueueNumber, waiter: Waiter) -> None:
        waiters = self._waiters.get(queue, {})
        waiters.pop(waiter, None)
        if not waiters:
            self._waiters.pop(queue, None)

    def appended(self, frames: Iterable[Frame]) -> None:
        """Wakes those who wait, as the log has grown. Once a frame, and only while there are waiters."""
        if self._waiters:
            found = {queue for frame in frames for queue in np.unique(frame.rows["queue"]).tolist()}
            self.leasable([queue for queue in self._waiters if queue in found])

    def leasable(self, queues: Iterable[QueueNumber]) -> None:
        """Wakes the waiters of queues that may have messages."""
        told: dict[Waiter, list[QueueNumber]] = {}
        for queue in queues:
            for waiter in self._waiters.pop(queue, {}):
                told.setdefault(waiter, []).append(queue)
        for waiter, some in told.items():
            waiter(some)
