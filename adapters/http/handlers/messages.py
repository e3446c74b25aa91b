"""A request to domain messages, and a domain message to a response.

Address, key, quality of service and times come from the query where it says them; everything else from headers:
`ce-*` are attributes of an event (CloudEvents HTTP binding 1.0.2, 3.1), or without `ce-specversion` the same fields of
a plain message; `idempotency-key`, `traceparent`, `x-reply-to`, `x-correlation-data` (Base64) and the headers that the
configuration names are read and written for every message.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from adapters.cloudevents import (
    BATCH_JSON,
    BATCH_PROTOBUF,
    CORE,
    OURS,
    STRUCTURED_AVRO,
    STRUCTURED_JSON,
    STRUCTURED_PROTOBUF,
    AttributeRefusal,
    clean,
    correlation_beside,
    data_type,
    each_of_batch,
    each_of_protobuf_batch,
    from_attributes,
    from_avro,
    from_batch,
    from_protobuf,
    from_structured,
    is_name,
    parse_ms,
    placed,
    route_by,
    says_events,
    to_avro,
    to_protobuf,
    to_structured,
    whole_batch,
    wrap,
)
from adapters.http.handlers.parsing.preferences import preference
from adapters.http.wire.coding import decoded
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpError, HttpRequest, media_type
from adapters.http.wire.response import Response
from gateway.domain.address import check_address, level_of
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.port.queues import answers_at
from store.api.message import Message

PROTOCOL: Final = "http"
SECONDS_MAX: Final = 10**9  # of a time to live or a delay: some thirty years
# A browser that shows a message runs no part of it with our origin's rights.
_INERT: Final = ((b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff"))
_CODING: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # a token (RFC 9110, 5.6.2)
_CODINGS: Final = re.compile(rf"{_CODING}(?:[ \t]*,[ \t]*{_CODING})*")
_STRUCTURED: Final[dict[str, Callable[..., Message]]] = {
    STRUCTURED_JSON: from_structured,
    STRUCTURED_PROTOBUF: from_protobuf,
    STRUCTURED_AVRO: from_avro,
}
_BATCHES: Final[dict[str, Callable[..., Iterator[Message | Refusal]]]] = {
    BATCH_JSON: each_of_batch,
    BATCH_PROTOBUF: each_of_protobuf_batch,
}
_BOOLEANS: Final = {"": True, "true": True, "1": True, "false": False, "0": False}
_EVENTS_ALONE: Final = CORE - {"id", "type", "time", "specversion"}  # a plain message has no place for them
_CONSUMED: Final = OURS | frozenset(  # which are for the gateway alone to say
    {"id", "type", "time", "partitionkey", "expirytime", "correlationid", "traceparent"}
)


# ---- a request to messages


def read_message(
    request: HttpRequest, address: str, principal: Principal, options: HttpOptions, *, now_ms: int
) -> Message:
    """Returns the message of a POST to an address: a plain one, or an event in binary or structured mode.

    Raises `Refusal` (MALFORMED) or `HttpError`.
    """
    fields = _common_fields(request, principal, options, now_ms)
    fields["address"] = check_address(address)
    kind, _ = _event_kind(request)
    if kind in _BATCHES:
        raise HttpError(415, "a batch of events goes to /events", headers=(_accepting(*_STRUCTURED),))
    if kind is not None:
        fields.pop("content_encoding", None)
        body = decoded(request, options.max_body_bytes)
        return _STRUCTURED[kind](body, now_ms=now_ms, trusted_gateway=principal.trusted_gateway, **fields)
    attributes = _attributes(request)
    if "specversion" in attributes:
        return _binary_event(request, attributes, principal, fields, now_ms)
    return _plain(request, attributes, fields, now_ms)


def read_events(
    request: HttpRequest, principal: Principal, options: HttpOptions, *, now_ms: int, host: str = ""
) -> tuple[list[Message | Refusal], bool]:
    """Returns the events of a POST in any mode, and whether they came as a batch; of a `lenient` one also refusals.

    `host` is where the client is.

    Raises `Refusal` (MALFORMED) or `HttpError`.
    """
    fields = _common_fields(request, principal, options, now_ms)
    fields["route"] = route_by(options.event_routes)
    kind, batch = _event_kind(request)
    trusted = principal.trusted_gateway
    if kind is not None:
        fields.pop("content_encoding", None)
        body = decoded(request, options.max_body_bytes)
        if batch:
            fields["events_max"] = options.max_batch_events
        if batch and kind == BATCH_JSON and not lenient(request):
            named = partial(_device_at, options.device_level, host) if principal.anonymous else None
            return list(from_batch(body, now_ms=now_ms, trusted_gateway=trusted, device_of=named, **fields)), True
        if batch:
            each = _BATCHES[kind](body, fields.pop("route"), now_ms=now_ms, trusted_gateway=trusted, **fields)
            found = list(each) if lenient(request) else whole_batch(each)
            return [
                one if isinstance(one, Refusal) else name_device(one, principal, options, host) for one in found
            ], True
        event = _STRUCTURED[kind](body, now_ms=now_ms, trusted_gateway=trusted, **fields)
        return [name_device(event, principal, options, host)], False
    attributes = _attributes(request)
    if not attributes:
        detail = f"neither ce- headers nor a body of {STRUCTURED_JSON} or {BATCH_JSON}"
        raise HttpError(415, detail, headers=(_accepting(*_STRUCTURED, *_BATCHES),))
    event = _binary_event(request, attributes, principal, fields, now_ms)
    return [name_device(event, principal, options, host)], False


def lenient(request: HttpRequest) -> bool:
    """Returns whether a batch is to be stored though some of its events may be faulty (RFC 7240, 4.4)."""
    return (preference(request, "handling") or "").lower() == "lenient"


def name_device(message: Message, principal: Principal, options: HttpOptions, host: str) -> Message:
    """Returns a message with its device: of a client without a name, the one in the address, or else `host`."""
    if not principal.anonymous:
        return message
    return msgspec.structs.replace(message, device=_device_at(options.device_level, host, message.address))


def _device_at(level: int, host: str, address: str) -> str:
    return level_of(address, level) or host


def _event_kind(request: HttpRequest) -> tuple[str | None, bool]:
    """Returns the media type of a structured event or batch, None for any other body."""
    content_type = request.get(b"content-type")
    if content_type is None or not content_type.lower().startswith("application/cloudevents"):
        return None, False
    kind, parameters = media_type(content_type)
    if kind not in _STRUCTURED and kind not in _BATCHES:
        detail = f"content-type: {kind[:64]} is not read here; JSON, Protobuf and Avro (no batches) are"
        raise HttpError(415, detail, headers=(_accepting(*_STRUCTURED, *_BATCHES),), attribute="content-type")
    if parameters.get("charset", "utf-8").lower() not in {"utf-8", "us-ascii"}:
        detail = "content-type: the charset is not UTF-8"
        raise HttpError(415, detail, headers=(_accepting(*_STRUCTURED, *_BATCHES),), attribute="content-type")
    return kind, kind in _BATCHES


def _accepting(*kinds: str) -> tuple[bytes, bytes]:
    """Returns the header that says which media types are read (RFC 9110, 12.5.1 and 15.5.16)."""
    return b"accept", ", ".join(kinds).encode()


def _binary_event(
    request: HttpRequest, attributes: dict[str, str], principal: Principal, fields: dict[str, Any], now_ms: int
) -> Message:
    return from_attributes(
        attributes,
        request.body,
        content_type=request.get(b"content-type") or None,
        now_ms=now_ms,
        trusted_gateway=principal.trusted_gateway,
        **fields,
    )


def _plain(request: HttpRequest, attributes: Mapping[str, str], fields: dict[str, Any], now_ms: int) -> Message:
    """Returns the message of a request that is no event; single `ce-` headers have the meaning of an event's.

    Raises `AttributeRefusal` where a header is one that only an event can have: it would be lost.
    """
    if (found := next((name for name in attributes if name in _EVENTS_ALONE), None)) is not None:
        raise AttributeRefusal("specversion", f"is required: with ce-{found} the request is an event")
    extensions = tuple((name, value) for name, value in attributes.items() if name not in _CONSUMED)
    time, expiry = attributes.get("time"), attributes.get("expirytime")
    fields["properties"] = extensions + fields.get("properties", ())
    fields.setdefault("key", attributes.get("partitionkey"))
    fields.setdefault("traceparent", attributes.get("traceparent"))
    if expiry is not None:
        fields.setdefault("expires_at_ms", _timestamp("ce-expirytime", expiry))
    if "correlationid" in attributes:
        fields.setdefault("correlation", attributes["correlationid"].encode())
    id_ = attributes.get("id")
    return Message(
        body=request.body,
        time_ms=now_ms if time is None else _timestamp("ce-time", time),
        id=idempotency_key(request) if id_ is None else id_,
        type=attributes.get("type"),
        content_type=request.get(b"content-type") or None,
        **fields,
    )


def _common_fields(request: HttpRequest, principal: Principal, options: HttpOptions, now_ms: int) -> dict[str, Any]:
    """Returns the fields that plain messages and events have in common."""
    who = "" if principal.anonymous else None
    fields: dict[str, Any] = {"protocol": PROTOCOL, "device": principal.device, "principal": who}
    given: set[str] = set()
    for name, text in request.query():
        read = _QUERY.get(name)
        if read is None:
            raise HttpError(400, f"{name[:64]}: is no parameter here; {', '.join(_QUERY)} are", attribute=name[:64])
        if name in given:
            raise AttributeRefusal(name, "is given more than once")
        given.add(name)
        field, value = read(name, text, now_ms)
        fields[field] = value
    reply_to, data = request.get(b"x-reply-to"), request.get(b"x-correlation-data")
    if reply_to:
        fields.setdefault("reply_to", _address("x-reply-to", _decode_value("x-reply-to", reply_to)))
    if data is not None:
        try:
            fields["correlation"] = b64decode(data, validate=True)
        except ValueError as error:
            raise AttributeRefusal("x-correlation-data", "is not Base64 (RFC 4648, 4)") from error
    if (traceparent := request.get(b"traceparent")) and request.get(b"ce-traceparent") is None:
        fields["traceparent"] = traceparent
    if coding := request.get(b"content-encoding"):
        fields["content_encoding"] = coding
    wanted = options.property_headers
    if wanted:
        names = {name.lower().encode() for name in wanted}
        fields["properties"] = tuple(
            (name.decode("latin-1"), _lenient(value)) for name, value in request.headers if name in names
        )
    return fields


def _number(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > most:
        raise AttributeRefusal(name, f"is not a whole number from 0 to {most}")
    return int(text)


def _boolean(name: str, text: str) -> bool:
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise AttributeRefusal(name, "is neither true nor false") from None


def _filled(name: str, text: str) -> str:
    if not text:
        raise AttributeRefusal(name, "must not be empty")
    return text


def _address(name: str, text: str) -> str:
    try:
        return check_address(text)
    except Refusal as refusal:
        raise AttributeRefusal(name, refusal.detail) from refusal


def _timestamp(name: str, text: str) -> int:
    try:
        return max(parse_ms(text), 0)
    except ValueError as error:
        raise AttributeRefusal(name, f"is not an RFC 3339 timestamp: {text[:64]!r}") from error


_QUERY: Final[dict[str, Callable[[str, str, int], tuple[str, Any]]]] = {
    "qos": lambda name, text, _: ("qos", _number(name, text, 2)),
    "retain": lambda name, text, _: ("retain", _boolean(name, text)),
    "key": lambda name, text, _: ("key", _filled(name, text)),
    "expiry": lambda name, text, now_ms: ("expires_at_ms", now_ms + 1000 * _number(name, text, SECONDS_MAX)),
    "delay": lambda name, text, now_ms: ("deliver_at_ms", now_ms + 1000 * _number(name, text, SECONDS_MAX)),
    "reply": lambda name, text, _: ("reply_to", _address(name, text)),
}


def idempotency_key(request: HttpRequest) -> str:
    """Returns the key, a string of RFC 9651, 3.3.3, or bare as older clients send it; "" when there is none."""
    key = request.get(b"idempotency-key") or ""
    return _unquote(key) if key.startswith('"') else key


def _attributes(request: HttpRequest) -> dict[str, str]:
    """Returns the `ce-` headers, without their prefix, decoded (CloudEvents HTTP binding 1.0.2, 3.1.3)."""
    attributes: dict[str, str] = {}
    for name, value in request.headers:
        if name.startswith(b"ce-"):
            attribute = name[3:].decode("latin-1")
            if attribute in attributes:
                raise AttributeRefusal(attribute, "is given more than once")
            attributes[attribute] = _decode_value(attribute, value.decode("latin-1"))
    return attributes


def _unquote(text: str) -> str:
    if len(text) >= 2 and text.endswith('"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def _decode_value(name: str, text: str) -> str:
    """Returns a header's value: quotes are taken off, then percent-encoding is undone (HTTP binding 1.0.2, 3.1.3.2)."""
    if text.startswith('"'):
        text = _unquote(text)
    if text.isascii() and "%" not in text:
        return text
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise AttributeRefusal(name, "is not UTF-8") from error


