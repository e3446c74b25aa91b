"""The mean size of a queue's records, by samples, to keep a micro-batch's limit in bytes."""

from contextlib import closing
from typing import Final

from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.frame import ROWS_DTYPE
from store.remoting.reader import RemoteReader

RECORDS: Final = 200  # of one sample; of a queue where many wait, one each at the beginning, middle and end
SAMPLE_BYTES: Final = 4 << 20  # after which a sample ends sooner
UNKNOWN_BYTES: Final = 200.0  # of a record that cannot be read
TURNS: Final = 16  # micro-batches that a sample is good for


class RecordSizes:
    """Samples of the queues; each is taken again after some micro-batches."""

    def __init__(self) -> None:
        self._turn = 0
        self._found: dict[int, tuple[int, float]] = {}  # by queue: the turn, and the mean in bytes

    def turn(self) -> None:
        """Begins another micro-batch."""
        self._turn += 1

    def of(self, store: RemoteReader, queue: int, offset: int) -> float:
        """Returns the mean size in bytes of the records from an offset on; there must be at least one.

        Of several samples the largest mean counts.
        """
        turn, size = self._found.get(queue, (-TURNS, 0.0))
        if self._turn - turn >= TURNS:
            size = _sampled(store, queue, offset)
            self._found[queue] = (self._turn, size)
        return size


def _sampled(store: RemoteReader, queue: int, offset: int) -> float:
    next_ = int(store.bounds([queue])[queue].next)
    places = [offset] if next_ - offset <= 3 * RECORDS else [offset, (offset + next_) // 2, next_ - RECORDS]
    return max(_mean(store, queue, at, min(at + RECORDS, next_)) for at in places)


def _mean(store: RemoteReader, queue: int, offset: int, end: int) -> float:
    count = size = 0
    try:
        with closing(store.fetch(queue, offset, end)) as frames:
            for frame, rows, _ in frames:
                size += int(frame.rows["len"][rows].sum()) + ROWS_DTYPE.itemsize * len(rows)
                count += len(rows)
                if size >= SAMPLE_BYTES:
                    break
    except (OffsetOutOfRange, CorruptFrame):  # the reader reports it with a remedy
        pass
    return size / count if count else UNKNOWN_BYTES
