"""The ends of a micro-batch by the sizes of its records, whatever lies between which others."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from spark.source.offsets import OffsetRange
from spark.source.record_sizes import ends_within
from store.base.errors import OffsetOutOfRange
from store.format.frame import ROWS_DTYPE

ROW = ROWS_DTYPE.itemsize
CHUNK = 100  # records


class Store:
    """It has queues of records of some sizes, from offset 0 on."""

    def __init__(self, **sizes: list[int]) -> None:
        self.sizes = {int(name[1:]): np.array(of, np.int64) for name, of in sizes.items()}
        self.fetched, self.opened, self.closed = 0, 0, 0

    def fetch_sizes(self, queue: int, start: int, end: int):
        self.opened += 1
        try:
            for at in range(start, end, CHUNK):
                if at >= len(self.sizes[queue]):
                    raise OffsetOutOfRange(at, 0, len(self.sizes[queue]))
                some = self.sizes[queue][at : min(at + CHUNK, end)]
                self.fetched += int(some.sum())
                yield SimpleNamespace(sizes=some)
        finally:
            self.closed += 1

    def size(self, start: int, ends: dict[int, int]) -> int:
        return sum(int(self.sizes[queue][start:end].sum()) + ROW * (end - start) for queue, end in ends.items())


@pytest.mark.parametrize("larger_from", [0, 3, 250, 5_000, 7_400, 9_900])
def test_large_records_count_wherever_they_are(larger_from):
    """Samples at three places missed what lay between them: 500,000 records of any size were one micro-batch."""
    sizes = [100] * 10_000
    sizes[larger_from : larger_from + 100] = [1 << 20] * 100
    store = Store(q16=sizes, q17=[100] * 1_000)
    ends = ends_within(store, [OffsetRange(16, 3, 10_000), OffsetRange(17, 3, 1_000)], 3 << 20)
    assert store.size(3, ends) <= 3 << 20
    assert ends[17] - 3 == max(1, (ends[16] - 3) * 997 // 9_997)
    more = {16: min(ends[16] + 20, 10_000), 17: min(ends[17] + 2, 1_000)}
    assert more == {16: 10_000, 17: 1_000} or store.size(3, more) > 3 << 20
    assert (store.opened, store.closed) == (2, 2)


def test_no_more_is_read_than_may_be_needed():
    store = Store(**{f"q{queue}": [1_000] * 100_000 for queue in range(16, 24)})
    ends = ends_within(store, [OffsetRange(queue, 0, 100_000) for queue in range(16, 24)], 8_000_000)
    assert {end * 8 * (1_000 + ROW) // 8_000 for end in ends.values()} == {999}
    assert store.fetched < 4 * 8_000_000
    assert store.closed == 8


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 5_000), min_size=1, max_size=300), min_size=1, max_size=4), st.integers(1, 200_000)
)
def test_all_queues_are_cut_at_one_part_of_their_records(queues, limit):
    store = Store(**{f"q{n}": of for n, of in enumerate(queues)})
    ends = ends_within(store, [OffsetRange(n, 0, len(of)) for n, of in enumerate(queues)], limit)
    assert all(1 <= ends[n] <= len(of) for n, of in enumerate(queues))
    assert store.size(0, ends) <= limit or set(ends.values()) == {1}
    parts = [(end, len(of)) for end, of in zip(ends.values(), queues, strict=True) if end > 1]
    assert all(end / count < (other + 1) / of for end, count in parts for other, of in parts)


def test_records_that_cannot_be_read_have_no_size():
    store = Store(q16=[100] * 50)
    assert ends_within(store, [OffsetRange(16, 0, 500)], 1_000_000) == {16: 500}
