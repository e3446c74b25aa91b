"""Requests of one client in one packet, or in one read, hold nobody else up for long."""

import pytest

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import (
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
    Will,
)
from adapters.mqtt.codec.properties import REPEATS_COUNT_MAX
from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.connection import LAST_TURNS_COUNT
from adapters.mqtt.messages.options import Options
from adapters.mqtt.session.exact import Exact
from adapters.mqtt.session.intake import CONTROLS_COUNT_MAX
from adapters.mqtt.session.keeper import WAITING_COUNT_MAX, SessionKeeper
from adapters.mqtt.session.session import FILTERS_COUNT_MAX
from adapters.mqtt.session.session_state import PacketExchanges
from gateway.port.marks import Mark, OpenedMarks
from gateway.port.sessions import DropWill, SaveSession
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import Driver, batch_of


def many(count: int, pattern: str = "t") -> tuple[SubscriptionRequest, ...]:
    return (SubscriptionRequest(pattern=pattern),) * count


@pytest.mark.parametrize("left", [b"", b"\xc0"])
def test_many_small_packets_are_read_in_turns(left: bytes):
    driver = Driver(5)
    driver.connect()
    driver.feed(encode(Pingreq(), 5) * (2 * CONTROLS_COUNT_MAX) + left)
    assert driver.out() == [Pingresp()] * CONTROLS_COUNT_MAX
    assert (driver.adapter.wants_data, driver.adapter.deadline_ms()) == (False, 0)
    driver.feed(b"")  # as the shell does when the deadline has come
    assert driver.out() == [Pingresp()] * CONTROLS_COUNT_MAX
    assert not driver.adapter.wants_data
    driver.feed(b"")
    assert (driver.adapter.wants_data, driver.adapter.deadline_ms()) == (True, None)
    driver.feed(encode(Pingreq(), 5)[len(left) :])
    assert driver.out() == [Pingresp()]


def test_the_last_packet_of_a_turn_may_be_the_last_of_all():
    driver = Driver(5)
    driver.connect()
    driver.feed(encode(Pingreq(), 5) * (CONTROLS_COUNT_MAX - 1) + encode(Disconnect(), 5))
    assert driver.closed == ""
    assert driver.adapter.deadline_ms() is None


@pytest.mark.parametrize("end", ["lost", "superseded"])
def test_a_connection_that_ends_before_its_turn_has_said_good_bye_all_the_same(end: str):
    driver = Driver(5)
    driver.connect(will=Will(topic="w", payload=b"gone"))
    farewell = encode(Publish(topic="t", payload=b"x"), 5) + encode(Disconnect(), 5)
    driver.feed(encode(Pingreq(), 5) * (2 * CONTROLS_COUNT_MAX) + farewell)
    assert driver.calls(DropWill) == []
    driver.effects += getattr(driver.adapter, end)(now_ms=driver.now_ms)
    assert [message.body for message in driver.published()] == [b"x"]
    assert len(driver.calls(DropWill)) == 1


def test_a_connection_that_is_lost_has_so_many_turns():
    driver = Driver(5)
    driver.connect(will=Will(topic="w", payload=b"gone"))
    driver.feed(encode(Pingreq(), 5) * (CONTROLS_COUNT_MAX * (LAST_TURNS_COUNT + 1)) + encode(Disconnect(), 5))
    driver.lose()
    assert driver.calls(DropWill) == []


def test_messages_and_their_acknowledgements_take_no_turns():
    driver = Driver(5)
    driver.connect()
    acks = b"\x40\x02\x00\x01" * (2 * CONTROLS_COUNT_MAX)
    driver.feed(encode(Publish(topic="t", payload=b"x"), 5) * (2 * CONTROLS_COUNT_MAX) + acks)
    assert len(driver.published()) == 2 * CONTROLS_COUNT_MAX
    assert driver.adapter.wants_data


