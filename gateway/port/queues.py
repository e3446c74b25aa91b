"""Requests about named queues and exchanges, for `gateway.port.adapter.Call`, after AMQP 0-9-1.

Refusals: NOT_FOUND where a queue or exchange is missing, PRECONDITION where a request contradicts what exists or is
not supported, CONFLICT where another connection holds a queue exclusively, FORBIDDEN where a name is reserved.

An exchange stores nothing: publishing to it is publishing to an address. `$amqp/{exchange}/{key}` is the address of a
routing key, except on amq.topic, whose routing keys are the addresses that every protocol publishes to. In another
virtual host than "/" it is `$vhost/{vhost}/amqp/{exchange}/{key}` on all exchanges.

Names of queues and exchanges in requests are those of `gateway.domain.vhosts.in_vhost`; arguments that name an exchange
mean one of the same virtual host, and are as the client says them.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from gateway.domain.address import escape_level, from_routing_key, to_routing_key, unescape_level
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import DEFAULT_VHOST, VHOST_ROOT, in_vhost, split_name, vhost_address, vhost_of_address
from gateway.port.adapter import Leased, Request
from store.api.message import REPLY_QUEUE, Message

TOPIC_EXCHANGE = "amq.topic"
DELAYED, HASHED = "x-delayed-message", "x-consistent-hash"  # kinds of exchanges that RabbitMQ has as plug-ins
EXCHANGE_KINDS = ("direct", "fanout", "topic", "headers", DELAYED, HASHED)
ROOT = "$amqp"  # the first level of the addresses of exchanges
_SIGNEDINT_BITS = 31
_IN_VHOST = "amqp"  # the level of exchanges behind that of a virtual host

# Keys in `Message.native["amqp"]`.
PROPERTIES = "properties"  # the bytes that a message is delivered with by AMQP; empty: they have to be made
PROPERTIES_BEFORE = "alive"  # of a dead letter: the bytes it was published with, empty for another protocol's
DEATHS = "deaths"  # the content of `x-death`, as plain values
EXPIRATION = "expiration"  # the text of the property
PRIORITY = "priority"  # the property
COPY_KEYS = "cc"  # the routing keys of the header CC
ADDED = "added"  # of a delivery: headers besides those of the message, as plain values
STORED = "stored"  # beside it: `native["amqp"]` as it was in the log
TYPED = "typed"  # the headers that are no texts, as plain values; where it is missing, the types are not known
SHOWN = "shown"  # names and texts of properties without a field, for protocols that have a place for such

Arguments: TypeAlias = Mapping[
    str, Any
]  # plain values: None, bool, int, float, str, bytes, and lists and dicts of them


def address_of(exchange: str, routing_key: str) -> str:
    """Returns the address that publishing to an exchange means."""
    if exchange == TOPIC_EXCHANGE and routing_key and not routing_key.startswith("$"):
        return from_routing_key(routing_key)
    return f"{exchange_root(exchange)}/{from_routing_key(routing_key)}"


def exchange_root(exchange: str) -> str:
    """Returns the levels of the addresses of an exchange in front of its routing keys: any text is a name."""
    vhost, name = split_name(exchange)
    level = escape_level(name)
    return f"{ROOT}/{level}" if vhost == DEFAULT_VHOST else f"{vhost_address(vhost)}/{_IN_VHOST}/{level}"


def exchange_root_of(address: str) -> str | None:
    """Returns the root of the exchange that an address names; None for an address that names none."""
    levels = address.split("/", 4)
    if levels[0] == ROOT and len(levels) > 2:
        return f"{ROOT}/{levels[1]}"
    if levels[0] == VHOST_ROOT and len(levels) == 5 and levels[2] == _IN_VHOST:
        return "/".join(levels[:4])
    return None


def routing_of(address: str) -> tuple[str, str]:
    """Returns an address's exchange and routing key: inverts `address_of`, and uses amq.topic for all others."""
    levels = address.split("/", 2)
    if len(levels) == 3 and levels[0] == ROOT:
        return in_vhost(DEFAULT_VHOST, unescape_level(levels[1])), to_routing_key(levels[2])
    if levels[0] == VHOST_ROOT:
        levels = address.split("/", 4)
        if len(levels) == 5 and levels[2] == _IN_VHOST:
            exchange = in_vhost(unescape_level(levels[1]), unescape_level(levels[3]))
            return exchange, to_routing_key(levels[4])
    return TOPIC_EXCHANGE, to_routing_key(address)


