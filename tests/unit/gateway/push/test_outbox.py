"""The outbox: order for each key, pauses, the breaker, rates and the oldest event, by a clock of our own."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.push.outbox import (
    BREAKER_FAILURES,
    HELD_BYTES_MAX,
    HELD_COUNT_MAX,
    Attempt,
    Failure,
    Outbox,
    Policy,
    held_size,
)
from store.api.message import Message
from store.format.frame import LogOffset, Position
from tests.support.process.examples import examples

DOWN = Failure(error="down")
BAD = Failure(error="bad", of_event=True, final=True)


def outbox(**changes) -> Outbox:
    policy = {
        "concurrency": 2,
        "rate_per_s": None,
        "retry_min_s": 1.0,
        "retry_max_s": 8.0,
        "attempts_max": None,
        **changes,
    }
    return Outbox(Policy(**policy), uniform=lambda low, high: high, now_ms=0)


def event(number: int, size: int = 1) -> Message:
    return Message(address="a", body=b"x" * size, time_ms=0, protocol="http", device="", id=str(number))


def take(box: Outbox, number: int, key: str, size: int = 1) -> None:
    message = event(number, size)
    box.take(Position(LogOffset(number), 0), key, message, held_size(message))


def ids(attempts: list[Attempt]) -> list[str]:
    return [one.message.id for one in attempts]


def test_one_of_a_key_at_a_time_and_as_many_keys_as_are_allowed():
    box = outbox()
    for number, key in enumerate("aabbc"):
        take(box, number, key)
    first = box.start(0)
    assert ids(first) == ["0", "2"]
    assert box.start(0) == []
    assert box.deadline_ms(0) is None
    box.delivered(first[0])
    assert ids(box.start(0)) == ["4"]
    box.delivered(first[1])
    assert ids(box.start(0)) == ["1"]


def test_a_failed_event_waits_twice_as_long_each_time_and_holds_up_its_key_alone():
    box = outbox()
    for number, key in enumerate("aab"):
        take(box, number, key)
    one, other = box.start(0)
    assert not box.failed(one, BAD, 0)  # without a dead letter address no event is thrown away
    box.delivered(other)
    assert box.start(999) == []
    assert box.deadline_ms(999) == 1_000
    assert box.start(1_000) == [one]
    box.failed(one, BAD, 1_000)
    assert box.deadline_ms(1_000) == 3_000
    assert box.start(3_000) == [one]
    box.delivered(one)
    assert ids(box.start(3_000)) == ["1"]


def test_dead_events_are_held_until_their_letter_is_durable():
    box = outbox(attempts_max=2)
    take(box, 0, "a")
    take(box, 1, "b")
    one, other = box.start(0)
    assert not box.failed(one, DOWN, 0)
    assert box.failed(other, BAD, 0)
    assert box.oldest() == (Position(LogOffset(0), 0),)
    box.dead_lettered(other)
    (one,) = box.start(1_000)
    assert box.failed(one, DOWN, 1_000)
    box.dead_letter_failed(one, 1_000)
    (one,) = box.start(60_000)
    box.delivered(one)
    assert (box.oldest(), box.held_count, box.held_bytes) == ((), 0, 0)


def test_the_breaker_lets_one_attempt_through_until_one_is_successful():
    box = outbox(concurrency=8)
    for number in range(20):
        take(box, number, str(number))
    begun = box.start(0)
    for one in begun[:BREAKER_FAILURES]:
        box.failed(one, DOWN, 0)
    assert box.broken
    assert box.start(4_999) == []
    for one in begun[BREAKER_FAILURES:]:  # begun before it opened: they lengthen no pause
        box.failed(one, DOWN, 1)
    assert box.deadline_ms(1) == 5_000
    (trial,) = box.start(5_000)
    assert box.start(5_000) == []
    box.failed(trial, DOWN, 5_000)
    assert box.deadline_ms(5_000) == 15_000
    (trial,) = box.start(15_000)
    box.delivered(trial)
    assert not box.broken
    assert len(box.start(15_000)) == 8


def test_a_sink_that_refuses_one_event_works():
    box = outbox(concurrency=8)
    for number in range(BREAKER_FAILURES):
        take(box, number, str(number))
    for one in box.start(0):
        box.failed(one, DOWN, 0)
    assert box.broken
    (trial,) = box.start(60_000)
    box.failed(trial, BAD, 60_000)
    assert not box.broken


def test_a_fault_of_the_event_opens_no_breaker():
    box = outbox(concurrency=8)
    for number in range(8):
        take(box, number, str(number))
    for one in box.start(0):
        box.failed(one, BAD, 0)
    assert not box.broken


def test_retry_after_holds_everything_but_not_for_ever():
    box = outbox()
    take(box, 0, "a")
    take(box, 1, "b")
    take(box, 2, "c")
    one, other = box.start(0)
    box.failed(one, Failure(error="busy", of_event=True, retry_after_ms=10_000), 0)
    box.delivered(other)
    assert box.start(9_999) == []
    assert len(box.start(10_000)) == 2
    box.failed(one, Failure(error="busy", retry_after_ms=10**12), 10_000)
    assert (box.deadline_ms(10_000) or 0) <= 10_000 + 3_600_000


def test_a_rate_is_kept_to_and_the_deadline_says_when():
    box = outbox(concurrency=100, rate_per_s=10.0)
    for number in range(40):
        take(box, number, str(number))
    begun = len(box.start(0))
    assert begun == 10
    now = 0
    while begun < 40:
        due = box.deadline_ms(now)
        assert due is not None
        assert now < due <= now + 101
        now = due
        begun += len(box.start(now))
    assert 2_900 <= now <= 3_200


def test_the_outbox_is_full_by_count_and_by_bytes():
    box = outbox()
    for number in range(HELD_COUNT_MAX):
        assert not box.full
        take(box, number, str(number))
    assert box.full
    large = outbox()
    take(large, 0, "a", 5 << 20)
    assert large.full


def test_properties_fill_the_outbox_too():
    message = Message(address="a", properties=(("long", "x" * HELD_BYTES_MAX),))
    box = outbox()
    box.take(Position(LogOffset(0), 0), "a", message, held_size(message))
    assert box.full


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5))
def test_whatever_happens_order_holds_and_nothing_is_passed(chance: random.Random, concurrency: int):
    """Events are delivered in each key's order; the oldest never passes one that is not settled."""
    box = outbox(concurrency=concurrency, attempts_max=3)
    taken: list[tuple[int, str]] = []
    settled: set[int] = set()
    done: dict[str, list[int]] = {}
    flying: list[Attempt] = []
    now = 0
    while len(taken) < 40 or box.held_count:
        if len(taken) < 40 and chance.random() < 0.5:
            key = chance.choice("abc")
            take(box, len(taken), key)
            taken.append((len(taken), key))
        due = box.deadline_ms(now)
        if due is not None and not flying:
            now = max(now, due)
        begun = box.start(now)
        flying += begun
        assert len(flying) <= concurrency
        assert len({one.key for one in flying}) == len(flying)
        if flying and chance.random() < 0.7:
            one = flying.pop(chance.randrange(len(flying)))
            number = int(one.message.id)
            if chance.random() < 0.5:
                box.delivered(one)
            elif box.failed(one, chance.choice([DOWN, BAD]), now):
                box.dead_lettered(one)
            if one.settled:
                settled.add(number)
                done.setdefault(one.key, []).append(number)
        waiting = [number for number, _ in taken if number not in settled]
        assert box.oldest() == ((Position(LogOffset(waiting[0]), 0),) if waiting else ())
    assert all(found == sorted(found) for found in done.values())
    assert settled == set(range(40))
