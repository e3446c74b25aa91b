"""The mean size of a queue's records, by a sample that is bounded in records and bytes."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("pyspark")

from spark.source.record_sizes import SAMPLE_BYTES, RecordSizes
from store.format.frame import ROWS_DTYPE


class Store:
    """It has records, each in a frame of its own, of one size up to an offset, and of another one from there on."""

    def __init__(self, size: int, *, count: int = 500, later: tuple[int, int] = (0, 0)) -> None:
        self.size, self.count, self.later, self.fetched, self.closed = size, count, later, 0, False

    def bounds(self, queues: list[int]) -> dict:
        return {queue: SimpleNamespace(first=0, next=self.count) for queue in queues}

    def fetch(self, _queue: int, start: int, end: int):
        try:
            for offset in range(start, end):
                rows = np.zeros(1, ROWS_DTYPE)
                rows["len"] = self.size if not 0 < self.later[0] <= offset else self.later[1]
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


@pytest.mark.parametrize("larger_from", [500, 9_000])
def test_larger_records_behind_the_first_ones_count(larger_from):
    store, sizes = Store(100, count=10_000, later=(larger_from, 20_000)), RecordSizes()
    sizes.turn()
    assert sizes.of(store, 16, 3) == 20_000 + ROWS_DTYPE.itemsize
