"""A clock that is set makes no exchange of CoAP older or younger, and no request is refused or answered for it."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.coap.codec.registry import GET, OBSERVE, POST, PUT
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, request
from tests.support.process.examples import examples

SETTINGS = {"dedup_total_max": 6, "dedup_peer_max": 4, "peers_max": 3, "exchange_lifetime_ms": 60_000}
STEPS = st.one_of(st.just(0), st.integers(-4_000_000, 4_000_000))
GAPS = st.one_of(st.integers(0, 2_000), st.integers(0, 100_000))
REQUESTS = st.tuples(st.integers(0, 4), st.integers(0, 5), st.booleans(), st.sampled_from([POST, PUT, GET]))
WAKES = st.tuples(GAPS, STEPS, st.lists(REQUESTS, max_size=4))


class Set(Driver):
    """A driver whose clock may be set: the socket is told of it, as the shell does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.endpoint: Any = self.socket

    def clock_set(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.socket.clock_set(by_ms)

    def passes(self, ms: int) -> list[bytes]:
        """Lets time pass, with a tick at each deadline."""
        end_ms, sent = self.now_ms + ms, []
        while (due_ms := self.endpoint.deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.complete(list(self.endpoint.tick(now_ms=self.now_ms)))
            sent += [data for data, _ in self.endpoint.take_output()]
        self.now_ms = end_ms
        return sent


@given(st.lists(WAKES, max_size=30))
@settings(max_examples=examples(200), deadline=None)
def test_requests_are_answered_as_if_the_clock_had_not_been_set(wakes: list[Any]) -> None:
    last = Message(address="a", body=b"last", id="1", expires_at_ms=None)
    one, other = Set(SETTINGS, last=last), Set(SETTINGS, last=last)
    for gap_ms, step_ms, requests in wakes:
        assert one.passes(gap_ms) == other.passes(gap_ms)
        one.clock_set(step_ms)
        before = len(one.stored)
        for peer, mid, confirmable, code in requests:
            data = request("t/a", code, type=0 if confirmable else 1, mid=mid)
            answers = [driver.exchange(data, peer=(f"h{peer}", 1)) for driver in (one, other)]
            assert answers[0] == answers[1]
        assert {message.time_ms for message in one.stored[before:]} <= {one.now_ms}, "stored by the clock as it is"
    assert [message.address for message in one.stored] == [message.address for message in other.stored]


@given(st.lists(st.tuples(GAPS, STEPS), max_size=20))
@settings(max_examples=examples(100), deadline=None)
def test_observers_are_told_again_as_if_the_clock_had_not_been_set(steps: list[tuple[int, int]]) -> None:
    """Nothing is acknowledged, so that Confirmable notifications are sent again, and given up."""
    last = Message(address="a", body=b"last", id="1")
    one, other = Set(last=last), Set(last=last)
    for driver in (one, other):
        driver.exchange(request("t/a", GET, options=((OBSERVE, b""),)))
        driver.deliver(Message(address="a", body=b"next", id="2"))
    for gap_ms, step_ms in steps:
        sent = one.passes(gap_ms), other.passes(gap_ms)
        assert [len(data) for data in sent[0]] == [len(data) for data in sent[1]]
        one.clock_set(step_ms)
