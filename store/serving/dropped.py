"""Rows for queues that take nothing more, of clients that do not know it yet."""

from collections.abc import Iterator

import numpy as np

from store.base.errors import QueueDropped
from store.format.frame import FEW_ROWS, ROW, ROWS_DTYPE
from store.format.records import TIMERS_QUEUE, TimerSet, decode


def refusal_of(rows: bytes | memoryview, dropped: frozenset[int]) -> QueueDropped | None:
    """Returns why rows are refused of which some are for dropped queues: they would be acknowledged, and never read."""
    if not dropped:
        return None
    gone = _queues(rows) & dropped
    return QueueDropped(f"queue {min(gone)} is no more") if gone else None


def refusal_of_all(rows: bytes, payload: bytes, dropped: frozenset[int]) -> QueueDropped | None:
    """Does the same, with the rows that timers among them will write."""
    refusal = refusal_of(rows, dropped)
    if refusal is None and dropped and TIMERS_QUEUE in _queues(rows):
        return next(filter(None, (refusal_of(timer.rows, dropped) for timer in _timers(rows, payload))), None)
    return refusal


def _timers(rows: bytes, payload: bytes) -> Iterator[TimerSet]:
    for queue, pos, size, *_ in ROW.iter_unpack(rows):
        if queue == TIMERS_QUEUE:
            record = decode(payload[pos : pos + size])
            if isinstance(record, TimerSet):
                yield record


def _queues(rows: bytes | memoryview) -> set[int]:
    if len(rows) <= FEW_ROWS * ROW.size:
        return {row[0] for row in ROW.iter_unpack(rows)}
    return set(np.unique(np.frombuffer(rows, ROWS_DTYPE)["queue"]).tolist())
