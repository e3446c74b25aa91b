"""Rows for queues that are no more, of clients that do not know it yet."""

import numpy as np

from store.base.errors import QueueDropped
from store.format.frame import FEW_ROWS, ROW, ROWS_DTYPE


def refusal_of(rows: bytes | memoryview, dropped: frozenset[int]) -> QueueDropped | None:
    """Returns why rows are refused of which some are for dropped queues: they would be acknowledged, and never read."""
    if not dropped:
        return None
    gone = _queues(rows) & dropped
    return QueueDropped(f"queue {min(gone)} is no more") if gone else None


def _queues(rows: bytes | memoryview) -> set[int]:
    if len(rows) <= FEW_ROWS * ROW.size:
        return {row[0] for row in ROW.iter_unpack(rows)}
    return set(np.unique(np.frombuffer(rows, ROWS_DTYPE)["queue"]).tolist())
