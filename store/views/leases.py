"""What is settled of each leased queue: (queue u32, first offset u64) -> end u64, big-endian.

The ranges of a queue are disjoint and do not touch, so what is settled has exactly one form.
"""

import struct
from collections.abc import Sequence
from typing import Any

from store.format import QueueNumber
from store.ranges import Range, RangeSet
from store.records import QueueDeleted, Settled
from store.run import Run

__all__ = ["SettledView"]

_KEY = struct.Struct(">IQ")
_END = struct.Struct(">Q")


class SettledView:
    """Settled offsets by queue."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[Run]) -> None:
        """Add what some runs settle; a deleted queue loses everything."""
        added: dict[int, RangeSet] = {}
        for run in runs:
            for _, record in run.records:
                if isinstance(record, Settled):
                    ranges = added.setdefault(record.queue, RangeSet())
                    for start, end in record.ranges:
                        ranges.add(start, end)
                elif isinstance(record, QueueDeleted):
                    added.pop(record.queue, None)
                    self._delete(txn, record.queue)
        for queue, ranges in added.items():
            with txn.cursor(db=self._db) as cursor:
                for start, end in ranges:
                    _merge(cursor, queue, start, end)

    def _delete(self, txn: Any, queue: int) -> None:
        prefix = queue.to_bytes(4, "big")
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()

    def get(self, txn: Any, queue: QueueNumber) -> list[Range]:
        """The settled ranges of a queue, ascending."""
        prefix = queue.to_bytes(4, "big")
        ranges = []
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(prefix)
            while found and (key := cursor.key()).startswith(prefix):
                ranges.append((_KEY.unpack(key)[1], _END.unpack(cursor.value())[0]))
                found = cursor.next()
        return ranges


def _merge(cursor: Any, queue: int, start: int, end: int) -> None:
    """Add a range and take in those it overlaps or touches."""
    prefix = queue.to_bytes(4, "big")
    key = _KEY.pack(queue, start)
    # The one before may reach up to this one.
    before = (cursor.prev() if cursor.set_range(key) else cursor.last()) and cursor.key().startswith(prefix)
    if before:
        its_start, its_end = _KEY.unpack(cursor.key())[1], _END.unpack(cursor.value())[0]
        if its_end >= start:
            start, end = its_start, max(end, its_end)
            key = _KEY.pack(queue, start)
    found = cursor.set_range(key)
    while found and cursor.key().startswith(prefix) and _KEY.unpack(cursor.key())[1] <= end:
        end = max(end, _END.unpack(cursor.value())[0])
        found = cursor.delete()
    cursor.put(key, _END.pack(end))
