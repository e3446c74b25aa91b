"""Exchanges, queues and bindings after AMQP 0-9-1, and the address patterns that bindings are.

A binding is a filter over addresses, with a look at the message for headers exchanges.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from typing import Any, Final

import msgspec

from gateway.domain.address import from_routing_key
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, in_vhost, split_name
from gateway.port.queues import (
    DELAYED,
    HASHED,
    TOPIC_EXCHANGE,
    Arguments,
    exchange_root,
    field_type,
    invalid_argument,
    routing_of,
)
from gateway.queues.model.headers import header_predicate, headers_of
from store.api.message import Message

ALTERNATE = "alternate-exchange"  # the argument of an exchange
DELAYED_TYPE, HASH_HEADER, HASH_PROPERTY = KIND_ARGUMENTS = ("x-delayed-type", "hash-header", "hash-property")
_DELAYED_TYPES: Final = ("direct", "fanout", "topic", "headers", HASHED)
_WEIGHT_DIGITS: Final = 6


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """One binding of a queue or of an exchange to `exchange`."""

    exchange: str
    routing_key: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str, bytes]:
        """Equal for bindings that are the same binding (AMQP 0-9-1, queue.bind, "duplicates")."""
        return self.exchange, self.routing_key, msgspec.msgpack.encode(self.arguments, order="deterministic")


def changed_bindings(before: tuple[Binding, ...], after: tuple[Binding, ...]) -> tuple[list[Binding], list[Binding]]:
    """Returns the bindings that are gone, and those that are new.

    Of thousands nearly all are the same objects, mostly all but one at the end. Only the others are compared by what
    they say: 1, 1.0 and True are equal to Python, and different to a header exchange.
    """
    first = after[: len(before)]
    if first == before and (
        all(map(is_, first, before)) or msgspec.msgpack.encode(first) == msgspec.msgpack.encode(before)
    ):
        return [], list(after[len(before) :])
    old, new = set(map(id, before)), set(map(id, after))
    gone = {one.identity: one for one in before if id(one) not in new}
    came = {one.identity: one for one in after if id(one) not in old}
    return (
        [one for identity, one in gone.items() if identity not in came],
        [one for identity, one in came.items() if identity not in gone],
    )


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange as it was declared, with the bindings that lead to it from other exchanges."""

    name: str
    kind: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    alternate: str | None = None  # the exchange for messages that no binding takes
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)  # of its kind: those of `KIND_ARGUMENTS`
    bindings: tuple[Binding, ...] = ()

    @property
    def routes_as(self) -> str:
        """Returns the kind by which it routes: of a delayed exchange that is an argument."""
        return str(self.arguments[DELAYED_TYPE]) if self.kind == DELAYED else self.kind

    def routes_like(self, other: "Exchange") -> bool:
        """Returns whether a binding takes the same messages from both."""
        return (self.kind, self.arguments) == (other.kind, other.arguments)


_PREDECLARED = {
    "": "direct",
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.headers": "headers",
    "amq.match": "headers",
    TOPIC_EXCHANGE: "topic",
}


def predeclared(vhost: str = DEFAULT_VHOST) -> dict[str, Exchange]:
    """Returns the exchanges that every virtual host has, by name."""
    names = {in_vhost(vhost, name): kind for name, kind in _PREDECLARED.items()}
    return {name: Exchange(name=name, kind=kind, durable=True) for name, kind in names.items()}


PREDECLARED = predeclared()  # of "/"


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The move of a queue to another store group: what lies in the former one is consumed there, before all else."""

    count: int  # how often the queue was moved, this time included
    at_ms: int
    group: int  # the former one
    earlier: tuple[int, ...]  # the numbers there, the lowest priority first
    empty: bool = False  # they are, and take nothing more: they are to be forgotten
    forgotten: bool = False  # they are


class QueueDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it was declared, with its bindings. `number` stays the same, wherever its messages are written."""

    name: str
    number: int
    group: int = 0
    durable: bool = False
    auto_delete: bool = False
    exclusive: bool = False
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)
    bindings: tuple[Binding, ...] = ()
    proxy: str = ""  # of several: the one whose connection alone may use it
    lanes: tuple[int, ...] = ()  # of a queue with priorities: a number for each, the lowest first
    pattern: str = ""  # of a shared subscription: the filter that fills it, instead of exchanges and bindings
    creator: str = ""  # in whose share the topics of its dead letters count (`gateway.publishing.topic_shares`)
    move: Move | None = (
        None  # the last one; `lanes` are in the store group that it led to, and `number` is none of them
    )

    @property
    def written(self) -> tuple[int, ...]:
        """Returns the numbers that messages are written to: by priority, the lowest first, or the only one."""
        return self.lanes or (self.number,)

    @property
    def earlier(self) -> tuple[int, ...]:
        """Returns the numbers in the store group that it is being moved from, by priority as `written`."""
        return () if self.move is None or self.move.empty else self.move.earlier

    @property
    def is_moving(self) -> bool:
        """Returns whether its former store group knows it still."""
        return self.move is not None and not self.move.forgotten

    @property
    def numbers(self) -> tuple[int, ...]:
        """Returns all numbers in which its messages can be."""
        return (*self.written, *self.earlier)


# ---- bindings


