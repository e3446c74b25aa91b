"""Durable sessions: what is saved, what is taken up again, and how far the log counts as delivered."""

import random

import pytest

from adapters.mqtt.codec import Properties
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
)
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.inflight import Inflight
from adapters.mqtt.session.session_state import (
    NO_EXCHANGES,
    NO_STATE,
    PacketExchanges,
    SavedDelivery,
    SavedFeed,
    SavedSubscription,
    SessionState,
    dump,
    load,
)
from gateway.domain.cursor import Cursor
from gateway.domain.keys import retained_key
from gateway.port import adapter as port
from gateway.port.adapter import Outcome, Settled
from gateway.port.reads import Retained
from gateway.port.sessions import OpenedSession, SaveSession
from store.api.message import Message
from store.format.frame import LogOffset, Position, origin_of
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of


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


SUBSCRIBED = SessionState(subscriptions=(SavedSubscription("t/#", 2),))


def opened(state: SessionState = SUBSCRIBED, exchanges: PacketExchanges | bytes = b"", cursor: Cursor | None = None):
    raw = exchanges if isinstance(exchanges, bytes) else dump(exchanges)
    return Outcome(value=OpenedSession(present=True, state=dump(state), exchanges=raw, cursor=cursor))


def resumed(
    state: SessionState = SUBSCRIBED, exchanges: PacketExchanges | bytes = b"", cursor: Cursor | None = None, version=4
) -> Driver:
    driver = Driver(version)
    driver.opened = opened(state, exchanges, cursor)
    connack = driver.connect(clean=False, properties=Properties(session_expiry_s=600) if version == 5 else Properties())
    assert connack.session_present
    return driver


def again(driver: Driver, options: Options | None = None, **connect) -> tuple[Driver, list[Packet]]:
    """Resumes the session after its connection is lost, or the gateway killed; returns it, and the packets behind
    the CONNACK.
    """
    state = next(save.state for save in reversed(driver.saved) if save.state is not None)
    exchanges = next((save.exchanges for save in reversed(driver.saved) if save.exchanges is not None), b"")
    other = Driver(driver.version, options, now_ms=driver.now_ms)
    other.saved, other.retained = list(driver.saved), driver.retained
    other.opened = Outcome(value=OpenedSession(present=True, state=state, exchanges=exchanges))
    out = other.send(Connect(version=driver.version, client_id="c1", clean=False, **connect))
    return other, out[1:]


def test_the_bytes_of_a_session():
    state = SessionState(subscriptions=(SavedSubscription("a", 1, True, True, 7, 3),))
    exchanges = PacketExchanges(
        received=(1, 2),
        sent=(
            SavedDelivery(3, 2, place=(LogOffset(1), 2)),
            SavedDelivery(4, 2, released=True),
            SavedDelivery(5, 1, record=b"r", identifiers=(7,)),
        ),
        next_packet_id=5,
        settled=(LogOffset(1), 1),
        done=((LogOffset(1), 3),),
        fed=2,
        feed=SavedFeed(3, "k", "a"),
    )
    assert load(dump(state), NO_STATE) == state
    assert load(dump(exchanges), NO_EXCHANGES) == exchanges
    assert load(b"", NO_STATE) is NO_STATE
    assert load(b"\x01", NO_STATE) is None
    assert load(dump(exchanges)[:-1], NO_EXCHANGES) is None


def test_a_state_nobody_can_read_is_no_session():
    for state, exchanges in ((b"?", b""), (b"", b"?")):
        driver = Driver(4)
        driver.opened = Outcome(value=OpenedSession(present=True, state=state, exchanges=exchanges))
        assert driver.connect(clean=False) == Connack()


def test_subscriptions_come_back_from_the_cursor_on():
    state = SessionState(subscriptions=(SavedSubscription("a", 1, True, True, 7), SavedSubscription("b", 0)))
    driver = resumed(state, cursor=(at(5),), version=5)
    assert driver.take(port.Subscribe) == [
        port.Subscribe(sub=port.SubscriptionId(1), pattern="a", start=(at(5),)),
        port.Subscribe(sub=port.SubscriptionId(2), pattern="b", start=(at(5),)),
    ]
    driver.deliver(batch_of(message()))
    (out,) = driver.out()
    assert (out.qos, out.properties.subscription_ids) == (1, (7,))


def test_the_later_of_cursor_and_own_progress_counts():
    for cursor, settled, start in ((at(1), (LogOffset(4096), 4), at(4)), (at(9), (LogOffset(4096), 4), at(9))):
        assert resumed(SUBSCRIBED, PacketExchanges(settled=settled), (cursor,)).take(port.Subscribe)[0].start == (
            start,
        )


