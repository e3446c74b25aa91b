"""A RangeSet is a set of integers."""

from hypothesis import given
from hypothesis import strategies as st

from store.format.ranges import RangeSet, ranges_of

NUMBERS = st.integers(0, 40)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "take"]), NUMBERS, NUMBERS), max_size=30)


@given(STEPS)
def test_it_behaves_as_a_set(steps):
    ranges, naive = RangeSet(), set()
    for name, a, b in steps:
        if name == "add":
            ranges.add(a, b)
            naive |= set(range(a, b))
        elif name == "remove":
            ranges.remove(a, b)
            naive -= set(range(a, b))
        else:
            taken = [n for start, end in ranges.take(a, b) for n in range(start, end)]
            assert taken == sorted(n for n in naive if n < b)[:a]
            naive -= set(taken)
        assert list(ranges) == ranges_of(naive)
        assert len(ranges) == len(ranges_of(naive))
        assert ranges.count_below(a) == len([n for n in naive if n < a])
        assert (a in ranges) == (a in naive)