def _lenient(value: bytes) -> str:
    """Returns the value of a header that has no agreed encoding."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


# ---- a message to a response


def message_response(message: Message, options: HttpOptions, *headers: tuple[bytes, bytes]) -> Response:
    """Returns a message as it is: its body, its content type, and its fields in headers.

    A body that is an event itself by its content type is the data of an event in JSON: a reader would take it for the
    message's own event, whose subject its publisher has to be allowed.
    """
    if says_events(data_type(message)):
        return event_response(message, STRUCTURED_JSON, *_INERT, *headers)
    attributes = placed(message)
    if attributes is None:
        attributes = wrap(message)
    out = [*headers, *_INERT, *attribute_headers(message, attributes), *answer_headers(message, attributes)]
    wanted = {name.lower() for name in options.property_headers}
    for name, text in message.properties:
        if name.lower() in wanted and not is_name(name):
            out.append((name.lower().encode(), clean(text).strip().encode("utf-8", "replace")))
    return Response(status=200, headers=out, body=message.body)


def attribute_headers(message: Message, attributes: Mapping[str, str] | None = None) -> list[tuple[bytes, bytes]]:
    """Returns the headers of a message as an event in binary mode; `attributes` are its own where they are known."""
    if attributes is None:
        attributes = placed(message) or wrap(message)
    out: list[tuple[bytes, bytes]] = []
    kind = data_type(message)
    if kind is not None and _visible(kind):
        out.append((b"content-type", kind.encode()))
    if message.content_encoding is not None and _CODINGS.fullmatch(message.content_encoding) is not None:
        out.append((b"content-encoding", message.content_encoding.encode()))
    out += [(b"ce-" + name.encode(), _encode_value(text)) for name, text in attributes.items()]
    if message.traceparent is not None and _visible(message.traceparent):
        out.append((b"traceparent", message.traceparent.encode()))
    return out


def answer_headers(message: Message, attributes: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Returns the headers that say where an answer to a message goes, and by which correlation it is known."""
    out: list[tuple[bytes, bytes]] = []
    if (reply_to := answers_at(message)) is not None:
        out.append((b"x-reply-to", _encode_value(reply_to)))
    if (correlation := correlation_beside(message, attributes)) is not None:
        out.append((b"x-correlation-data", b64encode(correlation)))
    return out


