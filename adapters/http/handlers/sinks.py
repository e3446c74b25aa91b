"""Events as requests to sinks: the HTTP binding of CloudEvents, written by a client (1.0.2, 3.1 and 3.2)."""

from typing import Final

from adapters.cloudevents import NATIVE, STRUCTURED_JSON, data_type, placed, says_events, to_structured, wrap
from adapters.http.handlers.messages import answer_headers, attribute_headers
from gateway.port.push import SinkRequest
from store.api.message import Message

HEADERS_BYTES_MAX: Final = 8_192  # of an event in a request: servers take 8 to 64 KiB of headers
_FIELD_OVERHEAD: Final = len(": \r\n")
_STRUCTURED: Final = (b"content-type", STRUCTURED_JSON.encode() + b"; charset=utf-8")


def event_attributes(message: Message) -> dict[str, str | int | bool]:
    """Returns the context attributes of a message, with the types that its extensions came with."""
    attributes = placed(message)
    found: dict[str, str | int | bool] = dict(wrap(message) if attributes is None else attributes)
    if attributes is not None and message.native is not None:
        typed = message.native[NATIVE].get("typed", {})
        found.update((name, value) for name, value in typed.items() if name in found)
    if (kind := data_type(message)) is not None:
        found["datacontenttype"] = kind
    return found


def sink_request(message: Message, *, structured: bool) -> SinkRequest:
    """Returns a message as an event in a request, in binary or structured mode.

    A body that is an event itself by its content type leaves in structured mode, as the data of an event: in binary
    mode a receiver would take it for the event of the request, though its subject has never been checked. So does an
    event whose headers would be longer than `HEADERS_BYTES_MAX`.
    """
    if not structured and not says_events(data_type(message)):
        attributes = placed(message) or wrap(message)
        headers = [*attribute_headers(message, attributes), *answer_headers(message, attributes)]
        if sum([len(name) + len(value) + _FIELD_OVERHEAD for name, value in headers]) <= HEADERS_BYTES_MAX:
            return SinkRequest(headers, message.body)
    return SinkRequest([_STRUCTURED], to_structured(message))
