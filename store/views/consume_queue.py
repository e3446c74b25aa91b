"""The consume queues: where the n-th record of a queue is.

One entry a frame and queue: (queue u32, first queue offset u64) -> (log offset u64, frame size u32, count u32, stored
at u64, the queue's bytes up to here u64), all big-endian. The first queue offset, the log offset, the time and the
bytes all grow together within a queue, so each can be searched for by halving.

Entries of frames that were trimmed off the log are removed. So that a queue goes on where it was even when it has lost
all of them, its end is kept beside: queue u32 -> (next queue offset u64, bytes u64).
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from store.format.chunks import Chunk, ChunkColumns, QueueEnd
from store.format.frame import LogOffset, QueueNumber, QueueOffset
from store.format.records import LogTrimmed, QueueDeleted
from store.log.run import FrameRun
from store.views.columns import Columns

_KEY = struct.Struct(">IQ")
_VALUE = struct.Struct(">QIIQQ")
_ENTRY = struct.Struct(">IQQIIQQ")  # both
_KEY_DTYPE = np.dtype([("queue", ">u4"), ("first", ">u8")])
_VALUE_DTYPE = np.dtype(
    [("frame", ">u8"), ("size", ">u4"), ("count", ">u4"), ("stored_at", ">u8"), ("bytes_end", ">u8")]
)
assert _ENTRY.size == _KEY.size + _VALUE.size
assert (_KEY.size, _VALUE.size) == (_KEY_DTYPE.itemsize, _VALUE_DTYPE.itemsize)
_END = struct.Struct(">QQ")
_BEHIND = b"\xff" * 8  # behind every offset, which have 63 bits


class ConsumeQueueView:
    """The index of all queues. Methods take the transaction they are to read or write in."""

    def __init__(self, db: Any, ends_db: Any) -> None:
        self._db = db
        self._ends_db = ends_db

    # ---- writing

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Adds the chunks of some runs; a deleted queue loses those of its frame and before, all lose cut ones."""
        listed: list[tuple[QueueNumber, Chunk]] = []
        columns: list[ChunkColumns] = []
        for run in runs:
            removals = [(at.frame, rec) for at, rec in run.records if isinstance(rec, QueueDeleted | LogTrimmed)]
            if not removals:
                listed += run.chunks.listed
                if run.chunks.columns is not None:
                    columns.append(run.chunks.columns)
                continue
            chunks, done = list(run.chunks.each()), 0
            for frame, record in removals:
                stop = next((i for i in range(done, len(chunks)) if chunks[i][1].frame > frame), len(chunks))
                self._put(txn, listed + chunks[done:stop], columns)
                listed, columns, done = [], [], stop
                if isinstance(record, QueueDeleted):
                    self._delete(txn, record.queue)
                else:
                    self._trim(txn, min(record.first, frame))
            listed = chunks[done:]
        self._put(txn, listed, columns)

    def put(self, txn: Any, chunks: Sequence[tuple[QueueNumber, Chunk]]) -> None:
        """Adds chunks."""
        self._put(txn, chunks, ())

    def _put(self, txn: Any, listed: Sequence[tuple[QueueNumber, Chunk]], columns: Sequence[ChunkColumns]) -> None:
        pack = _ENTRY.pack
        rows = [
            pack(queue, first, frame, size, count, at, end) for queue, (first, count, frame, size, at, end) in listed
        ]
        rows.sort()
        with txn.cursor(db=self._db) as cursor:
            cursor.putnew_columns(Columns(b"".join(rows), _KEY.size, _VALUE.size))
            if columns:
                self._put_columns(cursor, ChunkColumns.joined(columns))

    def _put_columns(self, cursor: Any, columns: ChunkColumns) -> None:
        order = np.lexsort((columns.first, columns.queue))
        keys, values = np.empty(len(order), _KEY_DTYPE), np.empty(len(order), _VALUE_DTYPE)
        keys["queue"], keys["first"] = columns.queue[order], columns.first[order]
        values["frame"], values["size"] = columns.frame[order], columns.frame_size_bytes[order]
        values["count"], values["stored_at"] = columns.row_count[order], columns.stored_at_ms[order]
        values["bytes_end"] = columns.bytes_end[order]
        cursor.putnew_columns(Columns.of(keys, values))

    def _delete(self, txn: Any, queue: int) -> None:
        with txn.cursor(db=self._db) as cursor:
            prefix = queue.to_bytes(4, "big")
            found = cursor.set_range(prefix)
            while found and cursor.key().startswith(prefix):
                found = cursor.delete()
        txn.delete(prefix, db=self._ends_db)

    def _trim(self, txn: Any, first: int) -> None:
        """Removes the chunks of frames in front of a log offset. Costs a step a queue and one a chunk removed."""
        with txn.cursor(db=self._db) as cursor:
            found = cursor.first()
            while found and (queue := cursor.key()[:4]):  # behind the last entry the key is empty
                last: Chunk | None = None
                while found and cursor.key()[:4] == queue:
                    chunk = _chunk(cursor.key(), cursor.value())
                    if chunk.frame >= first:
                        found = cursor.set_range(queue + _BEHIND)
                        if found and cursor.key()[:4] == queue:
                            found = cursor.next()
                        last = None
                        break
                    last = chunk
                    found = cursor.delete()
                if last is not None:  # it has none left
                    txn.put(queue, _END.pack(last.next, last.bytes_end), db=self._ends_db)

    # ---- reading

    def queues(self, txn: Any, *, behind: QueueNumber | None = None) -> Iterator[QueueNumber]:
        """Yields the queues that have a chunk, ascending, those behind a number."""
        with txn.cursor(db=self._db) as cursor:
            found = cursor.first() if behind is None else cursor.set_range(behind.to_bytes(4, "big") + _BEHIND)
            while found:
                queue = cursor.key()[:4]
                yield QueueNumber(int.from_bytes(queue, "big"))
                found = cursor.set_range(queue + _BEHIND)

    def newest(self, txn: Any) -> QueueNumber:
        """Returns the greatest number of a queue that has records, or had some; 0: none had. Raises `ViewsDamaged`."""
        greatest = 0
        for db in (self._db, self._ends_db):
            with txn.cursor(db=db) as cursor:
                if cursor.last():
                    cursor.value()  # its checksum is the key's too
                    greatest = max(greatest, int.from_bytes(cursor.key()[:4], "big"))
        return QueueNumber(greatest)

    def end(self, txn: Any, queue: QueueNumber) -> QueueEnd:
        """Returns where a queue ends; (0, 0) for one that was never written."""
        last = self.last_chunk(txn, queue)
        if last is not None:
            return QueueEnd(last.next, last.bytes_end)
        kept = txn.get(queue.to_bytes(4, "big"), db=self._ends_db)
        if kept is None:
            return QueueEnd()
        following, size = _END.unpack(kept)
        return QueueEnd(QueueOffset(following), size)

    def next_offset(self, txn: Any, queue: QueueNumber) -> QueueOffset:
        """Returns the offset that the queue's next record will have; 0 for one that was never written."""
        return self.end(txn, queue).next

    def last_chunk(self, txn: Any, queue: QueueNumber) -> Chunk | None:
        """Returns the newest chunk of a queue."""
        with txn.cursor(db=self._db) as cursor:
            return self._at_or_before(cursor, queue, (1 << 64) - 1)

    def first_offset(self, txn: Any, queue: QueueNumber) -> QueueOffset:
        """Returns the offset of the oldest record of a queue; the next one's when it has none."""
        for chunk in self.chunks(txn, queue, QueueOffset(0)):
            return chunk.first
        return self.end(txn, queue).next

    def chunks(self, txn: Any, queue: QueueNumber, offset: QueueOffset) -> Iterator[Chunk]:
        """Yields the chunks of a queue from the one that holds an offset on; the first one above it when none does."""
        prefix = queue.to_bytes(4, "big")
        with txn.cursor(db=self._db) as cursor:
            start = self._at_or_before(cursor, queue, offset)
            if start is not None and start.next <= offset:
                start = None
                found = cursor.next()
            elif start is None:
                found = cursor.set_range(_KEY.pack(queue, offset))
            else:
                found = True
            while found and cursor.key().startswith(prefix):
                yield _chunk(cursor.key(), cursor.value())
                found = cursor.next()

    def search(self, txn: Any, queue: QueueNumber, reached: Callable[[Chunk], bool]) -> QueueOffset:
        """Returns the first offset of the first chunk for which `reached` is true; the next offset when there is none.

        `reached` must be false up to some chunk of the queue and true from there on.
        """
        with txn.cursor(db=self._db) as cursor:
            last = self._at_or_before(cursor, queue, (1 << 64) - 1)
            if last is None:
                return self.end(txn, queue).next
            if not reached(last):
                return last.next
            low, high = 0, last.first  # the chunk sought begins in low..high
            while low < high:
                middle = self._at_or_before(cursor, queue, (low + high) // 2)
                if middle is None:  # no chunk begins so low
                    low = (low + high) // 2 + 1
                elif reached(middle):
                    high = middle.first
                else:
                    low = middle.next
            return QueueOffset(high)

    @staticmethod
    def _at_or_before(cursor: Any, queue: QueueNumber, offset: int) -> Chunk | None:
        """Returns the chunk that begins at an offset or nearest before it; the cursor is left on it."""
        key = _KEY.pack(queue, offset)
        if cursor.set_range(key):
            if cursor.key() != key and not cursor.prev():
                return None
        elif not cursor.last():
            return None
        found = cursor.key()
        return _chunk(found, cursor.value()) if found[:4] == key[:4] else None


def _chunk(key: bytes, value: bytes) -> Chunk:
    frame, size, count, stored_at_ms, bytes_end = _VALUE.unpack(value)
    return Chunk(QueueOffset(_KEY.unpack(key)[1]), count, LogOffset(frame), size, stored_at_ms, bytes_end)
