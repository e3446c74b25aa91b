"""Durable sessions: what is saved, what is taken up again, and how far the log counts as delivered."""

from mqtt_driver import NOW_MS, Driver, batch_of

from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
)
from adapters.mqtt.session_state import EMPTY, SavedDelivery, SavedSubscription, SessionState, dump, load
from gateway import port
from gateway.message import Message
from gateway.port import OpenedSession, Outcome, SaveSession, Settled
from store.format import LogOffset, Position


def at(row: int, frame: int = 4096) -> Position:
    return Position(LogOffset(frame), row)


def message(body=b"x", qos=1) -> Message:
    return Message("t/a", body, NOW_MS, "mqtt", "other", qos)


def durable(qos=2, version=4) -> Driver:
    driver = Driver(version)
    driver.connect(clean=False, properties=Properties(session_expiry_s=600) if version == 5 else Properties())
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=qos),)))
    driver.effects.clear()
    return driver


def resumed(state: SessionState | bytes, cursor: Position | None = None, version=4) -> Driver:
    driver = Driver(version)
    raw = state if isinstance(state, bytes) else dump(state)
    driver.opened = Outcome(value=OpenedSession(present=True, state=raw, cursor=cursor))
    connack = driver.connect(clean=False, properties=Properties(session_expiry_s=600) if version == 5 else Properties())
    assert connack.session_present
    return driver


SUBSCRIBED = SessionState(subscriptions=(SavedSubscription("t/#", 2),))


def test_the_bytes_of_a_state():
    state = SessionState(
        subscriptions=(SavedSubscription("a", 1, True, True, 7),),
        received=(1, 2),
        sent=(SavedDelivery(3, 2, place=(LogOffset(1), 2)), SavedDelivery(4, 2, released=True)),
        next_packet_id=5,
        settled=(LogOffset(1), 1),
        done=((LogOffset(1), 3),),
    )
    assert load(dump(state)) == state
    assert load(dump(EMPTY)) == EMPTY
    assert load(b"") is None
    assert load(b"\x02") is None
    assert load(dump(state)[:-1]) is None


def test_a_state_nobody_can_read_is_no_session():
    driver = Driver(4)
    driver.opened = Outcome(value=OpenedSession(present=True, state=b"?"))
    assert driver.connect(clean=False) == Connack()


def test_subscriptions_come_back_from_the_cursor_on():
    state = SessionState(subscriptions=(SavedSubscription("a", 1, True, True, 7), SavedSubscription("b", 0)))
    driver = resumed(state, at(5), version=5)
    assert driver.take(port.Subscribe) == [
        port.Subscribe(sub=port.SubscriptionId(1), pattern="a", start=at(5)),
        port.Subscribe(sub=port.SubscriptionId(2), pattern="b", start=at(5)),
    ]
    driver.deliver(batch_of(message()))
    (out,) = driver.out()
    assert (out.qos, out.properties.subscription_ids) == (1, (7,))


def test_the_later_of_cursor_and_own_progress_counts():
    for cursor, settled, start in ((at(1), (LogOffset(4096), 4), at(4)), (at(9), (LogOffset(4096), 4), at(9))):
        state = SessionState(subscriptions=SUBSCRIBED.subscriptions, settled=settled)
        assert resumed(state, cursor).take(port.Subscribe)[0].start == start


def test_progress_is_reported_once_a_read():
    driver = durable(qos=1)
    assert driver.deliver(batch_of(*(message() for _ in range(4)))) == 4
    assert driver.adapter.deadline_ms() == NOW_MS
    driver.tick()
    assert driver.take(Settled) == [Settled(oldest=at(0))]
    driver.send(Puback(packet_id=2))
    assert driver.take(Settled) == [Settled(oldest=at(0))]
    driver.send(Puback(packet_id=1), Puback(packet_id=3))
    assert driver.take(Settled) == [Settled(oldest=at(3))]
    driver.send(Puback(packet_id=4))
    assert driver.take(Settled) == [Settled(oldest=None)]
    assert driver.adapter.deadline_ms() is None


def test_progress_at_qos_0_is_reported_now_and_then():
    driver = durable(qos=0)
    for _ in range(3):
        driver.deliver(batch_of(message()))
        driver.now_ms += 300
    assert driver.take(Settled) == []
    assert driver.adapter.deadline_ms() == NOW_MS + 1_000
    driver.tick(200)
    assert driver.take(Settled) == [Settled(oldest=None)]
    assert driver.adapter.deadline_ms() is None
    driver.tick(5_000)
    assert driver.take(Settled) == []


def test_what_is_not_acknowledged_is_told_when_the_connection_ends():
    driver = durable(qos=1)
    driver.deliver(batch_of(message(), message()))
    driver.lose()
    assert driver.take(Settled) == [Settled(oldest=at(0))]
    state = load(driver.saved[-1].state)
    assert state.sent == (SavedDelivery(1, 1, place=(4096, 0)), SavedDelivery(2, 1, place=(4096, 1)))
    again = resumed(driver.saved[-1].state, at(0))
    again.deliver(batch_of(message(b"0"), message(b"1"), message(b"2")))
    assert [(p.packet_id, p.dup, p.payload) for p in again.out()] == [
        (1, True, b"0"),
        (2, True, b"1"),
        (3, False, b"2"),
    ]


