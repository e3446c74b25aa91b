"""The leases that a client knows of, over the end of a session."""

from types import SimpleNamespace

from store.format.frame import QueueNumber, QueueOffset
from store.remoting.held import HeldLeases

QUEUE, OWNER = QueueNumber(16), 7


def leased(*offsets):
    return [SimpleNamespace(offset=QueueOffset(offset), grant=None) for offset in offsets]


def test_a_take_that_is_sent_again_on_the_next_session_keeps_its_leases():
    held = HeldLeases()
    take = held.begin_take(OWNER, QUEUE)
    held.lose()
    assert held.has_taken(OWNER), "the next session knows it by the take"
    assert held.end_take(take, OWNER, QUEUE, "", leased(3, 4))
    assert held.known(OWNER, QUEUE, "", [3, 4]) == ([(3, 5)], [])
    assert held.release(OWNER) == [QUEUE]


def test_leases_that_have_come_are_lost_with_their_session():
    held = HeldLeases()
    assert held.end_take(held.begin_take(OWNER, QUEUE), OWNER, QUEUE, "", leased(3))
    held.lose()
    assert held.known(OWNER, QUEUE, "", [3]) == ([], [3])
    assert not held.has_taken(OWNER)
