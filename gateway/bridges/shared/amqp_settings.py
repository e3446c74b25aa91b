"""The settings of upstream brokers of AMQP 0-9-1: declarations, queues to read, and rules for forwarding."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.bridges.shared.addresses import address_mistakes, known_of, template_mistakes
from gateway.domain.errors import Refusal
from gateway.domain.filters import check_filter

MiB = 1024 * 1024
CONSUME_COUNT_MAX = 64  # queues that one bridge reads
FORWARD_COUNT_MAX = 256  # filters that one bridge forwards
DECLARE_COUNT_MAX = 256  # exchanges of one bridge, and bindings of one queue
LEVELS_NAMED_MAX = 9  # {1} to {9} of a routing key
SHORT_BYTES_MAX = 255  # of a name or routing key (AMQP 0-9-1, 4.2.5.3)

READ_BLANKS = frozenset({"topic", "exchange", "queue", "bridge", *(str(n) for n in range(1, LEVELS_NAMED_MAX + 1))})


class AmqpExchange(msgspec.Struct, frozen=True, kw_only=True):
    """`[[bridges.NAME.exchanges]]`: an exchange that is declared upstream before anything else."""

    name: Annotated[str, Meta(min_length=1, max_length=SHORT_BYTES_MAX)]
    type: Annotated[str, Meta(min_length=1, description="direct, fanout, topic, headers, or the upstream's own")] = (
        "topic"
    )
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)


class AmqpBinding(msgspec.Struct, frozen=True, kw_only=True):
    """A binding of a queue that is declared."""

    exchange: Annotated[str, Meta(min_length=1, max_length=SHORT_BYTES_MAX)]
    routing_key: Annotated[str, Meta(max_length=SHORT_BYTES_MAX)] = ""
    arguments: Mapping[str, Any] = msgspec.field(default_factory=dict)


class AmqpConsume(msgspec.Struct, frozen=True, kw_only=True):
    """`[[bridges.NAME.consume]]`: a queue of the upstream that is read, and where its messages go."""

    queue: Annotated[str, Meta(min_length=1, max_length=SHORT_BYTES_MAX)]
    declare: Annotated[bool, Meta(description="whether the queue is declared; if not, it has to be there")] = False
    durable: Annotated[bool, Meta(description="of a queue that is declared")] = True
    arguments: Annotated[Mapping[str, Any], Meta(description="of a queue that is declared, as x-queue-type")] = (
        msgspec.field(default_factory=dict)
    )
    bindings: Annotated[
        tuple[AmqpBinding, ...], Meta(description="of a queue that is declared: { exchange = , routing_key = }")
    ] = ()
    to: Annotated[
        str,
        Meta(
            min_length=1,
            description="the address: {topic} is the routing key with / for ., {1} its first, {exchange}, {queue}",
        ),
    ] = "{topic}"
    device: Annotated[str, Meta(min_length=1, description="the device of messages, which stay in order; as `to`")] = (
        "{bridge}"
    )


class AmqpForward(msgspec.Struct, frozen=True, kw_only=True):
    """`[[bridges.NAME.forward]]`: addresses that are published upstream. Of several that match the first counts."""

    filter: Annotated[str, Meta(min_length=1, description="a filter of our addresses")]
    exchange: Annotated[str, Meta(max_length=SHORT_BYTES_MAX, description="empty: routing keys are queues' names")] = (
        "amq.topic"
    )
    routing_key: Annotated[
        str,
        Meta(description="{key} is the address with . for /, {1} the part that the filter's first wildcard matches"),
    ] = "{key}"
    mandatory: Annotated[
        bool, Meta(description="whether a message waits, and all behind it, until a queue of the upstream takes it")
    ] = False
    message_bytes_max: Annotated[
        int, Meta(ge=1, description="larger messages are not forwarded: an upstream ends the channel for them")
    ] = 16 * MiB


class AmqpTopology(msgspec.Struct, frozen=True, kw_only=True):
    """The part of `[bridges.NAME]` that is for AMQP alone."""

    exchanges: Annotated[
        tuple[AmqpExchange, ...], Meta(description="AMQP: declared first: [[bridges.NAME.exchanges]]")
    ] = ()
    consume: Annotated[
        tuple[AmqpConsume, ...], Meta(description="AMQP: queues that are read: [[bridges.NAME.consume]]")
    ] = ()
    forward: Annotated[
        tuple[AmqpForward, ...], Meta(description="AMQP: addresses that are published there: [[bridges.NAME.forward]]")
    ] = ()
    forward_from: Annotated[
        Literal["new", "earliest"],
        Meta(description="AMQP: where a bridge begins that has never forwarded; later it goes on where it was"),
    ] = "new"


def topology_mistakes(path: str, topology: AmqpTopology) -> Iterator[tuple[str, str]]:
    """Yields the mistakes in a bridge's declarations, queues and forwarding rules: the key, and a remedy."""
    if not topology.consume and not topology.forward:
        yield f"{path}.consume", f"is missing; write [[{path}.consume]] or [[{path}.forward]]"
    limits: Sequence[tuple[str, Sequence[object], int]] = (
        ("exchanges", topology.exchanges, DECLARE_COUNT_MAX),
        ("consume", topology.consume, CONSUME_COUNT_MAX),
        ("forward", topology.forward, FORWARD_COUNT_MAX),
    )
    for key, given, most in limits:
        if len(given) > most:
            yield f"{path}.{key}", f"are {len(given)}; write at most {most}"
    yield from _consume_mistakes(path, topology.consume)
    for number, one in enumerate(topology.forward):
        for key, mistake in _forward_mistakes(one):
            yield f"{path}.forward[{number}].{key}", mistake


def _consume_mistakes(path: str, consume: Sequence[AmqpConsume]) -> Iterator[tuple[str, str]]:
    queues = [one.queue for one in consume]
    for twice in dict.fromkeys(one for one in queues if queues.count(one) > 1):
        yield f"{path}.consume", f"{twice!r} is there {queues.count(twice)} times; write it once"
    for number, one in enumerate(consume):
        at = f"{path}.consume[{number}]"
        if not one.declare and (one.bindings or one.arguments):
            yield f"{at}.declare", "is false, and bindings and arguments are for queues that are declared; write true"
        if len(one.bindings) > DECLARE_COUNT_MAX:
            yield f"{at}.bindings", f"are {len(one.bindings)}; write at most {DECLARE_COUNT_MAX}"
        for key, template in (("to", one.to), ("device", one.device)):
            for _, mistake in template_mistakes(key, template, READ_BLANKS):
                yield f"{at}.{key}", mistake
        for _, mistake in address_mistakes("to", one.to):
            yield f"{at}.to", mistake


def _forward_mistakes(one: AmqpForward) -> Iterator[tuple[str, str]]:
    try:
        check_filter(one.filter)
    except Refusal as refusal:
        yield "filter", f"{refusal}; write a filter of addresses"
        return
    yield from template_mistakes("routing_key", one.routing_key, known_of(one.filter, "key", "address", "bridge"))
