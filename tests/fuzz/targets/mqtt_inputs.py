"""Inputs for fuzzing MQTT: valid packets of every type and version, hurt in ways that reach behind the first check."""

from random import Random
from typing import NamedTuple

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from adapters.mqtt.codec.primitives import encode_varint
from tests.fuzz.targets import lots

VERSIONS = (5, 4, 3)
_BYTES = b"\x00\x01\x02\x03\x04\x7e\x7f\x80\x81\xbf\xc0\xed\xf4\xfe\xff\x26"  # limits of lengths, flags and UTF-8

_USER = (
    ("type", "t"),
    ("specversion", "1.0"),
    ("id", "i"),
    ("source", "s"),
    ("time", "2024-01-01T00:00:00Z"),
    ("", ""),
)
_RICH = Properties(
    payload_format=1,
    message_expiry_s=5,
    content_type="application/json",
    response_topic="r/ü",
    correlation=b"c",
    topic_alias=1,
    user=_USER,
)
_SAID = Properties(reason="because", user=_USER[:2])
_WILL = Will(
    topic="w/1",
    payload=b"bye",
    qos=1,
    retain=True,
    properties=Properties(will_delay_s=1, content_type="a/b", user=_USER),
)
_ASKS = Properties(
    session_expiry_s=60,
    receive_maximum=9,
    maximum_packet_bytes=100_000,
    topic_alias_maximum=3,
    request_response_information=1,
    request_problem_information=0,
    user=_USER[:1],
)
_METHOD = Properties(authentication_method="SCRAM-SHA-256", authentication_data=b"n,,n=u,r=x")
_OFFERS = Properties(
    session_expiry_s=1,
    receive_maximum=2,
    maximum_qos=1,
    retain_available=1,
    maximum_packet_bytes=3,
    assigned_client_id="x",
    topic_alias_maximum=4,
    reason="r",
    wildcard_subscription_available=1,
    subscription_ids_available=0,
    shared_subscription_available=1,
    server_keep_alive_s=5,
    response_information="r",
    server_reference="s",
)


class Shape(NamedTuple):
    """A valid packet, without its Remaining Length."""

    first: int
    body: bytes

    def framed(self) -> bytes:
        return bytes((self.first,)) + encode_varint(len(self.body)) + self.body


def _both(version: int) -> list[Packet]:
    """Returns packets that a client of any version may send."""
    return [
        Connect(version=version, client_id="c"),
        Connect(
            version=version, client_id="c", clean=False, will=Will(topic="w", payload=b"x"), username="u", password=b"p"
        ),
        Publish(topic="t/a", payload=b"1"),
        Publish(topic="t/a", payload=b"2", qos=1, packet_id=1),
        Publish(topic="t/b", payload=b"3" * 200, qos=2, packet_id=2, retain=True),
        Publish(topic="$delayed/5/t/c", payload=b"4", qos=1, packet_id=3, dup=True),
        Puback(packet_id=1),
        Pubrec(packet_id=1),
        Pubrel(packet_id=2),
        Pubcomp(packet_id=1),
        Subscribe(packet_id=3, requests=(SubscriptionRequest(pattern="t/#", qos=2), SubscriptionRequest(pattern="+"))),
        Subscribe(packet_id=4, requests=(SubscriptionRequest(pattern="$share/g/t/#", qos=1),)),
        Subscribe(packet_id=4, requests=(SubscriptionRequest(pattern="$SYS/#"),)),
        Unsubscribe(packet_id=5, patterns=("t/#", "$share/g/t/#", "$SYS/#")),
        Pingreq(),
        Disconnect(),
    ]


def _answers() -> list[Packet]:
    """Returns packets that only a server sends."""
    return [Connack(), Suback(packet_id=1, codes=(0, 1)), Unsuback(packet_id=1), Pingresp()]


def _of_5() -> list[Packet]:
    options = SubscriptionRequest(pattern="t/+/ü", qos=1, no_local=True, retain_as_published=True, retain_handling=1)
    return [
        Connect(version=5, client_id="c", keep_alive_s=5, will=_WILL, properties=_ASKS),
        Connect(version=5, client_id="", properties=_METHOD),
        Publish(topic="t/a", payload=b"{}", qos=1, packet_id=6, properties=_RICH),
        Publish(topic="", payload=b"again", qos=2, packet_id=7, properties=Properties(topic_alias=1)),
        Puback(packet_id=1, code=0x83, properties=_SAID),
        Pubrec(packet_id=1, code=0x80, properties=_SAID),
        Pubrel(packet_id=2, code=0x92, properties=_SAID),
        Pubcomp(packet_id=1, properties=_SAID),
        Subscribe(packet_id=8, requests=(options, options), properties=Properties(subscription_ids=(200,), user=_USER)),
        Unsubscribe(packet_id=9, patterns=("t/+/ü",), properties=Properties(user=_USER)),
        Disconnect(code=4, properties=Properties(session_expiry_s=7, reason="r", user=_USER[:1])),
        Auth(code=0x19, properties=_METHOD),
        Auth(code=0x18, properties=_METHOD),
        Connack(properties=_OFFERS),
        Suback(packet_id=1, codes=(0, 0x8F), properties=_SAID),
        Unsuback(packet_id=1, codes=(0, 0x11), properties=_SAID),
        Disconnect(code=0x8E, properties=_SAID),
    ]


def _shape(data: bytes) -> Shape:
    start = 2 if data[1] < 128 else 3
    return Shape(data[0], data[start:])


SHAPES: dict[int, list[Shape]] = {
    version: [
        _shape(encode(packet, version)) for packet in _both(version) + _answers() + (_of_5() if version == 5 else [])
    ]
    for version in VERSIONS
}
# Packets of a connected client that wants to stay: traffic that keeps a connection busy, and damaged packets as well.
TRAFFIC: dict[int, list[Shape]] = {
    version: [shape for shape in shapes if shape.first >> 4 in {3, 4, 5, 6, 7, 8, 10, 12}]
    for version, shapes in SHAPES.items()
}


def hurt(shapes: list[Shape], random: Random) -> bytes:
    """Returns a packet, hurt: its body, its lengths, its header; now and then no packet at all."""
    chance = random.getrandbits(96)
    shape = shapes[(chance & 0xFFFF) % len(shapes)]
    how, where, what = chance >> 16 & 15, chance >> 20 & 0xFFFFFF, chance >> 44 & 0xFFFFFF
    first, body = shape.first, shape.body
    at = where % (len(body) + 1)
    if how <= 9:
        body = lots.hurt(body, random, telling=_BYTES)
    elif how == 10:  # cut short, and saying so
        body = body[:at]
    elif how == 11:  # cut short, and not saying so
        return shape.framed()[: 1 + at]
    elif how == 12:  # another length than it has
        return bytes((first,)) + (b"\xff" * (what & 3)) + bytes((what >> 8 & 0xFF,)) + body
    elif how == 13:  # the end of another packet
        other = shapes[what % len(shapes)].body
        body = body[:at] + other[min(at, len(other)) :]
    elif how == 14:  # bytes that were never a packet
        return random.randbytes(1 + what % 40)
    else:  # another type, other flags
        first = what & 0xFF
    return Shape(first, body).framed()