def patterns(exchange: Exchange, routing_key: str) -> Iterator[str]:
    """Yields the filters for a binding's addresses: one, or two where a wildcard begins a key of amq.topic.

    Keys of amq.topic that are empty or begin with `$` are below `$amqp/amq.topic`, which no leading wildcard reaches.
    """
    root = f"{exchange_root(exchange.name)}/"
    match exchange.routes_as:
        case "direct":
            yield root + from_routing_key(routing_key)
        case "topic":
            pattern = _topic_filter(routing_key)
            shared = exchange.name == TOPIC_EXCHANGE and routing_key != "" and not routing_key.startswith("$")
            if shared:
                yield pattern
            if not shared or pattern[0] in "+#":
                yield root + pattern
        case _:
            yield root + "#"


def _topic_filter(routing_key: str) -> str:
    """Returns the filter of a pattern, whose `*` is one word and `#` any number (AMQP 0-9-1, 3.1.3.3)."""
    words = routing_key.split(".")
    return "/".join("+" if word == "*" else "#" if word == "#" else from_routing_key(word) for word in words)


def binding_predicate(exchange: Exchange, binding: Binding) -> Callable[[Message], bool] | None:
    """Returns the conditions of a binding on a message besides its address; None where the address says all.

    Of a hashed exchange it is for all bindings together to say (`gateway.publishing.routing.hash_choice`).

    A routing key without any word is the address of an empty level. `+` matches an empty level, but `*` is exactly one
    word: a topic pattern of one `*` and else `#` asks that the key is not empty. Raises as `header_predicate` does.
    """
    if exchange.routes_as == "headers":
        return header_predicate(binding.arguments)
    words = binding.routing_key.split(".")
    if exchange.routes_as == "topic" and words.count("*") == 1 and words.count("#") == len(words) - 1:
        return lambda message: not _is_keyless(message.address)
    return None


def _is_keyless(address: str) -> bool:
    """Returns whether an address has an empty routing key, on whatever exchange."""
    return address.endswith("/") and not routing_of(address)[1]


# ---- arguments


def check_exchange_arguments(kind: str, arguments: Arguments, what: str) -> None:
    """Raises `Refusal` (PRECONDITION) for an argument of `what`, an exchange, whose meaning would not be kept.

    Unknown ones mean nothing.
    """
    alternate = arguments.get(ALTERNATE, "")
    if not isinstance(alternate, str):
        raise invalid_argument(ALTERNATE, what, f"expected longstr, got {field_type(alternate)}")
    if kind == DELAYED and arguments.get(DELAYED_TYPE) not in _DELAYED_TYPES:
        raise invalid_argument(DELAYED_TYPE, what, f"it is one of {', '.join(_DELAYED_TYPES)}")
    if HASHED in (kind, arguments.get(DELAYED_TYPE) if kind == DELAYED else None):
        _check_hash(arguments, what)


def _check_hash(arguments: Arguments, what: str) -> None:
    """Raises `Refusal` (PRECONDITION) for arguments that no message can be hashed by."""
    header, field = arguments.get(HASH_HEADER), arguments.get(HASH_PROPERTY)
    if header is not None and field is not None:
        raise Refusal(Cause.PRECONDITION, f"'{HASH_HEADER}' and '{HASH_PROPERTY}' exclude each other")
    if header is not None and not isinstance(header, str):
        raise invalid_argument(HASH_HEADER, what, f"expected longstr, got {field_type(header)}")
    if field is not None and field not in _HASHED_PROPERTIES:
        raise invalid_argument(HASH_PROPERTY, what, f"it is one of {', '.join(_HASHED_PROPERTIES)}")


# ---- consistent hashing


def hash_weight(binding: Binding) -> int:
    """Returns the weight that a binding's key is. Raises `Refusal` (PRECONDITION) for another key."""
    key = binding.routing_key
    if not (key.isascii() and key.isdigit() and int(key[:_WEIGHT_DIGITS]) > 0 and len(key) <= _WEIGHT_DIGITS):
        why = f"the binding key is a weight, a number of at most {_WEIGHT_DIGITS} digits that is not 0, not {key!r}"
        raise Refusal(Cause.PRECONDITION, why)
    return int(key)


def hash_key(exchange: Exchange) -> Callable[[Message], str]:
    """Returns the function for the text of a message that a hashed exchange hashes: "" where the message lacks it."""
    header, field = exchange.arguments.get(HASH_HEADER), exchange.arguments.get(HASH_PROPERTY)
    if header is not None:
        name = str(header)
        return lambda message: headers_of(message).get(name, "")
    return _HASHED_PROPERTIES[field] if field is not None else lambda message: routing_of(message.address)[1]


_HASHED_PROPERTIES: Final[Mapping[str, Callable[[Message], str]]] = {
    "message_id": lambda message: message.id,
    "correlation_id": lambda message: (message.correlation or b"").decode("latin-1"),
    "timestamp": lambda message: str(message.time_ms // 1_000),
}


def bindings_of(definition: QueueDefinition) -> tuple[Binding, ...]:
    """Returns all bindings of a queue: the default exchange's by its name, unless it is a shared subscription's."""
    if definition.pattern:
        return ()
    vhost, name = split_name(definition.name)
    return (Binding(exchange=in_vhost(vhost, ""), routing_key=name), *definition.bindings)
