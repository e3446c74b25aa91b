"""A set of integers as disjoint ranges: small while the integers are dense, however many they are."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]  # start (inclusive), end (exclusive)


def ranges_of(numbers: Iterable[int]) -> list[Range]:
    """Returns numbers in any order, repeats allowed, as the fewest ranges, ascending."""
    found: list[Range] = []
    start = end = None
    for n in sorted(numbers):
        if end is None or start is None:
            start, end = n, n + 1
        elif n <= end:
            end = max(end, n + 1)
        else:
            found.append((start, end))
            start, end = n, n + 1
    if start is not None and end is not None:
        found.append((start, end))
    return found


def offsets_of(ranges: Iterable[Range]) -> Iterator[int]:
    """Yields the integers of some ranges one by one."""
    return (offset for start, end in ranges for offset in range(start, end))


class RangeSet:
    """Disjoint, non-touching, non-empty ranges in ascending order. Cost is by ranges, never by integers."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # _starts[i] < _ends[i] < _starts[i + 1]
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __len__(self) -> int:
        """Returns the number of ranges."""
        return len(self._starts)

    def __contains__(self, n: int) -> bool:
        i = bisect_right(self._starts, n)
        return i > 0 and n < self._ends[i - 1]

    def add(self, start: int, end: int) -> None:
        """Adds a range, which may overlap others."""
        if start >= end:
            return
        starts, ends = self._starts, self._ends
        i, j = bisect_left(ends, start), bisect_right(starts, end)
        if i < j:
            start, end = min(start, starts[i]), max(end, ends[j - 1])
        starts[i:j], ends[i:j] = [start], [end]

    def remove(self, start: int, end: int) -> None:
        """Takes a range out, as far as it is there."""
        starts, ends = self._starts, self._ends
        i, j = bisect_right(ends, start), bisect_left(starts, end)
        if start >= end or i >= j:
            return
        kept = [(starts[i], start)] * (starts[i] < start) + [(end, ends[j - 1])] * (end < ends[j - 1])
        starts[i:j], ends[i:j] = [k[0] for k in kept], [k[1] for k in kept]

    def take(self, count: int, below: int) -> list[Range]:
        """Removes and returns the `count` lowest integers under `below`, or as many as there are."""
        taken: list[Range] = []
        starts, ends = self._starts, self._ends
        whole = 0
        for start, end in zip(starts, ends, strict=True):
            stop = min(end, below, start + count)
            if stop <= start:
                break
            taken.append((start, stop))
            count -= stop - start
            if stop < end:
                starts[whole] = stop
                break
            whole += 1
        del starts[:whole], ends[:whole]
        return taken

    @property
    def first(self) -> int | None:
        """The lowest integer; None where there is none."""
        return self._starts[0] if self._starts else None

    def count_below(self, below: int) -> int:
        """Returns how many of the integers are less than `below`."""
        return sum(
            min(end, below) - start for start, end in zip(self._starts, self._ends, strict=True) if start < below
        )
