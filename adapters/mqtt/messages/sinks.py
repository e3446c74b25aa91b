"""Messages as events for brokers of other people (MQTT Protocol Binding for CloudEvents 1.0.2, 3.1 and 3.2).

A message that never was an event becomes one. In binary mode the properties that no attribute says are user properties
of their own; where one has a name that an attribute may have, a reader would take it for an attribute. Then
`headgateproperties` says all of them, as over HTTP.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from adapters.cloudevents import (
    OMITTED,
    PROPERTIES,
    STRUCTURED_JSON,
    clean,
    data_type,
    is_extension,
    is_name,
    placed,
    says_events,
    to_structured,
    wrap,
)
from adapters.mqtt.messages.messages import publish_properties
from gateway.domain.bridge_path import PATH
from gateway.domain.errors import Cause, Refusal
from store.api.message import Message

TEXT_BYTES_MAX: Final = 65_535  # of a user property's name and value (MQTT 5.0, 1.5.4)

Pairs = Sequence[tuple[str, str]]


def sink_tail(
    message: Message,
    *,
    version: int,
    structured: bool,
    expiry_s: int | None,
    path: Sequence[str],
    more: Pairs,
    now_ms: int,
) -> bytes:
    """Returns the bytes of a PUBLISH behind its packet identifier: properties, where there are any, and payload.

    `path` names the gateways that the message has come through, `more` are further user properties. Raises `Refusal`
    (TOO_LARGE) for an attribute that no user property can hold.
    """
    if version < 5:
        return to_structured(message)
    if expiry_s is not None:
        ends_ms = now_ms + expiry_s * 1_000
        message = msgspec.structs.replace(message, expires_at_ms=min(message.expires_at_ms or ends_ms, ends_ms))
    user = list(more)
    if path:
        user.append((PATH, " ".join(path)))
    if structured or says_events(data_type(message)):  # a reader would take the body for the event
        return publish_properties(message, user, STRUCTURED_JSON, now_ms, ()) + to_structured(message)
    pairs = [*_attributes(message), *user]
    for name, text in pairs:
        if len(text) > TEXT_BYTES_MAX // 4 and len(text.encode()) > TEXT_BYTES_MAX:
            raise Refusal(
                Cause.TOO_LARGE, f"{name[:64]!r} has more than {TEXT_BYTES_MAX} bytes; write mode: structured"
            )
    return publish_properties(message, pairs, data_type(message), now_ms, ()) + message.body


def _attributes(message: Message) -> list[tuple[str, str]]:
    attributes = placed(message) or wrap(message)
    left = dict(attributes)
    others: list[tuple[str, str]] = []
    for name, text in message.properties:
        if name in left and left[name] in {text, clean(text)} and is_extension(name):
            del left[name]
        elif name != PATH:
            others.append((name, text))
    typeless = message.content_type is not None and data_type(message) is None
    if not typeless and not any(is_name(name) for name, _ in others):
        attributes.pop(PROPERTIES, None)
        attributes.pop(OMITTED, None)
    # In front of a repeat of its name: a reader takes the first one.
    coding = [] if message.content_encoding is None else [("content-encoding", message.content_encoding)]
    return [*attributes.items(), *coding, *[(name, text) for name, text in others if not is_name(name)]]
