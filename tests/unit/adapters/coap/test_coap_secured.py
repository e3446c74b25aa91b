"""Peers with sessions below CoAP: each principal's requests are its own, and end with its session."""

from random import Random
from typing import Any

import msgspec

from adapters.coap import FACTORY
from adapters.coap.codec.registry import ACK, BLOCK1, BLOCK2, CON, EMPTY, GET, OBSERVE, POST
from adapters.coap.codec.wire import Packet, decode, encode
from adapters.coap.messages.request import Block
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.secured.endpoints import IDLE_ENDPOINTS_MAX
from gateway.domain.batch import Batch
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Call, Deliveries, Outcome, Publish, Subscribe, SubscriptionId
from store.api.message import Message
from store.format.frame import LogOffset
from tests.support.coap.coap_driver import OTHER, PEER, Driver, dotted, request

LAST = Message(address="a/b", body=b"hello", id="1", content_type="text/plain")


class SecuredDriver(Driver):
    """A socket with DTLS, and its gateway, which lets strangers in."""

    def __post_init__(self) -> None:
        self.endpoint: Any = FACTORY.bind_secured(CoapOptions(**self.settings), random=Random(7)).inner
        self.who: list[tuple[str, str | None]] = []

    def complete(self, effects: list[Any], outcome: Outcome | None = None) -> None:
        for effect in effects:
            who = getattr(effect, "who", None)
            if isinstance(effect, Call) and isinstance(effect.request, Authenticate):
                told = Outcome(value=Principal(name=""))
                self.complete(list(self.endpoint.completed(effect.token, told, now_ms=self.now_ms)))
                continue
            if isinstance(effect, Publish | Call | Subscribe):
                self.who.append((type(effect).__name__, None if who is None else who.name))
            super().complete([effect], outcome)


def test_each_principal_acts_for_itself() -> None:
    driver = SecuredDriver(last=LAST)
    driver.endpoint.joined(PEER, Principal(name="dev1"))
    driver.endpoint.joined(OTHER, Principal(name="gateway", trusted_gateway=True))
    datagrams = [
        (request("t/x/y/z", mid=0), PEER),
        (request("t/x/y/z", mid=1), OTHER),
        (request("t/x/y/gateway", mid=2), OTHER),
    ]
    driver.complete([*driver.endpoint.receive(datagrams, now_ms=driver.now_ms)])
    assert [peer for _, peer in driver.endpoint.take_output()] == [PEER, OTHER, OTHER]
    assert driver.who == [("Publish", "dev1"), ("Publish", "gateway")]
    said = [(one.device, one.principal) for one in driver.stored]
    assert said == [("dev1", None), ("z", "gateway"), ("gateway", None)]


def test_a_stranger_is_let_in_as_one() -> None:
    driver = SecuredDriver(last=LAST)
    driver.endpoint.joined(PEER, None)
    assert dotted(driver.get("t/a/b").code) == "2.05"
    assert driver.who == [("Call", None)]


def test_who_has_no_session_is_not_heard() -> None:
    driver = SecuredDriver(last=LAST)
    assert driver.exchange(request("t/a/b")) == []


def test_an_observation_ends_with_its_session() -> None:
    driver = SecuredDriver(last=LAST)
    driver.endpoint.joined(PEER, Principal(name="dev1"))
    driver.endpoint.joined(OTHER, Principal(name="dev2"))
    for peer in (PEER, OTHER):
        driver.exchange(request("t/a/b", GET, options=((OBSERVE, b""),)), peer=peer)
    assert driver.subscribed() == ["a/b", "a/b"]
    assert [name for kind, name in driver.who if kind == "Subscribe"] == ["dev1", "dev2"]
    driver.endpoint.left(PEER)
    driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)))
    assert driver.subscribed() == ["a/b"]
    (sub,) = driver.subscriptions
    message = Message(address="a/b", body=b"2", id="2", content_type="text/plain")
    (packet,) = driver.deliver(message, sub=sub)
    assert packet.payload == b"2"


def test_an_answer_to_a_session_that_is_over_goes_to_nobody() -> None:
    driver = SecuredDriver(last=LAST)
    driver.endpoint.joined(PEER, Principal(name="dev1"))
    effects = driver.receive(request("t/a/b"))
    driver.endpoint.joined(PEER, Principal(name="dev2"))
    driver.complete(effects)
    assert driver.sent() == []


def test_message_ids_of_another_session_are_other_ones() -> None:
    """RFC 7252, 9.1.1: a message is a repetition within its own session alone."""
    driver = SecuredDriver(last=LAST)
    for name in ("dev1", "dev1"):
        driver.endpoint.joined(PEER, Principal(name=name))
        (answer,) = driver.exchange(request("t/a/b", mid=5))
        assert dotted(answer.code) == "2.01"
        assert driver.exchange(request("t/a/b", mid=5)) == [answer]
    assert len(driver.stored) == 2


def test_endpoints_that_hold_nothing_are_given_up() -> None:
    driver = SecuredDriver({"exchange_lifetime_ms": 1_000}, last=LAST)
    for n in range(1_000):
        driver.endpoint.joined(PEER, Principal(name=f"dev{n}"))
        (answer,) = driver.exchange(request("t/a/b", mid=n))
        assert isinstance(answer, Packet)
        driver.now_ms += 3_000
        driver.tick(0)
    assert len(driver.endpoint._endpoints) < 600


