"""Events in the Protobuf Event Format 1.0.2: one event, or a batch of them.

    CloudEvent       1 id, 2 source, 3 spec_version, 4 type; 5 attributes: a map of names to values;
                     6 binary_data, 7 text_data or 8 proto_data (an Any)
    attribute value  1 boolean, 2 integer, 3 string, 4 bytes, 5 URI, 6 URI-reference or 7 timestamp
    CloudEventBatch  1 events

The messages are few and flat, and are read and written here, field by field (https://protobuf.dev/programming-guides/
encoding). Unknown fields are skipped, of repeated single fields the last one counts.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from adapters.cloudevents.attributes import CORE, OURS, Route, check, malformed
from adapters.cloudevents.charsets import decode_text, encode_text
from adapters.cloudevents.event import NATIVE, add_fields, message_of, placed, speak_for, take_fields, wrap
from adapters.cloudevents.structured import BASE64, BATCH_EVENTS_MAX, BINARY, check_batch, data_type, is_json
from adapters.cloudevents.timestamps import parse_ns
from gateway.domain.errors import Cause, Refusal
from store.api.message import Message

STRUCTURED_PROTOBUF: Final = "application/cloudevents+protobuf"
BATCH_PROTOBUF: Final = "application/cloudevents-batch+protobuf"
PROTO: Final = "proto"  # in `native["data"]`: the body is an Any
_ANY_TYPE: Final = "application/protobuf"
_FIELDS_MAX: Final = 100_000  # of one message: each costs an object
_VARINT_BYTES_MAX: Final = 10  # of 64 bits
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_NAMES: Final = {1: "id", 2: "source", 3: "specversion", 4: "type"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECONDS_MIN, _SECONDS_MAX = -62_135_596_800, 253_402_300_799  # of a Timestamp: the years 1 to 9999
_Field: TypeAlias = tuple[int, int, int | bytes]  # its number, wire type and value


# ---- reading


def each_of_protobuf_batch(
    body: bytes,
    route: Route | None,
    *,
    now_ms: int,
    trusted_gateway: bool,
    events_max: int = BATCH_EVENTS_MAX,
    **fields: Any,
) -> Iterator[Message | Refusal]:
    """Yields the message of each event of a batch, or the refusal of one that is malformed.

    Raises `Refusal` for a body that is no batch, and (TOO_LARGE) for more than `events_max` events.
    """
    events = [value for number, _, value in _fields(body) if number == 1 and isinstance(value, bytes)]
    check_batch(len(events), events_max)
    for value in events:
        try:
            yield from_protobuf(value, now_ms=now_ms, route=route, trusted_gateway=trusted_gateway, **dict(fields))
        except Refusal as refusal:
            yield refusal


def from_protobuf(
    body: bytes,
    *,
    now_ms: int,
    protocol: str,
    device: str,
    route: Route | None = None,
    trusted_gateway: bool = False,
    **fields: Any,
) -> Message:
    """Returns the message of one event. Parameters and errors are those of `from_attributes`."""
    context: dict[str, str] = {}
    typed: dict[str, int | bool] = {}
    data: tuple[int, bytes] | None = None
    for number, _, value in _fields(body):
        if not isinstance(value, bytes):
            continue
        if number in _NAMES:
            context[_NAMES[number]] = _text(_NAMES[number], value)
        elif number == 5:
            name, found = _attribute(value)
            if name in _NAMES.values():
                raise malformed(name, "has a field of its own, and stands among the attributes")
            typed.pop(name, None)
            context[name] = str(found).lower() if isinstance(found, bool) else str(found)
            if not isinstance(found, str):
                typed[name] = found
        elif number in {6, 7, 8}:
            data = number, value
    for name in OURS:  # which only the gateway says
        context.pop(name, None)
    for name in typed:
        if name in CORE:
            raise malformed(name, "is not a string")
    native: dict[str, Any] = {"typed": typed} if typed else {}
    content = _content(data, context, native)
    check(context)
    fields.update(protocol=protocol, device=device, time_ms=now_ms)
    take_fields(context, fields)
    if trusted_gateway:
        speak_for(context, fields)
    return message_of(context, content, native, route, fields)


def _content(data: tuple[int, bytes] | None, context: dict[str, str], native: dict[str, Any]) -> bytes:
    """Returns the body; `native` notes how the event held it."""
    if data is None:
        return b""
    number, body = data
    json = is_json(context.get("datacontenttype"))
    if number == 7:
        text = _text("data", body)
        if not json or not body:
            body, native["data"] = encode_text(text, context.get("datacontenttype"))
    elif number == 6 and not body:
        native["data"] = BASE64
    elif number == 6 and json:
        native["data"] = BINARY
    elif number == 8:
        context.setdefault("datacontenttype", _ANY_TYPE)
        native["data"] = PROTO
    return body


def _attribute(entry: bytes) -> tuple[str, str | int | bool]:
    """Returns the name and the value of one entry of the map."""
    name, encoded = "", b""
    for number, _, value in _fields(entry):
        if number == 1 and isinstance(value, bytes):
            name = _text("attributes", value)
        elif number == 2 and isinstance(value, bytes):
            encoded = value
    found: str | int | bool | None = None
    for number, _, value in _fields(encoded):
        if number == 1 and isinstance(value, int):
            found = bool(value)
        elif number == 2 and isinstance(value, int):
            found = _signed(value, 32)
        elif number in {3, 5, 6} and isinstance(value, bytes):
            found = _text(name, value)
        elif number == 4 and isinstance(value, bytes):
            found = b64encode(value).decode()
        elif number == 7 and isinstance(value, bytes):
            found = _timestamp(name, value)
    if found is None:
        raise malformed(name[:64] or "attributes", "has no value")
    return name, found


def _timestamp(name: str, encoded: bytes) -> str:
    seconds = nanos = 0
    for number, _, value in _fields(encoded):
        if number == 1 and isinstance(value, int):
            seconds = _signed(value, 64)
        elif number == 2 and isinstance(value, int):
            nanos = _signed(value, 32)
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX or not 0 <= nanos < 10**9:
        raise malformed(name, "is not a Timestamp from the year 1 to 9999")
    text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = f"{nanos:09}".rstrip("0")
    if fraction and len(fraction) <= 3:
        fraction = fraction.ljust(3, "0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise malformed(name[:64], "is not UTF-8") from error


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >= 1 << (bits - 1) else value


def _fields(data: bytes) -> Iterator[_Field]:
    """Yields the fields of a message. Raises `Refusal` (MALFORMED)."""
    at, count = 0, 0
    while at < len(data):
        count += 1
        if count > _FIELDS_MAX:
            raise _no_protobuf(f"has more than {_FIELDS_MAX} fields")
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise _no_protobuf("has a field with an impossible number")
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind not in {_LEN, _I64, _I32}:
            raise _no_protobuf(f"has a field of the unknown wire type {kind}")
        size, at = _varint(data, at) if kind == _LEN else ((8 if kind == _I64 else 4), at)
        if size > len(data) - at:
            raise _no_protobuf("ends within a field")
        if kind == _LEN:
            yield number, kind, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if at + index >= len(data):
            raise _no_protobuf("ends within a number")
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    raise _no_protobuf("has a number of more than 64 bits")


def _no_protobuf(why: str) -> Refusal:
    return Refusal(Cause.MALFORMED, f"the body is no event in Protobuf: it {why}")


# ---- writing


def to_protobuf(message: Message) -> bytes:
    """Returns one event; a message that never was an event is wrapped, its id filled in."""
    attributes = placed(message)
    native: dict[str, Any] = {}
    if attributes is None:
        attributes = wrap(message)
    elif message.native is not None:
        native = message.native[NATIVE]
    if (kind := data_type(message)) is not None:
        attributes["datacontenttype"] = kind
    add_fields(attributes, message)
    typed = native.get("typed", {})
    made = [_field(number, attributes.pop(name).encode()) for number, name in _NAMES.items()]
    for name, text in attributes.items():
        entry = _field(1, name.encode()) + _field(2, _value(name, typed.get(name, text)))
        made.append(_field(5, entry))
    made.append(_data(message, native.get("data")))
    return b"".join(made)


def to_protobuf_batch(messages: Iterable[Message]) -> bytes:
    """Returns a batch of events."""
    return b"".join([_field(1, to_protobuf(message)) for message in messages])


def _data(message: Message, form: str | None) -> bytes:
    body = message.body
    if not body and form is None:
        return b""
    if form == PROTO:
        return _field(8, body)
    if (text := decode_text(body, form, message.content_type)) is not None:
        return _field(7, text.encode())
    json = is_json(message.content_type) and not message.content_encoding
    if form == "json" or (json and form not in {BASE64, BINARY}):
        try:
            body.decode()
            return _field(7, body)
        except UnicodeDecodeError:
            pass
    return _field(6, body)


def _value(name: str, value: str | int | bool) -> bytes:
    if isinstance(value, bool):
        return _key(1, _VARINT) + _number(int(value))
    if isinstance(value, int):
        return _key(2, _VARINT) + _number(value & 0xFFFF_FFFF_FFFF_FFFF)
    if name == "time":
        return _field(7, _stamp(value))
    return _field(5 if name == "dataschema" else 3, value.encode("utf-8", "replace"))


def _stamp(text: str) -> bytes:
    """Returns a time as a Timestamp, to the nanosecond."""
    seconds, nanos = divmod(parse_ns(text), 1_000_000_000)
    made = _key(1, _VARINT) + _number(seconds & 0xFFFF_FFFF_FFFF_FFFF) if seconds else b""
    return made + (_key(2, _VARINT) + _number(nanos) if nanos else b"")


def _field(number: int, value: bytes) -> bytes:
    return _key(number, _LEN) + _number(len(value)) + value


def _key(number: int, kind: int) -> bytes:
    return _number(number << 3 | kind)


def _number(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
