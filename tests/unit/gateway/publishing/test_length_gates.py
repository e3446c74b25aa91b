"""The gate of a queue that takes nothing more when it is full."""

import pytest

from gateway.publishing.routing.length_gates import SURE_MS, LengthGate
from store.api.message import Message


def gate(room=lambda: 0, **limits):
    made = LengthGate(touched=lambda: None, refused=lambda _message: None, room=room)
    made.count_max, made.bytes_max = limits.get("count_max"), limits.get("bytes_max")
    return made


def admitted(of, *sizes):
    return [of.admit(Message("a", b"x" * size)) for size in sizes]


@pytest.mark.parametrize(
    ("limits", "sizes", "found"),
    [
        ({"count_max": 2}, (0, 0, 0), [True, True, False]),
        ({"count_max": 0}, (0,), [False]),
        ({"bytes_max": 10}, (6, 6, 4, 1), [True, False, True, False]),
        ({"count_max": 1, "bytes_max": 10}, (11, 5, 5), [False, True, False]),
        ({}, (1 << 20,), [True]),
    ],
)
def test_no_more_enter_than_there_is_room_for(limits, sizes, found):
    assert admitted(gate(**limits), *sizes) == found


def test_what_is_on_its_way_is_counted_beside_what_is_found():
    one = gate(count_max=3)
    assert admitted(one, 1, 1) == [True, True]
    assert one.counted(one.settled, 0, 0)  # neither is there yet
    assert admitted(one, 1, 1) == [True, False]
    one.landed(2)
    assert one.counted(one.settled, 1, 1)  # one of the two was taken since
    assert admitted(one, 1, 1) == [True, False]


def test_a_count_that_something_has_landed_during_means_nothing():
    one = gate(count_max=1)
    assert admitted(one, 1) == [True]
    settled = one.settled
    one.landed(1)
    assert not one.counted(settled, 0, 0)
    assert admitted(one, 1) == [False]


@pytest.mark.parametrize(
    ("limits", "room", "sizes", "found"),
    [
        ({"count_max": 1}, 2, (0, 0, 0, 0), [True, True, True, False]),
        ({"count_max": 0}, 2, (0,), [False]),
        ({"bytes_max": 10}, 1, (6, 6, 6), [True, True, False]),
        ({"bytes_max": 10}, 9, (11, 10, 10), [False, True, True]),
    ],
)
def test_messages_that_consumers_have_room_for_do_not_wait(limits, room, sizes, found):
    assert admitted(gate(lambda: room, **limits), *sizes) == found


class Shared:
    """The gate of a queue that other processes fill and drain, too."""

    def __init__(self, **limits):
        self.now_ms = 1_000
        self.gate = LengthGate(
            touched=lambda: None,
            refused=lambda _message: None,
            room=lambda: 0,
            count=self.count,
            now_ms=lambda: self.now_ms,
        )
        self.gate.limit(limits.get("count_max"), limits.get("bytes_max"))

    async def count(self):
        raise AssertionError


def test_a_gate_beside_others_is_sure_for_a_moment_after_a_count():
    shared = Shared(count_max=3)
    assert not shared.gate.is_sure(1, 1)  # never counted
    assert shared.gate.counted(shared.gate.settled, 3, 0)
    assert shared.gate.is_sure(1, 1)
    shared.now_ms += SURE_MS
    assert not shared.gate.is_sure(1, 1)
    shared.now_ms -= 2 * SURE_MS  # the clock was set back
    assert not shared.gate.is_sure(1, 1)
    assert gate(count_max=3).is_sure(1, 1)
    assert Shared().gate.is_sure(1, 1)  # it has no limit


def test_a_gate_that_cannot_count_guesses_for_a_while():
    shared = Shared(count_max=3)
    shared.gate.guess(1_000)
    shared.now_ms += 999
    assert shared.gate.is_sure(1, 1)
    shared.now_ms += 1
    assert not shared.gate.is_sure(1, 1)


@pytest.mark.parametrize("limits", [{"count_max": 10}, {"bytes_max": 100}])
def test_what_may_have_been_counted_twice_matters_only_where_the_queue_may_be_full(limits):
    gate = Shared(**limits).gate
    settled = gate.settled
    assert admitted(gate, 10, 10, 10) == [True] * 3
    gate.landed(2)
    assert not gate.counted(settled, 2, 20)  # 2 may be the two that have landed, beside the one in flight
    assert gate.has_room
    assert gate.is_sure(1, 10)
    assert admitted(gate, *[10] * 6) == [True] * 5 + [False]
    assert not gate.has_room
    assert not gate.is_sure(1, 10)
    assert gate.counted(gate.settled, 2, 20)
    assert admitted(gate, *[10] * 3) == [True] * 2 + [False]
    assert gate.is_sure(1, 10)  # it is full


@pytest.mark.parametrize("limits", [{"count_max": 10}, {"bytes_max": 100}])
def test_no_more_than_a_share_of_the_room_is_taken_by_one_count(limits):
    gate = Shared(**limits).gate
    assert gate.counted(gate.settled, 2, 20)
    assert gate.is_sure(2, 20)
    assert not gate.is_sure(3, 30)  # others may have taken the rest
    assert admitted(gate, *[10] * 5) == [True] * 5
    assert not gate.is_sure(1, 10)