def test_acknowledgements_in_front_of_a_disconnect_count():
    driver = durable(qos=1)
    driver.deliver(batch_of(message(), message()))
    driver.send(Puback(packet_id=1), Puback(packet_id=2), Disconnect())
    assert driver.take(Settled) == [Settled(oldest=None)]


def test_a_session_with_nothing_open_is_not_saved_again():
    driver = durable(qos=1)
    saves = len(driver.saved)
    driver.deliver(batch_of(message()))
    driver.send(Puback(packet_id=1))
    driver.lose()
    assert len(driver.saved) == saves


def test_a_session_that_ends_with_its_connection_saves_nothing():
    driver = Driver(4)
    driver.connect(clean=True)
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=2),)))
    driver.deliver(batch_of(message(qos=2)))
    driver.lose()
    assert driver.saved == []
    assert driver.take(Settled) == []


# ---- QoS 2 to the client


def test_a_qos_2_delivery_is_saved_before_it_is_sent():
    driver = durable()
    driver.saves = False
    driver.deliver(batch_of(message(qos=2), message(qos=1)))
    assert [p.qos for p in driver.out()] == [1]
    assert driver.adapter.deadline_ms() == 0
    assert driver.tick() == []
    (save,) = driver.calls(SaveSession)
    state = load(save.request.state)
    assert state.sent[0] == SavedDelivery(1, 2, place=(4096, 0))
    assert state.next_packet_id == 3
    assert [p.packet_id for p in driver.complete(save)] == [1]
    assert driver.send(Pubrec(packet_id=1)) == []
    (save,) = driver.calls(SaveSession)
    state = load(save.request.state)
    assert state.sent == (SavedDelivery(2, 1, place=(4096, 1)), SavedDelivery(1, 2, released=True))
    assert state.settled == (4096, 1)
    assert state.done == ()
    assert driver.complete(save) == [Pubrel(packet_id=1)]


def test_a_qos_2_exchange_goes_on_where_it_was():
    place = LogOffset(4096)
    state = SessionState(
        subscriptions=SUBSCRIBED.subscriptions,
        sent=(SavedDelivery(5, 2, place=(place, 0)), SavedDelivery(6, 2, released=True)),
        next_packet_id=5,
        settled=(place, 0),
        done=((place, 1),),
    )
    driver = Driver(4)
    driver.opened = Outcome(value=OpenedSession(present=True, state=dump(state), cursor=at(0)))
    out = driver.send(_connect())
    assert out == [Connack(session_present=True), Pubrel(packet_id=6)]
    driver.effects.clear()
    driver.deliver(batch_of(*(message(b"%d" % i, 2) for i in range(3))))
    sent = [(p.packet_id, p.dup, p.payload) for p in driver.tick()]
    assert sent == [(5, True, b"0"), (7, False, b"2")]  # 1 was done, 5 and 6 were taken
    driver.send(Pubcomp(packet_id=6))
    assert driver.send(Pubrec(packet_id=5)) == [Pubrel(packet_id=5)]


def test_a_delivery_that_the_log_does_not_bring_again_is_released():
    state = SessionState(
        subscriptions=SUBSCRIBED.subscriptions,
        sent=(SavedDelivery(5, 2, place=(LogOffset(1), 0)), SavedDelivery(6, 1, place=(LogOffset(1), 1))),
        settled=(LogOffset(1), 0),
    )
    driver = resumed(state, at(0))
    driver.deliver(batch_of(message(qos=1)))
    assert [type(p).__name__ for p in driver.out()] == ["Pubrel", "Publish"]
    assert driver.adapter._session.inflight.resume is None


def test_a_retained_qos_2_delivery_frees_its_identifier_on_resumption():
    driver = Driver(4)
    driver.connect(clean=False)
    driver.retained = [message(b"r", 2)]
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=2),)))
    driver.lose()
    state = load(driver.saved[-1].state)
    assert state.sent == (SavedDelivery(1, 2),)
    again = Driver(4)
    again.opened = Outcome(value=OpenedSession(present=True, state=dump(state)))
    assert again.send(_connect()) == [Connack(session_present=True), Pubrel(packet_id=1)]


def test_qos_2_towards_the_log_survives():
    state = SessionState(received=(9,))
    driver = resumed(state)
    assert driver.send(Publish(topic="t", qos=2, packet_id=9, dup=True)) == [Pubrec(packet_id=9)]
    assert driver.published() == []
    assert driver.send(Pubrel(packet_id=9)) == [Pubcomp(packet_id=9)]


def test_resumption_keeps_to_the_clients_window():
    sent = tuple(SavedDelivery(i + 1, 1, place=(LogOffset(4096), i)) for i in range(4))
    state = SessionState(subscriptions=SUBSCRIBED.subscriptions, sent=sent, settled=(LogOffset(4096), 0))
    driver = Driver(5)
    driver.opened = Outcome(value=OpenedSession(present=True, state=dump(state), cursor=at(0)))
    driver.connect(clean=False, properties=Properties(session_expiry_s=9, receive_maximum=2))
    batch = batch_of(*(message() for _ in range(4)))
    assert driver.deliver(batch) == 2
    driver.send(Puback(packet_id=1), Puback(packet_id=2))
    assert driver.take(Settled)
    assert driver.deliver(batch, picks=[2, 3]) == 2
    assert [p.packet_id for p in driver.out() if isinstance(p, Publish)] == [3, 4]


def _connect() -> Connect:
    return Connect(version=4, client_id="c1", clean=False)