def test_a_session_keeps_its_endpoint_while_others_come() -> None:
    """The endpoint of a user whose sessions do nothing has its timers, and is the only one of its name."""
    driver = SecuredDriver(last=LAST)
    driver.endpoint.joined(PEER, Principal(name="alice"))
    for n in range(IDLE_ENDPOINTS_MAX + 1):
        driver.endpoint.joined(("192.0.2.9", n), Principal(name=f"dev{n}"))
    effects = driver.receive(request("t/a/b", mid=1))
    assert [(one.type, one.code, one.mid) for one in driver.tick(5_000)] == [(ACK, EMPTY, 1)]
    driver.complete(effects)
    assert [dotted(one.code) for one in driver.sent()] == ["2.01"]
    driver.endpoint.joined(OTHER, Principal(name="alice"))
    for peer, path in ((PEER, "t/a/one"), (OTHER, "t/b/two")):
        driver.exchange(request(path, GET, mid=2, options=((OBSERVE, b""),)), peer=peer)
    assert driver.subscribed() == ["a/one", "b/two"]
    messages = [msgspec.structs.replace(LAST, address=name, body=name.encode()) for name in driver.subscribed()]
    batch = Batch(LogOffset(0), LogOffset(1), messages, [0, 1], [1, 1])
    subs = [(SubscriptionId(sub),) for sub in driver.subscriptions]
    driver.endpoint.deliver(Deliveries(batch, range(2), subs), now_ms=driver.now_ms)
    sent = [(decode(data).payload, peer) for data, peer in driver.endpoint.take_output()]
    assert sent == [(b"a/one", PEER), (b"b/two", OTHER)]


def test_endpoints_of_sessions_that_are_over_are_given_up() -> None:
    driver = SecuredDriver(last=LAST)
    for n in range(1_000):
        driver.endpoint.joined(PEER, Principal(name=f"dev{n}"))
    assert len(driver.endpoint._endpoints) < 600


def observing(driver: SecuredDriver, name: str, mid: int) -> Packet:
    """Begins a session of PEER in place of the one before, observes, and returns a Confirmable notification."""
    driver.endpoint.joined(PEER, Principal(name=name))
    driver.exchange(request("t/a/b", GET, mid=mid, token=b"t%d" % mid, options=((OBSERVE, b""),)))
    message = Message(address="a/b", body=b"2", id="2", content_type="text/plain")
    (packet,) = driver.deliver(message, sub=max(driver.subscriptions))
    assert packet.type == CON
    return packet


def test_a_message_that_is_not_acknowledged_is_not_sent_again_in_the_next_session() -> None:
    """(RFC 7252, 9.1.1)"""
    driver = SecuredDriver({"observe_confirm_every": 1}, last=LAST)
    first = observing(driver, "dev1", 1)
    assert [one.mid for one in driver.tick(3_000)] == [first.mid]
    driver.endpoint.joined(PEER, Principal(name="dev1"))
    assert [driver.tick(1_000) for _ in range(100)] == [[]] * 100


def test_an_acknowledgement_for_a_message_of_an_earlier_session_acknowledges_nothing() -> None:
    """(RFC 7252, 9.1.1)"""
    driver = SecuredDriver({"observe_confirm_every": 1}, last=LAST)
    earlier = observing(driver, "dev1", 1)
    later = observing(driver, "dev1", 2)
    for mid, sent_again in ((earlier.mid, True), (later.mid, False)):
        driver.exchange(encode(Packet(type=ACK, code=0, mid=mid)))
        assert (later.payload in [one.payload for one in driver.tick(3_000)]) is sent_again


def test_blocks_of_two_sessions_are_not_put_together() -> None:
    """(RFC 7959, 7)"""
    driver = SecuredDriver(last=LAST)
    driver.endpoint.joined(PEER, Principal(name="dev1"))
    first = request("t/a/b", POST, payload=bytes(16), options=((BLOCK1, Block(0, True, 0).encode()),))
    assert dotted(driver.exchange(first)[0].code) == "2.31"
    driver.endpoint.joined(PEER, Principal(name="dev2"))
    rest = request("t/a/b", POST, mid=2, payload=b"x", options=((BLOCK1, Block(1, False, 0).encode()),))
    assert dotted(driver.exchange(rest)[0].code) == "4.08"
    assert driver.stored == []


def test_a_block_of_a_value_is_read_for_whoever_asks_for_it() -> None:
    """(RFC 7959, 7) The value that was kept for one principal is not shown to the next one at its address."""
    driver = SecuredDriver(last=Message(address="a/b", body=bytes(32), id="1"))
    driver.endpoint.joined(PEER, Principal(name="dev1"))
    driver.get("t/a/b", options=((BLOCK2, Block(0, False, 0).encode()),))
    driver.endpoint.joined(PEER, Principal(name="dev2"))
    denied = Outcome(error=Refusal(Cause.FORBIDDEN, "no"))
    rest = request("t/a/b", GET, mid=2, options=((BLOCK2, Block(1, False, 0).encode()),))
    (answer,) = driver.exchange(rest, outcome=denied)
    assert dotted(answer.code) == "4.03"
    assert driver.who[-1] == ("Call", "dev2")
