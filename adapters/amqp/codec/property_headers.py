"""Properties of a message that came by another protocol, as headers: in their order, repeats numbered (`zone.2`).

Some headers are fields of a message, attributes of an event, or obeyed by the broker. A property with such a name is
numbered, too (`x-retain.2`): a reader would take it for what its publisher has not said.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from adapters import cloudevents
from adapters.amqp.codec.event_headers import SPECVERSIONS, is_attribute
from adapters.amqp.codec.wire import SHORT_BYTES_MAX, Table
from gateway.port.queues import text_of

MAPPED: Final = frozenset(  # headers with a place of their own in the domain message
    {
        "ce-deviceid",
        "ce-id",
        "ce-partitionkey",
        "timestamp_in_ms",
        "traceparent",
        "x-correlation-data",
        "x-delay",
        "x-reply-to-topic",
        "x-retain",
    }
)
OBEYED: Final = frozenset({"CC", "BCC", "x-delay"})  # headers that a broker acts upon when a message is published
_WHOLE_KEY: Final = "x-routing-key"  # a header: the routing key, where a delivery holds its beginning alone
_TAKEN: Final = MAPPED | OBEYED | {_WHOLE_KEY, *SPECVERSIONS}


def add_properties(
    headers: Table, repeats: dict[str, int], attributes: Mapping[str, str] | None, properties: Iterable[tuple[str, str]]
) -> None:
    """Adds the properties that no attribute says to headers that have the attributes; None: those of no event."""
    left = dict(attributes or {})
    for name, text in properties:
        if name in left and left[name] in {text, cloudevents.clean(text)} and cloudevents.is_extension(name):
            del left[name]
        else:
            taken = name in _TAKEN or (attributes is not None and is_attribute(name))
            add_header(headers, repeats, name, text, taken=taken)


def add_header(headers: Table, repeats: dict[str, int], name: str, value: str | int, *, taken: bool = False) -> None:
    """Adds a header, with a number where its name is `taken`; a name too long for a field is kept with its text."""
    if len(name.encode()) > SHORT_BYTES_MAX - 8:
        name, value, taken = "x-property", f"{name}={text_of(value)}", False
    headers[free_name(headers, repeats, name, taken=taken)] = value


def free_name(headers: Table, repeats: dict[str, int], name: str, *, taken: bool) -> str:
    """Returns a name that no header has, with a number where `name` is taken; `repeats` has the last of each name."""
    free = name
    while free in headers or (taken and free == name):
        repeats[name] = number = repeats.get(name, 1) + 1
        free = f"{name}.{number}"
    return free
