"""PUBLISH to domain message and back.

Values of MQTT 5.0 for which the domain has a field go into that field. User properties that name a field (`type`,
`partitionkey`, `traceparent`, `content-encoding`, `time` in RFC 3339; for an event, its attributes) are moved into it;
the order they stood in is kept in `native["mqtt"]`, so that a subscriber sees all of them as they were sent
(MQTT-3.3.2-18). The Payload Format Indicator and the text of `time` are kept in `native` too, and the publisher's
client identifier where its device has another name. A message that came by another protocol shows its time always, one
that came by MQTT only where its publisher said it.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from adapters.cloudevents import STRUCTURED_JSON, data_type, format_ms, parse_ms
from adapters.cloudevents import is_structured as is_json_event
from adapters.mqtt.codec.primitives import clean_text, encode_binary, encode_varint
from adapters.mqtt.codec.properties import NO_PROPERTIES, Properties
from adapters.mqtt.messages.events import (
    CLOUDEVENT,
    STRUCTURED,
    beside_structured,
    event_attributes,
    event_of,
    is_event,
    is_structured,
    structured_body,
)
from adapters.mqtt.messages.sparkplug import Sparkplug
from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import SHOWN, answers_at
from store.api.message import Message

PROTOCOL = "mqtt"

_FIELD_OF = {
    "partitionkey": "key",
    "type": "type",
    "traceparent": "traceparent",
    "content-encoding": "content_encoding",
}
_TIME = "time"  # a user property, and the key of its text in native["mqtt"]
_FORMAT, _ORDER = "payload_format", "user_order"  # keys of native["mqtt"]
_CLIENT_ID = "client_id"  # and one more: the publisher's, where that is not its device
_BRIDGE = "bridge"  # and of messages from another broker: the name of the bridge that brought them
_OF_TOPIC = "of_topic"  # and the fields that its publisher has not given, but the name of its topic
_SAID = ("type", "content_type")
_HIDDEN = frozenset({_CLIENT_ID, _BRIDGE, _OF_TOPIC})  # properties that no client is shown

_Pairs = tuple[tuple[str, str], ...]


class Dialect(NamedTuple):
    """The protocol version and the form of events that a client understands."""

    version: int
    plain_events: bool = False  # a client of 3.1.1 is sent an event's data instead of the event as JSON


@cache
def dialect_of(version: int, *, plain_events: bool = False) -> Dialect:
    """Returns the dialect, the same one for all clients that understand the same; there are few."""
    return Dialect(version, plain_events)


class Template(msgspec.Struct, frozen=True):
    """The part of a message that a PUBLISH's properties make: worked out once, used for all that carry the same."""

    properties: Properties
    event: bool
    text: bool  # the payload claims to be UTF-8
    fields: dict[str, str]
    time_ms: int | None  # when it happened; None: when it arrives
    user: _Pairs
    native: dict[str, Any] | None  # shared by the messages made from it, as everything in a message is: read only

    @classmethod
    def of(cls, properties: Properties, client_id: str | None = None) -> "Template":
        """Returns the template of a PUBLISH's or a will's properties; `client_id` is from `own_client_id`."""
        native: dict[str, Any] = {} if client_id is None else {_CLIENT_ID: client_id}
        fields: dict[str, str] = {}
        event = is_event(properties)
        user = properties.user
        time_ms = None
        if user and not is_structured(properties):
            user = _move_fields(properties.user, fields, event=event)
            if not event:
                time_ms, user = _take_time(user, native)
            if event or len(user) < len(properties.user):
                native[_ORDER] = tuple(name for name, _ in properties.user)
        if properties.payload_format is not None:
            native[_FORMAT] = properties.payload_format
        return cls(
            properties=properties,
            event=event,
            text=properties.payload_format == 1,
            fields=fields,
            time_ms=time_ms,
            user=user,
            native={PROTOCOL: native} if native else None,
        )

    def message(
        self, address: str, body: bytes, *, qos: int, retain: bool, device: str, principal: str | None, now_ms: int
    ) -> Message:
        """Returns the message of a PUBLISH; `address` is a checked topic name.

        Raises `Refusal` (MALFORMED) when the payload is not the text, or the event, that its properties announce.
        """
        properties, fields = self.properties, self.fields
        if properties is NO_PROPERTIES:
            return Message(
                address, body, now_ms, PROTOCOL, device, qos, retain, principal=principal, native=self.native
            )
        if self.text:
            _check_text(body)
        expiry_s = properties.message_expiry_s
        expires_at_ms = None if expiry_s is None else now_ms + expiry_s * 1_000
        if self.event:
            return event_of(
                body,
                msgspec.structs.replace(properties, user=self.user),
                now_ms=now_ms,
                native=dict(self.native[PROTOCOL]) if self.native else {},
                protocol=PROTOCOL,
                device=device,
                principal=principal,
                address=address,
                qos=qos,
                retain=retain,
                expires_at_ms=expires_at_ms,
                reply_to=properties.response_topic,
                correlation=properties.correlation,
                content_encoding=fields.get("content_encoding"),
            )
        return Message(
            address,
            body,
            now_ms if self.time_ms is None else self.time_ms,
            PROTOCOL,
            device,
            qos,
            retain,
            "",
            fields.get("key"),
            fields.get("type"),
            properties.content_type,
            fields.get("content_encoding"),
            expires_at_ms,
            None,
            properties.response_topic,
            properties.correlation,
            fields.get("traceparent"),
            principal,
            self.user,
            self.native,
        )


