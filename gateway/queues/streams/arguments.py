"""The arguments of streams: which queue is one, and how long its messages are kept."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import said
from gateway.port.queues import Arguments, DeclareQueue, invalid_argument
from gateway.port.streams import age_ms
from gateway.queues.leaving import policies
from gateway.queues.leaving.rules import COMPARED
from store.format.queue_config import QueueConfig

QUEUE_TYPE: Final = "x-queue-type"
STREAM: Final = "stream"
MAX_AGE: Final = "x-max-age"
MAX_BYTES: Final = "x-max-length-bytes"
COMPARED_OF_STREAMS: Final = (MAX_AGE,)  # that declarations of one stream have to agree in, besides those of queues
_BYTES_MAX: Final = (1 << 63) - 1


def is_stream(arguments: Mapping[str, Any]) -> bool:
    """Returns whether a queue with these arguments is a stream."""
    return arguments.get(QUEUE_TYPE) == STREAM


def is_other_type(current: object, received: object) -> bool:
    """Returns whether a declaration asks for another type of queue than the one that exists.

    One that names no type agrees with all but streams: which type that is, each of RabbitMQ's virtual hosts says.
    """
    if current is None or received is None:
        return STREAM in (current, received)
    return current != received


def check_stream(request: DeclareQueue) -> None:
    """Raises `Refusal` (PRECONDITION) for a stream that there cannot be, by RabbitMQ's rules."""
    for name, wrong in (
        ("non-durable", not request.durable),
        ("exclusive-owner", request.exclusive),
        ("auto-delete", request.auto_delete),
    ):
        if wrong:
            why = f"invalid property '{name}' for queue {said(request.name)} of the type stream"
            raise Refusal(Cause.PRECONDITION, why)
    _check_arguments(request.arguments, f"queue {said(request.name)}")


def _check_arguments(arguments: Arguments, what: str) -> None:
    """Raises `Refusal` for arguments of other kinds of queues; unknown ones have no effect, as in RabbitMQ."""
    for name, value in arguments.items():
        if name == MAX_AGE:
            if age_ms(value) is None:
                raise invalid_argument(name, what, "it is a number and a unit, one of Y, M, D, h, m and s")
        elif name == MAX_BYTES:
            if type(value) is not int or not 0 <= value <= _BYTES_MAX:
                raise invalid_argument(name, what, "it is a number of bytes")
        elif name in COMPARED and name != QUEUE_TYPE:
            raise invalid_argument(name, what, "a queue of the type stream has no such thing")


def stream_config(number: int, arguments: Mapping[str, Any], policy: Mapping[str, Any]) -> QueueConfig:
    """Returns the store's settings of a stream: how long its messages are kept.

    That is for its policies to say, then for its arguments, as in RabbitMQ; else they are kept as any topic's.
    """
    age = policy.get(policies.MAX_AGE, arguments.get(MAX_AGE))
    size_bytes = policy.get(policies.MAX_BYTES, arguments.get(MAX_BYTES))
    return QueueConfig(number, retention_ms=age_ms(age), retention_bytes=size_bytes)
