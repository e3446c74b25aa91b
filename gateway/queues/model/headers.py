"""The match of a headers exchange: a message's headers and a binding's arguments, compared by type as RabbitMQ does.

A message that came by AMQP has the types of its headers in `native["amqp"]["typed"]`. The properties of other protocols
are texts alone, and so are the headers of messages that older versions have stored: these are compared as text.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gateway.domain.errors import Cause, Refusal
from gateway.port.queues import DEATHS, TYPED, text_of
from store.api.message import Message

MATCH: Final = "x-match"
_MATCHES: Final[Mapping[str, tuple[Callable[[Iterable[object]], bool], bool]]] = {  # how, and with headers `x-`
    "all": (all, False),
    "any": (any, False),
    "all-with-x": (all, True),
    "any-with-x": (any, True),
}
X_DEATH: Final = "x-death"


def header_predicate(arguments: Mapping[str, Any]) -> Callable[[Message], bool]:
    """Returns a predicate: a message's headers match a binding's arguments (AMQP 0-9-1, 3.1.3.4).

    `x-match` is "all" unless it is "any", or one of these with "-with-x" behind it: then headers that begin with `x-`
    count too. Values are compared by `comparable`; an argument without a value asks only that the header is there.
    Raises `Refusal` (PRECONDITION) for another `x-match`.
    """
    mode = arguments.get(MATCH, "all")
    if not isinstance(mode, str) or mode not in _MATCHES:
        known = "expected all, any, all-with-x, or any-with-x"
        raise Refusal(Cause.PRECONDITION, f"Invalid x-match field value {mode!r}; {known}")
    combine, with_x = _MATCHES[mode]
    names = [name for name in arguments if name != MATCH and (with_x or not name.startswith("x-"))]
    wanted = [(name, arguments[name], comparable(arguments[name]), text_of(arguments[name])) for name in names]

    def matches(message: Message) -> bool:
        own, found = _own(message), dict[str, Any](headers_of(message))
        if DEATHS in own:
            found[X_DEATH] = own[DEATHS]
        typed = own.get(TYPED)
        if typed is None:
            return combine(name in found and (value is None or found[name] == text) for name, value, _, text in wanted)
        found.update(typed)
        return combine(
            name in found and (value is None or comparable(found[name]) == like) for name, value, like, _ in wanted
        )

    return matches


def comparable(value: object) -> object:
    """Returns a form of a typed value that equals that of every value which RabbitMQ takes for the same.

    Numbers are equal whatever their types, a timestamp and its seconds too, and so are texts and the bytes that they
    are in UTF-8. A boolean is no number, and a number is no text. Tables and arrays are equal where all in them is.
    """
    match value:
        case bool():
            return ("bool", value)
        case str():
            return value.encode("utf-8", "surrogatepass")
        case list() | tuple():
            return ("array", [comparable(one) for one in value])
        case dict():
            return ("table", {name: comparable(one) for name, one in value.items()})
        case _:
            return value


def headers_of(message: Message) -> dict[str, str]:
    """Returns the headers of a message that have a text."""
    headers = dict(message.properties)
    headers.update(_own(message).get("mapped", {}))
    return headers


def _own(message: Message) -> Mapping[str, Any]:
    """Returns the fields that AMQP alone has of a message."""
    return (message.native or {}).get("amqp") or {}
