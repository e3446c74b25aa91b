"""Content properties and the domain message.

A message that came by AMQP keeps its properties as the bytes they were (`native["amqp"]["properties"]`), and leaves by
AMQP with these bytes. Other protocols see them as the fields of the domain message. A header that has a place of its
own there is no property; headers exchanges still match it, by `native["amqp"]["mapped"]`, and those that are no texts
by `native["amqp"]["typed"]`.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from adapters import cloudevents
from adapters.amqp.codec.copies import CC, take_copies
from adapters.amqp.codec.event_headers import NUMBER_MAX, EventHeaders, event_of, is_attribute, milliseconds
from adapters.amqp.codec.property_fields import FIELDS, edited, read_fields
from adapters.amqp.codec.property_headers import MAPPED, add_header, add_properties
from adapters.amqp.codec.structured import read_structured
from adapters.amqp.codec.wire import PRECONDITION_FAILED, SHORT_BYTES_MAX, Table, Timestamp, write_table
from gateway.domain.errors import ProtocolError, Refusal
from gateway.domain.vhosts import local_name, vhost_of, vhost_of_address
from gateway.port.queues import (
    ADDED,
    COPY_KEYS,
    DEATHS,
    EXPIRATION,
    PRIORITY,
    PROPERTIES,
    PROPERTIES_BEFORE,
    SHOWN,
    STORED,
    TYPED,
    routing_of,
    text_of,
)
from store.api.message import REPLY_QUEUE, SUBJECT, Message

NATIVE: Final = "amqp"
X_DEATH: Final = "x-death"
_DELAY: Final = "x-delay"
REPLY_TO: Final = "amq.rabbitmq.reply-to"  # as `adapters.amqp.codec.direct_reply` says
_PERSISTENT: Final = 2  # of delivery_mode; any other value means that a message is not, as in RabbitMQ
_TIMESTAMP_MAX: Final = 253_402_300_799  # the year 9999: clients make dates of timestamps
_SIGNED_MAX: Final = (1 << 63) - 1  # of the integers we write
_DIGITS = re.compile("[0-9]{1,16}", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]{1,16}(?:\.[0-9]*)?", re.ASCII)  # a decimal is read as its text


class Template(NamedTuple):
    """The fields that properties set in every message that has them: all but address, body, device and arrival."""

    tail: tuple[Any, ...]  # the fields of Message behind `device`
    plain: bool  # a message is these fields, and of the fields below the time alone
    time_ms: int | None  # when it happened; None: when it arrives
    user_id: str | None
    device: str | None  # claimed; only a trusted gateway's word counts
    expiration_ms: int | None  # from its arrival
    delay_ms: int | None  # from its arrival
    event: EventHeaders | None  # the attributes of a CloudEvent
    structured: bool  # the body is an event in JSON; one that comes in parts is not read
    copies: tuple[str, ...] = ()  # the routing keys besides the one that it is published with
    raw: bytes = b""  # of an event: the properties that say all this

    def message(
        self, address: str, body: bytes, *, device: str, trusted_gateway: bool, now_ms: int, user: str = ""
    ) -> Message:
        """Returns one message with these properties. Raises `ProtocolError` (PRECONDITION_FAILED).

        A `user` is who was authenticated, where that is not the device's name. A connection that publishes plain
        templates by the thousand makes the same message of `tail`, without this call.
        """
        if self.user_id is not None and self.user_id not in {device, user or device} and not trusted_gateway:
            raise _failed(f"user_id property set to '{self.user_id}' but authenticated user was '{user or device}'")
        speaks_for = (self.device or self.user_id or device) if trusted_gateway else device
        fields = dict(zip(_TAIL, self.tail, strict=True))
        fields["principal"] = device if speaks_for != device else None
        if self.expiration_ms is not None:
            fields["expires_at_ms"] = now_ms + self.expiration_ms
        if self.delay_ms is not None:
            fields["deliver_at_ms"] = now_ms + self.delay_ms
        try:
            event = self._event(body, now_ms=now_ms, device=speaks_for, address=address, fields=fields)
        except Refusal:  # headers of no event, or of another version: a broker for AMQP takes any
            other = _template(self.raw, read_fields(self.raw), refused=self.event)
            other = other._replace(user_id=self.user_id, device=self.device)
            return other.message(
                address, body, device=device, trusted_gateway=trusted_gateway, now_ms=now_ms, user=user
            )
        if event is not None:
            return event
        time_ms = now_ms if self.time_ms is None else self.time_ms
        return Message(address, body, time_ms, NATIVE, speaks_for, **fields)

    def _event(self, body: bytes, *, fields: Mapping[str, Any], **others: Any) -> Message | None:
        """Returns the message of an event; None where it is none. Raises `Refusal` (MALFORMED) for wrong headers."""
        if self.event is None and not (self.structured and body):
            return None
        own = {name: value for name, value in fields.items() if name not in {"id", "type", "content_type"}}
        if self.event is None:
            return read_structured(body, **others, **own)
        attributes, typed = self.event
        content_type = fields["content_type"]
        return cloudevents.from_attributes(
            attributes, body, content_type=content_type, protocol=NATIVE, typed=typed, **others, **own
        )


_TAIL: Final = Message.__struct_fields__[5:]  # behind address, body, time_ms, protocol, device
assert _TAIL == (
    "qos",
    "retain",
    "id",
    "key",
    "type",
    "content_type",
    "content_encoding",
    "expires_at_ms",
    "deliver_at_ms",
    "reply_to",
    "correlation",
    "traceparent",
    "principal",
    "properties",
    "native",
)


# ---- reading


def read_properties(raw: bytes) -> Template:
    """Returns the meaning of a content header's property flags and fields.

    Raises `ProtocolError` (FRAME_ERROR for malformed bytes, PRECONDITION_FAILED for a value that means nothing).
    """
    return _template(raw, read_fields(raw))


def _template(raw: bytes, found: Mapping[str, Any], *, refused: EventHeaders | None = None) -> Template:
    get = found.get
    expiration = get("expiration")
    if expiration is not None and _DIGITS.fullmatch(expiration) is None:
        raise _failed(f"invalid expiration '{expiration[:32]}': it is a decimal number of milliseconds")
    native: dict[str, Any] = {"properties": raw}
    if get("reply_to"):
        native[REPLY_QUEUE] = get("reply_to")
    if expiration is not None:
        native[EXPIRATION] = expiration
    if get(PRIORITY):
        native[PRIORITY] = get(PRIORITY)
    if refused is not None and (subject := refused.attributes.get("subject")):
        native[SUBJECT] = subject
    said, event = _NOTHING_SAID, None
    others: dict[str, str] = {}
    headers = get("headers")
    copies = take_copies(raw, headers, native) if headers else ()
    if headers:
        if isinstance(deaths := headers.get(X_DEATH), list):
            native[DEATHS] = deaths
        native[TYPED] = {n: v for n, v in headers.items() if not isinstance(v, str) and n != X_DEATH}
        event = event_of(raw, headers) if refused is None else None
        mapped, others = _sort_headers(headers, of_event=event is not None)
        said = _Mapped.of(mapped) if mapped else said
        if said.delay_ms:  # it is over when the message is delivered; RabbitMQ's plug-in says so by the sign
            native[PROPERTIES] = edited(native[PROPERTIES], added={_DELAY: -said.delay_ms})
        if mapped or event:
            native["mapped"] = {n: t for n, v in headers.items() if n not in others and (t := text_of(v)) is not None}
    structured = event is None and cloudevents.is_structured(get("content_type")) and not get("content_encoding")
    if event is None and (shown := _shown(found)):
        native[SHOWN] = shown
    correlation = said.correlation
    if correlation is None and "correlation_id" in found:
        correlation = found["correlation_id"].encode()
    user_id = get("user_id")
    return Template(
        tail=(
            int(get("delivery_mode") == _PERSISTENT),
            said.retain,
            get("message_id") or said.id,
            said.key,
            get("type"),
            get("content_type"),
            get("content_encoding"),
            None,  # expires_at_ms and deliver_at_ms follow from the arrival
            None,
            said.reply_to,
            correlation,
            said.traceparent,
            None,  # the principal from the connection
            tuple(others.items()),
            {NATIVE: native},
        ),
        plain=not event
        and not structured
        and not copies
        and user_id is None
        and said.device is None
        and expiration is None
        and said.delay_ms is None
        and get("reply_to") != REPLY_TO,  # which every channel means otherwise
        time_ms=said.time_ms if said.time_ms is not None else milliseconds(get("timestamp")),
        user_id=user_id,
        device=said.device,
        expiration_ms=int(expiration) if expiration is not None else None,
        delay_ms=said.delay_ms,
        event=event,
        structured=structured,
        copies=copies,
        raw=raw if event else b"",
    )


def _shown(found: Mapping[str, Any]) -> list[list[str]]:
    """Returns the properties without a field that other protocols are shown, as names and texts."""
    properties = (("id", "message_id"), ("replyto", "reply_to"), ("appid", "app_id"))
    shown = [[name, found[of]] for name, of in properties if found.get(of)]
    for name, value in (found.get("headers") or {}).items():
        if isinstance(value, dict | list) and name != X_DEATH:
            shown.append([name, msgspec.json.encode(value).decode()])
        elif isinstance(value, bytes) and name not in MAPPED:
            shown.append([name, b64encode(value).decode()])
    return shown


class _Mapped(NamedTuple):
    """The headers that have a place of their own in the domain message."""

    id: str = ""
    key: str | None = None
    retain: bool = False
    time_ms: int | None = None
    delay_ms: int | None = None
    reply_to: str | None = None
    correlation: bytes | None = None
    traceparent: str | None = None
    device: str | None = None

    @classmethod
    def of(cls, headers: Table) -> "_Mapped":
        correlation = headers.get("x-correlation-data")
        if not isinstance(correlation, str | bytes | None):
            raise _failed("header 'x-correlation-data' is bytes or a text")
        return cls(
            id=text_of(headers.get("ce-id")) or "",
            key=text_of(headers.get("ce-partitionkey")) or None,
            retain=text_of(headers.get("x-retain")) in ("true", "1"),
            time_ms=_time_ms(headers.get("timestamp_in_ms")),
            delay_ms=_delay(headers),
            reply_to=text_of(headers.get("x-reply-to-topic")) or None,
            correlation=correlation.encode() if isinstance(correlation, str) else correlation,
            traceparent=text_of(headers.get("traceparent")) or None,
            device=text_of(headers.get("ce-deviceid")) or None,
        )


_NOTHING_SAID: Final = _Mapped()


def _sort_headers(headers: Table, *, of_event: bool) -> tuple[Table, dict[str, str]]:
    """Returns headers with a place of their own, and all others that have a text but the attributes of an event."""
    mapped: Table = {}
    others: dict[str, str] = {}
    for name, value in headers.items():
        if name in MAPPED:
            mapped[name] = value
        elif (text := text_of(value)) is not None and not (of_event and is_attribute(name)):
            others[name] = text
    return mapped, others


def _time_ms(value: object) -> int | None:
    """Returns the time that a header says, in ms; None where it says none: the name is not ours alone."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= NUMBER_MAX:
        return None
    return int(value)


