"""Clocks that are set ahead and back."""

import time

import pytest

from store.base.clock import BELIEF_MS, LEAP_MS, RisingClock, WallClock, now_ms, present
from tests.support.process.clock import Clock

T0 = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000


class Clocks:
    def __init__(self):
        self.wall, self.steady = T0, 5
        self.clock = WallClock(lambda: self.wall * 1_000_000, lambda: self.steady * 1_000_000)

    def go(self, ms):
        self.wall += ms
        self.steady += ms
        return self.clock()


@pytest.fixture
def clocks():
    return Clocks()


def test_it_is_the_machines(clocks):
    assert clocks.clock() == T0
    assert clocks.go(DAY_MS) == T0 + DAY_MS
    clocks.wall -= 3 * DAY_MS
    assert clocks.clock() == T0 - 2 * DAY_MS
    clocks.wall += LEAP_MS
    assert clocks.clock() == T0 - 2 * DAY_MS + LEAP_MS


def test_a_wrong_reading_is_passed_over(clocks, caplog):
    clocks.wall += 365 * DAY_MS
    assert clocks.clock() == T0
    assert clocks.go(1_000) == T0 + 1_000
    clocks.wall -= 365 * DAY_MS
    assert clocks.go(1_000) == T0 + 2_000
    assert [one.message for one in caplog.records] == [
        "the clock has leapt far ahead and is not followed yet; check NTP",
        "the clock that had leapt ahead was set back",
    ]
    clocks.wall += LEAP_MS + 1
    assert clocks.go(BELIEF_MS) == T0 + 2_000 + BELIEF_MS  # counted from now on


def test_a_clock_that_stays_ahead_is_followed(clocks, caplog):
    clocks.wall += DAY_MS
    clocks.clock()
    assert clocks.go(BELIEF_MS - 1) == T0 + BELIEF_MS - 1
    assert clocks.go(1) == T0 + BELIEF_MS + DAY_MS
    assert clocks.go(1) == T0 + BELIEF_MS + DAY_MS + 1
    assert caplog.records[-1].message == "the clock has stayed far ahead and is followed now"


def test_what_was_stored_by_a_clock_far_ahead_is_told(caplog):
    clock = RisingClock(lambda: T0)
    clock.reached(T0 + LEAP_MS)
    assert not caplog.records
    clock.reached(T0 + DAY_MS)
    assert clock() == T0 + DAY_MS
    assert "stored times stand still" in caplog.text


def test_the_clock_of_all_shells_passes_over_a_wrong_reading_too():
    assert isinstance(now_ms, WallClock)
    assert abs(now_ms() - time.time() * 1_000) < 60_000


@pytest.mark.parametrize("set_ms", [-DAY_MS, DAY_MS])
def test_a_moment_stays_as_far_back_when_the_clock_is_set(set_ms):
    wall, steady = Clock(T0), Clock(5)
    began_ms = present(wall, steady)
    wall.ms += 1_000 + set_ms
    steady.ms += 1_000
    assert began_ms() == wall.ms - 1_000


def test_a_moment_by_one_clock_alone_is_not_changed_by_steps_back():
    wall = Clock(T0)
    began_ms = present(wall)
    wall.ms += 1_000
    assert began_ms() == T0
    wall.ms -= DAY_MS
    assert began_ms() == wall.ms - 1_000
