"""The JSON event format, one event or a batch (CloudEvents JSON Event Format 1.0.2).

The `cloudevents` package reads events into Python values and writes other ones: numbers lose digits, times their
spelling, bodies their bytes, missing attributes are made up. Here the payload's JSON text is passed on as it came.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from adapters.cloudevents.attributes import CORE, OURS, Route, check, check_count, is_media_type, malformed
from adapters.cloudevents.batches import plain_batch
from adapters.cloudevents.charsets import decode_text, encode_text
from adapters.cloudevents.event import (
    INTEGER_MAX,
    NATIVE,
    add_fields,
    message_of,
    placed,
    speak_for,
    take_fields,
    wrap,
)
from gateway.domain.errors import Cause, Refusal
from store.api.message import Message

STRUCTURED_JSON: Final = "application/cloudevents+json"
BATCH_JSON: Final = "application/cloudevents-batch+json"
IMPLIED_TYPE: Final = "application/json"
BATCH_EVENTS_MAX: Final = 10_000  # of one batch, where nothing else is said
BATCH_REFUSALS_MAX: Final = 100  # how many faulty events of a batch are named; the rest is as faulty unsaid

# Forms of data in an event, in `native["data"]` where its content type does not tell: "json", those of text, and these.
BASE64: Final = "base64"
BINARY: Final = "binary"  # bytes that JSON has as `data` all the same: in Protobuf, with JSON in them

_JSON_TYPE = re.compile(r"[^/;\s]+/(?:[^/;\s]+\+)?json\s*(?:;|$)", re.IGNORECASE)

_decode_event = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_batch = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_value = msgspec.json.Decoder().decode
_skip_value = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode


class BatchRefusal(Refusal):
    """Raised for a batch with malformed events, which `refused` lists by index. No event of it may be stored."""

    def __init__(self, refused: Mapping[int, Refusal]) -> None:
        index, first = next(iter(refused.items()))
        super().__init__(Cause.MALFORMED, f"event {index}: {first.detail}")
        self.refused = MappingProxyType(dict(refused))


def is_json(content_type: str | None) -> bool:
    """Returns whether a media type declares JSON; an event without one does (JSON Event Format 1.0.2, 3.1)."""
    return content_type is None or _JSON_TYPE.match(content_type) is not None


def is_structured(content_type: str | None) -> bool:
    """Returns whether a content type says that a body is an event in JSON."""
    return content_type is not None and content_type.partition(";")[0].strip().lower() == STRUCTURED_JSON


def from_structured(
    body: bytes,
    *,
    now_ms: int,
    protocol: str,
    device: str,
    route: Route | None = None,
    trusted_gateway: bool = False,
    **fields: Any,
) -> Message:
    """Returns the message of one event in JSON. Parameters and errors are those of `from_attributes`."""
    try:
        body.decode()  # msgspec does not check that the parts it skips are UTF-8
        members = _decode_event(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(Cause.MALFORMED, f"the body is not a JSON object: {error}") from error
    fields.update(protocol=protocol, device=device, time_ms=now_ms)
    return _message(members, route, fields, trusted_gateway=trusted_gateway)


def from_batch(
    body: bytes,
    *,
    now_ms: int,
    protocol: str,
    device: str,
    principal: str | None = None,
    device_of: Callable[[str], str] | None = None,
    route: Route | None = None,
    trusted_gateway: bool = False,
    events_max: int = BATCH_EVENTS_MAX,
    **fields: Any,
) -> list[Message]:
    """Returns the messages of a batch in JSON, which may be empty. Raises `BatchRefusal` when any of them is malformed.

    `device_of` names the device of an address, in place of `device`. Raises `Refusal` (TOO_LARGE) for more than
    `events_max` events.
    """
    if route is None and not trusted_gateway and not fields:
        named = device_of or (lambda _: device)
        plain = plain_batch(
            body,
            now_ms=now_ms,
            protocol=protocol,
            device_of=named,
            principal=principal,
            is_json=is_json,
            events_max=events_max,
        )
        if plain is not None:
            return plain
    fields.update(protocol=protocol, device=device, principal=principal)
    messages = whole_batch(
        each_of_batch(body, route, now_ms=now_ms, trusted_gateway=trusted_gateway, events_max=events_max, **fields)
    )
    if device_of is not None:
        return [msgspec.structs.replace(one, device=device_of(one.address)) for one in messages]
    return messages


def check_batch(count: int, events_max: int) -> None:
    """Raises `Refusal` (TOO_LARGE) for a batch of too many events, before any is read.

    Each costs up to 30 us, in which nobody else is served, and far more memory than its bytes in the body.
    """
    if count > events_max:
        raise Refusal(Cause.TOO_LARGE, f"a batch has at most {events_max:,} events")


def whole_batch(found: Iterable[Message | Refusal]) -> list[Message]:
    """Returns the messages of a batch. Raises `BatchRefusal` when any of its events is malformed."""
    messages: list[Message] = []
    refused: dict[int, Refusal] = {}
    for index, one in enumerate(found):
        if isinstance(one, Refusal):
            refused[index] = one
            if len(refused) >= BATCH_REFUSALS_MAX:
                break
        else:
            messages.append(one)
    if refused:
        raise BatchRefusal(refused)
    return messages


def each_of_batch(
    body: bytes,
    route: Route | None,
    *,
    now_ms: int,
    trusted_gateway: bool,
    events_max: int = BATCH_EVENTS_MAX,
    **fields: Any,
) -> Iterator[Message | Refusal]:
    """Yields the message of each event of a batch in JSON, or the refusal of one that is malformed.

    Raises `Refusal` for a body that is no batch, and (TOO_LARGE) for more than `events_max` events.
    """
    try:
        body.decode()
        events = _decode_batch(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(Cause.MALFORMED, f"the body is not a JSON array: {error}") from error
    check_batch(len(events), events_max)
    fields.update(time_ms=now_ms)
    for event in events:
        try:
            yield _message(_decode_event(event), route, dict(fields), trusted_gateway=trusted_gateway)
        except Refusal as refusal:
            yield refusal
        except (ValueError, RecursionError) as error:
            yield Refusal(Cause.MALFORMED, f"not a JSON object: {error}")


def _message(
    members: dict[str, msgspec.Raw], route: Route | None, fields: dict[str, Any], *, trusted_gateway: bool
) -> Message:
    """Returns the message of one event's members; `fields` is filled in."""
    data, data_base64 = members.pop("data", None), members.pop("data_base64", None)
    for name in OURS:  # which only the gateway says
        members.pop(name, None)
    check_count(len(members))
    context: dict[str, str] = {}
    typed: dict[str, int | bool] = {}
    for name, raw in members.items():
        value = _value(name, raw)
        if isinstance(value, str):
            context[name] = value
        elif value is not None:
            context[name] = str(value) if not isinstance(value, bool) else str(value).lower()
            typed[name] = value
    for name in typed:
        if name in CORE:
            raise malformed(name, "is not a string")
    check(context)
    body, form = _body(data, data_base64, context.get("datacontenttype"))
    native: dict[str, Any] = {}
    if typed:
        native["typed"] = typed
    if form is not None:
        native["data"] = form
    take_fields(context, fields)
    if trusted_gateway:
        speak_for(context, fields)
    return message_of(context, body, native, route, fields)


