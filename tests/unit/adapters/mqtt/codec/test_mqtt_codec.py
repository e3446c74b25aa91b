"""The codec: exact bytes, and what is refused with which code."""

import pytest

from adapters.mqtt.codec import Properties, ReasonCode, decode, encode, read_fixed_header
from adapters.mqtt.codec.decoder import peek_version
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Will,
)
from adapters.mqtt.codec.primitives import PacketReader, clean_text, decode_text, encode_varint, read_varint
from adapters.mqtt.session.intake import body_bytes_max
from gateway.domain.errors import ProtocolError


def code_of(first: int, body: bytes, version: int = 5) -> int:
    with pytest.raises(ProtocolError) as caught:
        decode(first, body, version)
    return caught.value.code


@pytest.mark.parametrize(
    ("packet", "version", "expected"),
    [
        (Connect(version=4, client_id="a", keep_alive_s=60), 4, "100d00044d5154540402003c000161"),
        (Connect(version=5, client_id=""), 5, "100d00044d51545405020000000000"),
        (Connack(session_present=True), 4, "20020100"),
        (Connack(), 5, "2003000000"),
        (Publish(topic="a/b", payload=b"x"), 4, "3006" + "0003612f62" + "78"),
        (Publish(topic="a", qos=1, packet_id=10, retain=True, dup=True), 4, "3b05" + "000161" + "000a"),
        (Publish(topic="a", qos=2, packet_id=1), 5, "3406" + "000161" + "0001" + "00"),
        (Puback(packet_id=2), 5, "40020002"),
        (Puback(packet_id=2, code=0x97), 5, "4003000297"),
        (Pubrel(packet_id=2), 4, "62020002"),
        (
            Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="a", qos=1, no_local=True),)),
            5,
            "8207" + "0001" + "00" + "000161" + "05",
        ),
        (Suback(packet_id=1, codes=(0, 1, 0x80)), 4, "9005" + "0001" + "000180"),
        (Unsuback(packet_id=1), 4, "b0020001"),
        (Unsuback(packet_id=1, codes=(0,)), 5, "b004" + "0001" + "00" + "00"),
        (Pingreq(), 4, "c000"),
        (Disconnect(), 5, "e000"),
        (Disconnect(code=0x8E), 5, "e0018e"),
    ],
)
def test_bytes_of_packets(packet, version, expected):
    encoded = encode(packet, version)
    assert encoded.hex() == expected
    frame = read_fixed_header(encoded)
    assert frame is not None
    assert decode(frame.first, encoded[frame.start :], version) == packet


def test_will_and_credentials():
    packet = Connect(
        version=5,
        client_id="c",
        clean=False,
        will=Will(topic="w", payload=b"bye", qos=2, retain=True, properties=Properties(will_delay_s=5)),
        username="u",
        password=b"p",
        properties=Properties(session_expiry_s=0xFFFFFFFF, user=(("a", "1"), ("a", "2"))),
    )
    encoded = encode(packet, 5)
    assert decode(encoded[0], encoded[2:], 5) == packet
    assert encoded[9] == 0b1111_0100


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"\x00\x04MQTT\x04\x03\x00\x00\x00\x00", 0x81),  # reserved flag
        (b"\x00\x04MQTT\x04\x1c\x00\x00\x00\x00", 0x81),  # will QoS 3
        (b"\x00\x04MQTT\x04\x22\x00\x00\x00\x00", 0x81),  # will retain without a will
        (b"\x00\x04MQTT\x04\x42\x00\x00\x00\x00\x00\x01p", 0x81),  # 3.1.1: password without user name
        (b"\x00\x04MQTT\x06\x02\x00\x00\x00\x00", 0x84),
        (b"\x00\x06MQIsdp\x04\x02\x00\x00\x00\x00", 0x84),
        (b"\x00\x04HTTP\x04\x02\x00\x00\x00\x00", 0x81),
        (b"\x00\x04MQTT\x04\x02\x00\x00\x00\x00x", 0x81),  # a byte behind the end
        (b"\x00\x04MQTT\x04\x02\x00\x00\x00\x05abc", 0x81),  # cut short
        (b"\x00\x04MQTT\x05\x02\x00\x00\x03\x16\x00\x00\x00\x00", 0x82),  # authentication data without a method
        (b"\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x00\x00\x00", 0x82),  # Receive Maximum 0
        (b"\x00\x04MQTT\x05\x02\x00\x00\x06\x21\x00\x01\x21\x00\x01\x00\x00", 0x82),  # twice
        (b"\x00\x04MQTT\x05\x02\x00\x00\x02\x01\x00\x00\x00", 0x81),  # a property of PUBLISH
        (b"\x00\x04MQTT\x05\x02\x00\x00\x02\x7f\x00\x00\x00", 0x81),  # a property of nobody's
        (b"\x00\x04MQTT\x05\x02\x00\x00\x02\x17\x02\x00\x00", 0x82),  # a flag that is 2
        (b"\x00\x04MQTT\x05\x02\x00\x00\xff\x00\x00", 0x81),  # properties longer than the packet
        (b"\x00\x04MQTT\x05\x04\x00\x00\x00\x00\x00\x00\x00\x01#\x00\x00", 0x90),  # will topic with a wildcard
    ],
)
def test_malformed_connect(body, code):
    assert code_of(0x10, body) == code


