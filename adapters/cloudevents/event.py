"""An event's context attributes to a domain message and back.

A message that came as an event keeps in `native["cloudevents"]` the attributes that its fields cannot hold, so that it
leaves as it came, by any binding: `source`, `subject`, `dataschema`; any of `time` and the mapped extensions whose
exact text does not follow from the message's field (None: the event had no such attribute); `typed`, the extensions
that were JSON numbers or booleans; `data`, how the structured form held the body where its content type does not tell.

Where an event was published is always seen: by MQTT's topic name and AMQP's routing key, and elsewhere by the event's
own name, its subject or else `events/{type}`, or where that is another address by `headgateaddress`, an extension that
the gateway alone sets. A publisher's own value of that name is left out.

Properties whose names or texts no attribute may have, and repeats, are in `headgateproperties`, which the gateway alone
sets, too: a JSON array of names and texts, in their order. It has at most `PROPERTIES_BYTES_MAX`; `headgateomitted`
counts the properties that found no room. Every event that leaves passes `attributes.check`: a content type that is no
media type is among these properties, as `datacontenttype`.

JSON, Protobuf and Avro have no place of their own for a content encoding, an address of answers and a correlation that
`correlationid` does not tell: `add_fields` writes our extensions `contentencoding`, `replyto` and `correlationdata`
(Base64), and `take_fields` reads them where a gateway has wrapped the message. An event's own attributes of these names
stay what they are; a plain message's properties of these names are in `headgateproperties`.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from adapters.cloudevents.attributes import (
    ADDRESS,
    CORE,
    OMITTED,
    OURS,
    PROPERTIES,
    SPECVERSION,
    WRITTEN_MAX,
    Route,
    address_of,
    check,
    clean,
    is_media_type,
    is_name,
    malformed,
    may_be,
    named_address,
)
from adapters.cloudevents.timestamps import canonical_ms, format_ms, parse_ms
from gateway.domain.errors import Refusal
from gateway.port.queues import answers_at
from store.api.message import EVENT, Message

NATIVE: Final = EVENT  # the key in Message.native
INTEGER_MAX: Final = 2**31  # integers are signed and of 32 bits (CloudEvents 1.0.2, 3.2)
DEFAULT_TYPE: Final = "headgate.message.v1"  # of a message that never was an event and says no type
PROPERTIES_BYTES_MAX: Final = 4_096  # of `headgateproperties`: over HTTP a header; clients take 8 to 64 KiB of headers


def _timestamp(name: str, text: str) -> int:
    try:
        return max(parse_ms(text), 0)
    except ValueError as error:
        raise malformed(name, f"is not an RFC 3339 timestamp: {text[:64]!r}") from error


def _text(name: str, text: str) -> str:
    if not text:
        raise malformed(name, "must not be empty")
    return text


def _correlation(name: str, text: str) -> bytes:
    return _text(name, text).encode()


def _correlation_text(correlation: bytes) -> str | None:
    """Returns the correlation as text; None when it is none."""
    try:
        text = correlation.decode()
    except UnicodeDecodeError:
        return None
    return text if text and clean(text) == text else None


def is_typed(name: str, value: object) -> bool:
    """Returns whether a value of a binding is an extension's boolean or integer of 32 bits (CloudEvents 1.0.2, 3.2)."""
    if name in CORE or name in OURS or not isinstance(value, int):
        return False
    return isinstance(value, bool) or -INTEGER_MAX <= value < INTEGER_MAX


class _Mapped(NamedTuple):
    """An extension with a place in the domain message."""

    field: str
    read: Callable[[str, str], Any]
    write: Callable[[Any], str | None]


_KEY: Final = "partitionkey"
_MAPPED: Final = {
    _KEY: _Mapped("key", _text, str),
    "expirytime": _Mapped("expires_at_ms", _timestamp, format_ms),
    "correlationid": _Mapped("correlation", _correlation, _correlation_text),
    "traceparent": _Mapped("traceparent", _text, str),
}
_RESERVED: Final = CORE | _MAPPED.keys() | OURS
_WRAPPED: Final = "//headgate/"  # the beginning of the source of messages that never were events
_CODING, _REPLY_TO, _CORRELATION = "contentencoding", "replyto", "correlationdata"  # our extensions
_RESERVED_WRAPPED: Final = _RESERVED | {_CODING, _REPLY_TO, _CORRELATION}


def is_extension(name: str) -> bool:
    """Returns whether an extension without a place in the domain message may be called so."""
    return name not in _RESERVED and is_name(name)


