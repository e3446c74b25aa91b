"""Ranges of integers."""

from store.format.ranges import RangeSet, ranges_of


def test_ranges_of_numbers_in_any_order():
    assert ranges_of([]) == []
    assert ranges_of([5, 3, 4, 9, 4]) == [(3, 6), (9, 10)]


def test_touching_ranges_become_one():
    ranges = RangeSet([(0, 2), (4, 6)])
    ranges.add(2, 4)
    assert list(ranges) == [(0, 6)]


def test_an_empty_range_changes_nothing():
    ranges = RangeSet([(0, 2)])
    ranges.add(5, 5)
    ranges.remove(1, 1)
    assert list(ranges) == [(0, 2)]


def test_take_gives_the_lowest_and_stops_at_the_limit():
    ranges = RangeSet([(0, 3), (5, 100)])
    assert ranges.take(5, 50) == [(0, 3), (5, 7)]
    assert ranges.take(100, 9) == [(7, 9)]
    assert ranges.take(100, 9) == []
    assert list(ranges) == [(9, 100)]
    assert ranges.count_below(20) == 11
