"""QoS 2 from the client, in a session that lasts: marks, slots, and what a later connection makes of them."""

from adapters.mqtt.codec.packets import Pubcomp, Publish, Pubrec, Pubrel
from adapters.mqtt.session.exact import SLOTS_COUNT_MAX
from adapters.mqtt.session.session_state import NO_EXCHANGES, PacketExchanges, dump, load
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import DONE, Outcome
from gateway.port.marks import Mark, OpenedMarks
from gateway.port.sessions import OpenedSession, SaveSession
from tests.support.mqtt.mqtt_driver import Driver


def publish(packet_id, *, qos=2, topic="t", dup=False):
    return Publish(topic=topic, payload=b"x", qos=qos, packet_id=packet_id if qos else None, dup=dup)


def mark(packet_id, use, *, slot=0, group=0, groups=1):
    return Mark(slot, group, packet_id.to_bytes(2, "big") + use.to_bytes(8, "big"), groups)


def connected(*found, exchanges=NO_EXCHANGES, used=True, version=4, clean=False):
    driver = Driver(version)
    marks = OpenedMarks(key="k/", used=used, found=found)
    driver.opened = Outcome(value=OpenedSession(present=True, exchanges=dump(exchanges), marks=marks))
    driver.connect(clean=clean)
    return driver


def saved(driver):
    return load(driver.saved[-1].exchanges, NO_EXCHANGES)


def test_marks_go_with_their_messages_by_index():
    driver = connected()
    driver.send(publish(1, qos=1), publish(7), publish(0, qos=0), publish(9))
    (effect,) = driver.take(port.Publish)
    assert (effect.marks.key, effect.marks.slot) == ("k/", 0)
    assert effect.marks.of == {1: mark(7, 0).mark, 3: mark(9, 1).mark}
    driver.send(publish(11))
    (other,) = driver.take(port.Publish)
    assert (other.marks.slot, other.marks.of) == (1, {0: mark(11, 2).mark})


def test_nothing_is_marked_without_qos_2_nor_in_a_session_that_ends_with_its_connection():
    driver = connected()
    driver.send(publish(1, qos=1), publish(0, qos=0))
    assert [effect.marks for effect in driver.take(port.Publish)] == [None]
    driver = connected(clean=True)
    driver.send(publish(1))
    assert [effect.marks for effect in driver.take(port.Publish)] == [None]


def test_the_first_message_waits_until_it_is_known_that_there_are_marks():
    driver = connected(used=False)
    driver.saves = False
    driver.send(publish(1, qos=1), publish(7), publish(2, qos=1))
    driver.send(publish(3, qos=1))
    assert len(driver.published()) == 1
    assert not driver.adapter.wants_data
    (save,) = driver.calls(SaveSession)
    assert save.request.marked
    assert save.request.state is not None
    driver.complete(save)
    assert driver.adapter.wants_data
    (effect,) = driver.take(port.Publish)
    assert [message.qos for message in effect.messages] == [2, 1, 1]
    driver.send(publish(8))
    assert len(driver.published()) == 1  # the next ones do not


def test_a_slot_is_free_once_a_save_says_what_it_says():
    driver = connected()
    driver.send(publish(7))
    assert driver.store() == [Pubrec(packet_id=7)]
    driver.send(publish(8))
    (second,) = driver.take(port.Publish)
    assert second.marks.slot == 1
    driver.send(Pubrel(packet_id=7))
    assert saved(driver) == PacketExchanges(storing=((8, 1),), uses=2)
    driver.send(publish(9))
    (third,) = driver.take(port.Publish)
    assert third.marks.slot == 0  # the save covers it; what the other says, it does not
    driver.send(publish(10))
    assert [effect.marks.slot for effect in driver.take(port.Publish)] == [2]


def test_slots_do_not_pile_up_although_nothing_is_released():
    driver = connected()
    slots = set()
    for packet_id in range(1, 5 * SLOTS_COUNT_MAX):
        driver.send(publish(packet_id))
        (effect,) = driver.take(port.Publish)
        slots.add(effect.marks.slot)
        driver.complete(effect)
    assert max(slots) == SLOTS_COUNT_MAX
    assert len(driver.saved) < 10


def test_what_is_marked_and_not_known_to_the_save_was_received():
    driver = connected(mark(7, 4), mark(8, 5, slot=1), exchanges=PacketExchanges(uses=4))
    assert driver.send(publish(7, dup=True)) == [Pubrec(packet_id=7)]
    assert driver.send(Pubrel(packet_id=8)) == [Pubcomp(packet_id=8)]
    assert driver.published() == []
    driver.send(publish(8))
    (effect,) = driver.take(port.Publish)
    assert effect.marks.of == {0: mark(8, 6).mark}


def test_what_is_marked_and_known_to_the_save_is_as_the_save_says():
    state = PacketExchanges(received=(5,), storing=((6, 2), (7, 3)), uses=4)
    driver = connected(mark(4, 0), mark(5, 1), mark(6, 2, slot=1), exchanges=state)
    driver.send(publish(4), publish(5, dup=True), publish(6, dup=True), publish(7, dup=True))
    (first, second) = driver.take(port.Publish)
    assert [list(effect.marks.of.values()) for effect in (first, second)] == [[mark(4, 4).mark], [mark(7, 5).mark]]
    assert driver.complete(first) == [Pubrec(packet_id=4), Pubrec(packet_id=5), Pubrec(packet_id=6)]
    assert driver.complete(second) == [Pubrec(packet_id=7)]


def test_a_repetition_is_answered_in_its_turn():
    driver = connected(exchanges=PacketExchanges(received=(7,), uses=1))
    assert driver.send(publish(5), publish(7, dup=True)) == []
    assert driver.store() == [Pubrec(packet_id=5), Pubrec(packet_id=7)]


def test_a_message_that_one_of_its_logs_has_is_stored_in_the_other_under_the_same_use():
    driver = connected(mark(7, 2, group=3, groups=2), exchanges=PacketExchanges(uses=1))
    driver.send(publish(1, qos=1), publish(7, dup=True), publish(8))
    first, half, last = driver.take(port.Publish)
    assert (len(first.messages), first.marks) == (1, None)
    assert (half.marks.of, half.marks.stored) == ({0: mark(7, 2).mark}, frozenset({3}))
    assert (last.marks.of, last.marks.stored) == ({0: mark(8, 3).mark}, frozenset())
    assert half.marks.slot != 0
    assert saved(driver).storing[0] == (7, 2)
    for effect in (first, half, last):
        driver.complete(effect)
    assert driver.send(publish(7, dup=True)) == [Pubrec(packet_id=7)]


def test_nobody_says_of_a_message_what_is_not_known():
    driver = connected()
    driver.send(publish(7), publish(8))
    (effect,) = driver.take(port.Publish)
    assert driver.complete(effect, Outcome(refused={0: Refusal(Cause.UNKNOWN)})) == []
    assert driver.closed is not None


def test_old_marks_say_nothing_of_a_session_that_begins_anew():
    marks = OpenedMarks(key="k/", used=True, found=(mark(7, 90),))
    fresh = Driver(4)
    fresh.opened = Outcome(value=OpenedSession(present=True, exchanges=b"\xff", marks=marks))
    assert not fresh.connect(clean=False).session_present
    fresh.send(publish(7))
    (effect,) = fresh.take(port.Publish)
    assert effect.marks.of == {0: mark(7, 91).mark}
    assert fresh.complete(effect, DONE) == [Pubrec(packet_id=7)]
