"""The gate of a queue that takes nothing more when it is full."""

import pytest

from gateway.publishing.routing.length_gates import LengthGate
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