def test_progress_is_reported_once_a_read():
    driver = durable(qos=1)
    assert driver.deliver(batch_of(*(message() for _ in range(4)))) == 4
    assert driver.adapter.deadline_ms() == NOW_MS
    driver.tick()
    assert driver.take(Settled) == [Settled(oldest=(at(0),))]
    driver.send(Puback(packet_id=2))
    assert driver.take(Settled) == [Settled(oldest=(at(0),))]
    driver.send(Puback(packet_id=1), Puback(packet_id=3))
    assert driver.take(Settled) == [Settled(oldest=(at(3),))]
    driver.send(Puback(packet_id=4))
    assert driver.take(Settled) == [Settled()]
    assert driver.adapter.deadline_ms() is None


def test_progress_at_qos_0_is_reported_now_and_then():
    driver = durable(qos=0)
    for _ in range(3):
        driver.deliver(batch_of(message()))
        driver.now_ms += 300
    assert driver.take(Settled) == []
    assert driver.adapter.deadline_ms() == NOW_MS + 1_000
    driver.tick(200)
    assert driver.take(Settled) == [Settled()]
    assert driver.adapter.deadline_ms() is None
    driver.tick(5_000)
    assert driver.take(Settled) == []


def test_what_is_not_acknowledged_is_told_when_the_connection_ends():
    driver = durable(qos=1)
    driver.deliver(batch_of(message(), message()))
    driver.lose()
    assert driver.take(Settled) == [Settled(oldest=(at(0),))]
    exchanges = driver.saved[-1].exchanges
    assert load(exchanges, NO_EXCHANGES).sent == (
        SavedDelivery(1, 1, place=(4096, 0)),
        SavedDelivery(2, 1, place=(4096, 1)),
    )
    other = resumed(SUBSCRIBED, exchanges, (at(0),))
    other.deliver(batch_of(message(b"0"), message(b"1"), message(b"2")))
    assert [(p.packet_id, p.dup, p.payload) for p in other.out()] == [
        (1, True, b"0"),
        (2, True, b"1"),
        (3, False, b"2"),
    ]


def test_acknowledgements_in_front_of_a_disconnect_count():
    driver = durable(qos=1)
    driver.deliver(batch_of(message(), message()))
    driver.send(Puback(packet_id=1), Puback(packet_id=2), Disconnect())
    assert driver.take(Settled) == [Settled()]


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
    state = load(save.request.exchanges, NO_EXCHANGES)
    assert state.sent[0] == SavedDelivery(1, 2, place=(4096, 0))
    assert state.next_packet_id == 3
    assert [p.packet_id for p in driver.complete(save)] == [1]
    assert driver.send(Pubrec(packet_id=1)) == []
    (save,) = driver.calls(SaveSession)
    state = load(save.request.exchanges, NO_EXCHANGES)
    assert state.sent == (SavedDelivery(2, 1, place=(4096, 1)), SavedDelivery(1, 2, released=True))
    assert state.settled == (4096, 1)
    assert state.done == ()
    assert driver.complete(save) == [Pubrel(packet_id=1)]


def test_a_qos_2_exchange_goes_on_where_it_was():
    place = LogOffset(4096)
    exchanges = PacketExchanges(
        sent=(SavedDelivery(5, 2, place=(place, 0)), SavedDelivery(6, 2, released=True)),
        next_packet_id=5,
        settled=(place, 0),
        done=((place, 1),),
    )
    driver = Driver(4)
    driver.opened = opened(SUBSCRIBED, exchanges, (at(0),))
    out = driver.send(_connect())
    assert out == [Connack(session_present=True), Pubrel(packet_id=6)]
    driver.effects.clear()
    driver.deliver(batch_of(*(message(b"%d" % i, 2) for i in range(3))))
    sent = [(p.packet_id, p.dup, p.payload) for p in driver.tick()]
    assert sent == [(5, True, b"0"), (7, False, b"2")]  # 1 was done, 5 and 6 were taken
    driver.send(Pubcomp(packet_id=6))
    assert driver.send(Pubrec(packet_id=5)) == [Pubrel(packet_id=5)]


def test_a_delivery_that_the_log_does_not_bring_again_is_released():
    exchanges = PacketExchanges(
        sent=(SavedDelivery(5, 2, place=(LogOffset(1), 0)), SavedDelivery(6, 1, place=(LogOffset(1), 1))),
        settled=(LogOffset(1), 0),
    )
    driver = resumed(SUBSCRIBED, exchanges, (at(0),))
    driver.deliver(batch_of(message(qos=1)))
    assert [type(p).__name__ for p in driver.out()] == ["Pubrel", "Publish"]
    assert driver.adapter.session.inflight.resume is None