def from_attributes(
    attributes: Mapping[str, str],
    body: bytes,
    *,
    content_type: str | None,
    now_ms: int,
    protocol: str,
    device: str,
    route: Route | None = None,
    trusted_gateway: bool = False,
    typed: Mapping[str, int | bool] | None = None,
    **fields: Any,
) -> Message:
    """Returns the message of an event in binary mode: attribute names in lower case, without their binding's prefix.

    `typed` has the extensions that the binding carried as integers or booleans; they are among `attributes` as texts.
    `fields` are further fields of the message, from its protocol (`qos`, `address`, `correlation`...): they win over
    the event's own values, which then are kept for its way out; `properties` come behind the event's extensions.
    `deviceid` names the device when a trusted gateway sends the event. Raises `Refusal` (MALFORMED) whose detail begins
    with the attribute's name.
    """
    declared = attributes.get("datacontenttype")
    if declared is not None and content_type is not None and declared != content_type:
        raise malformed("datacontenttype", f"differs from the content type {content_type[:64]!r}")
    context = dict(attributes)
    if content_type is not None:
        context["datacontenttype"] = content_type
    check(context)
    native = {"typed": dict(typed)} if typed else {}
    fields = {"protocol": protocol, "device": device, "time_ms": now_ms, **fields}
    if trusted_gateway:
        speak_for(context, fields)
    return message_of(context, body, native, route, fields)


def speak_for(context: Mapping[str, str], fields: dict[str, Any]) -> None:
    """Makes the device that a trusted gateway's event names the message's, and the gateway its principal."""
    device, gateway = context.get("deviceid"), fields["device"]
    if device and device != gateway:
        fields["device"], fields["principal"] = device, gateway


def message_of(
    context: dict[str, str], body: bytes, native: dict[str, Any], route: Route | None, fields: dict[str, Any]
) -> Message:
    """Returns the message of checked attributes; fills `fields` and `native` in. `fields["time_ms"]` is the arrival."""
    native["source"] = context["source"]
    for name in ("subject", "dataschema"):
        if name in context:
            native[name] = context[name]
    if (time := context.get("time")) is None:
        native["time"] = None
    elif (known_ms := canonical_ms(time)) is not None:
        fields["time_ms"] = known_ms
    else:
        fields["time_ms"] = _timestamp("time", time)
        native["time"] = time
    for name, mapped in _MAPPED.items():
        text, value = context.get(name), fields.get(mapped.field)
        if text is not None:
            read = mapped.read(name, text)
            if value is None:
                fields[mapped.field] = value = read
            if mapped.write(value) != text:
                native[name] = text
        elif value is not None and name != _KEY:
            native[name] = None
    extensions = [item for item in context.items() if item[0] not in _RESERVED]
    fields["properties"] = (*extensions, *fields.get("properties", ()))
    if fields.get("address") is None:
        fields["address"] = address_of(context, route)
    fields["native"] = {**(fields.get("native") or {}), NATIVE: native}
    return Message(
        body=body, id=context["id"], type=context["type"], content_type=context.get("datacontenttype"), **fields
    )


def attributes_of(message: Message) -> dict[str, str] | None:
    """Returns the attributes of a message that came as an event, without `datacontenttype`; None if it never was one.

    `datacontenttype` is `message.content_type`, which every binding carries in a place of its own.
    """
    native = message.native.get(NATIVE) if message.native else None
    if native is None:
        return None
    attributes: dict[str, str | None] = {
        "specversion": SPECVERSION,
        "id": message.id,
        "source": native["source"],
        "type": message.type or DEFAULT_TYPE,
        "time": native["time"] if "time" in native else format_ms(message.time_ms),
        "subject": native.get("subject"),
        "dataschema": native.get("dataschema"),
    }
    for name, mapped in _MAPPED.items():
        # A key that was given beside the event is shown as its attribute: bindings have no other place for it.
        if name in native and (native[name] is not None or name != _KEY):
            attributes[name] = native[name]
        elif (value := getattr(message, mapped.field)) is not None:
            text = mapped.write(value)
            attributes[name] = clean(text) if text else None
    found = {name: text for name, text in attributes.items() if text is not None}
    _add_extensions(found, message.properties, _RESERVED)
    return found


def typed_of(message: Message) -> Mapping[str, int | bool]:
    """Returns the extensions of an event that came as integers or booleans."""
    native = message.native.get(NATIVE) if message.native else None
    return {} if native is None else native.get("typed", {})


def placed(message: Message) -> dict[str, str] | None:
    """Returns the attributes of an event, and those that bindings do not carry: the address of publishing, and others.

    `headgateaddress` is there where the message's address is not the one that the event names, `headgateproperties`
    where no attribute says a property, and `expirytime` where a time to live was given beside the event.
    """
    attributes = attributes_of(message)
    if attributes is not None:
        if message.expires_at_ms is not None and "expirytime" not in attributes:
            attributes["expirytime"] = format_ms(message.expires_at_ms)
        subject = attributes.get("subject")
        if subject != message.address and named_address(subject, attributes["type"]) != message.address:
            attributes[ADDRESS] = clean(message.address)
        if message.properties:
            _add_others(attributes, message.properties)
    return attributes