def test_a_client_is_not_read_while_too_many_answers_wait_for_a_save():
    driver = Driver(5)
    driver.connect(clean=False, keep_alive_s=60, properties=Properties(session_expiry_s=600))
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t", qos=2),)))
    assert driver.deliver(batch_of(Message("t", b"x", qos=2))) == 1
    driver.tick()
    driver.saves = False
    for _ in range(WAITING_COUNT_MAX - 1):
        driver.send(Pubrec(packet_id=1))
    assert driver.adapter.wants_data
    driver.send(Pubrec(packet_id=1))
    assert not driver.adapter.wants_data
    assert driver.tick(3_600_000) == []  # a client that is not read from is not silent
    (save,) = driver.calls(SaveSession)
    assert driver.complete(save) == [Pubrel(packet_id=1)]  # those behind it are saved next
    assert driver.adapter.wants_data
    driver.send(Pubrec(packet_id=1))
    assert not driver.adapter.wants_data
    (save,) = driver.calls(SaveSession)
    assert len(driver.complete(save)) == WAITING_COUNT_MAX - 1
    assert driver.adapter.wants_data


@pytest.mark.parametrize(
    "packet",
    [
        Subscribe(packet_id=1, requests=many(FILTERS_COUNT_MAX + 1)),
        Unsubscribe(packet_id=1, patterns=("t",) * (FILTERS_COUNT_MAX + 1)),
    ],
    ids=["SUBSCRIBE", "UNSUBSCRIBE"],
)
def test_too_many_filters_in_one_packet_end_the_connection(packet: Packet):
    driver = Driver(5)
    driver.connect()
    (said,) = driver.send(packet)
    assert isinstance(said, Disconnect)
    assert said.code == 0x97


def test_too_many_user_properties_in_one_packet_end_the_connection():
    driver = Driver(5)
    driver.connect()
    most = Properties(user=(("", ""),) * REPEATS_COUNT_MAX)
    (refused,) = driver.send(Publish(topic="t", qos=1, packet_id=1, properties=most))
    assert refused == Puback(packet_id=1, code=0x97)
    more = Properties(user=(("", ""),) * (REPEATS_COUNT_MAX + 1))
    (said,) = driver.send(Publish(topic="t", qos=1, packet_id=1, properties=more))
    assert isinstance(said, Disconnect)
    assert said.code == 0x97


def test_as_many_filters_as_a_session_may_have_fit_in_one_packet():
    driver = Driver(5, Options(subscriptions_max=FILTERS_COUNT_MAX + 1))
    driver.connect(properties=Properties(session_expiry_s=1))
    (said,) = driver.send(Subscribe(packet_id=1, requests=many(FILTERS_COUNT_MAX + 1)))
    assert len(said.codes) == FILTERS_COUNT_MAX + 1


class Counted(dict[int, object]):
    """Slots, and how often one was looked for."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        Counted.looks += 1
        return super().__contains__(key)


def test_a_slot_for_marks_is_not_searched_for():
    link = ConnectionContext(Options())
    link.durable = True
    nothing = SessionKeeper(link, state=bytes, exchanges=bytes, saved=lambda: None, refused=lambda _: None)
    exact = Exact(link, nothing)
    exact.begin(OpenedMarks(key="k", used=True))
    exact._slots = Counted()
    slots = []
    for number in range(1, 300):
        identifier = number.to_bytes(2, "big")
        exact.use(identifier)
        marks = exact.marks([(0, identifier)])
        assert marks is not None
        slots.append(marks.slot)
        if number == 200:
            exact.stored([n.to_bytes(2, "big") for n in range(1, 101)])
            exact.save()
            exact.saved()
    assert slots == [*range(200), *range(99)]
    assert Counted.looks < 1_000


def test_slots_that_are_taken_back_are_in_use():
    link = ConnectionContext(Options())
    link.durable = True
    exact = Exact(link, SessionKeeper(link, state=bytes, exchanges=bytes, saved=lambda: None, refused=lambda _: None))
    found = [Mark(slot, 0, b"\0\1" + slot.to_bytes(8, "big"), 1) for slot in (1, 3)]
    exact.begin(OpenedMarks(key="k", used=True, found=found))
    exact.restore(PacketExchanges(), found)
    slots = []
    for number in range(5, 9):
        identifier = number.to_bytes(2, "big")
        exact.use(identifier)
        marks = exact.marks([(0, identifier)])
        assert marks is not None
        slots.append(marks.slot)
    assert slots == [0, 2, 4, 5]