# ---- retained messages


def wanting(*messages: Message, qos=1, version=4, options=None, **connect) -> Driver:
    """Returns a durable session that has just subscribed, and has asked for these retained messages."""
    driver = Driver(version, options)
    driver.connect(clean=False, **connect)
    driver.retained = list(messages)
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=qos),)))
    return driver


def retained(name, qos=1, body=b"r", **fields) -> Message:
    return Message(f"t/{name}", body, NOW_MS, "mqtt", "other", qos, True, **fields)


def shown(packets: list[Packet]):
    return [(p.packet_id, p.qos, p.dup, p.retain, p.topic) for p in packets if isinstance(p, Publish)]


@pytest.mark.parametrize("qos", [1, 2])
def test_retained_messages_that_were_not_acknowledged_come_again(qos):
    driver = wanting(retained("a", 2), retained("b", 2), qos=qos)
    ack = Puback if qos == 1 else Pubrec
    driver.send(ack(packet_id=1))
    driver.lose()
    other, out = again(driver)
    assert shown(out) == [(2, qos, True, True, "t/b")]
    other.send(ack(packet_id=2))
    other.deliver(batch_of(message(qos=1)))
    assert shown(other.out()) == [(3, 1, False, False, "t/a")]
    other.lose()
    assert shown(again(other)[1]) == []  # that one is for the log to bring


def test_a_retained_message_comes_with_its_subscription_identifier_again():
    driver = Driver(5)
    driver.connect(clean=False, properties=Properties(session_expiry_s=9))
    driver.retained = [retained("a")]
    request = SubscriptionRequest(pattern="t/#", qos=1)
    driver.send(Subscribe(packet_id=1, requests=(request,), properties=Properties(subscription_ids=(7,))))
    driver.lose()
    (packet,) = again(driver, properties=Properties(session_expiry_s=9))[1]
    assert packet.properties.subscription_ids == (7,)


def test_retained_messages_that_were_not_sent_yet_are_sent_by_the_next_connection():
    driver = wanting(*(retained(name) for name in "abcd"), options=Options(inflight_max=2))
    driver.send(Puback(packet_id=1))
    driver.lose()
    other, out = again(driver, Options(inflight_max=2))
    assert shown(out) == [(2, 1, True, True, "t/b"), (3, 1, True, True, "t/c")]
    assert shown(other.send(Puback(packet_id=3))) == [(4, 1, False, True, "t/d")]


@pytest.mark.parametrize("names", ["abcd", [f"{'x' * 500}{number}" for number in range(4)]], ids=["short", "long"])
def test_retained_messages_are_not_sent_once_more_when_the_last_one_sent_is_cleared(names):
    held = sorted([retained(name, 2) for name in names], key=lambda one: retained_key(one.address))  # as pages are
    driver = wanting(*held, qos=2, options=Options(inflight_max=1))
    driver.send(Pubrec(packet_id=1))
    assert shown(driver.send(Pubcomp(packet_id=1))) == [(2, 2, False, True, held[1].address)]
    driver.lose()
    driver.retained = [held[0], *held[2:]]
    _, out = again(driver)
    assert shown(out) == [
        (2, 2, True, True, held[1].address),  # which has been sent
        (3, 2, False, True, held[2].address),
        (4, 2, False, True, held[3].address),
    ]


def test_after_a_crash_the_wish_is_fulfilled_from_the_start():
    driver = wanting(*(retained(name) for name in "ab"), options=Options(inflight_max=1))
    assert [topic for *_, topic in shown(again(driver)[1])] == ["t/a", "t/b"]


def test_a_wish_that_is_fulfilled_is_not_fulfilled_again():
    driver = wanting(retained("a"))
    driver.send(Puback(packet_id=1))
    other, out = again(driver)  # without a last word
    assert shown(out) == [(1, 1, True, True, "t/a")]
    assert other.calls(Retained) == []
    driver.lose()
    assert again(driver)[1] == []


def test_what_is_kept_of_retained_messages_is_bounded():
    driver = wanting(*(retained(name, body=bytes(40_000)) for name in "abcd"))
    assert driver.adapter.session.inflight.sent.keys() == {1, 2}
    assert [packet_id for packet_id, *_ in shown(driver.send(Puback(packet_id=1)))] == [3]
    short = Driver(4)
    short.connect(clean=True)
    short.retained = driver.retained
    out = short.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=1),)))
    assert len(shown(out)) == 4  # a clean session keeps none, so none has to wait