def wrap(message: Message, *, topic: str | None = None) -> dict[str, str]:
    """Returns context attributes for a message that never was an event, its id filled in.

    `source` is `//headgate/{topic}`, the topic being the address's first level unless given; `subject` is the
    address. Properties that may be called so become extensions; characters that no attribute may hold are
    percent-encoded.
    """
    assert message.id
    if topic is None:
        topic = message.address.split("/", 1)[0]
    attributes = {
        "specversion": SPECVERSION,
        "id": clean(message.id),
        "source": f"{_WRAPPED}{quote(topic, safe='', errors='replace')}",
        "type": clean(message.type) if message.type else DEFAULT_TYPE,
        "time": format_ms(message.time_ms),
        "subject": clean(message.address),
    }
    for name, mapped in _MAPPED.items():
        value = getattr(message, mapped.field)
        text = mapped.write(value) if value is not None else None
        if text:
            attributes[name] = clean(text)
    others = message.properties
    _add_extensions(attributes, others, _RESERVED_WRAPPED)
    if message.content_type is not None and not is_media_type(message.content_type):
        others = (("datacontenttype", message.content_type), *others)
    if others:
        _add_others(attributes, others)
    return attributes


def _add_extensions(
    attributes: dict[str, str], properties: Iterable[tuple[str, str]], reserved: frozenset[str]
) -> None:
    """Adds the properties that may be extensions, of each name the first."""
    for name, text in properties:
        if name in attributes or name in reserved or not is_name(name):
            continue
        if len(attributes) < WRITTEN_MAX and may_be(name, value := clean(text)):
            attributes[name] = value


def correlation_beside(message: Message, attributes: Mapping[str, str]) -> bytes | None:
    """Returns the correlation of a message where its event has none as an attribute, or another one; None otherwise."""
    told = attributes.get("correlationid")
    return None if told is not None and told.encode() == message.correlation else message.correlation


def add_fields(attributes: dict[str, str], message: Message) -> None:
    """Adds fields that no attribute of the specification says, as our extensions; an event's own ones stay.

    An address that no attribute can hold is left out: an answer would go elsewhere.
    """
    if message.content_encoding:
        attributes.setdefault(_CODING, clean(message.content_encoding))
    if (reply_to := answers_at(message)) and clean(reply_to) == reply_to:
        attributes.setdefault(_REPLY_TO, reply_to)
    if correlation := correlation_beside(message, attributes):
        attributes.setdefault(_CORRELATION, b64encode(correlation).decode())


def take_fields(context: dict[str, str], fields: dict[str, Any]) -> None:
    """Takes our extensions out of an event's attributes into the fields of its message: the inverse of `add_fields`.

    Only of an event that a gateway has wrapped; to others they are what their publishers mean by them. A field that the
    protocol says wins. The address of answers stays an extension: who publishes has to be allowed to read there, and a
    sink, which may not, would have all events behind it wait.
    """
    if not context["source"].startswith(_WRAPPED):
        return
    for name, field, read in _FIELDS:
        if context.get(name) and fields.get(field) is None:
            try:
                fields[field] = read(context[name])
            except (ValueError, Refusal):
                continue
            del context[name]


def _correlation_data(text: str) -> bytes:
    return b64decode(text, validate=True)


_FIELDS: Final[tuple[tuple[str, str, Callable[[str], Any]], ...]] = (
    (_CODING, "content_encoding", str),
    (_CORRELATION, "correlation", _correlation_data),
)


def _add_others(attributes: dict[str, str], properties: Iterable[tuple[str, str]]) -> None:
    """Adds the properties that no attribute says, as text without control characters, and counts those without room.

    Properties are kept in their order, each one that there is room for.
    """
    said: set[str] = set()
    others: list[tuple[str, str]] = []
    for name, text in properties:
        if name not in said and is_name(name) and name not in _RESERVED and attributes.get(name) in {text, clean(text)}:
            said.add(name)
        else:
            others.append((name, text))
    if not others:
        return
    room, kept = PROPERTIES_BYTES_MAX - len("[]"), list[str]()
    for pair in others:
        text = json.dumps(pair, separators=(",", ":")).replace("\x7f", "\\u007f")
        if len(text) <= room:  # of ASCII alone
            kept.append(text)
            room -= len(text) + len(",")
    if kept:
        attributes[PROPERTIES] = f"[{','.join(kept)}]"
    if len(kept) < len(others):
        attributes[OMITTED] = str(len(others) - len(kept))
