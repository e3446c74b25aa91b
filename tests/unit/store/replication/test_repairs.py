"""The order of repairs: every state, every answer; nobody is asked in a tight loop, and what is lost is said so."""

import random

import pytest

from store.replication.repairs import (
    LOST_AGAIN_MS,
    RETRY_MAX_MS,
    RETRY_MIN_MS,
    AskReplica,
    FrameRange,
    RangeOutcome,
    Repairs,
)

ONE = [(100, 200)]


def asked(repairs, now_ms, found, left=None):
    """Takes the next request, gives it this answer, and returns it."""
    ask = repairs.ask(now_ms=now_ms)
    if ask is not None:
        if left is not None:
            repairs.look(left, repairs._peers, now_ms=now_ms)
        repairs.answered(ask, found, now_ms=now_ms)
    return ask


def test_replicas_are_asked_in_order_and_each_once_in_a_round():
    repairs = Repairs()
    repairs.look(ONE, [2, 3], now_ms=0)
    assert asked(repairs, 0, RangeOutcome.FAILED) == AskReplica(2, 100, 200)
    assert asked(repairs, 0, RangeOutcome.FAILED) == AskReplica(3, 100, 200)
    assert repairs.ask(now_ms=0) is None
    assert repairs.due_ms == RETRY_MIN_MS
    assert repairs.repairable


def test_pauses_between_rounds_grow_up_to_a_bound():
    repairs, now_ms, pauses = Repairs(), 0, []
    repairs.look(ONE, [2], now_ms=0)
    for _ in range(12):
        assert asked(repairs, now_ms, RangeOutcome.FAILED) is not None
        pauses.append(repairs.due_ms - now_ms)
        now_ms = repairs.due_ms
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (RETRY_MIN_MS, RETRY_MAX_MS)


def test_what_all_have_answered_for_is_lost_until_one_has_it():
    repairs = Repairs()
    repairs.look(ONE, [2, 3], now_ms=0)
    asked(repairs, 0, RangeOutcome.ANSWERED)
    assert repairs.repairable
    asked(repairs, 0, RangeOutcome.ANSWERED)
    assert repairs.lost == [FrameRange(100, 200)]
    assert not repairs.repairable
    assert repairs.due_ms == LOST_AGAIN_MS
    asked(repairs, LOST_AGAIN_MS, RangeOutcome.ANSWERED, left=[])
    assert repairs.lost == []
    assert repairs.due_ms is None


def test_one_that_was_not_reached_may_have_it():
    repairs = Repairs()
    repairs.look(ONE, [2, 3], now_ms=0)
    asked(repairs, 0, RangeOutcome.ANSWERED)
    asked(repairs, 0, RangeOutcome.FAILED)
    assert repairs.lost == []
    assert repairs.awaited(150) == {3}
    assert repairs.awaited(250) == set()


def test_what_is_left_of_a_range_is_asked_of_the_next_one():
    repairs = Repairs()
    repairs.look(ONE, [2, 3], now_ms=0)
    asked(repairs, 0, RangeOutcome.ANSWERED, left=[(100, 120), (150, 160)])
    assert asked(repairs, 0, RangeOutcome.ANSWERED, left=[(150, 160)]) == AskReplica(3, 100, 120)
    assert asked(repairs, 0, RangeOutcome.ANSWERED) == AskReplica(3, 150, 160)
    assert repairs.lost == [FrameRange(150, 160)]


def test_a_replica_that_is_new_may_have_what_was_lost():
    repairs = Repairs()
    repairs.look(ONE, [2], now_ms=0)
    asked(repairs, 0, RangeOutcome.ANSWERED)
    assert repairs.lost
    repairs.look(ONE, [2, 4], now_ms=5)
    assert not repairs.lost
    assert repairs.ask(now_ms=5) is not None


def test_without_other_replicas_everything_damaged_is_lost():
    repairs = Repairs()
    repairs.look(ONE, [], now_ms=0)
    assert repairs.lost == [FrameRange(100, 200)]
    assert repairs.ask(now_ms=10**9) is None


@pytest.mark.parametrize("seed", range(50))
def test_whatever_replicas_have_all_is_repaired_that_any_of_them_has(seed):
    """Frames of ten bytes; replicas have some of them, answer or not, and come and go."""
    chance = random.Random(seed)
    damaged = set(range(chance.randrange(1, 40)))
    have = {peer: {n for n in damaged if chance.random() < 0.5} for peer in (2, 3, 4)}
    repairs, now_ms, asks = Repairs(), 0, 0
    lost = damaged - set.union(*have.values())

    def ranges():
        found: list[list[int]] = []
        for n in sorted(damaged):
            if found and found[-1][1] == n * 10:
                found[-1][1] += 10
            else:
                found.append([n * 10, n * 10 + 10])
        return [tuple(one) for one in found]

    for step in range(4_000):
        repairs.look(ranges(), sorted(have), now_ms=now_ms)
        ask = repairs.ask(now_ms=now_ms)
        if ask is None:
            if damaged == lost and [tuple(one) for one in repairs.lost] == ranges():
                break
            assert repairs.due_ms > now_ms
            now_ms = repairs.due_ms
            continue
        asks += 1
        fails = step < 200 and chance.random() < 0.3
        inside = {n for n in damaged if ask.start <= n * 10 < ask.end}
        damaged -= {n for n in inside & have[ask.replica] if not fails or chance.random() < 0.5}
        repairs.look(ranges(), sorted(have), now_ms=now_ms)
        repairs.answered(ask, RangeOutcome.FAILED if fails else RangeOutcome.ANSWERED, now_ms=now_ms)
    assert damaged == lost
    assert repairs.repairable is False
    assert asks < 1_000
