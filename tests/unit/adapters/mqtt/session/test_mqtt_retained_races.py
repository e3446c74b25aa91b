"""Retained messages for a new subscription, and the live ones that replace them meanwhile."""

import pytest

from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import Packet, Puback, Publish, Subscribe, SubscriptionRequest
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.retained import NEWER_BYTES_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, Effect, Outcome, Settled
from gateway.port.reads import Retained, RetainedPage
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of


class Asked(Driver):
    """A gateway that takes its time to find retained messages."""

    def answer_effect(self, effect: Effect) -> Outcome | None:
        if isinstance(effect, Call) and isinstance(effect.request, Retained):
            return None
        return super().answer_effect(effect)

    def subscribe(self, *patterns: str, qos: int = 1) -> None:
        requests = tuple(SubscriptionRequest(pattern=pattern, qos=qos) for pattern in patterns)
        self.send(Subscribe(packet_id=1, requests=requests))

    def found(self, *messages: Message, after: str | None = None) -> list[tuple[bytes, bool]]:
        (call,) = self.calls(Retained)
        return said(self.complete(call, Outcome(value=RetainedPage(messages=messages, after=after))))


def kept(body: bytes, address: str = "t", qos: int = 0, *, retain: bool = True) -> Message:
    return Message(address, body, NOW_MS, "mqtt", "other", qos, retain)


def said(packets: list[Packet]) -> list[tuple[bytes, bool]]:
    return [(p.payload, p.retain) for p in packets if isinstance(p, Publish)]


@pytest.fixture(params=[0, 600])
def driver(request: pytest.FixtureRequest) -> Asked:
    driver = Asked(5)
    driver.connect(properties=Properties(session_expiry_s=request.param))
    return driver


def test_a_message_that_was_replaced_meanwhile_does_not_come_behind_the_one_that_replaced_it(driver: Asked):
    """MQTT-4.6.0-6."""
    driver.subscribe("+")
    driver.deliver(batch_of(kept(b"new")))
    assert said(driver.out()) == [(b"new", False)]
    assert driver.found(kept(b"old"), kept(b"other", "u")) == [(b"other", True)]


def test_nor_does_one_that_waits_for_an_acknowledgement(driver: Asked):
    driver = Asked(5)
    driver.connect(properties=Properties(receive_maximum=1))
    driver.subscribe("+")
    assert driver.found(kept(b"u", "u", 1), kept(b"old", "t", 1)) == [(b"u", True)]
    driver.deliver(batch_of(kept(b"new")))  # at QoS 0
    assert said(driver.out()) == [(b"new", False)]
    assert said(driver.send(Puback(packet_id=1))) == []


def test_a_live_message_that_is_not_retained_replaces_nothing(driver: Asked):
    driver.subscribe("+")
    driver.deliver(batch_of(kept(b"live", retain=False)))
    assert said(driver.out()) == [(b"live", False)]
    assert driver.found(kept(b"kept")) == [(b"kept", True)]


def test_what_replaced_it_has_to_be_for_the_same_subscription_and_wish(driver: Asked):
    driver.subscribe("a", "t")
    assert driver.found() == []
    driver.deliver(batch_of(kept(b"1", "a")), [(1,)])  # it fulfils the request of `a`
    driver.deliver(batch_of(kept(b"2", "t")), [(2,)])
    assert said(driver.out()) == [(b"1", False), (b"2", False)]
    assert driver.found(kept(b"old", "t")) == []
    driver.subscribe("a", "t")
    assert driver.found(kept(b"1", "a")) == [(b"1", True)]
    driver.tick()
    assert driver.found(kept(b"2", "t")) == [(b"2", True)]


def test_live_messages_wait_where_more_is_replaced_than_is_remembered(driver: Asked):
    driver.subscribe("#")
    long = "t" * (NEWER_BYTES_MAX // 2)
    batch = batch_of(kept(b"1", long), kept(b"2", long + "2"))
    assert driver.deliver(batch, [(1,), (1,)]) == 2
    assert driver.deliver(batch_of(kept(b"3", "u"), frame=9000)) == 0
    driver.out()
    driver.take(Settled)
    assert driver.found(kept(b"old", long)) == []
    assert driver.take(Settled) != []  # offer it again
    assert driver.deliver(batch_of(kept(b"3", "u"), frame=9000)) == 1


def test_no_retained_messages_where_the_operator_wants_none():
    driver = Asked(5, Options(retained_max=0))
    driver.connect()
    driver.subscribe("t")
    assert driver.calls(Retained) == []


def test_retained_messages_that_the_store_does_not_give_for_now_come_later(driver: Asked):
    """A client whose subscription was granted would take an empty answer for "there are none"."""
    driver.subscribe("t")
    (call,) = driver.calls(Retained)
    driver.complete(call, Outcome(error=Refusal(Cause.UNAVAILABLE, "no master", retry_after_ms=5_000)))
    assert driver.adapter.deadline_ms() == NOW_MS + 5_000
    assert driver.tick(4_999) == []
    assert driver.calls(Retained) == []
    driver.tick(1)
    assert driver.found(kept(b"kept")) == [(b"kept", True)]


def test_retained_messages_that_are_refused_for_good_are_not_asked_for_again(driver: Asked):
    driver.subscribe("t")
    (call,) = driver.calls(Retained)
    driver.complete(call, Outcome(error=Refusal(Cause.FORBIDDEN, "no right to it")))
    driver.tick(60_000)
    assert driver.calls(Retained) == []
