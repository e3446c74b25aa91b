"""MQTT 5.0, chapters 1 and 2: how data, headers and identifiers are written."""

import pytest

from adapters.mqtt.codec import encode, read_fixed_header
from adapters.mqtt.codec.packet_type import FLAGS, PacketType
from adapters.mqtt.codec.packets import (
    Connect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from tests.conformance.mqtt5_kit import (
    connected,
    delivered,
    framed,
    message,
    not_let_in,
    refused,
    request,
    subscribed,
)
from tests.support.mqtt.mqtt_driver import Driver, batch_of

EVERY_QUESTION = (
    Pubrec(packet_id=1),
    Pubrel(packet_id=9),
    Subscribe(packet_id=1, requests=(request("a"),)),
    Unsubscribe(packet_id=1, patterns=("a",)),
    Pingreq(),
    Pingresp(),
)
NOT_UTF_8 = [b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xff", b"\xc3"]


def text(raw: bytes) -> bytes:
    return len(raw).to_bytes(2, "big") + raw


def everywhere(raw: bytes) -> dict[str, bytes]:
    """Returns packets of a connected client with this string in every place where one may stand."""
    said = text(raw)
    return {
        "topic name": framed(0x30, said + b"\0"),
        "content type": framed(0x30, text(b"t") + bytes((1 + len(said),)) + b"\x03" + said),
        "response topic": framed(0x30, text(b"t") + bytes((1 + len(said),)) + b"\x08" + said),
        "name of a user property": framed(0x30, text(b"t") + bytes((4 + len(said),)) + b"\x26" + said + text(b"v")),
        "value of a user property": framed(0x30, text(b"t") + bytes((4 + len(said),)) + b"\x26" + text(b"n") + said),
        "filter of a SUBSCRIBE": framed(0x82, b"\0\1\0" + said + b"\0"),
        "filter of an UNSUBSCRIBE": framed(0xA2, b"\0\1\0" + said),
        "reason string": framed(0x40, b"\0\1\x80" + bytes((1 + len(said),)) + b"\x1f" + said),
    }


def greetings(raw: bytes) -> dict[str, bytes]:
    """Returns the same for a CONNECT."""
    said = text(raw)
    return {
        "client identifier": framed(0x10, b"\0\4MQTT\5\2\0\0\0" + said),
        "will topic": framed(0x10, b"\0\4MQTT\5\6\0\0\0\0\1c\0" + said + b"\0\0"),
        "user name": framed(0x10, b"\0\4MQTT\5\x82\0\0\0\0\1c" + said),
        "will content type": framed(0x10, b"\0\4MQTT\5\6\0\0\0\0\1c" + bytes((1 + len(said),)) + b"\x03" + said),
    }


@pytest.mark.parametrize("raw", NOT_UTF_8)
def test_strings_are_well_formed_utf_8(raw):
    """MQTT-1.5.4-1. MQTT-1.5.7-1. MQTT-3.1.3-4. MQTT-3.1.3-11. MQTT-3.1.3-12. MQTT-3.3.2-1. MQTT-3.3.2-13.
    MQTT-3.3.2-19. MQTT-3.8.3-1. MQTT-3.10.3-1.
    """
    assert {where: refused(data) for where, data in everywhere(raw).items()} == dict.fromkeys(everywhere(b""), 0x81)
    assert {where: not_let_in(data) for where, data in greetings(raw).items()} == dict.fromkeys(greetings(b""), 0x81)


def test_strings_hold_no_null_character():
    """MQTT-1.5.4-2. MQTT-4.7.3-2."""
    assert {refused(data) for data in everywhere(b"a\0b").values()} == {0x81}
    assert {not_let_in(data) for data in greetings(b"a\0b").values()} == {0x81}


def test_a_byte_order_mark_is_a_character():
    """MQTT-1.5.4-3. MQTT-4.7.3-4."""
    driver = subscribed(5, request("\ufefft"))
    driver.send(Publish(topic="\ufefft", payload=b"1"))
    (stored,) = driver.published()
    assert stored.address == "\ufefft"
    (out,) = delivered(driver, stored)
    assert out.topic == "\ufefft"


@pytest.mark.parametrize("size", [100, 200, 17_000, 300_000])
def test_a_length_is_written_in_as_few_bytes_as_it_takes(size):
    """MQTT-1.5.5-1."""
    driver = subscribed(5)
    driver.deliver(batch_of(message(bytes(size), qos=0)))
    raw = driver.adapter.take_output()
    width = next(n for n in range(1, 5) if raw[n] < 128)
    assert len(raw) == 1 + width + 2 + len("t/a") + 1 + size
    assert raw[width] != 0


@pytest.mark.parametrize("data", [b"\xc0\x80\x00", b"\x30\x85\x00\0\1t\0x", b"\x30\x06\0\1t\x80\x00x"])
def test_a_length_in_more_bytes_than_it_takes_is_malformed(data):
    """MQTT-1.5.5-1."""
    assert refused(data) == 0x81


@pytest.mark.parametrize("kind", PacketType)
def test_reserved_flags_are_as_listed(kind):
    """MQTT-2.1.3-1. MQTT-3.6.1-1. MQTT-3.8.1-1. MQTT-3.10.1-1. MQTT-3.14.1-1. MQTT-3.15.1-1."""
    bodies = {
        PacketType.SUBSCRIBE: b"\0\1\0\0\1t\0",
        PacketType.UNSUBSCRIBE: b"\0\1\0\0\1t",
        PacketType.DISCONNECT: b"",
        PacketType.AUTH: b"",
        PacketType.PINGREQ: b"",
    }
    body = bodies.get(kind, b"\0\1")
    if kind in {PacketType.CONNECT, PacketType.PUBLISH}:
        return  # a CONNECT's are looked at below; those of a PUBLISH mean something
    wrong = [flags for flags in range(16) if flags != FLAGS[kind]]
    assert {refused(framed(kind << 4 | flags, body)) for flags in wrong} == {0x81}


def test_the_flags_of_what_is_sent():
    """MQTT-2.1.3-1. MQTT-3.2.2-1."""
    driver = subscribed(5)
    driver.deliver(batch_of(message(qos=2)))
    driver.feed(b"".join(encode(one, 5) for one in EVERY_QUESTION))
    raw = driver.adapter.take_output()
    seen = set()
    at = 0
    while (frame := read_fixed_header(raw, at)) is not None:
        kind = PacketType(frame.first >> 4)
        seen.add(kind)
        if kind is not PacketType.PUBLISH:
            assert frame.first & 15 == FLAGS[kind]
        at = frame.end
    assert at == len(raw)
    assert seen == {
        PacketType[one] for one in ["PUBLISH", "PUBREL", "PUBCOMP", "SUBACK", "UNSUBACK", "PINGRESP", "DISCONNECT"]
    }
    driver = Driver(5)
    driver.feed(encode(Connect(version=5, client_id="c"), 5))
    assert driver.adapter.take_output()[0:1] == b"\x20"


@pytest.mark.parametrize("flags", range(1, 16))
def test_the_flags_of_a_connect(flags):
    """MQTT-2.1.3-1."""
    assert not_let_in(framed(0x10 | flags, b"\0\4MQTT\5\2\0\0\0\0\1c")) == -1


def test_packet_type_0_is_none():
    """MQTT-2.1.3-1."""
    assert refused(b"\x00\x00") == 0x81


def test_a_publish_of_qos_0_has_no_identifier():
    """MQTT-2.2.1-2."""
    driver = subscribed(5)
    driver.deliver(batch_of(message(b"pay", qos=0)))
    assert driver.adapter.take_output() == framed(0x30, b"\0\3t/a" + b"\0" + b"pay")
    driver.feed(framed(0x30, b"\0\1t" + b"\0" + b"\0\1pay"))
    assert [m.body for m in driver.published()] == [b"\0\1pay"]


@pytest.mark.parametrize("data", [b"\x32\x06\0\1t\0\0\0", b"\x82\x07\0\0\0\0\1t\0", b"\xa2\x06\0\0\0\0\1t"])
def test_identifier_0_is_none(data):
    """MQTT-2.2.1-3."""
    assert refused(data) in {0x81, 0x82}


def test_identifiers_of_deliveries_are_unused_and_not_0():
    """MQTT-2.2.1-4. MQTT-4.3.2-1. MQTT-4.3.3-1."""
    driver = subscribed(5)
    kept = {one.packet_id for one in delivered(driver, *(message(qos=1 + n % 2) for n in range(10)))}
    assert kept == set(range(1, 11))
    driver.adapter.session.inflight.next_packet_id = 65_530  # to have it come round sooner
    out = delivered(driver, *(message(qos=1 + n % 2) for n in range(40)))
    identifiers = [one.packet_id for one in out]
    assert len(set(identifiers)) == 40
    assert not set(identifiers) & kept
    assert all(0 < identifier <= 65_535 for identifier in identifiers)
    assert identifiers[5:7] == [65_535, 11]
    driver.send(*(Puback(packet_id=one.packet_id) for one in out if one.qos == 1))
    driver.send(*(Pubrec(packet_id=one.packet_id) for one in out if one.qos == 2))
    driver.adapter.session.inflight.next_packet_id = 65_530
    (one,) = delivered(driver, message(qos=1))
    assert one.packet_id == 65_530
    (one,) = delivered(driver, message(qos=1))
    assert one.packet_id == 65_532, "a PUBREL without its PUBCOMP still uses its identifier"


@pytest.mark.parametrize("packet_id", [1, 255, 256, 65_535])
def test_acknowledgements_have_the_identifier_of_what_they_acknowledge(packet_id):
    """MQTT-2.2.1-5. MQTT-4.3.2-4. MQTT-4.3.3-8. MQTT-4.3.3-11. MQTT-3.3.4-1."""
    driver = connected(5)
    driver.send(Publish(topic="t", qos=1, packet_id=packet_id))
    assert driver.store() == [Puback(packet_id=packet_id)]
    driver.send(Publish(topic="t", qos=2, packet_id=packet_id))
    assert driver.store() == [Pubrec(packet_id=packet_id)]
    assert driver.send(Pubrel(packet_id=packet_id)) == [Pubcomp(packet_id=packet_id)]
    driver.send(Publish(topic="t", qos=0))
    assert driver.store() == []


def test_a_pubrel_has_the_identifier_of_its_publish():
    """MQTT-2.2.1-5. MQTT-4.3.3-4."""
    driver = subscribed(5)
    first, second = delivered(driver, message(qos=2), message(qos=2))
    assert driver.send(Pubrec(packet_id=second.packet_id)) == [Pubrel(packet_id=second.packet_id)]
    assert driver.send(Pubrec(packet_id=first.packet_id)) == [Pubrel(packet_id=first.packet_id)]


@pytest.mark.parametrize("packet_id", [1, 256, 65_535])
def test_suback_and_unsuback_have_the_identifier_of_what_they_answer(packet_id):
    """MQTT-2.2.1-6. MQTT-3.8.4-1. MQTT-3.8.4-2. MQTT-3.10.4-4. MQTT-3.10.4-5."""
    driver = connected(5)
    assert driver.send(Subscribe(packet_id=packet_id, requests=(request(),))) == [
        Suback(packet_id=packet_id, codes=(2,))
    ]
    for codes in ((0,), (0x11,)):
        assert driver.send(Unsubscribe(packet_id=packet_id, patterns=("t/#",))) == [
            Unsuback(packet_id=packet_id, codes=codes)
        ]


def test_no_properties_are_a_length_of_0():
    """MQTT-2.2.2-1."""
    driver = subscribed(5)
    driver.deliver(batch_of(message(b"", qos=0)))
    assert driver.adapter.take_output() == b"\x30\x06\0\3t/a\0"
    assert refused(framed(0x30, b"\0\1t")) == 0x81
    assert refused(framed(0x82, b"\0\1")) == 0x81