def _value(name: str, raw: msgspec.Raw) -> str | bool | int | None:
    """Returns the value of one attribute; a null is no value (JSON Event Format 1.0.2, 2.2)."""
    try:
        value = _decode_value(raw)
    except (ValueError, RecursionError) as error:
        raise malformed(name, f"is no attribute value: {error}") from error
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int) and -INTEGER_MAX <= value < INTEGER_MAX:
        return value
    raise malformed(name, "an attribute is a string, a boolean or an integer of 32 bits")


def _body(
    data: msgspec.Raw | None, data_base64: msgspec.Raw | None, content_type: str | None
) -> tuple[bytes, str | None]:
    """Returns the body, and its form in the event: "json", "base64" or one of `charsets`.

    The form is None where `_payload` would choose the same one. Data without a content type has one all the same:
    it tells that its type is implied (`data_type`).
    """
    if data_base64 is not None and data is not None:
        raise malformed("data", "stands beside data_base64")
    if data is not None:
        raw = bytes(data)
        if content_type is None:
            return raw, "json"
        if is_json(content_type):
            return raw, None
        if not raw.startswith(b'"'):
            return raw, "json"
        try:
            text: str = _decode_value(raw)
        except ValueError as error:
            raise malformed("data", f"is not text: {error}") from error
        return encode_text(text, content_type)
    if data_base64 is None:
        return b"", None
    try:
        encoded = _decode_value(data_base64)
        if encoded is None:
            return b"", None
        body = b64decode(encoded, validate=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise malformed("data_base64", "is not Base64 (RFC 4648, 4)") from error
    return body, BASE64 if is_json(content_type) or not body else None


def _payload(message: Message, form: str | None) -> tuple[str, str | msgspec.Raw] | None:
    """Returns the member that holds the body: its name and value."""
    body = message.body
    if (text := decode_text(body, form, message.content_type)) is not None:
        return "data", text
    if form == "json":
        return "data", msgspec.Raw(body)
    if form in {None, BINARY}:
        if not body:
            return None
        if is_json(message.content_type) and not message.content_encoding:
            try:
                body.decode()
                return "data", _skip_value(body)
            except (ValueError, RecursionError):
                pass
    return "data_base64", b64encode(body).decode()


def data_type(message: Message) -> str | None:
    """Returns the content type of a message as an event, for protocols that send it beside the data.

    An event in JSON that says no type has JSON as its data (JSON Event Format 1.0.2, 3.1), and a gateway that
    translates it says so (CloudEvents 1.0.2, 3.1.1). In binary mode such an event says nothing of its data, and stays
    so.
    """
    if message.content_type is None and message.native is not None:
        native = message.native.get(NATIVE)
        if native is not None and native.get("data") == "json":
            return IMPLIED_TYPE
    return declared_type(message)


def declared_type(message: Message) -> str | None:
    """Returns the content type that a message was published with; None where it is no media type (`wrap` says it)."""
    kind = message.content_type
    return kind if kind is None or is_media_type(kind) else None


def to_document(message: Message, attributes: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns one event as a JSON object for `msgspec.json.encode`; a message that never was an event is wrapped.

    `attributes` are those of an event, where others than those of `placed` are wanted; they are added to.
    """
    if attributes is None:
        attributes = placed(message)
    document: dict[str, Any] = wrap(message) if attributes is None else attributes
    native = {} if attributes is None or message.native is None else message.native[NATIVE]
    if (kind := declared_type(message)) is not None:
        document["datacontenttype"] = kind
    add_fields(document, message)
    for name, value in native.get("typed", {}).items():
        if name in document:
            document[name] = value
    payload = _payload(message, native.get("data"))
    if payload is not None:
        document[payload[0]] = payload[1]
    return document


def to_structured(message: Message, attributes: dict[str, str] | None = None) -> bytes:
    """Returns one event in JSON; a message that never was an event is wrapped, its id filled in."""
    return _encode(to_document(message, attributes))


def to_batch(messages: Iterable[Message]) -> bytes:
    """Returns a batch of events in JSON."""
    return _encode([to_document(message) for message in messages])
