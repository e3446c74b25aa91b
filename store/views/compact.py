"""The position of the newest record of each key of a compacted queue.

b"q" + queue u32 -> the log offset u64 behind which the queue's records are all here
b"k" + (queue u32, key hash u64, address hash u64) -> (log offset u64, row u32, length u32)

All big-endian. A key counts together with its address: messages of one key that are published to several addresses say
different things. Two keys that collide in both hashes, 128 bits, are taken for one.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from store.format.frame import ROW_TOMBSTONE, LogOffset, Position
from store.format.queue_config import QueueConfig
from store.format.records import QueueDeleted
from store.log.run import FrameRun

_KEY = struct.Struct(">IQQ")
_VALUE = struct.Struct(">QII")
_SINCE = struct.Struct(">Q")
_QUEUE, _ENTRY = b"q", b"k"


class CompactKey(NamedTuple):
    """A key whose newest record a compacted queue keeps."""

    queue: int
    key_hash: int
    address_hash: int


class Live(NamedTuple):
    """A record that nothing newer replaces."""

    key: CompactKey
    at: Position
    size: int


class CompactView:
    """The newest records of compacted queues, as of the end of each frame."""

    def __init__(self, db: Any) -> None:
        self._db = db

    # ---- writing

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Follows some runs; costs a look-up when no queue is compacted, else one put a key."""
        compact = dict(self.queues(txn))
        for run in runs:
            done = 0
            for at, record in run.records:
                if isinstance(record, QueueConfig | QueueDeleted):
                    behind = self._rows_to(run, at.frame)  # a change counts from the end of its frame
                    self._put(txn, run, done, behind, compact)
                    done = behind
                    self._change(txn, at.frame, record, compact)
            self._put(txn, run, done, len(run.rows), compact)

    @staticmethod
    def _rows_to(run: FrameRun, frame: LogOffset) -> int:
        """Returns where in a run's rows those of a frame end."""
        starts = np.array([placed.start for placed in run.placed], np.int64)
        return int(run.ends[int(np.searchsorted(starts, frame))])

    def _change(
        self, txn: Any, frame: LogOffset, record: QueueConfig | QueueDeleted, compact: dict[int, LogOffset]
    ) -> None:
        queue = record.queue
        name = queue.to_bytes(4, "big")
        if isinstance(record, QueueConfig) and record.compact:
            if queue not in compact:
                compact[queue] = frame
                txn.put(_QUEUE + name, _SINCE.pack(frame), db=self._db)
        elif compact.pop(queue, None) is not None:
            txn.delete(_QUEUE + name, db=self._db)
            with txn.cursor(db=self._db) as cursor:
                found = cursor.set_range(_ENTRY + name)
                while found and cursor.key().startswith(_ENTRY + name):
                    found = cursor.delete()

    def _put(self, txn: Any, run: FrameRun, first: int, end: int, compact: dict[int, LogOffset]) -> None:
        if not compact or first == end:
            return
        rows = run.rows[first:end]
        newest: dict[bytes, int] = {}  # entry -> row; the last one of a key stays
        for i in np.flatnonzero(np.isin(rows["queue"], list(compact))).tolist():
            row = rows[i]
            newest[_KEY.pack(row["queue"], row["key_hash"], row["address_hash"])] = i
        for key, i in sorted(newest.items()):
            if rows[i]["flags"] & ROW_TOMBSTONE:
                txn.delete(_ENTRY + key, db=self._db)
            else:
                at = run.position(first + i)
                txn.put(_ENTRY + key, _VALUE.pack(at.frame, at.row, rows[i]["len"]), db=self._db)

    # ---- reading

    def queues(self, txn: Any) -> Iterator[tuple[int, LogOffset]]:
        """Yields the compacted queues, and since which frame each has been one."""
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(_QUEUE)
            while found and (key := cursor.key()).startswith(_QUEUE):
                yield int.from_bytes(key[1:], "big"), LogOffset(_SINCE.unpack(cursor.value())[0])
                found = cursor.next()

    def live(self, txn: Any, below: LogOffset) -> Iterator[Live]:
        """Yields the newest records that lie in front of a log offset. Costs a step for each key there is."""
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(_ENTRY)
            while found and (key := cursor.key()).startswith(_ENTRY):
                frame, row, size = _VALUE.unpack(cursor.value())
                if frame < below:
                    yield Live(CompactKey(*_KEY.unpack(key[1:])), Position(LogOffset(frame), row), size)
                found = cursor.next()

    def newest(self, txn: Any, key: CompactKey) -> Position | None:
        """Returns the position of the newest record of a key."""
        value = txn.get(_ENTRY + _KEY.pack(*key), db=self._db)
        return None if value is None else Position(*_VALUE.unpack(value)[:2])
