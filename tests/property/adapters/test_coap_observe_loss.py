"""Observers end with the last value, however the network loses, repeats and reorders datagrams."""

from dataclasses import dataclass

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.coap.codec.registry import ACK, CON, GET, OBSERVE
from adapters.coap.codec.wire import Packet, encode, read_uint
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, options_of, request
from tests.support.process.examples import examples

NEWER_MAX = 1 << 23  # RFC 7641, 3.4
NEWER_ANYWAY_MS = 128_000


@dataclass
class Observer:
    """A client's side of RFC 7641, 3.4: the newest notification by its number, or by time."""

    body: bytes
    number: int
    heard_ms: int

    def hear(self, packet: Packet, now_ms: int) -> None:
        number = read_uint(options_of(packet)[OBSERVE])
        ahead = number - self.number & 0xFF_FFFF
        if 0 < ahead < NEWER_MAX or now_ms > self.heard_ms + NEWER_ANYWAY_MS:
            self.body, self.number, self.heard_ms = packet.payload, number, now_ms


def value(n: int) -> Message:
    return Message(address="a", body=str(n).encode(), id=f"id-{n}")


steps = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.sampled_from([1, 100, 3_000, 30_000, 90_000])),
    st.tuples(st.sampled_from(["lose", "hear", "repeat"]), st.integers(0, 7)),
)


@given(st.lists(steps, max_size=40), st.integers(1, 5), st.integers(0, 1 << 40))
@settings(max_examples=examples(150), deadline=None)
def test_an_observer_ends_with_the_last_value(script: list[tuple[str, int]], confirm_every: int, start_ms: int) -> None:
    # Ten times sent again, so that no script of losses is long enough to end the observation.
    limits = {"observe_confirm_every": confirm_every, "observe_confirm_ms": 86_000_000, "max_retransmit": 10}
    driver = Driver(limits, now_ms=start_ms, last=value(0))
    (answer,) = driver.exchange(request("t/a", GET, options=((OBSERVE, b""),)))
    observer = Observer(answer.payload, read_uint(options_of(answer)[OBSERVE]), driver.now_ms)
    flying: list[Packet] = []
    count = 0

    def hear(packet: Packet) -> None:
        observer.hear(packet, driver.now_ms)
        if packet.type == CON:
            flying.extend(driver.exchange(encode(Packet(type=ACK, code=0, mid=packet.mid))))

    for what, n in script:
        if what == "publish":
            messages = [value(count + 1 + k) for k in range(n)]
            count += n
            driver.last = messages[-1]
            flying += driver.deliver(*messages)
        elif what == "wait":
            flying += driver.tick(n)
        elif flying:
            at = n % len(flying)
            packet = flying[at] if what == "repeat" else flying.pop(at)
            if what != "lose":
                hear(packet)
    for _ in range(6):  # the network is well again; what is on its way arrives in the wrong order
        while flying:
            hear(flying.pop())
        for _ in range(40):
            flying += driver.tick(60_000)
            while flying:
                hear(flying.pop())
    assert observer.body == str(count).encode()
    assert len(driver.endpoint.observers) == 1


ADDRESSES = (b"a", b"b", b"c")


@given(st.lists(steps, max_size=40), st.integers(1, 3), st.booleans())
@settings(max_examples=examples(50), deadline=None)
def test_observations_of_one_endpoint_end_with_their_last_values(
    script: list[tuple[str, int]], confirm_every: int, each: bool
) -> None:
    limits = {"observe_confirm_every": confirm_every, "observe_check_ms": 400_000, "max_retransmit": 10}
    query = ("each=true",) if each else ()
    driver = Driver(limits, last=value(0))
    observers: dict[bytes, Observer] = {}
    for mid, token in enumerate(ADDRESSES):
        data = request(f"t/{token.decode()}", GET, mid=mid, token=token, query=query, options=((OBSERVE, b""),))
        (answer,) = driver.exchange(data)
        observers[token] = Observer(answer.payload, read_uint(options_of(answer)[OBSERVE]), driver.now_ms)
    flying: list[Packet] = []
    unacknowledged: dict[int, bytes] = {}  # the token of each Confirmable notification, by its Message ID
    count = 0

    def fly(packets: list[Packet]) -> None:
        flying.extend(packets)
        unacknowledged.update({packet.mid: packet.token for packet in packets if packet.type == CON})
        assert len(set(unacknowledged.values())) <= 1

    def hear(packet: Packet) -> None:
        observers[packet.token].hear(packet, driver.now_ms)
        if packet.type == CON:
            if packet.mid in unacknowledged:
                unacknowledged.clear()
            fly(driver.exchange(encode(Packet(type=ACK, code=0, mid=packet.mid))))

    last = [0, 0, 0]
    for what, n in script:
        if what == "publish":
            count += 1
            last[n % 3] = count
            fly(driver.deliver(msgspec.structs.replace(value(count), address=chr(97 + n % 3)), sub=n % 3 + 1))
        elif what == "wait" and n < 30_000:
            fly(driver.tick(n))
        elif flying:
            at = n % len(flying)
            packet = flying[at] if what == "repeat" else flying.pop(at)
            if what != "lose":
                hear(packet)
    for _ in range(13):
        while flying:
            hear(flying.pop(0))
        fly(driver.tick(20_000))
    if each or confirm_every == 1:  # else a check, which does not come here, makes the last one good
        assert [observers[token].body for token in ADDRESSES] == [str(body).encode() for body in last]