NO_TEMPLATE = Template.of(NO_PROPERTIES)


def own_client_id(client_id: str, device: str) -> str | None:
    """Returns the client identifier by which messages are known as this client's; None when their device says it."""
    return None if client_id == device else client_id


def bridged(template: Template, bridge: str) -> Template:
    """Returns the template of messages that a bridge brings, which say so: no client of ours is their publisher."""
    native = {} if template.native is None else template.native[PROTOCOL]
    return msgspec.structs.replace(template, native={PROTOCOL: {**native, _CLIENT_ID: "", _BRIDGE: bridge}})


def with_sparkplug(message: Message, said: Sparkplug, *, client_id: str | None = None) -> Message:
    """Returns a message with the fields that its topic implies; no client of MQTT is shown them.

    `client_id` is that of a client without an identity: its messages speak for the topic's device.
    """
    native = message.native or {}
    own, changes = dict(native.get(PROTOCOL) or {}), dict[str, Any]()
    if CLOUDEVENT not in native:
        changes = {name: getattr(said, name) for name in _SAID if getattr(message, name) is None}
        if changes:
            own[_OF_TOPIC] = tuple(changes)
    if client_id is not None:
        own[_CLIENT_ID] = client_id
        changes["device"] = said.device
    return msgspec.structs.replace(message, native={**native, PROTOCOL: own}, **changes) if changes else message


def publisher_of(message: Message) -> str | None:
    """Returns the identifier of the client that published a message; None when it came by another protocol."""
    if message.protocol != PROTOCOL:
        return None
    client_id = _own(message, PROTOCOL).get(_CLIENT_ID)
    return message.device if client_id is None else client_id


def has_visible(native: dict[str, Any]) -> bool:
    """Returns whether `native` has anything that a PUBLISH to a client of 5.0 shows."""
    return len(native) != 1 or not native.get(PROTOCOL, native).keys() <= _HIDDEN


