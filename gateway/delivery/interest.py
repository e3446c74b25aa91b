"""Finds the queues that can hold a subscription's matches: once a frame, from its rows, before anything is decoded."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from store.format.frame import FIRST_QUEUE, QueueNumber

QUEUES_MARKED_MAX = 1 << 22  # numbers beyond are not marked: their frames are looked into
_UNSEEN, _IDLE, _WANTED = 0, 1, 2


class Interest:
    """Marks of queues by their numbers.

    `queues_of` names the queues that addresses of a filter can be in (None: any). A queue that is not `known` may be of
    a topic that was made a moment ago, and that this process does not know yet: its messages may concern any
    subscriber.
    """

    def __init__(
        self, queues_of: Callable[[str], Sequence[QueueNumber] | None], known: Callable[[QueueNumber], bool]
    ) -> None:
        self._queues_of = queues_of
        self._known = known
        self._wanted: set[QueueNumber] | None = None
        self._marks: npt.NDArray[np.uint8] | None = None  # by queue number; None: to be made anew
        self._any = False  # there is a filter that any queue can match

    def forget(self) -> None:
        """Forgets all marks, as filters or topics have changed."""
        self._marks = None

    def concerns(self, queues: npt.NDArray[np.uint32], patterns: Iterable[str]) -> bool:
        """Returns whether one of the filters can match something in one of the queues."""
        # Once a frame, thousands of times a second: a look-up in a table takes 3 us where `isin` takes 15.
        marks = self._marks if self._marks is not None else self._begin(patterns)
        if self._any:
            return True
        top = int(queues.max(initial=0))
        if top >= QUEUES_MARKED_MAX:
            return True
        if top >= len(marks):
            marks = self._marks = np.concatenate([marks, np.zeros(max(top, 2 * len(marks)) - len(marks) + 1, np.uint8)])
        found = marks[queues]
        if not found.all():
            for number in np.unique(queues[found == _UNSEEN]).tolist():
                marks[number] = self._mark(QueueNumber(number))
            found = marks[queues]
        return bool((found == _WANTED).any())

    def _begin(self, patterns: Iterable[str]) -> npt.NDArray[np.uint8]:
        found = [self._queues_of(pattern) for pattern in patterns]
        self._any = None in found
        self._wanted = {queue for queues in found if queues is not None for queue in queues}
        self._marks = np.zeros(1024, np.uint8)
        self._marks[:FIRST_QUEUE] = _IDLE
        return self._marks

    def _mark(self, queue: QueueNumber) -> int:
        assert self._wanted is not None
        return _WANTED if queue in self._wanted or not self._known(queue) else _IDLE
