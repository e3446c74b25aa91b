"""CloudEvents in binary mode: the headers that are an event's attributes.

Their names begin with `ce-`, or as the binding for AMQP 1.0 has it, with `cloudEvents_` or `cloudEvents:`.
"""

import re
from base64 import b64encode
from typing import Any, Final, NamedTuple

from adapters import cloudevents
from adapters.amqp.codec.property_fields import with_timestamps
from adapters.amqp.codec.wire import Table, Timestamp
from gateway.port.queues import text_of

NUMBER_MAX: Final = 1 << 53  # of milliseconds that a peer may name: 285,000 years
SPECVERSIONS: Final = ("ce-specversion", "cloudEvents_specversion", "cloudEvents:specversion")
DEVICE: Final = "deviceid"  # by which a trusted gateway says the device that it speaks for
_TIMES: Final = frozenset({"time", "expirytime"})
_ATTRIBUTE = re.compile("(?:ce-|cloudEvents_|cloudEvents:)([a-zA-Z0-9]+)")


class EventHeaders(NamedTuple):
    """The attributes of an event as texts, and those of them that came as integers or booleans as such."""

    attributes: dict[str, str]
    typed: dict[str, int | bool]


def is_attribute(name: str) -> bool:
    """Returns whether a header is an attribute of an event."""
    return _ATTRIBUTE.fullmatch(name) is not None


def event_of(raw: bytes, headers: Table) -> EventHeaders | None:
    """Returns the attributes that the headers of properties say; None where they are those of no event.

    A number in the place of a time is a timestamp of AMQP. Bytes are an extension in Base64 (CloudEvents 1.0.2, 3.2).
    """
    if not any(name in headers for name in SPECVERSIONS):
        return None
    found = EventHeaders({}, {})
    for header, value in with_timestamps(raw, headers).items():
        match, text = _ATTRIBUTE.fullmatch(header), _text(value)
        if match is None or text is None:
            continue
        name = match[1].lower()
        if isinstance(value, bytes) and not (value and cloudevents.is_extension(name) and name != DEVICE):
            continue
        if isinstance(value, Timestamp) and name in cloudevents.CORE and name not in _TIMES:
            text = str(int(value))
        found.attributes[name] = _time(value) or text if name in _TIMES else text
        found.typed.pop(name, None)
        if name not in _TIMES and not isinstance(value, Timestamp) and cloudevents.is_typed(name, value):
            found.typed[name] = value
    return found if found.attributes else None


def _text(value: Any) -> str | None:
    """Returns the text of an attribute, in the forms of CloudEvents; None for a value that has none."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return (_time(value) if isinstance(value, Timestamp) else None) or text_of(value)


def _time(value: Any) -> str | None:
    """Returns the time of a timestamp as an attribute has it; None for any other value."""
    time_ms = None if isinstance(value, bool) or not isinstance(value, int) else milliseconds(value)
    return None if time_ms is None else cloudevents.format_ms(time_ms)


def milliseconds(timestamp: int | None) -> int | None:
    """Returns seconds, as the specification says, or milliseconds, as many clients write. None: neither."""
    if timestamp is None or not 0 <= timestamp <= NUMBER_MAX:
        return None
    return timestamp * 1000 if timestamp < 1 << 33 else timestamp
