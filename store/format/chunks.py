"""Chunks: the records of one queue in one frame, one by one or, where frames hold those of many queues, as columns."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from store.format.frame import LogOffset, QueueNumber, QueueOffset

Integers: TypeAlias = npt.NDArray[np.int64]


class Chunk(NamedTuple):
    """The records of one queue in one frame, of which the consume queue's index is made."""

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
    """The end of a queue: the offset of its next record, and the bytes it has ever had."""

    next: QueueOffset = QueueOffset(0)
    size_bytes: int = 0


class ChunkColumns(NamedTuple):
    """Many chunks; the fields of `Chunk`, an array each. With 50,000 queues a tuple for each record is too dear."""

    queue: Integers
    first: Integers
    row_count: Integers
    frame: Integers
    frame_size_bytes: Integers
    stored_at_ms: Integers
    bytes_end: Integers

    def each(self) -> Iterator[tuple[QueueNumber, Chunk]]:
        """Yields the chunks one by one."""
        queues, *columns = (column.tolist() for column in self)
        return zip(queues, map(Chunk._make, zip(*columns, strict=True)), strict=True)

    @staticmethod
    def joined(parts: Sequence["ChunkColumns"]) -> "ChunkColumns":
        """Joins several behind each other."""
        return parts[0] if len(parts) == 1 else ChunkColumns(*map(np.concatenate, zip(*parts, strict=True)))


class Chunks(NamedTuple):
    """The chunks of a run, in log order: `listed`, or all in `columns`."""

    listed: Sequence[tuple[QueueNumber, Chunk]] = ()
    columns: ChunkColumns | None = None

    def each(self) -> Iterator[tuple[QueueNumber, Chunk]]:
        """Yields the chunks one by one."""
        return iter(self.listed) if self.columns is None else self.columns.each()

    def queues(self) -> list[int]:
        """Returns the queues in log order; one may occur several times."""
        return [queue for queue, _ in self.listed] if self.columns is None else self.columns.queue.tolist()

    def nexts(self) -> Iterator[tuple[QueueNumber, QueueOffset]]:
        """Returns the queue offset behind each, by queue, in log order: of one that comes again the last one counts."""
        if self.columns is None:
            return ((queue, chunk.next) for queue, chunk in self.listed)
        following = self.columns.first + self.columns.row_count
        return zip(self.columns.queue.tolist(), following.tolist(), strict=True)
