"""Messages as events for brokers of other people: the sinks of subscriptions (`gateway.port.bridge.EventCodec`).

CloudEvents has no binding for AMQP 0-9-1. Attributes are headers `ce-`, as they are read from our clients, and
`datacontenttype` is `content_type`; in structured mode the body is the event as JSON.

    message_id        the event's id, where it is short enough
    correlation_id    its correlation in binary mode, where it is short text; else the header `x-correlation-data`
    timestamp         the event's time, in seconds
    delivery_mode     2
    expiration        what is left of the event's time, in ms
    x-reply-to-topic  a header in binary mode: the address at which the answer is wanted
    headgate-path     a header: the gateways that the message has come through (`gateway.domain.bridge_path`)
"""

from typing import Any, Final

from adapters import cloudevents
from adapters.amqp.codec.properties import short_text
from adapters.amqp.codec.property_fields import edited
from adapters.amqp.codec.property_headers import OBEYED, add_header, add_properties
from adapters.amqp.codec.wire import SHORT_BYTES_MAX, Table
from gateway.domain.bridge_path import PATH, forwarded_path
from gateway.domain.errors import Cause, Refusal
from gateway.port.bridge import Forwarded
from gateway.port.queues import answers_at
from store.api.message import Message

TIMESTAMP_MAX: Final = 253_402_300_799  # the year 9999: clients make dates of timestamps
_DELIVERY_MODE, _TIMESTAMP = 1 << 12, 1 << 6  # property flags (AMQP 0-9-1, 1.8)
_PERSISTENT: Final = b"\x02"


class AmqpEventCodec:
    """See `gateway.port.bridge.EventCodec`."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway

    def content(
        self, message: Message, *, structured: bool, upstream: str, header_bytes_max: int, now_ms: int
    ) -> Forwarded | None:
        """See `EventCodec`."""
        ids = [one for name, text in message.properties if name == PATH for one in text.split()]
        path = forwarded_path(ids, upstream=upstream, own=self._gateway)
        if path is None:
            return None
        # In binary mode a reader would take a body that is an event itself for the event of the message.
        structured = structured or cloudevents.says_events(message.content_type)
        headers, kind, body = _structured(message) if structured else _binary(message)
        if path:
            headers[PATH] = " ".join(path)
        expires_ms = message.expires_at_ms
        fields = {
            "content_type": kind,
            "content_encoding": None if structured else _short(message.content_encoding),
            "correlation_id": None if structured else short_text(message.correlation),
            "expiration": None if expires_ms is None else str(max(0, expires_ms - now_ms)),
            "message_id": _short(message.id),
        }
        time_s = min(max(0, message.time_ms // 1_000), TIMESTAMP_MAX)
        flags = (_DELIVERY_MODE | _TIMESTAMP).to_bytes(2, "big")
        raw = edited(flags + _PERSISTENT + time_s.to_bytes(8, "big"), added=headers, fields=fields)
        if len(raw) > header_bytes_max:
            what = f"the event's attributes take {len(raw)} bytes, and a frame of the sink {header_bytes_max}"
            raise Refusal(Cause.TOO_LARGE, f"{what}; write mode: structured")
        return Forwarded(message.id, raw, body)


def _structured(message: Message) -> tuple[Table, str | None, bytes]:
    return {}, cloudevents.STRUCTURED_JSON + "; charset=utf-8", cloudevents.to_structured(message)


def _binary(message: Message) -> tuple[Table, str | None, bytes]:
    """Returns headers, content type and body; properties that no attribute says are headers of their own.

    Those that the broker would act upon are in `headgateproperties` alone.
    """
    attributes = cloudevents.placed(message) or cloudevents.wrap(message)
    data_type = cloudevents.data_type(message)
    typeless = message.content_type is not None and data_type is None
    if not typeless and not any(name in OBEYED for name, _ in message.properties):
        attributes.pop(cloudevents.PROPERTIES, None)
        attributes.pop(cloudevents.OMITTED, None)
    headers: dict[str, Any] = {}
    repeats: dict[str, int] = {}
    kind = _short(data_type)
    if data_type is not None and kind is None:
        attributes["datacontenttype"] = data_type
    typed = cloudevents.typed_of(message)
    for name, text in attributes.items():
        add_header(headers, repeats, f"ce-{name}", typed.get(name, text))
    if message.traceparent is not None:
        headers["traceparent"] = message.traceparent
    if (reply_to := answers_at(message)) is not None:
        headers["x-reply-to-topic"] = reply_to
    if message.correlation is not None and short_text(message.correlation) is None:
        headers["x-correlation-data"] = message.correlation
    if message.content_encoding is not None and _short(message.content_encoding) is None:
        headers["x-content-encoding"] = message.content_encoding
    others = [pair for pair in message.properties if pair[0] != PATH and pair[0] not in OBEYED]
    add_properties(headers, repeats, attributes, others)
    return headers, kind, message.body


def _short(text: str | None) -> str | None:
    """Returns a text that a short string can hold; None for any other."""
    return text if text and len(text.encode()) <= SHORT_BYTES_MAX else None
