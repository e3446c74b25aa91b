"""The stream of calls between a client and a store node: requests and answers.

One stream with messages both ways is a session. A message of the client is MessagePack, an array of calls

    [number, method, arguments]

and one of the server

    [confirmed, [[number, kind, body], ...], news]

All calls of one turn of the loop go in one message. `arguments` is the array of one of the structs of
`store.rpc.arguments`, `body` the method's result or, with `kind` 1, an error as `store.rpc.wire.describe` makes it.
Answers come in any order, by the number of their call; a call with number 0 is not answered. `confirmed` is the log
offset behind the last frame that readers may see, so that a client never reads an older state than its answers.

Arguments are decoded call by call: one that is malformed, or of a method that this version does not know, is refused
and hurts no other. A message that is no array of calls ends the session.
"""

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Raw

from controller.api.client import KnownMetadata
from store.api.timers import TimersHeld
from store.rpc.wire import BadAnswer, BadRequest, Offset, Queue

CALLS_COUNT_MAX = 1 << 14  # in one message
VALUE: Final = 0
ERROR: Final = 1

encode = msgspec.msgpack.Encoder().encode


# ---- envelopes


class StoreCall(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One call; its arguments are decoded once the method is known."""

    number: Offset
    method: str
    arguments: Raw


class CallAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The outcome of a call."""

    number: Offset
    kind: int
    body: Raw


class Notice(msgspec.Struct, frozen=True, array_like=True):
    """A notice without a request: queues with messages to lease, and the size of timers.

    The queues are those of `QueueCalls.watch`. With `leave` the node is about to serve nothing any more: the
    client makes no more calls and, once it has all answers, goes to the master at that address if it is known.
    """

    queues: tuple[Queue, ...] = ()
    timers: TimersHeld | None = None
    leave: str | None = None


class CallAnswers(msgspec.Struct, frozen=True, array_like=True):
    """One message of the server."""

    confirmed: Offset
    answers: list[CallAnswer]
    news: Notice | None = None


_decode_calls: Callable[[bytes], list[StoreCall]] = msgspec.msgpack.Decoder(
    Annotated[list[StoreCall], Meta(max_length=CALLS_COUNT_MAX)]
).decode
_decode_answers = msgspec.msgpack.Decoder(CallAnswers).decode


def decode_calls(message: bytes) -> list[StoreCall]:
    """Returns the calls of a client's message. Raises `BadRequest`."""
    try:
        return _decode_calls(message)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(str(error)) from error


def decode_answers(message: bytes) -> CallAnswers:
    """Returns a server's message. Raises `BadAnswer`."""
    try:
        return _decode_answers(message)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadAnswer(str(error)) from error


# ---- values that have a shape of their own here


class TimerAdmission(NamedTuple):
    """The limits by which `TimerCalls.admit` decides: of all that is pending, of time ahead, of one timer."""

    timers: int
    size_bytes: int
    horizon_ms: int
    timer_bytes: int


class SessionGreeting(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `Hello`. `known` is how much of the cluster's metadata the node has seen."""

    group: int
    confirmed: Offset
    master: bool
    timers: TimersHeld
    admission: TimerAdmission
    known: KnownMetadata = KnownMetadata()
