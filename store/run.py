"""A run: consecutive frames of the log, reduced to what the views need of them.

The same code makes runs of frames just written and of frames read in recovery, so views come out the same.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from store.format import (
    FIRST_QUEUE,
    ROW,
    ROW_EXTRA,
    ROW_OLD,
    ROWS_DTYPE,
    LogOffset,
    Position,
    QueueNumber,
    QueueOffset,
)
from store.log import Placed
from store.records import QueueDeleted, Record, decode

__all__ = ["Chunk", "QueueEnd", "Run", "RunBuilder"]

logger = logging.getLogger(__name__)

_SMALL_ROWS = 8  # up to here counting in plain Python is cheaper than NumPy's fixed cost (8 us here)
_LOW = 0xFFFF_FFFF
_NOT_LAST = ROW_EXTRA | ROW_OLD  # rows that say nothing of what their address had last
_start = attrgetter("start")


class Chunk(NamedTuple):
    """The records of one queue in one frame: what the consume queue's index is made of."""

    first: QueueOffset
    row_count: int
    frame: LogOffset
    frame_size_bytes: int
    stored_at_ms: int
    bytes_end: int  # of the queue, this chunk included; a frame's bytes are its queues' by their shares of its rows

    @property
    def next(self) -> QueueOffset:
        """The queue offset behind the last record."""
        return QueueOffset(self.first + self.row_count)


class QueueEnd(NamedTuple):
    """Where a queue ends: the offset of its next record, and the bytes it has ever had."""

    next: QueueOffset = QueueOffset(0)
    size_bytes: int = 0


class Run:
    """Frames from `start` to `end`. Immutable once built; any thread may read it."""

    __slots__ = ("_ends", "chunks", "end", "placed", "records", "rows", "start")

    def __init__(
        self,
        placed: Sequence[Placed],
        rows: npt.NDArray[np.void],
        chunks: Sequence[tuple[QueueNumber, Chunk]],
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
        """Where in `rows` the rows of each frame end."""
        if self._ends is None:
            self._ends = np.cumsum([p.frame.row_count for p in self.placed])
        return self._ends

    def position(self, row: int) -> Position:
        """Where `rows[row]` is in the log."""
        i = int(np.searchsorted(self.ends, row, side="right"))
        return Position(self.placed[i].start, row - (int(self.ends[i - 1]) if i else 0))

    def frame_stored_at_ms(self, frame: LogOffset) -> int:
        """When the frame at a log offset was stored, which is one of this run's."""
        return self.placed[bisect_left(self.placed, frame, key=_start)].stored_at_ms

    def stored_at_ms(self, row: int) -> int:
        """When `rows[row]` was stored."""
        return self.placed[int(np.searchsorted(self.ends, row, side="right"))].stored_at_ms

    def counted(self) -> npt.NDArray[np.int64]:
        """The rows that are the newest word on an address: no second index of a record, none of the store's own."""
        rows = self.rows
        return np.flatnonzero(
            (rows["flags"] & _NOT_LAST == 0) & (rows["queue"] >= FIRST_QUEUE) & (rows["address_hash"] != 0)
        )

    def last(self, address_hash: int) -> Position | None:
        """Where the newest record of an address is in this run."""
        for row in reversed(np.flatnonzero(self.rows["address_hash"] == address_hash).tolist()):
            found = self.rows[row]
            if found["queue"] >= FIRST_QUEUE and not found["flags"] & _NOT_LAST:
                return self.position(row)
        return None


class RunBuilder:
    """Assigns queue offsets, in log order.

    `queue_end` looks up a queue that this builder has not met yet; it sees every run built before but those that
    this builder remembers.
    """

    def __init__(self, queue_end: Callable[[QueueNumber], QueueEnd]) -> None:
        self._look_up = queue_end
        self._ends: dict[QueueNumber, tuple[QueueOffset, int]] = {}  # one entry a queue that was written to since start

    def build(self, placed: Sequence[Placed]) -> Run:
        """The run of some frames, which follow the ones built before."""
        data = placed[0].frame.rows if len(placed) == 1 else b"".join([p.frame.rows for p in placed])
        rows = np.frombuffer(data, ROWS_DTYPE)
        chunks: list[tuple[QueueNumber, Chunk]] = []
        records: list[tuple[Position, Record]] = []
        ends = self._ends
        reserved_frame = -1
        for key, count in _counts(placed, data, rows):
            queue, index = QueueNumber(key & _LOW), key >> 32
            if reserved_frame not in {-1, index}:
                self._reserved(placed[reserved_frame], records)
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
            self._reserved(placed[reserved_frame], records)
        return Run(placed, rows, chunks, records)

    def _reserved(self, placed: Placed, records: list[tuple[Position, Record]]) -> None:
        """Decode a frame's records of the store's own; queues they delete begin again at 0 behind the frame."""
        try:
            payload = placed.frame.plain_payload
        except ValueError:
            logger.exception("a frame's payload cannot be decompressed, and its records have no effect")
            return
        for row, (queue, pos, size, *_) in enumerate(ROW.iter_unpack(placed.frame.rows)):
            if queue >= FIRST_QUEUE:
                continue
            record = decode(payload[pos : pos + size])
            if record is None:
                continue
            records.append((Position(placed.start, row), record))
            if isinstance(record, QueueDeleted):
                self._ends[QueueNumber(record.queue)] = QueueEnd()


def _counts(placed: Sequence[Placed], data: bytes, rows: npt.NDArray[np.void]) -> list[tuple[int, int]]:
    """How many rows each queue has in each frame: (frame index << 32 | queue, count), ascending."""
    if len(rows) <= _SMALL_ROWS:
        owners = [i << 32 for i, p in enumerate(placed) for _ in range(p.frame.row_count)]
        return sorted(Counter(o | row[0] for o, row in zip(owners, ROW.iter_unpack(data), strict=True)).items())
    keys = rows["queue"].astype(np.uint64)
    if len(placed) > 1:
        keys |= np.repeat(np.arange(len(placed), dtype=np.uint64) << np.uint64(32), [p.frame.row_count for p in placed])
    found, counts = np.unique(keys, return_counts=True)
    return list(zip(found.tolist(), counts.tolist(), strict=True))
