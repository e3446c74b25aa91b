"""CloudEvents over MQTT 5.0 (MQTT Protocol Binding for CloudEvents 1.0.2): where they are in a PUBLISH.

In binary mode the user properties are the event's attributes and the Content Type is its `datacontenttype`; in
structured mode the payload is the event as JSON. An event that came structured by MQTT leaves structured, every other
event in binary mode. A subscriber of 3.1.1, which has no user properties, is sent the structured form (or, where the
operator wants so, the data alone). JSON is made anew, so that every reader finds in it what was read here.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from adapters.cloudevents import (
    ADDRESS,
    NATIVE,
    attributes_of,
    clean,
    from_attributes,
    from_structured,
    placed,
    split,
    to_structured,
)
from adapters.cloudevents import is_structured as is_json_event
from adapters.mqtt.codec.properties import Properties
from store.api.message import Message

CLOUDEVENT = NATIVE  # the key in Message.native of every message that came as an event
STRUCTURED = "structured"  # key of native["mqtt"]: it came structured, with so many user properties besides

_MARK = "specversion"


def is_event(properties: Properties) -> bool:
    """Returns whether a PUBLISH says that it is an event, well-formed or not."""
    return is_structured(properties) or any(name == _MARK for name, _ in properties.user)


def is_structured(properties: Properties) -> bool:
    """Returns whether a PUBLISH says that its payload is an event in JSON."""
    return is_json_event(properties.content_type)


def event_of(
    body: bytes, properties: Properties, *, now_ms: int, native: dict[str, Any], protocol: str, **fields: Any
) -> Message:
    """Returns the message of an event; `fields` are further fields of its PUBLISH.

    Raises `Refusal` (MALFORMED), with the attribute's name, for a body that is no event.
    """
    if is_structured(properties):
        native[STRUCTURED] = len(properties.user)
        return from_structured(
            body, now_ms=now_ms, protocol=protocol, properties=properties.user, native={protocol: native}, **fields
        )
    attributes, others = split(properties.user)
    return from_attributes(
        attributes,
        body,
        content_type=properties.content_type,
        now_ms=now_ms,
        protocol=protocol,
        properties=others,
        native={protocol: native},
        **fields,
    )


def event_attributes(message: Message) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Returns the attributes of an event for binary mode, and the properties that are none of them."""
    attributes = attributes_of(message) or {}
    left = dict(attributes)
    others: list[tuple[str, str]] = []
    for name, value in message.properties:
        if name in left and left[name] in {value, clean(value)}:
            del left[name]
        else:
            others.append((name, value))
    return list(attributes.items()), others


def structured_body(message: Message, own: Mapping[str, Any]) -> bytes:
    """Returns the payload of structured mode; `own` is from `native["mqtt"]`. The topic name says the address."""
    if STRUCTURED not in own:
        attributes = placed(message) or {}
        attributes.pop(ADDRESS, None)
        return to_structured(message, attributes)
    count = len(message.properties) - own[STRUCTURED]
    event = replace(message, properties=message.properties[:count])
    return to_structured(event, attributes_of(event))


def beside_structured(message: Message, own: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns the properties of an event that came structured that are not its own."""
    return message.properties[len(message.properties) - own[STRUCTURED] :]