def _check_text(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise Refusal(Cause.MALFORMED, f"the payload is announced as UTF-8 and is not: {error.reason}") from None


def _move_fields(user: _Pairs, fields: dict[str, str], *, event: bool) -> _Pairs:
    """Moves the first user property of each name that has a field into `fields`; the others are returned.

    An event's attributes are left for it to be read from.
    """
    kept: list[tuple[str, str]] = []
    for name, value in user:
        field = _FIELD_OF.get(name)
        if field is None or field in fields or (event and field != "content_encoding"):
            kept.append((name, value))
        else:
            fields[field] = value
    return tuple(kept)


def _take_time(user: _Pairs, native: dict[str, Any]) -> tuple[int | None, _Pairs]:
    """Returns the time of the first user property `time`, and the others; one that is no timestamp stays among them."""
    for index, (name, text) in enumerate(user):
        if name == _TIME:
            try:
                time_ms = max(parse_ms(text), 0)
            except ValueError:
                break
            native[_TIME] = text
            return time_ms, user[:index] + user[index + 1 :]
    return None, user


def _time_of(message: Message, native: dict[str, Any]) -> str | None:
    """Returns the user property `time` of a message that is no event: its publisher's, or ours for other protocols."""
    return native.get(_TIME) if message.protocol == PROTOCOL else format_ms(message.time_ms)


def _in_order(pairs: Iterable[tuple[str, str]], order: Iterable[str]) -> list[tuple[str, str]]:
    """Returns pairs in the order of their names as they once stood; those without a place there come last."""
    by_name: dict[str, list[str]] = {}
    for name, value in pairs:
        by_name.setdefault(name, []).append(value)
    placed = [(name, by_name[name].pop(0)) for name in order if by_name.get(name)]
    return placed + [(name, value) for name, values in by_name.items() for value in values]


def _shown(message: Message) -> Iterable[tuple[str, str]]:
    """Returns AMQP properties of a message that have no field: id, address of answers, application, tables."""
    said = (message.native or {}).get("amqp")
    taken = {name for name, _ in message.properties}
    return [] if said is None else [(name, text) for name, text in said.get(SHOWN, ()) if name not in taken]


def _user_properties(message: Message, native: dict[str, Any], *, event: bool) -> list[tuple[str, str]]:
    """Returns the user properties a subscriber is shown: the inverse of `_move_fields` and of reading an event."""
    if event:
        attributes, others = event_attributes(message)
        pairs = attributes + others
        if message.content_encoding is not None:
            pairs.append(("content-encoding", message.content_encoding))
    else:
        hidden = native.get(_OF_TOPIC, ())
        moved = [(name, getattr(message, field)) for name, field in _FIELD_OF.items() if field not in hidden]
        moved.append((_TIME, _time_of(message, native)))
        # In front of the repeats of their names, which were left where they were.
        pairs = [*((name, value) for name, value in moved if value is not None), *message.properties, *_shown(message)]
    return _in_order(pairs, native[_ORDER]) if _ORDER in native else pairs


def _own(message: Message, key: str) -> dict[str, Any]:
    """Returns the part of `native` under a key, empty when there is none."""
    return message.native.get(key) or {} if message.native is not None else {}


def publish_properties(
    message: Message, user: Iterable[tuple[str, str]], content_type: str | None, now_ms: int, ids: tuple[int, ...]
) -> bytes:
    """Returns property length and properties of a PUBLISH to a client (3.3.2.3)."""
    out = bytearray()
    payload_format = _own(message, PROTOCOL).get(_FORMAT)
    if payload_format is not None:
        out += bytes((0x01, payload_format))
    if message.expires_at_ms is not None:
        # Counted down by the time spent here (MQTT-3.3.2-6) and rounded up, so that nothing expires too early.
        left_s = -(-max(0, message.expires_at_ms - now_ms) // 1_000)
        out += b"\x02" + min(left_s, 0xFFFF_FFFF).to_bytes(4, "big")
    if content_type is not None:
        out += _text_property(b"\x03", content_type)
    reply_to = answers_at(message)
    if reply_to and "+" not in reply_to and "#" not in reply_to:
        out += _text_property(b"\x08", reply_to)
    if message.correlation is not None and len(message.correlation) <= 65_535:
        out += b"\x09" + encode_binary(message.correlation)
    for number in ids:
        out += b"\x0b" + encode_varint(number)
    for name, value in user:
        name_raw, value_raw = _text_property(b"\x26", name), _text_property(b"", value)
        if name_raw and value_raw:
            out += name_raw + value_raw
    return encode_varint(len(out)) + bytes(out)


def _text_property(identifier: bytes, text: str) -> bytes:
    """Returns a property with a string; nothing when MQTT cannot carry the text (longer than 65,535 bytes)."""
    cleaned = clean_text(text)
    return b"" if cleaned is None else identifier + encode_binary(cleaned.encode())


def _tail(message: Message, dialect: Dialect, now_ms: int, ids: tuple[int, ...]) -> bytes:
    """Returns the bytes behind the packet identifier: properties and payload."""
    event = message.native is not None and CLOUDEVENT in message.native
    if dialect.version < 5 and (not event or dialect.plain_events):
        return message.body
    native = _own(message, PROTOCOL)
    if event and (STRUCTURED in native or dialect.version < 5):
        body = structured_body(message, native)
        if dialect.version < 5:
            return body
        others = beside_structured(message, native)
        return publish_properties(message, others, STRUCTURED_JSON, now_ms, ids) + body
    user = _user_properties(message, native, event=event)
    content_type = data_type(message) if event else message.content_type
    if "content_type" in native.get(_OF_TOPIC, ()):
        content_type = None
    if content_type is not None and is_json_event(content_type):  # a reader would take the body for the message's event
        user, content_type = [*user, ("content-type", content_type)], None
    return publish_properties(message, user, content_type, now_ms, ids) + message.body


def publish_pieces(
    message: Message,
    dialect: Dialect,
    *,
    qos: int,
    retain: bool,
    now_ms: int,
    subscription_ids: tuple[int, ...] = (),
) -> tuple[bytes, bytes]:
    """Returns a PUBLISH to a client in two pieces: before the packet identifier, and behind it."""
    topic = message.address.encode("utf-8", "replace")  # other protocols let surrogates in; MQTT may not show them
    tail = _tail(message, dialect, now_ms, subscription_ids)
    length = 2 + len(topic) + (2 if qos else 0) + len(tail)
    first = bytes((0x30 | qos << 1 | retain,))
    return first + encode_varint(length) + len(topic).to_bytes(2, "big") + topic, tail