@pytest.mark.parametrize(
    ("first", "body", "code"),
    [
        (0x36, b"\x00\x01a\x00\x01\x00", 0x81),  # QoS 3
        (0x38, b"\x00\x01a\x00", 0x81),  # DUP at QoS 0
        (0x32, b"\x00\x01a\x00\x00\x00", 0x81),  # packet identifier 0
        (0x30, b"\x00\x00\x00", 0x82),  # no topic, no alias
        (0x30, b"\x00\x03a/+\x00", 0x90),
        (0x30, b"\x00\x01#\x00", 0x90),
        (0x30, b"\x00\x02\xc3\x28\x00", 0x81),  # not UTF-8
        (0x30, b"\x00\x03\xed\xa0\x80\x00", 0x81),  # a surrogate
        (0x30, b"\x00\x01\x00\x00", 0x81),  # U+0000
        (0x30, b"\x00\x01a\x03\x0b\x80\x00", 0x81),  # identifier not in the fewest bytes
        (0x30, b"\x00\x01a\x02\x0b\x00", 0x82),  # subscription identifier 0
        (0x80, b"\x00\x01\x00\x00\x01a\x00", 0x81),  # reserved flags
        (0x82, b"\x00\x01\x00", 0x82),  # no filters
        (0x82, b"\x00\x01\x00\x00\x01a\xc0", 0x81),  # reserved options
        (0x82, b"\x00\x01\x00\x00\x01a\x03", 0x82),  # QoS 3
        (0x82, b"\x00\x01\x00\x00\x01a\x30", 0x82),  # retain handling 3
        (0x82, b"\x00\x01\x04\x0b\x01\x0b\x02\x00\x01a\x00", 0x82),  # two subscription identifiers
        (0xA2, b"\x00\x01\x00", 0x82),
        (0x60, b"\x00\x01", 0x81),
        (0x40, b"\x00\x00", 0x81),
        (0x40, b"\x00", 0x81),
        (0xC1, b"", 0x81),
        (0xC0, b"\x00", 0x81),
        (0x00, b"", 0x81),
        (0xE0, b"\x00\x00\x00", 0x81),
    ],
)
def test_malformed_packets(first, body, code):
    assert code_of(first, body) == code


def test_options_and_auth_of_version_5_are_not_of_3_1_1():
    assert code_of(0x82, b"\x00\x01\x00\x01a\x04", 4) == ReasonCode.MALFORMED_PACKET
    assert code_of(0xF0, b"", 4) == ReasonCode.PROTOCOL_ERROR
    assert code_of(0xE0, b"\x00", 4) == ReasonCode.MALFORMED_PACKET


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (16_383, "ff7f"), (16_384, "808001"), (268_435_455, "ffffff7f")],
)
def test_variable_byte_integers(number, encoded):
    raw = bytes.fromhex(encoded)
    assert encode_varint(number) == raw
    assert read_varint(raw, 0, len(raw), minimal=True) == (number, len(raw))
    assert all(read_varint(raw[:cut], 0, cut, minimal=True) is None for cut in range(len(raw)))


def test_a_fifth_byte_and_a_padded_one():
    with pytest.raises(ProtocolError):
        read_varint(b"\xff\xff\xff\xff\x01", 0, 5, minimal=False)
    assert read_varint(b"\x81\x00", 0, 2, minimal=False) == (1, 2)
    with pytest.raises(ProtocolError):
        read_varint(b"\x81\x00", 0, 2, minimal=True)


def test_texts():
    assert decode_text("Zürich\ufeff".encode()) == "Zürich\ufeff"  # U+FEFF is no byte order mark (MQTT-1.5.4-3)
    assert clean_text("a\0\ud800ü") == "a\ufffd\ufffdü"
    assert clean_text("x" * 65_536) is None
    assert PacketReader(b"ab").rest() == b"ab"


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b"\x00\x04MQTT\x04", 4),
        (b"\x00\x04MQTT\x03", 4),
        (b"\x00\x04MQTT\x09", 5),
        (b"\x00\x06MQIsdp\x03", 3),
        (b"\x00\x04HTTP\x05", None),
        (b"\x00\x04MQ", None),
    ],
)
def test_the_version_to_refuse_in(body, version):
    assert peek_version(body) == version


@pytest.mark.parametrize("limit", [64, 128, 129, 130, 131, 16_386, 16_387, 16_388, 1_048_576])
def test_the_largest_body_of_a_packet(limit):
    body = body_bytes_max(limit)
    assert 1 + len(encode_varint(body)) + body <= limit
    assert 1 + len(encode_varint(body + 1)) + body + 1 > limit
