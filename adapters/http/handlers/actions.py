"""The context of a request's handler, and its actions: a response, messages stored, an answer, a stream."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response
from adapters.http.wire.transport import Exchange
from gateway.domain.cursor import Cursor
from gateway.domain.errors import Refusal
from gateway.domain.idempotency import IdempotencyKey
from gateway.domain.principal import Principal
from gateway.port.adapter import Outcome, Random, Request
from gateway.port.kv import WatchKeys
from gateway.port.reads import ExpectAnswer
from store.api.message import Message
from store.format.frame import Position


class HandlerContext(msgspec.Struct, frozen=True):
    """The values that a handler has besides the request."""

    options: HttpOptions
    principal: Principal
    now_ms: int
    host: str = ""  # where the client is
    below: str = ""  # the part of the path below /topics/, /timers/ or /kv/
    random: Random | None = None  # of the connection


class Respond(NamedTuple):
    """Send this response."""

    response: Response


class Store(NamedTuple):
    """Store these; `reply` makes the response from the outcome and the place of the first stored one.

    With a key they are stored once, however often the request is sent; with `keys`, one for each message, each message.
    """

    messages: Sequence[Message]
    reply: Callable[["Stored"], Response | None]
    key: IdempotencyKey | None = None
    keys: Sequence[IdempotencyKey] = ()


class Ask(NamedTuple):
    """Ask the gateway; `reply` makes the response from the answer, and `failed` from a refusal where it is given.

    Both return None where the response is still to come; `reply` may have messages stored instead. `reads`: the answer
    may be as large as that to a GET.
    """

    request: Request[Any]
    reply: Callable[[Any], "Response | Store | Command | None"]
    failed: Callable[[Refusal], Response | None] | None = None
    reads: bool = False


class Command(NamedTuple):
    """Store one message, and wait for the answer to it.

    `reply` makes the response from the answer; from the one of `store` where there is none in time.
    """

    expected: ExpectAnswer
    store: Store
    reply: Callable[[Message | None, Response], Response]


class Follow(NamedTuple):
    """Stream messages published to these filters, from `start` on."""

    patterns: Sequence[str]
    start: Cursor | None
    where: str | None = None


class Watch(NamedTuple):
    """Stream the changes of some keys."""

    request: WatchKeys


Action: TypeAlias = Respond | Store | Ask | Command | Follow | Watch
Handler: TypeAlias = Callable[[HttpRequest, HandlerContext], Action]


class RowByRow(Mapping[int, Sequence[Position]]):
    """The positions of messages that are all in one frame, one behind the other; each is made when it is asked for."""

    __slots__ = ("_count", "_first")

    def __init__(self, first: Position, count: int) -> None:
        self._first = first
        self._count = count

    def __getitem__(self, index: int) -> Sequence[Position]:
        if not 0 <= index < self._count:
            raise KeyError(index)
        return (Position(self._first.frame, self._first.row + index),)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._count))

    def __len__(self) -> int:
        return self._count

    def texts(self) -> list[str]:
        """Returns the text of each position, as `str` writes it."""
        frame, row = self._first
        begins = f"{frame:x}."
        return [f"{begins}{n:x}" for n in range(row, row + self._count)]


class Stored(NamedTuple):
    """The outcome of one request's messages: positions of those stored, refusals of the others, by index.

    `deliver_at_ms` is when they are to be delivered, where an earlier request has said that. `recalled` says that an
    earlier request with the same key has stored them.
    """

    positions: Mapping[int, Sequence[Position]]
    refused: Mapping[int, Refusal]
    deliver_at_ms: int | None = None
    repeated: frozenset[int] = frozenset()  # stored by an earlier request, as events with the same source and id
    recalled: bool = False

    @classmethod
    def of(cls, outcome: Outcome, start: int, count: int) -> "Stored":
        """Returns the part of an outcome that belongs to `count` messages from index `start` on."""
        if outcome.error is not None:
            return cls({}, dict.fromkeys(range(count), outcome.error))
        if outcome.first is not None and not outcome.refused:
            frame, row = outcome.first
            return cls(RowByRow(Position(frame, row + start), count), {})
        end = start + count
        refused_ = {index - start: refusal for index, refusal in outcome.refused.items() if start <= index < end}
        found = outcome.stored(end)
        positions = {index: found.get(start + index, ()) for index in range(count) if index not in refused_}
        return cls(positions, refused_)


class Part(NamedTuple):
    """The messages of one request among those of a `Publish`."""

    exchange: Exchange
    request: HttpRequest
    start: int
    size: int
    reply: Callable[[Stored], Response | None]

    def answered(self, outcome: Outcome) -> Response | None:
        """Returns the response to the request, from the outcome of all."""
        return self.reply(Stored.of(outcome, self.start, self.size))
