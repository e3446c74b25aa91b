"""The mean size of a queue's records, by a sample that is bounded in records and bytes."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pyspark")

from spark.source.record_sizes import SAMPLE_BYTES, RecordSizes
from store.format.frame import ROWS_DTYPE


class Store:
    """It has a thousand records of one size, each in a frame of its own."""

    def __init__(self, size: int) -> None:
        self.size, self.fetched, self.closed = size, 0, False

    def bounds(self, queues: list[int]) -> dict:
        return {queue: SimpleNamespace(first=0, next=1_000) for queue in queues}

    def fetch(self, _queue: int, start: int, end: int):
        rows = np.zeros(1, ROWS_DTYPE)
        rows["len"] = self.size
        try:
            for offset in range(start, end):
                self.fetched += 1
                yield SimpleNamespace(rows=rows), [0], offset
        finally:
            self.closed = True


@pytest.mark.parametrize(("size", "frames"), [(100, 200), (1 << 20, 4), (2 * SAMPLE_BYTES, 1)])
def test_a_sample_ends_after_some_records_or_bytes(size, frames):
    """It read 200 records whatever their size: 3 GiB of bodies of 16 MiB."""
    store, sizes = Store(size), RecordSizes()
    sizes.turn()
    assert sizes.of(store, 16, 3) == size + ROWS_DTYPE.itemsize
    assert (store.fetched, store.closed) == (frames, True)
