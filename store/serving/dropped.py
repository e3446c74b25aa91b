"""The check of rows that clients send: for queues that take nothing more, and for timers that would never fire.

A client that does not know yet that a queue is no more would have messages acknowledged that are never read.

The client alone holds timers to the limits of their count, their bytes and their time ahead (`TimerCalls.admit`): by
its own clock, and the count that it heard last. Timers in flight may so pass a limit, as in one process. A check here,
by another clock and a later count, would refuse whole frames, and with them the messages of other publishers.
"""

from collections.abc import Callable, Iterator

import numpy as np

from store.base.errors import FrameTooLarge, QueueDropped
from store.format.frame import FEW_ROWS, ROW, ROWS_DTYPE, Buffer
from store.format.records import TIMERS_QUEUE, TimerSet, decode
from store.timers.timers import TIMER_BYTES_MAX


def check_rows(rows: bytes | memoryview, payload: Callable[[], Buffer], dropped: frozenset[int]) -> None:
    """Checks rows, and those that timers among them will write.

    Raises `QueueDropped` where some are for `dropped` queues, `FrameTooLarge` for a timer that fits in no frame with
    the record that it has fired, and the errors of `payload`, which is asked only where there are timers.
    """
    if len(rows) % ROW.size:
        return  # they are no rows: the store refuses them
    queues = _queues(rows, whole=bool(dropped))
    _check(queues, dropped)
    if TIMERS_QUEUE in queues:
        for timer in _timers(rows, payload()):
            if dropped:
                _check(_queues(timer.rows, whole=True), dropped)
            size_bytes = len(timer.rows) + len(timer.payload)
            if size_bytes > TIMER_BYTES_MAX:
                raise FrameTooLarge(f"{size_bytes} bytes in one timer, which may have {TIMER_BYTES_MAX}")


def _check(queues: set[int], dropped: frozenset[int]) -> None:
    if gone := queues & dropped:
        raise QueueDropped(f"queue {min(gone)} is no more")


def _timers(rows: bytes | memoryview, payload: Buffer) -> Iterator[TimerSet]:
    for queue, pos, size, *_ in ROW.iter_unpack(rows):
        if queue == TIMERS_QUEUE:
            record = decode(payload[pos : pos + size])
            if isinstance(record, TimerSet):
                yield record


def _queues(rows: bytes | memoryview, *, whole: bool) -> set[int]:
    """Returns the queues of some rows; unless `whole` at least `TIMERS_QUEUE`, if it is one of them."""
    if len(rows) <= FEW_ROWS * ROW.size:
        return {row[0] for row in ROW.iter_unpack(rows)}
    found = np.frombuffer(rows, ROWS_DTYPE)["queue"]
    if whole:
        return set(np.unique(found).tolist())
    return {TIMERS_QUEUE} if (found == TIMERS_QUEUE).any() else set()
