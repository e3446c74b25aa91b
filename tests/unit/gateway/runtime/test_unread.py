"""The budget of what peers do not read: those that read are the last to make way."""

import random

import pytest

from gateway.runtime.unread import IDLE_S, UnreadBudget, counted
from tests.support.process.clock import Clock


class Reader:
    """A connection that holds `left` bytes by now."""

    def __init__(self, left):
        self.left = left
        self.cut_off = False

    def unread_now(self):
        return self.left

    def cancel(self):
        self.cut_off = True


@pytest.fixture
def clock():
    return Clock(0)


@pytest.fixture
def budget(clock):
    return UnreadBudget(100, clock=lambda: clock.ms / 1_000)


def hold(budget, size, origin=b"a"):
    reader = Reader(size)
    budget.hold(reader, origin, size)
    return reader


def test_whoever_has_read_meanwhile_counts_by_what_is_left(budget):
    reading = hold(budget, 60)
    reading.left = 10
    other = hold(budget, 50)
    assert (reading.cut_off, other.cut_off) == (False, False)
    assert budget.held_bytes == 60


def test_a_peer_that_does_not_read_makes_way_before_one_that_holds_more_and_reads(budget, clock):
    idle, reading = hold(budget, 20), hold(budget, 70)
    clock.ms += int(IDLE_S * 1_000)
    reading.left = 60
    new = hold(budget, 30)
    assert (idle.cut_off, reading.cut_off, new.cut_off) == (True, False, False)
    assert budget.held_bytes == 90


def test_one_of_another_address_that_does_not_read_makes_way_too(budget, clock):
    idle = hold(budget, 10, b"b")
    reading = hold(budget, 80)
    clock.ms += int(IDLE_S * 1_000)
    reading.left = 79
    hold(budget, 15)
    assert (idle.cut_off, reading.cut_off) == (True, False)


def test_where_all_read_the_one_that_holds_most_of_the_address_with_most_makes_way(budget):
    readers = [hold(budget, size, origin) for size, origin in ((30, b"a"), (20, b"a"), (40, b"b"))]
    new = hold(budget, 15, b"b")
    assert [one.cut_off for one in (*readers, new)] == [False, False, True, False]


def test_what_does_not_count_is_not_held():
    assert [counted(size, 1_000) for size in (0, 2_000, 2_001)] == [0, 0, 2_001]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_kept_of_whoever_has_left(seed, clock):
    chance, here = random.Random(seed), {}
    budget = UnreadBudget(1_000, clock=lambda: clock.ms / 1_000)
    for _ in range(500):
        clock.ms += chance.randrange(2_000)
        for reader in here:
            reader.left = chance.randrange(reader.left + 1) if chance.random() < 0.2 else reader.left
        if here and chance.random() < 0.4:
            reader = chance.choice(list(here))
            budget.release(reader, here.pop(reader))
        else:
            reader, origin = Reader(chance.randrange(300)), b"%d" % chance.randrange(4)
            here[reader] = origin
            budget.hold(reader, origin, reader.left)
        here = {reader: origin for reader, origin in here.items() if not reader.cut_off}
        assert 0 <= budget.held_bytes <= 1_000
    for reader, origin in here.items():
        budget.release(reader, origin)
    assert (budget.held_bytes, budget._held, budget._totals, budget._read_s) == (0, {}, {}, {})
