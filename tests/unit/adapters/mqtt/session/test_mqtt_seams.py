"""The seams of a session: one connection ends and the next one begins."""

import pytest

from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
)
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.delivery import SETTLE_INTERVAL_MS
from adapters.mqtt.session.inflight import PACKET_ID_MAX, Inflight
from adapters.mqtt.session.session_state import NO_STATE, PacketExchanges, SavedDelivery, SavedSubscription, load
from gateway.domain.cursor import Cursor, end_of
from gateway.port import adapter as port
from gateway.port.adapter import Outcome, Settled
from gateway.port.sessions import OpenedSession
from store.api.message import Message
from store.format.frame import LogOffset, Position, origin_of
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of


def message(body: bytes, qos: int = 1) -> Message:
    return Message("t/a", body, NOW_MS, "mqtt", "other", qos)


def subscribed(qos: int = 2, **properties: int) -> Driver:
    """Returns a durable session with a subscription."""
    driver = Driver(5)
    driver.connect(clean=False, properties=Properties(session_expiry_s=600, **properties))
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=qos),)))
    driver.effects.clear()
    return driver


def again(driver: Driver, cursor: Cursor | None = None, **properties: int) -> Driver:
    """Returns the session once its connection was lost and made again."""
    driver.lose()
    state = next(save.state for save in reversed(driver.saved) if save.state is not None)
    exchanges = next((save.exchanges for save in reversed(driver.saved) if save.exchanges is not None), b"")
    other = Driver(5, driver.options)
    other.saved = list(driver.saved)
    found = OpenedSession(present=True, state=state or b"", exchanges=exchanges or b"", cursor=cursor)
    other.opened = Outcome(value=found)
    asked = Properties(session_expiry_s=600, **properties)
    connack, *_ = other.send(Connect(version=5, client_id="c1", clean=False, properties=asked))
    assert connack == Connack(session_present=True, properties=connack.properties)
    return other


def saved(driver: Driver) -> tuple[SavedSubscription, ...]:
    """Returns the subscriptions as they were saved last."""
    raw = next(save.state for save in reversed(driver.saved) if save.state is not None)
    state = load(raw, NO_STATE)
    assert state is not None
    return state.subscriptions


def said(packets: list[Packet]) -> list[tuple[bytes, int, bool]]:
    return [(p.payload, p.packet_id or 0, p.dup) for p in packets if isinstance(p, Publish)]


def test_a_lower_receive_maximum_does_not_stop_what_was_sent_before():
    driver = subscribed(receive_maximum=10)
    batch = batch_of(message(b"0", 1), *(message(b"%d" % n, 2) for n in range(1, 5)))
    assert driver.deliver(batch) == 5
    driver.tick()
    driver.send(*(Pubrec(packet_id=n) for n in range(2, 6)))  # all but the first
    driver.send(*(Pubcomp(packet_id=n) for n in range(2, 6)))
    driver = again(driver, receive_maximum=1)
    more = batch_of(message(b"5"), message(b"6"), frame=9000)
    assert driver.deliver(batch) == 1
    assert said(driver.out()) == [(b"0", 1, True)]
    driver.send(Puback(packet_id=1))
    assert driver.take(Settled) != []  # offer more
    assert driver.deliver(batch, picks=range(1, 5)) == 4
    assert driver.tick(SETTLE_INTERVAL_MS) == []
    assert driver.take(Settled) != []
    assert driver.deliver(more) == 1
    assert said(driver.out()) == [(b"5", 6, False)]


def test_a_lower_receive_maximum_and_a_pubcomp_that_is_missing():
    driver = subscribed(receive_maximum=10)
    batch = batch_of(message(b"0", 1), message(b"1", 2))
    driver.deliver(batch)
    driver.tick()
    driver.send(Pubrec(packet_id=2))
    driver = again(driver, receive_maximum=1)
    assert driver.deliver(batch) == 0  # the client has one of them already, which is not completed
    driver.send(Pubcomp(packet_id=2))
    assert driver.take(Settled) != []
    assert driver.deliver(batch) == 1
    assert said(driver.out()) == [(b"0", 1, True)]


def test_a_lower_receive_maximum_and_what_was_acknowledged_before_what_is_done():
    driver = subscribed(receive_maximum=10)
    batch = batch_of(message(b"0", 2), message(b"1", 1), *(message(b"%d" % n, 2) for n in range(2, 6)))
    assert driver.deliver(batch) == 6
    driver.tick()
    driver.send(Puback(packet_id=2))
    driver.send(*(Pubrec(packet_id=n) for n in range(3, 7)))  # all but the first
    driver.send(*(Pubcomp(packet_id=n) for n in range(3, 7)))
    driver = again(driver, receive_maximum=2)
    more = batch_of(message(b"6", 2), message(b"7", 2), frame=9000)
    assert driver.deliver(batch) == 2
    assert said(driver.out()) == [(b"0", 1, True), (b"1", 7, False)]  # the latter comes twice, as it may at QoS 1
    driver.send(Puback(packet_id=7), Pubrec(packet_id=1))
    driver.send(Pubcomp(packet_id=1))
    assert driver.take(Settled) != []  # offer more
    assert driver.deliver(batch, picks=range(2, 6)) == 4
    driver.tick(SETTLE_INTERVAL_MS)
    assert driver.take(Settled) != []
    assert driver.deliver(more) == 2
    assert said(driver.tick()) == [(b"6", 8, False), (b"7", 9, False)]


