"""Messages on their way to a client, as the frames of basic.deliver, basic.get-ok and basic.return.

deliver   consumer-tag | delivery-tag u64 | redelivered u8 | exchange | routing-key    (AMQP 0-9-1, 1.8.3.9)
content   header frame: class u16 | weight u16 | body size u64 | properties; then the body in frames
"""

import logging
import struct
from collections.abc import Sequence
from typing import Final

from adapters.amqp.codec.fitting import fitted
from adapters.amqp.codec.properties import NATIVE, properties_of
from adapters.amqp.codec.structured import STRUCTURED, body_of
from adapters.amqp.codec.wire import (
    FRAME_BODY,
    FRAME_END,
    FRAME_HEADER,
    FRAME_METHOD,
    HEAD,
    SHORT_BYTES_MAX,
    short_string,
    write_table,
)
from gateway.domain.vhosts import local_name
from gateway.port.bodies import body_size
from gateway.port.queues import routing_of
from store.api.message import Message

_DELIVER: Final = b"\x00\x3c\x00\x3c"
_GET_OK: Final = b"\x00\x3c\x00\x47"
_RETURN: Final = b"\x00\x3c\x00\x32"
_BASIC: Final = 60
_NO_ROUTE: Final = 312
_ROUTES_COUNT_MAX: Final = 16_384
_ROUTES_LENGTH_MAX: Final = 256  # characters of an address that is remembered: longer ones are seldom many or busy

_TAG = struct.Struct(">QB")  # delivery-tag, redelivered
_HEADER = struct.Struct(">BBHIHHQ")  # the end of the frame before, and the content header up to its properties
_BODY = struct.Struct(">BBHI")  # the end of the frame before, and the body frame up to its payload
_HEADER_FIXED: Final = 12  # bytes of a content header before its property flags

# The properties of a message whose own cannot be written: it has headers, and these say so.
_UNWRITABLE: Final = b"\x20\x00" + write_table({"x-properties-left-out": True})

log = logging.getLogger(__name__)

# An address in basic.deliver. The text follows from the address alone, so all connections share it.
_routes: dict[str, bytes] = {}


def deliver_prefix(consumer_tag: str) -> bytes:
    """Returns the beginning of every basic.deliver to a consumer."""
    return _DELIVER + short_string(consumer_tag)


def _route(address: str) -> bytes:
    """Returns exchange and routing key as short strings; cuts a key too long for one, which a header has whole."""
    exchange, key = routing_of(address)
    exchange = local_name(exchange)
    raw = key.encode()
    if len(raw) > SHORT_BYTES_MAX:
        key = raw[:SHORT_BYTES_MAX].decode(errors="ignore")
    packed = short_string(exchange if len(exchange.encode()) <= SHORT_BYTES_MAX else "") + short_string(key)
    if len(address) <= _ROUTES_LENGTH_MAX:
        if len(_routes) >= _ROUTES_COUNT_MAX:
            _routes.clear()
        _routes[address] = packed
    return packed


def _properties(message: Message, size_max: int, now_ms: int) -> bytes:
    """Returns the properties of a message, without those that do not fit a frame.

    A message whose properties cannot be written is a fault of ours, and only its own: it is delivered without them, and
    neither its consumer nor the messages behind it are hurt.
    """
    try:
        properties = properties_of(message, now_ms=now_ms)
        return properties if len(properties) <= size_max else fitted(properties, size_max)
    except Exception:  # any failure: the next delivery would meet it again, forever
        log.exception("the properties of a message at %.255s cannot be written", message.address)
        return _UNWRITABLE


def deliver_frames(
    channel: int,
    prefix: bytes,
    first_tag: int,
    messages: Sequence[Message],
    deliveries: Sequence[int],
    *,
    payload_max: int,
    now_ms: int,
) -> list[bytes]:
    """Returns the frames of messages for one consumer, their delivery tags counting up from `first_tag`.

    A body in parts is for the caller to send: only the last message may have one.
    """
    # Once a message: 1.0 us here for a message that came by AMQP, 3.7 us where its properties have to be written.
    out: list[bytes] = []
    append, routes = out.append, _routes
    head, tagged, header, body_head = HEAD.pack, _TAG.pack, _HEADER.pack, _BODY.pack
    fixed, properties_max = len(prefix) + _TAG.size, payload_max - _HEADER_FIXED
    for tag, (message, before) in enumerate(zip(messages, deliveries, strict=True), first_tag):
        native, body, address = message.native, message.body, message.address
        properties = b""
        if native is not None and NATIVE in native:
            own = native[NATIVE]
            properties = own["properties"]
            if STRUCTURED in own or not properties:
                body = body_of(message)
        if not 0 < len(properties) <= properties_max:
            properties = _properties(message, properties_max, now_ms)
        route = routes.get(address) or _route(address)
        size = len(body) or body_size(message)
        append(head(FRAME_METHOD, channel, fixed + len(route)))
        append(prefix)
        append(tagged(tag, before > 0))
        append(route)
        append(header(FRAME_END, FRAME_HEADER, channel, _HEADER_FIXED + len(properties), _BASIC, 0, size))
        append(properties)
        if not body:
            pass  # it has none, or its parts follow
        elif size <= payload_max:
            append(body_head(FRAME_END, FRAME_BODY, channel, size))
            append(body)
        else:
            _add_chunks(out, channel, body, payload_max)
        append(b"\xce")
    return out


def _add_chunks(out: list[bytes], channel: int, body: bytes, payload_max: int) -> None:
    """Adds a body in as many frames as it needs, but for the end of the last."""
    for at in range(0, len(body), payload_max):
        chunk = body[at : at + payload_max]
        out += (_BODY.pack(FRAME_END, FRAME_BODY, channel, len(chunk)), chunk)


def _content_frames(channel: int, method: bytes, message: Message, payload_max: int, now_ms: int) -> list[bytes]:
    properties, body = _properties(message, payload_max - _HEADER_FIXED, now_ms), body_of(message)
    size = len(body) or body_size(message)
    out = [
        HEAD.pack(FRAME_METHOD, channel, len(method)),
        method,
        _HEADER.pack(FRAME_END, FRAME_HEADER, channel, _HEADER_FIXED + len(properties), _BASIC, 0, size),
        properties,
    ]
    _add_chunks(out, channel, body, payload_max)
    return [*out, b"\xce"]


def get_ok_frames(
    channel: int, tag: int, message: Message, *, redelivered: bool, remaining: int, payload_max: int, now_ms: int
) -> list[bytes]:
    """Returns the answer to basic.get that found a message (AMQP 0-9-1, 1.8.3.10)."""
    route = _routes.get(message.address) or _route(message.address)
    method = _GET_OK + _TAG.pack(tag, redelivered) + route + min(remaining, 0xFFFFFFFF).to_bytes(4, "big")
    return _content_frames(channel, method, message, payload_max, now_ms)


def return_frames(channel: int, message: Message, *, payload_max: int, now_ms: int) -> list[bytes]:
    """Returns the frames that give a mandatory message, which no queue wanted, back (AMQP 0-9-1, 1.8.3.8)."""
    route = _routes.get(message.address) or _route(message.address)
    method = _RETURN + _NO_ROUTE.to_bytes(2, "big") + short_string("NO_ROUTE") + route
    return _content_frames(channel, method, message, payload_max, now_ms)
