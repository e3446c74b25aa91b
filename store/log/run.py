"""A run: consecutive frames of the log, reduced to the parts that the views need.

The same code makes runs of frames just written and of frames read in recovery, so views come out the same.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from store.format.chunks import Chunk, ChunkColumns, Chunks, QueueEnd
from store.format.frame import (
    FIRST_QUEUE,
    ROW,
    ROW_EXTRA,
    ROW_OLD,
    ROWS_DTYPE,
    Buffer,
    LogOffset,
    Position,
    QueueNumber,
    QueueOffset,
)
from store.format.placed import Placed
from store.format.records import PARTS_QUEUE, VOID_QUEUE, QueueDeleted, Record, decode

logger = logging.getLogger(__name__)

_SMALL_ROWS = 8  # up to here counting in plain Python is cheaper than NumPy's fixed cost (8 us here)
_COLUMNS_MIN = 64  # chunks: from here on NumPy's fixed cost (80 us here) is less than Python's for each
_COUNTED_MAX = 4_096  # queue numbers: up to here rows of one frame are counted by number, and not sorted
_LOW = 0xFFFF_FFFF
_NOT_LAST = ROW_EXTRA | ROW_OLD  # rows that do not change their address's last record
_WITHOUT_RECORDS = (VOID_QUEUE, PARTS_QUEUE)
_start = attrgetter("start")


class FrameRun:
    """Frames from `start` to `end`. Immutable once built; any thread may read it."""

    __slots__ = ("_ends", "chunks", "end", "placed", "records", "rows", "start")

    def __init__(
        self,
        placed: Sequence[Placed],
        rows: npt.NDArray[np.void],
        chunks: Chunks,
        records: Sequence[tuple[Position, Record]],
    ) -> None:
        self.placed = placed
        self.start = placed[0].start
        self.end = placed[-1].end
        self.rows = rows  # of all frames, one after the other
        self.chunks = chunks  # in log order
        self.records = records  # of the reserved queues, in log order
        self._ends: npt.NDArray[np.int64] | None = None  # of each frame's rows in `rows`

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Returns where in `rows` the rows of each frame end."""
        if self._ends is None:
            self._ends = np.cumsum([p.frame.row_count for p in self.placed])
        return self._ends

    def position(self, row: int) -> Position:
        """Returns the position of `rows[row]` in the log."""
        i = int(np.searchsorted(self.ends, row, side="right"))
        return Position(self.placed[i].start, row - (int(self.ends[i - 1]) if i else 0))

    def frame_stored_at_ms(self, frame: LogOffset) -> int:
        """Returns when the frame at a log offset, one of this run's, was stored."""
        return self.placed[bisect_left(self.placed, frame, key=_start)].stored_at_ms

    def stored_at_ms(self, row: int) -> int:
        """Returns when `rows[row]` was stored."""
        return self.placed[int(np.searchsorted(self.ends, row, side="right"))].stored_at_ms

    def counted(self) -> npt.NDArray[np.int64]:
        """Returns the rows that can be the newest of an address: no secondary index rows, no internal records."""
        rows = self.rows
        return np.flatnonzero(
            (rows["flags"] & _NOT_LAST == 0) & (rows["queue"] >= FIRST_QUEUE) & (rows["address_hash"] != 0)
        )

    def last(self, address_hash: int) -> Position | None:
        """Returns the position of the newest record of an address in this run."""
        for row in reversed(np.flatnonzero(self.rows["address_hash"] == address_hash).tolist()):
            found = self.rows[row]
            if found["queue"] >= FIRST_QUEUE and not found["flags"] & _NOT_LAST:
                return self.position(row)
        return None


def joined(runs: Sequence[FrameRun]) -> list[FrameRun]:
    """Returns runs that hold the same frames and records: those that follow each other are one.

    The arrays of a run cost NumPy's fixed price, 40 us for all views, however few rows the run has.
    """
    found: list[FrameRun] = []
    for _, group in groupby(runs, key=lambda run: run.chunks.columns is None):
        some = list(group)
        if len(some) == 1:
            found += some
            continue
        columns = [run.chunks.columns for run in some if run.chunks.columns is not None]
        chunks = (
            Chunks(columns=ChunkColumns.joined(columns))
            if columns
            else Chunks([chunk for run in some for chunk in run.chunks.listed])
        )
        # Bytes are joined: of structured arrays NumPy compares the fields, of each with those of the one before it.
        rows = np.frombuffer(b"".join([run.rows.tobytes() for run in some]), ROWS_DTYPE)
        records = [record for run in some for record in run.records]
        found.append(FrameRun([one for run in some for one in run.placed], rows, chunks, records))
    return found


