"""PUBLISH to domain message and back.

What MQTT 5.0 says and the domain has a field for goes into that field. User properties that name a field (`type`,
`partitionkey`, `traceparent`, `content-encoding`) are moved into it; where they stood is kept in `native["mqtt"]`, so
that a subscriber sees all of them in the order they were sent (MQTT-3.3.2-18). The Payload Format Indicator is kept
in `native` too.
"""

from typing import Any

from adapters.mqtt.codec.primitives import clean_text, encode_binary, encode_varint
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties
from gateway.message import Message

__all__ = ["PROTOCOL", "message_of", "publish_pieces"]

PROTOCOL = "mqtt"

_FIELD_OF = {
    "partitionkey": "key",
    "type": "type",
    "traceparent": "traceparent",
    "content-encoding": "content_encoding",
}
_FORMAT, _PLACES = "payload_format", "user_places"  # keys of native["mqtt"]


def message_of(
    address: str,
    body: bytes,
    *,
    qos: int,
    retain: bool,
    properties: Properties,
    device: str,
    now_ms: int,
) -> Message:
    """The domain message of a PUBLISH or a will; `address` is a checked topic name."""
    if properties is NO_PROPERTIES:
        return Message(address, body, now_ms, PROTOCOL, device, qos, retain)
    native: dict[str, Any] = {}
    fields: dict[str, str] = {}
    user = properties.user
    if user:
        user = _move_fields(user, fields, native)
    if properties.payload_format is not None:
        native[_FORMAT] = properties.payload_format
    expiry_s = properties.message_expiry_s
    return Message(
        address,
        body,
        now_ms,
        PROTOCOL,
        device,
        qos,
        retain,
        key=fields.get("key"),
        type=fields.get("type"),
        content_type=properties.content_type,
        content_encoding=fields.get("content_encoding"),
        expires_at_ms=None if expiry_s is None else now_ms + expiry_s * 1000,
        reply_to=properties.response_topic,
        correlation=properties.correlation,
        traceparent=fields.get("traceparent"),
        properties=user,
        native={PROTOCOL: native} if native else None,
    )


def _move_fields(
    user: tuple[tuple[str, str], ...], fields: dict[str, str], native: dict[str, Any]
) -> tuple[tuple[str, str], ...]:
    """Move the first user property of each name that has a field into `fields`; the others are returned."""
    kept: list[tuple[str, str]] = []
    places: list[tuple[int, str]] = []
    for place, (name, value) in enumerate(user):
        field = _FIELD_OF.get(name)
        if field is None or field in fields:
            kept.append((name, value))
        else:
            fields[field] = value
            places.append((place, name))
    if places:
        native[_PLACES] = places
    return tuple(kept)


def _user_properties(message: Message, native: dict[str, Any]) -> list[tuple[str, str]]:
    """The user properties a subscriber is shown: the inverse of `_move_fields`."""
    user = list(message.properties)
    missing = dict(_FIELD_OF)
    for place, name in native.get(_PLACES, ()):
        field = missing.pop(name, None)
        value = field and getattr(message, field)
        if value is not None:
            user.insert(place, (name, value))
    for name, field in missing.items():
        value = getattr(message, field)
        if value is not None:
            user.append((name, value))
    return user


def publish_properties(message: Message, *, now_ms: int, subscription_ids: tuple[int, ...]) -> bytes:
    """Property length and properties of a PUBLISH to a client (3.3.2.3)."""
    out = bytearray()
    native = message.native.get(PROTOCOL, {}) if message.native is not None else {}
    if _FORMAT in native:
        out += bytes((0x01, native[_FORMAT]))
    if message.expires_at_ms is not None:
        # Counted down by the time spent here (MQTT-3.3.2-6) and rounded up, so that nothing expires too early.
        left_s = -(-max(0, message.expires_at_ms - now_ms) // 1000)
        out += b"\x02" + min(left_s, 0xFFFF_FFFF).to_bytes(4, "big")
    if message.content_type is not None:
        out += _text_property(b"\x03", message.content_type)
    if message.reply_to and "+" not in message.reply_to and "#" not in message.reply_to:
        out += _text_property(b"\x08", message.reply_to)
    if message.correlation is not None and len(message.correlation) <= 65_535:
        out += b"\x09" + encode_binary(message.correlation)
    for number in subscription_ids:
        out += b"\x0b" + encode_varint(number)
    for name, value in _user_properties(message, native):
        name_raw, value_raw = _text_property(b"\x26", name), _text_property(b"", value)
        if name_raw and value_raw:
            out += name_raw + value_raw
    return encode_varint(len(out)) + bytes(out)


def _text_property(identifier: bytes, text: str) -> bytes:
    """A property with a string; nothing when MQTT cannot carry the text (longer than 65,535 bytes)."""
    cleaned = clean_text(text)
    return b"" if cleaned is None else identifier + encode_binary(cleaned.encode())


def publish_pieces(
    message: Message,
    *,
    version: int,
    qos: int,
    retain: bool,
    now_ms: int,
    subscription_ids: tuple[int, ...] = (),
) -> tuple[bytes, bytes]:
    """A PUBLISH to a client in two pieces: what stands before the packet identifier and what stands behind it."""
    topic = message.address.encode("utf-8", "replace")  # other protocols let surrogates in; MQTT may not show them
    if version == 5:
        tail = publish_properties(message, now_ms=now_ms, subscription_ids=subscription_ids) + message.body
    else:
        tail = message.body
    length = 2 + len(topic) + (2 if qos else 0) + len(tail)
    first = bytes((0x30 | qos << 1 | retain,))
    return first + encode_varint(length) + len(topic).to_bytes(2, "big") + topic, tail
