"""CloudEvents in binary mode: the headers that are an event's attributes.

Their names begin with `ce-`, or as the binding for AMQP 1.0 has it, with `cloudEvents_` or `cloudEvents:`.
"""

import re
from typing import Any, Final, NamedTuple

from adapters import cloudevents
from adapters.amqp.codec.wire import Table
from gateway.port.queues import text_of

NUMBER_MAX: Final = 1 << 53  # of milliseconds that a peer may name: 285,000 years
SPECVERSIONS: Final = ("ce-specversion", "cloudEvents_specversion", "cloudEvents:specversion")
_TIMES: Final = frozenset({"time", "expirytime"})
_ATTRIBUTE = re.compile("(?:ce-|cloudEvents_|cloudEvents:)([a-zA-Z0-9]+)")


class EventHeaders(NamedTuple):
    """The attributes of an event as texts, and those of them that came as integers or booleans as such."""

    attributes: dict[str, str]
    typed: dict[str, int | bool]


def is_attribute(name: str) -> bool:
    """Returns whether a header is an attribute of an event."""
    return _ATTRIBUTE.fullmatch(name) is not None


def event_of(headers: Table) -> EventHeaders | None:
    """Returns the attributes that headers say; None where they are those of no event.

    A number in the place of a time is a timestamp of AMQP.
    """
    if not any(name in headers for name in SPECVERSIONS):
        return None
    found = EventHeaders({}, {})
    for header, value in headers.items():
        match, text = _ATTRIBUTE.fullmatch(header), text_of(value)
        if match is None or text is None:
            continue
        name = match[1].lower()
        found.attributes[name] = _time(value) or text if name in _TIMES else text
        found.typed.pop(name, None)
        if name not in _TIMES and cloudevents.is_typed(name, value):
            found.typed[name] = value
    return found if found.attributes else None


def _time(value: Any) -> str | None:
    """Returns the time of a timestamp as an attribute has it; None for any other value."""
    time_ms = None if isinstance(value, bool) or not isinstance(value, int) else milliseconds(value)
    return None if time_ms is None else cloudevents.format_ms(time_ms)


def milliseconds(timestamp: int | None) -> int | None:
    """Returns seconds, as the specification says, or milliseconds, as many clients write. None: neither."""
    if timestamp is None or not 0 <= timestamp <= NUMBER_MAX:
        return None
    return timestamp * 1000 if timestamp < 1 << 33 else timestamp