@pytest.mark.slow
def test_identifiers_that_are_kept_for_others_leave_no_room():
    inflight = Inflight()
    sent = tuple(SavedDelivery(n, 1, place=(LogOffset(4096), n)) for n in range(1, PACKET_ID_MAX))
    inflight.restore(PacketExchanges(sent=sent, settled=(LogOffset(4096), 1)))
    assert inflight.room == 1
    packet_id = next(inflight.ids())
    assert packet_id == PACKET_ID_MAX
    inflight.sent[packet_id] = None
    assert inflight.room == 0
    assert inflight.ready


def test_what_is_sent_again_does_not_wait_for_what_ends_behind_it():
    inflight = Inflight()
    sent = (SavedDelivery(9, 2, released=True),)
    inflight.restore(PacketExchanges(done=((LogOffset(4096), 3),), settled=(LogOffset(4096), 1), sent=sent))
    inflight.limit = 2
    assert (inflight.room, inflight.room_again) == (1, 1)
    inflight.done[LogOffset(4096), 5] = None
    assert (inflight.room, inflight.room_again) == (0, 1)


def test_a_subscription_is_sent_nothing_older_than_itself_by_a_later_connection():
    driver = subscribed()
    (first,) = saved(driver)
    assert first.since == ()
    driver.deliver(batch_of(message(b"not acknowledged")))
    driver.tick()
    driver.begins = (Position(LogOffset(9000), 2), end_of(1))
    both = tuple(SubscriptionRequest(pattern=pattern, qos=1) for pattern in ("cmd/a", "cmd/b"))
    (suback,) = driver.send(Subscribe(packet_id=2, requests=both))
    assert suback == Suback(packet_id=2, codes=(1, 1))
    driver.begins = (Position(LogOffset(9500), 0),)
    driver.send(Subscribe(packet_id=3, requests=both))  # which only changes their options
    settled = (Position(LogOffset(4096), 0), Position(origin_of(1), 7))
    driver = again(driver, cursor=settled)
    assert [(one.pattern, one.start) for one in driver.take(port.Subscribe)] == [
        ("t/#", settled),
        ("cmd/a", (Position(LogOffset(9000), 2), settled[1])),
        ("cmd/b", (Position(LogOffset(9000), 2), settled[1])),
    ]
    driver = again(driver, cursor=(Position(LogOffset(12000), 0),))
    assert {one.start for one in driver.take(port.Subscribe)} == {(Position(LogOffset(12000), 0),)}


def test_where_it_began_is_saved_with_shared_subscriptions_beside_it():
    driver = Driver(5)
    driver.connect(clean=False, properties=Properties(session_expiry_s=600))
    driver.begins = (Position(LogOffset(9000), 2),)
    requests = tuple(SubscriptionRequest(pattern=pattern, qos=1) for pattern in ("t/#", "$share/g/t/#"))
    driver.send(Subscribe(packet_id=1, requests=requests))
    plain, _ = saved(driver)
    assert plain.since == ((9000, 2),)


def test_a_connection_whose_session_is_taken_over_says_what_it_has_sent():
    """MQTT-3.3.1-1. MQTT-4.4.0-1."""
    driver = subscribed()
    driver.deliver(batch_of(message(b"1"), message(b"2")))
    driver.act(driver.adapter.superseded(now_ms=driver.now_ms))
    assert driver.closed
    driver = again(driver)
    driver.deliver(batch_of(message(b"1"), message(b"2")))
    assert said(driver.out()) == [(b"1", 1, True), (b"2", 2, True)]


def test_what_was_sent_is_completed_though_its_subscription_ends_before_it_is_sent_again():
    """MQTT-3.10.4-3."""
    driver = subscribed()
    batch = batch_of(message(b"1", 1), message(b"2", 2), message(b"3", 2))
    driver.deliver(batch, picks=range(2))
    driver.tick()
    driver = again(driver)
    driver.take(port.Subscribe)
    assert driver.send(Unsubscribe(packet_id=7, patterns=("t/#",))) == [Unsuback(packet_id=7, codes=(0,))]
    assert driver.take(port.Unsubscribe) == []
    assert driver.deliver(batch) == 3
    assert said(driver.out()) == [(b"1", 1, True), (b"2", 2, True)]
    driver.tick()
    assert driver.take(port.Unsubscribe) == [port.Unsubscribe(sub=port.SubscriptionId(1))]


def test_a_subscription_that_was_sent_nothing_ends_at_once():
    driver = subscribed()
    driver = again(driver)
    driver.send(Unsubscribe(packet_id=7, patterns=("t/#",)))
    assert driver.take(port.Unsubscribe) == [port.Unsubscribe(sub=port.SubscriptionId(1))]


def test_so_many_subscriptions_end_later():
    driver = subscribed()
    driver.deliver(batch_of(message(b"1")))
    driver.tick()
    driver.options = Options(subscriptions_max=2)
    driver = again(driver)
    for _ in range(2):
        driver.send(Unsubscribe(packet_id=7, patterns=("t/#",)))
        driver.send(Subscribe(packet_id=7, requests=(SubscriptionRequest(pattern="t/#", qos=2),)))
    assert driver.take(port.Unsubscribe) == []
    driver.send(Unsubscribe(packet_id=7, patterns=("t/#",)))
    assert [one.sub for one in driver.take(port.Unsubscribe)] == [1, 2, 3]