def test_a_retained_message_whose_time_is_over_does_not_come_again():
    driver = wanting(retained("a", 2, expires_at_ms=NOW_MS + 1), qos=1)
    driver.lose()
    driver.now_ms += 1
    assert again(driver)[1] == []


def test_a_message_of_qos_2_that_has_been_sent_does_not_expire_any_more():
    driver = wanting(retained("a", 2, expires_at_ms=NOW_MS + 1), qos=2)
    driver.lose()
    driver.now_ms += 1
    (out,) = again(driver)[1]
    assert (out.packet_id, out.qos, out.dup) == (1, 2, True)
    driver = durable(qos=2)
    driver.deliver(batch_of(message(b"1", 2), Message("t/a", b"2", NOW_MS, "mqtt", "o", 2, expires_at_ms=NOW_MS + 1)))
    assert len(driver.tick()) == 2
    driver.lose()
    driver.now_ms += 1
    other, _ = again(driver)
    other.deliver(batch_of(message(b"1", 2), Message("t/a", b"2", NOW_MS, "mqtt", "o", 2, expires_at_ms=NOW_MS + 1)))
    assert [(one.payload, one.packet_id, one.dup) for one in other.tick()] == [(b"1", 1, True), (b"2", 2, True)]


def test_retained_messages_that_come_again_keep_to_the_clients_window():
    driver = wanting(*(retained(name) for name in "abc"), version=5, properties=Properties(session_expiry_s=9))
    driver.lose()
    other, out = again(driver, properties=Properties(session_expiry_s=9, receive_maximum=2))
    assert [packet_id for packet_id, *_ in shown(out)] == [1, 2]
    assert len(load(driver.saved[-1].exchanges, NO_EXCHANGES).sent) == 3
    other.lose()
    assert len(load(other.saved[-1].exchanges, NO_EXCHANGES).sent) == 3
    other, _ = again(driver, properties=Properties(session_expiry_s=9, receive_maximum=2))
    assert [packet_id for packet_id, *_ in shown(other.send(Puback(packet_id=2)))] == [3]


# ---- what a save costs


def test_an_exchange_saves_no_subscriptions():
    driver = Driver(4)
    driver.connect(clean=False)
    for n in range(100):
        driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern=f"{n}/" + "x" * 1_000, qos=2),)))
    driver.saved.clear()
    driver.send(Publish(topic="t", qos=2, packet_id=9))
    driver.store()
    driver.send(Pubrel(packet_id=9))
    assert [save.state for save in driver.saved] == [None]
    assert max(len(save.exchanges) for save in driver.saved) < 100


def test_qos_2_towards_the_log_survives():
    driver = resumed(exchanges=PacketExchanges(received=(9,)))
    assert driver.send(Publish(topic="t", qos=2, packet_id=9, dup=True)) == [Pubrec(packet_id=9)]
    assert driver.published() == []
    assert driver.send(Pubrel(packet_id=9)) == [Pubcomp(packet_id=9)]


def test_resumption_keeps_to_the_clients_window():
    sent = tuple(SavedDelivery(i + 1, 1, place=(LogOffset(4096), i)) for i in range(4))
    driver = Driver(5)
    driver.opened = opened(SUBSCRIBED, PacketExchanges(sent=sent, settled=(LogOffset(4096), 0)), (at(0),))
    driver.connect(clean=False, properties=Properties(session_expiry_s=9, receive_maximum=2))
    batch = batch_of(*(message() for _ in range(4)))
    assert driver.deliver(batch) == 2
    driver.send(Puback(packet_id=1), Puback(packet_id=2))
    assert driver.take(Settled)
    assert driver.deliver(batch, picks=[2, 3]) == 2
    assert [p.packet_id for p in driver.out() if isinstance(p, Publish)] == [3, 4]


def _connect() -> Connect:
    return Connect(version=4, client_id="c1", clean=False)


# ---- several logs


def batch_in(group: int, *messages: Message, frame: int = 4096):
    return batch_of(*messages, frame=origin_of(group) + frame)


def place(group: int, row: int, frame: int = 4096) -> Position:
    return Position(LogOffset(origin_of(group) + frame), row)