def answers_at(message: Message) -> str | None:
    """Returns the address at which the answer to a message is wanted: of a queue that AMQP's `reply_to` names, too."""
    if message.reply_to is not None or message.native is None:
        return message.reply_to
    queue = message.native.get("amqp", {}).get(REPLY_QUEUE)
    return address_of(in_vhost(vhost_of_address(message.address), ""), queue) if queue else None


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as its declaration is answered."""

    name: str
    messages: int  # neither settled nor leased
    consumers: int


class Got(msgspec.Struct, frozen=True, kw_only=True):
    """One message fetched, and how many wait behind it."""

    leased: Leased
    remaining: int


class OpenVhost(Request[None], frozen=True, kw_only=True):
    """Asks for leave to use a virtual host.

    FORBIDDEN for users without a right there, NOT_FOUND where there is none.
    """

    name: str


class DeclareExchange(Request[None], frozen=True, kw_only=True):
    """Creates an exchange, or agrees with the one that exists.

    `passive` only asks whether it exists. `kind` is one of `EXCHANGE_KINDS`. Only other exchanges publish to an
    `internal` one. The argument "alternate-exchange" names the exchange for messages that no binding takes.
    """

    name: str
    kind: str
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    passive: bool = False
    arguments: Arguments = msgspec.field(default_factory=dict)


class DeleteExchange(Request[None], frozen=True, kw_only=True):
    """Removes an exchange and the bindings to it; one that does not exist is no error."""

    name: str
    if_unused: bool = False


class DeclareQueue(Request[QueueInfo], frozen=True, kw_only=True):
    """Creates a queue, or agrees with the one that exists.

    An empty name asks for a new, unique one, and `REPLIES` for one of a queue for answers, which any client may ask
    for. `passive` only asks whether it exists.
    """

    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    passive: bool = False
    arguments: Arguments = msgspec.field(default_factory=dict)


class DeleteQueue(Request[int], frozen=True, kw_only=True):
    """Removes a queue; one that does not exist is no error. Answers how many messages were waiting in it."""

    name: str
    if_unused: bool = False
    if_empty: bool = False


class PurgeQueue(Request[int], frozen=True, kw_only=True):
    """Settles every message of a queue that is not leased. Answers how many."""

    name: str


class BindQueue(Request[None], frozen=True, kw_only=True):
    """Puts messages that are published to an exchange, and match, into a queue from now on."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Arguments = msgspec.field(default_factory=dict)


class UnbindQueue(Request[None], frozen=True, kw_only=True):
    """Ends a binding; one that does not exist is no error."""

    queue: str
    exchange: str
    routing_key: str = ""
    arguments: Arguments = msgspec.field(default_factory=dict)


class BindExchange(Request[None], frozen=True, kw_only=True):
    """Routes messages that are published to an exchange, and match, through another exchange too from now on."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: Arguments = msgspec.field(default_factory=dict)


class UnbindExchange(Request[None], frozen=True, kw_only=True):
    """Ends a binding between exchanges; one that does not exist is no error."""

    destination: str
    source: str
    routing_key: str = ""
    arguments: Arguments = msgspec.field(default_factory=dict)


class GetMessage(Request[Got | None], frozen=True, kw_only=True):
    """Leases one message to this connection; with `settle` it is settled at once.

    The consumer of `Got.leased` is 0.
    """

    queue: str
    settle: bool = False


def field_type(value: object) -> str:
    """Returns the type that clients give a value of a field table, in RabbitMQ's words."""
    match value:
        case None:
            return "void"
        case bool():
            return "bool"
        case int():
            return "signedint" if value.bit_length() <= _SIGNEDINT_BITS else "long"
    names: dict[type, str] = {str: "longstr", bytes: "binary", float: "double", list: "array", dict: "table"}
    return names.get(type(value), type(value).__name__)


def invalid_argument(name: str, what: str, why: str) -> Refusal:
    """Returns the refusal of an argument; `what` is the thing that it is of, if there is one."""
    return Refusal(Cause.PRECONDITION, f"invalid arg '{name}'{what and f' for {what}'}: {why}")


def text_of(value: object) -> str | None:
    """Returns the text of a typed header value, by which other protocols read it.

    None for values without a text: nothing, bytes, arrays and tables.
    """
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int():
            return str(value)
        case float():
            return repr(value)
        case _:
            return None
