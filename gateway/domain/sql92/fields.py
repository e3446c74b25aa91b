"""The fields of a message that an expression can name, and the kinds of their values."""

import operator
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

from store.api.message import Message

Value: TypeAlias = int | float | str | bool | None
Eval: TypeAlias = Callable[[Message], Any]
PREFIX = "properties."  # in front of a property that has a field's name


class Kind(Enum):
    """The kind of a node's value; a property may be read as any of the others."""

    NUMBER = "a number"
    TEXT = "a text"
    BOOLEAN = "a condition"
    ANY = "a property"


def _text_field(name: str) -> Eval:
    """Returns a field where an empty text means that it is not set."""
    get = operator.attrgetter(name)
    return lambda message: get(message) or None


FIELDS: dict[str, tuple[Kind, Eval]] = {
    "address": (Kind.TEXT, operator.attrgetter("address")),
    "type": (Kind.TEXT, operator.attrgetter("type")),
    "key": (Kind.TEXT, operator.attrgetter("key")),
    "id": (Kind.TEXT, _text_field("id")),
    "content_type": (Kind.TEXT, operator.attrgetter("content_type")),
    "content_encoding": (Kind.TEXT, operator.attrgetter("content_encoding")),
    "protocol": (Kind.TEXT, _text_field("protocol")),
    "device": (Kind.TEXT, _text_field("device")),
    "principal": (Kind.TEXT, _text_field("principal")),
    "reply_to": (Kind.TEXT, operator.attrgetter("reply_to")),
    "traceparent": (Kind.TEXT, operator.attrgetter("traceparent")),
    "qos": (Kind.NUMBER, operator.attrgetter("qos")),
    "retain": (Kind.BOOLEAN, operator.attrgetter("retain")),
    "time_ms": (Kind.NUMBER, operator.attrgetter("time_ms")),
    "expires_at_ms": (Kind.NUMBER, operator.attrgetter("expires_at_ms")),
    "deliver_at_ms": (Kind.NUMBER, operator.attrgetter("deliver_at_ms")),
    "size_bytes": (Kind.NUMBER, lambda message: len(message.body)),
}


def _property(name: str) -> Eval:
    """Returns the first property of a name."""

    def get(message: Message) -> str | None:
        for found, value in message.properties:
            if found == name:
                return value
        return None

    return get


def field(name: str) -> tuple[Kind, Eval]:
    """Returns the field of a name, else the property."""
    return FIELDS.get(name) or (Kind.ANY, _property(name.removeprefix(PREFIX)))