class RunBuilder:
    """Assigns queue offsets, in log order.

    `queue_end` looks up a queue that this builder has not met yet; the look-up may lack runs that this builder
    still holds. `dispatched` says how far the look-up sees: queues deleted before are not remembered.
    """

    def __init__(
        self,
        queue_end: Callable[[QueueNumber], QueueEnd],
        dispatched: Callable[[], LogOffset] = lambda: LogOffset(0),
    ) -> None:
        self._look_up = queue_end
        self._dispatched = dispatched
        self._deleted: dict[QueueNumber, LogOffset] = {}  # last, in log order; as far as the look-up may not see it
        self.ends: dict[QueueNumber, tuple[QueueOffset, int]] = {}  # one entry a queue that was written to since start

    def build(self, placed: Sequence[Placed]) -> FrameRun:
        """Returns the run of some frames, which follow the ones built before."""
        data = placed[0].frame.rows if len(placed) == 1 else b"".join([p.frame.rows for p in placed])
        rows = np.frombuffer(data, ROWS_DTYPE)
        if len(rows) <= _SMALL_ROWS:
            return self._listed(placed, rows, _few_counts(placed, data))
        keys, counts = _counts(placed, rows)
        if len(keys) < _COLUMNS_MIN:
            return self._listed(placed, rows, list(zip(keys.tolist(), counts.tolist(), strict=True)))
        reserved = np.unique(keys[keys & _LOW < FIRST_QUEUE] >> 32).tolist()
        records = [found for index in reserved for found in _records(placed[index])]
        if any(isinstance(record, QueueDeleted) for _, record in records):  # which begin again in between
            return self._listed(placed, rows, list(zip(keys.tolist(), counts.tolist(), strict=True)))
        return FrameRun(placed, rows, Chunks(columns=self._columns(placed, keys, counts)), records)

    def end(self, queue: QueueNumber) -> QueueEnd:
        """Returns where a queue ends, as far as was built."""
        return QueueEnd(*(self.ends.get(queue) or self._look_up(queue)))

    def pass_over(self, chunks: Iterable[tuple[QueueNumber, Chunk]]) -> None:
        """Passes over the next frames, which hold these chunks and cannot be read."""
        for queue, chunk in chunks:
            self.ends[queue] = chunk.next, chunk.bytes_end

    def _listed(
        self, placed: Sequence[Placed], rows: npt.NDArray[np.void], keys: Sequence[tuple[int, int]]
    ) -> FrameRun:
        """Returns one chunk after the other; `keys` are as `_counts` has them."""
        chunks: list[tuple[QueueNumber, Chunk]] = []
        records: list[tuple[Position, Record]] = []
        ends = self.ends
        reserved_frame = -1
        for key, count in keys:
            queue, index = QueueNumber(key & _LOW), key >> 32
            if reserved_frame not in {-1, index}:
                records += self._reserved(placed[reserved_frame])
                reserved_frame = -1
            first, before = ends.get(queue) or self._look_up(queue)
            at = placed[index]
            size = at.frame.size_bytes
            after = before + size * count // at.frame.row_count
            ends[queue] = QueueOffset(first + count), after
            chunks.append((queue, Chunk(first, count, at.start, size, at.stored_at_ms, after)))
            if queue < FIRST_QUEUE:
                reserved_frame = index
        if reserved_frame != -1:
            records += self._reserved(placed[reserved_frame])
        return FrameRun(placed, rows, Chunks(chunks), records)

    def _columns(
        self, placed: Sequence[Placed], keys: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> ChunkColumns:
        """Returns all chunks at once: for each queue a look-up and an update, for each chunk 0.2 us."""
        queues, index = keys & _LOW, keys >> 32
        starts, sizes, stored, row_counts = (
            np.array(column, np.int64)[index]
            for column in zip(
                *[(p.start, p.frame.size_bytes, p.stored_at_ms, p.frame.row_count) for p in placed], strict=True
            )
        )
        order = np.argsort(queues, kind="stable")  # of each queue together, in log order
        by_queue = queues[order]
        heads = np.flatnonzero(np.concatenate(([True], by_queue[1:] != by_queue[:-1])))
        lengths = np.diff(np.append(heads, len(keys)))
        tails = heads + lengths - 1
        ends, numbers = self.ends, by_queue[heads].tolist()
        before = [ends.get(queue) or self._look_up(queue) for queue in numbers]
        rows_end = _totals(counts[order], heads, lengths, [end[0] for end in before])
        bytes_end = _totals((sizes * counts // row_counts)[order], heads, lengths, [end[1] for end in before])
        ends.update(zip(numbers, zip(rows_end[tails].tolist(), bytes_end[tails].tolist(), strict=True), strict=True))
        first, last_bytes = np.empty_like(keys), np.empty_like(keys)
        first[order], last_bytes[order] = rows_end - counts[order], bytes_end
        return ChunkColumns(queues, first, counts, starts, sizes, stored, last_bytes)

    def _reserved(self, placed: Placed) -> list[tuple[Position, Record]]:
        """Returns a frame's records of the store's own; queues they delete begin again at 0 behind the frame."""
        records = _records(placed)
        for _, record in records:
            if isinstance(record, QueueDeleted):
                self._delete(QueueNumber(record.queue), placed.start)
        return records

    def _delete(self, queue: QueueNumber, frame: LogOffset) -> None:
        self.ends[queue] = QueueEnd()
        self._deleted.pop(queue, None)
        self._deleted[queue] = frame
        dispatched = self._dispatched()
        while self._deleted[seen := next(iter(self._deleted))] < dispatched:
            del self._deleted[seen]
            if self.ends[seen] == QueueEnd():  # the queue was not written to since
                del self.ends[seen]


def _records(placed: Placed) -> list[tuple[Position, Record]]:
    """Returns a frame's records of the store's own."""
    try:
        payload = placed.frame.plain_payload
    except ValueError:
        logger.exception("a frame's payload cannot be decompressed, and its records have no effect")
        return []
    records: list[tuple[Position, Record]] = []
    for row, (queue, pos, size, *_) in enumerate(ROW.iter_unpack(placed.frame.rows)):
        if queue >= FIRST_QUEUE or queue in _WITHOUT_RECORDS:
            continue
        if (record := decode(payload[pos : pos + size])) is not None:
            records.append((Position(placed.start, row), record))
    return records


def _counts(
    placed: Sequence[Placed], rows: npt.NDArray[np.void]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Counts the rows of each queue in each frame: (frame index << 32 | queue), ascending, and their counts."""
    keys = rows["queue"].astype(np.int64)
    if len(placed) > 1:
        keys |= np.repeat(np.arange(len(placed), dtype=np.int64) << 32, [p.frame.row_count for p in placed])
    elif keys.max() <= _COUNTED_MAX:
        totals = np.bincount(keys)  # a third of the time of sorting
        found = np.flatnonzero(totals)
        return found, totals[found]
    found, counts = np.unique(keys, return_counts=True)
    return found, counts


def _few_counts(placed: Sequence[Placed], data: Buffer) -> list[tuple[int, int]]:
    """Returns the same in plain Python, which is cheaper for a few rows."""
    if len(placed) == 1:
        keys = [row[0] for row in ROW.iter_unpack(data)]
    else:
        owners = [i << 32 for i, p in enumerate(placed) for _ in range(p.frame.row_count)]
        keys = [owner | row[0] for owner, row in zip(owners, ROW.iter_unpack(data), strict=True)]
    counts: dict[int, int] = {}
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return sorted(counts.items()) if len(counts) > 1 else list(counts.items())


def _totals(
    values: npt.NDArray[np.int64], heads: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], before: Sequence[int]
) -> npt.NDArray[np.int64]:
    """Returns running totals within groups that begin at `heads`, each on top of its value in `before`."""
    totals: npt.NDArray[np.int64] = np.cumsum(values)
    totals += np.repeat(np.array(before, np.int64) - totals[heads] + values[heads], lengths)
    return totals
