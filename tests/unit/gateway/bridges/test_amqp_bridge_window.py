"""The window of forwarded messages: in order, one at a time when one is suspected, and nothing settled too early."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.bridges.amqp.places import UpstreamRoute
from gateway.bridges.amqp.window import Window
from gateway.domain.cursor import by_log
from store.api.message import Message
from store.format.frame import LogOffset, Position

ROUTE = UpstreamRoute("", "q", mandatory=False, message_bytes_max=1, too_long=False)


def message():
    return Message("a", b"", 0, "mqtt", "d")


def window(count, *, count_max=100, bytes_max=10_000):
    one = Window(count_max=count_max, bytes_max=bytes_max)
    for number in range(count):
        one.take(Position(LogOffset(64 * (number + 1)), 0), ROUTE, message(), 10)
    return one


def started(one):
    found = []
    while (sent := one.next()) is not None:
        found.append(sent)
    return found


def numbers(some):
    return [one.number for one in some]


def oldest(one):
    return [position.frame // 64 - 1 for position in by_log(one.oldest()).values()]


def test_messages_leave_in_order_and_the_oldest_that_is_not_confirmed_holds_the_cursor():
    one = window(3)
    sent = started(one)
    assert numbers(sent) == [0, 1, 2]
    one.settled(sent[1])
    assert oldest(one) == [0]
    one.settled(sent[0])
    assert oldest(one) == [2]
    one.settled(sent[2])
    assert one.oldest() == ()
    assert (one.held_count, one.held_bytes) == (0, 0)


def test_it_is_full_by_messages_and_by_bytes():
    assert window(2, count_max=2).full
    assert window(2, bytes_max=20).full
    assert not window(2, count_max=3, bytes_max=21).full


def test_what_was_refused_leaves_before_all_that_has_not_left():
    one = window(2)
    first, second = started(one)
    one.take(Position(LogOffset(640), 0), ROUTE, message(), 10)
    one.was_refused(second)
    assert one.next() is None  # the first is in flight
    assert not one.refused
    one.settled(first)
    assert one.refused
    assert numbers(started(one)) == [1, 2]


def test_a_lost_connection_sends_all_again_that_is_not_settled():
    one = window(4)
    sent = started(one)
    one.settled(sent[1])
    one.was_refused(sent[2])
    one.lost()
    one.settled(sent[0])  # an answer that comes too late counts no more
    assert numbers(started(one)) == [0, 2, 3]


def test_suspects_leave_one_by_one_until_it_is_known_which_one_it_was():
    one = window(3)
    started(one)
    one.take(Position(LogOffset(640), 0), ROUTE, message(), 10)
    assert one.accused is None
    one.lost(suspicious=True)
    (first,) = started(one)
    assert first.number == 0
    one.settled(first)
    (second,) = started(one)
    assert one.accused is second
    one.settled(second)  # passed over
    one.lost(suspicious=True)
    (third,) = started(one)
    one.settled(third)
    assert numbers(started(one)) == [3]
    assert one.accused is None


def test_one_that_was_put_back_is_the_next_again():
    one = window(2)
    first = one.next()
    second = one.next()
    one.put_back(second)
    assert one.next() is second
    assert first.number == 0


@given(st.data())
def test_whatever_happens_each_is_confirmed_and_firsts_leave_in_order(data):
    count = data.draw(st.integers(1, 12))
    one = window(count)
    in_flight, confirmed, left = [], [], []
    while len(confirmed) < count:
        for sent in started(one):
            if sent.number not in left:
                left.append(sent.number)
            in_flight.append(sent)
        assert in_flight, "it stands still"
        what = data.draw(st.sampled_from(["confirm", "confirm", "confirm", "refuse", "lose", "suspect"]))
        if what in {"lose", "suspect"}:
            one.lost(suspicious=what == "suspect")
            in_flight = []
            continue
        index = data.draw(st.integers(0, len(in_flight) - 1))
        which = in_flight.pop(index)
        if what == "confirm":
            one.settled(which)
            confirmed.append(which.number)
        else:
            one.was_refused(which)
        assert oldest(one) == ([min(set(range(count)) - set(confirmed))] if len(confirmed) < count else [])
    assert sorted(confirmed) == list(range(count))
    assert left == sorted(left)
