"""The sizes of the records that wait, to keep a micro-batch's limit in bytes.

They are read, not estimated: what a sample of them has missed would be planned in one micro-batch, which Spark repeats
for good where it does not fit into memory.
"""

from contextlib import closing, suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from spark.source.offsets import OffsetRange
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.frame import ROWS_DTYPE
from store.remoting.reader import RemoteReader

_HALVINGS = 40


class _Sizes(NamedTuple):
    """The records of a range, as far as they have been looked at."""

    range: OffsetRange
    sums: npt.NDArray[np.int64]  # of the sizes of the first record, the first two, and so on

    def of_part(self, part: float) -> int:
        """Returns the bytes of a part of the range; of records that cannot be read there are none."""
        count = min(self.taken(part), len(self.sums))
        return int(self.sums[count - 1]) if count else 0

    def taken(self, part: float) -> int:
        """Returns the records of a part of the range, at least one."""
        return max(1, int((self.range.end - self.range.start) * part))


def ends_within(store: RemoteReader, ranges: list[OffsetRange], limit_bytes: int) -> dict[int, int]:
    """Returns an end for each range, none of which is empty, so that they have at most `limit_bytes` in all.

    All are cut at the same part of their records, so that no queue runs ahead of the others in time, and keep one
    record at least, so that none stands still.
    """
    found: list[_Sizes] = []
    part = 1.0
    for one in ranges:
        sums = _sums(store, one, found, part, limit_bytes)
        found.append(_Sizes(one, sums))
        part = _fitting(found, part, limit_bytes)
    return {of.range.queue: of.range.start + of.taken(part) for of in found}


def _sums(
    store: RemoteReader, one: OffsetRange, others: list[_Sizes], part: float, limit_bytes: int
) -> npt.NDArray[np.int64]:
    """Reads the sizes of a range's records, up to a part of them, or until those and the others' are too many."""
    sums = [np.zeros(0, np.int64)]
    count = size = 0
    whole = one.end - one.start
    upto = one.start + max(1, int(whole * part))
    with suppress(OffsetOutOfRange, CorruptFrame), closing(store.fetch_sizes(one.queue, one.start, upto)) as chunks:
        for chunk in chunks:  # of an error the reader tells, with a remedy
            sums.append(size + np.cumsum(chunk.sizes + ROWS_DTYPE.itemsize))
            count += len(chunk.sizes)
            size = int(sums[-1][-1])
            if size + sum(of.of_part(count / whole) for of in others) > limit_bytes:
                break
    return np.concatenate(sums)


def _fitting(found: list[_Sizes], most: float, limit_bytes: int) -> float:
    """Returns the largest part, `most` at most, of whose records there are no more than `limit_bytes`."""
    if sum(of.of_part(most) for of in found) <= limit_bytes:
        return most
    low, high = 0.0, most
    for _ in range(_HALVINGS):
        part = (low + high) / 2
        if sum(of.of_part(part) for of in found) <= limit_bytes:
            low = part
        else:
            high = part
    return low