def test_progress_is_told_of_each_log():
    driver = durable(qos=1)
    driver.deliver(batch_in(1, message(qos=1), message(qos=1)))
    driver.deliver(batch_in(0, message(qos=1)))
    driver.tick()
    assert driver.take(Settled)[-1] == Settled(oldest=(place(0, 0), place(1, 0)))
    driver.send(Puback(packet_id=1))
    assert driver.take(Settled) == [Settled(oldest=(place(0, 0), place(1, 1)))]
    driver.send(Puback(packet_id=3))
    assert driver.take(Settled) == [Settled(oldest=(place(1, 1),))]
    driver.deliver(batch_in(0, message(qos=1), frame=9000))
    driver.tick()
    assert driver.take(Settled) == [Settled(oldest=(place(0, 0, 9000), place(1, 1)))]
    driver.send(Puback(packet_id=2), Puback(packet_id=4))
    assert driver.take(Settled) == [Settled()]


def test_a_session_remembers_a_place_in_each_log():
    driver = durable(qos=2)
    driver.deliver(batch_in(2, message(b"a", 2), message(b"b", 2)))
    driver.deliver(batch_in(0, message(b"c", 2), message(b"d", 2)))
    driver.send(Pubrec(packet_id=2), Pubrec(packet_id=3))
    driver.lose()
    exchanges = load(driver.saved[-1].exchanges, NO_EXCHANGES)
    assert exchanges.settled_places() == (tuple(place(0, 1)), tuple(place(2, 0)))
    assert exchanges.done == (tuple(place(2, 1)),)  # of log 0 it lies before what is settled
    other = Driver(4)
    other.opened = opened(SUBSCRIBED, exchanges, (place(0, 0), place(1, 7), place(2, 0)))
    other.send(_connect())
    starts = {effect.start for effect in other.take(port.Subscribe)}
    assert starts == {(place(0, 1), place(1, 7), place(2, 0))}
    other.deliver(batch_in(1, message(b"new", 2)))
    other.deliver(batch_in(2, message(b"a", 2), message(b"b", 2)))
    assert other.adapter.session.inflight.resume is not None
    other.deliver(batch_in(0, message(b"c", 2), message(b"d", 2)))
    sent = [(p.payload, p.packet_id, p.dup) for p in other.tick() if isinstance(p, Publish)]
    assert sorted(sent) == [(b"a", 1, True), (b"d", 4, True), (b"new", 5, False)]
    assert other.adapter.session.inflight.resume is None


def test_what_one_log_does_not_bring_again_says_nothing_of_another():
    exchanges = PacketExchanges(
        sent=(SavedDelivery(5, 2, place=tuple(place(0, 0))), SavedDelivery(6, 2, place=tuple(place(1, 0)))),
        settled=tuple(place(0, 0)),
        settled_elsewhere=(tuple(place(1, 0)),),
    )
    driver = resumed(SUBSCRIBED, exchanges, (place(0, 0), place(1, 0)))
    driver.deliver(batch_in(1, message(b"x", 2), frame=9000))
    out = driver.out()
    assert Pubrel(packet_id=6) in out
    assert Pubrel(packet_id=5) not in out
    driver.deliver(batch_in(0, message(b"y", 2)))
    assert [(p.payload, p.packet_id, p.dup) for p in driver.out()] == [(b"y", 5, True)]


def test_exchanges_that_know_one_log_are_read_as_before():
    exchanges = PacketExchanges(settled=(LogOffset(4096), 4))
    assert exchanges.settled_places() == ((4096, 4),)
    assert PacketExchanges().settled_places() == ()


def test_the_oldest_of_a_log_is_found_again_when_it_is_acknowledged():
    inflight = Inflight()
    naive = {}
    chance = random.Random(7)
    row = 0
    for step in range(600):
        if chance.random() < 0.5:
            group = chance.randrange(3)
            for _ in range(chance.randrange(1, 4)):
                row += 1
                naive[step * 10 + row] = inflight.sent[step * 10 + row] = tuple(place(group, row))
            inflight.took(tuple(place(group, row + 1)))
        elif naive:
            for packet_id in chance.sample(list(naive), min(len(naive), 2)):
                del naive[packet_id]
                inflight.acknowledge([packet_id])
        expected = {}
        for at in naive.values():
            expected.setdefault(at[0], at)
        if chance.random() < 0.7:
            assert sorted(inflight.oldest()) == sorted(expected.values())


def test_what_nobody_has_asked_for_is_not_made():
    driver = Driver()
    driver.connect()
    session = driver.adapter.session
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=1),)))
    assert (session.shared, session.sys) == (None, None)
    driver.send(Subscribe(packet_id=2, requests=(SubscriptionRequest(pattern="$SYS/#", qos=0),)))
    assert (session.shared, session.sys is None) == (None, False)