def event_response(message: Message, kind: str, *headers: tuple[bytes, bytes]) -> Response:
    """Returns a message as an event in structured mode, in JSON, Protobuf or Avro."""
    encode = _ENCODERS.get(kind)
    if encode is not None:
        return Response(status=200, headers=((b"content-type", kind.encode()), *headers), body=encode(message))
    json = (b"content-type", STRUCTURED_JSON.encode() + b"; charset=utf-8")
    return Response(status=200, headers=(json, *headers), body=to_structured(message))


_ENCODERS: Final = {STRUCTURED_PROTOBUF: to_protobuf, STRUCTURED_AVRO: to_avro}


def _visible(text: str) -> bool:
    """Returns whether a text can stand in a header as it is."""
    return text.isascii() and text.isprintable() and text == text.strip()


_AS_IT_IS: Final = re.compile("[\x21\x23\x24\x26-\x7e]*")


def _encode_value(text: str) -> bytes:
    """Returns an attribute as a header's value: all but visible ASCII, quotation mark and percent sign is encoded."""
    if _AS_IT_IS.fullmatch(text) is not None:
        return text.encode()
    return b"".join(
        b"%c" % byte if 0x21 <= byte <= 0x7E and byte not in b'"%' else b"%%%02X" % byte
        for byte in text.encode("utf-8", "replace")
    )