def _delay(headers: Table) -> int | None:
    """Returns the delay in ms; None where there is none, or where it has passed: a negative one.

    As RabbitMQ's plug-in it takes a number of any type, without its fraction, and a text that says one; other types are
    no delay. Raises `ProtocolError` for a text that says none, or more than can be waited for.
    """
    value = headers.get(_DELAY)
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value.partition(".")[0])
    if isinstance(value, float) and -NUMBER_MAX <= value <= NUMBER_MAX:
        value = int(value)
    if isinstance(value, str | float) or (isinstance(value, int) and value > NUMBER_MAX):
        raise _failed(f"header {_DELAY!r} is a number of milliseconds, not {str(value)[:32]!r}")
    return value if type(value) is int and value > 0 else None


def _failed(why: str) -> ProtocolError:
    return ProtocolError(PRECONDITION_FAILED, why)


# ---- writing


def properties_of(message: Message, *, now_ms: int) -> bytes:
    """Returns the property flags and fields of a message: those it came with, or those its fields make."""
    native = message.native
    own = None if native is None else native.get(NATIVE)
    if own is not None:
        if ADDED in own:
            return edited(properties_of(_as_stored(message), now_ms=now_ms), added=dict(own[ADDED]))
        raw: bytes = own[PROPERTIES]
        if raw:
            return raw
        if before := own.get(PROPERTIES_BEFORE):
            return _dead(before, own)
    headers = _headers_of(message, now_ms)
    if own is not None and DEATHS in own:
        headers[X_DEATH] = _deaths(own)
    expires = message.expires_at_ms
    expiration = None if expires is None else str(max(0, expires - now_ms))
    of_event = native is not None and cloudevents.NATIVE in native
    kind = cloudevents.data_type(message) if of_event else message.content_type
    flags1, first = _texts(headers, ((15, kind), (14, message.content_encoding)))
    answered = (10, short_text(message.correlation)), (9, _reply_queue(message))
    flags2, second = _texts(headers, (*answered, (8, expiration), (7, message.id)))
    flags3, third = _texts(headers, ((5, message.type), (4, message.device)))
    flags = flags1 | flags2 | flags3 | 1 << 13 | 1 << 12 | 1 << 6
    mode = b"\x01" if message.qos == 0 else b"\x02"
    timestamp = min(max(0, message.time_ms // 1000), _TIMESTAMP_MAX).to_bytes(8, "big")
    return b"".join((flags.to_bytes(2, "big"), first, write_table(headers), mode, second, timestamp, third))


def _reply_queue(message: Message) -> str | None:
    """Returns the queue that the answer is wanted in; None where an address is named that is no queue's here."""
    if message.reply_to is None:
        return None
    exchange, key = routing_of(message.reply_to)
    if local_name(exchange) or vhost_of(exchange) != vhost_of_address(message.address) or key == REPLY_TO:
        return None
    return key


def _as_stored(message: Message) -> Message:
    """Returns a message that is delivered with added headers as it was in the log."""
    native = dict(message.native or {})
    stored = native.pop(NATIVE)[STORED]
    if stored is not None:
        native[NATIVE] = stored
    return msgspec.structs.replace(message, native=native or None)


def _dead(raw: bytes, own: Mapping[str, Any]) -> bytes:
    """Returns the properties of a dead letter: as they were, without `expiration`, and with the headers of its deaths.

    Fields are copied as the bytes they are, so that types stay as they were.
    """
    first: dict[str, str] = own.get("first_death") or {}
    added: Table = {f"x-first-death-{name}": text for name, text in first.items()}
    added[X_DEATH] = _deaths(own)
    removed = () if COPY_KEYS in own else (CC,)
    return edited(raw, added=added, removed=removed, fields={"expiration": None})


def _deaths(own: Mapping[str, Any]) -> list[Any]:
    """Returns the value of the header `x-death`."""
    return [{**one, "time": Timestamp(max(0, one["time"]))} for one in own[DEATHS]]


def _texts(headers: Table, texts: Sequence[tuple[int, str | None]]) -> tuple[int, bytes]:
    """Returns the flags and fields of short strings; one too long to be one becomes a header."""
    flags = 0
    packed: list[bytes] = []
    for bit, text in texts:
        if text:
            raw = text.encode()
            if len(raw) <= SHORT_BYTES_MAX:
                flags |= 1 << bit
                packed += (len(raw).to_bytes(1, "big"), raw)
            else:
                headers[f"x-{FIELDS[bit][0].replace('_', '-')}"] = text
    return flags, b"".join(packed)


def _headers_of(message: Message, now_ms: int) -> Table:
    """Returns the headers of a message that came by another protocol: typed where AMQP has a type for it."""
    headers: Table = {"timestamp_in_ms": min(message.time_ms, _SIGNED_MAX)}
    repeats: dict[str, int] = {}
    if (
        len(message.address) > SHORT_BYTES_MAX // 4
        and len((key := routing_of(message.address)[1]).encode()) > SHORT_BYTES_MAX
    ):
        headers["x-routing-key"] = key  # basic.deliver holds only its beginning
    attributes = cloudevents.attributes_of(message)
    if attributes is not None:
        typed = cloudevents.typed_of(message)
        for name, text in attributes.items():
            add_header(headers, repeats, f"ce-{name}", typed.get(name, text))
    elif message.key is not None:
        headers["ce-partitionkey"] = message.key
    if message.traceparent is not None:
        headers["traceparent"] = message.traceparent
    if message.retain:
        headers["x-retain"] = True
    if message.reply_to is not None:
        headers["x-reply-to-topic"] = message.reply_to
    if message.correlation is not None and short_text(message.correlation) is None:
        headers["x-correlation-data"] = message.correlation
    if message.deliver_at_ms is not None and message.deliver_at_ms > now_ms:
        headers["x-delay"] = min(message.deliver_at_ms - now_ms, _SIGNED_MAX)
    add_properties(headers, repeats, attributes, message.properties)
    return headers


def short_text(correlation: bytes | None) -> str | None:
    """Returns a correlation as short text; None where it is none."""
    if not correlation or len(correlation) > SHORT_BYTES_MAX:
        return None
    try:
        return correlation.decode()
    except UnicodeDecodeError:
        return None
