"""Requests that read stored data: last values, retained messages, addresses, and messages by key, address, id
and queue.

Three are for the answer to a message that an adapter publishes: `ExpectAnswer` before it is published, so that no
answer is missed, then `AwaitAnswer` once it is stored, or `ForgetAnswer`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.domain.idempotency import StoredRequest
from gateway.port.adapter import Request, Value
from store.api.message import Message
from store.format.frame import Position

ANSWER_WAIT_MS_MAX = 60_000  # from `ExpectAnswer` on


class RecallKey(Request[StoredRequest], frozen=True, kw_only=True):
    """Asks for the request stored under a repeated key."""

    store_group: int  # in whose log the request is
    name: bytes


class LastValue(Request[Message | None], frozen=True, kw_only=True):
    """The newest message at an address. Its id is filled in."""

    address: str


class LastValuesPage(Value, frozen=True, kw_only=True):
    """A page of last values, their ids filled in. `after` asks for the next page; None: this was the last."""

    messages: Sequence[Message]
    after: str | None


class LastValues(Request[LastValuesPage], frozen=True, kw_only=True):
    """The newest messages at the addresses that a filter matches, by address.

    A page may be short, or empty, though more follow. Refused with MALFORMED for an invalid filter.
    """

    pattern: str
    limit: int = 100
    after: str = ""  # the one of the page before


class RetainedPage(Value, frozen=True, kw_only=True):
    """A page of retained messages. `after` is where the next page begins; None: this was the last."""

    messages: Sequence[Message]
    after: str | None


class Retained(Request[RetainedPage], frozen=True, kw_only=True):
    """Retained messages whose address a filter matches, a page at a time, sorted by `retained_key` of their address.

    A page ends at `limit` messages or at about `max_bytes` of bodies, whichever is first; ask for the next one with
    the page's `after` once there is room for it.
    """

    pattern: str
    limit: int = 1_000
    max_bytes: int = 1 << 20
    after: str = ""


class ListAddresses(Request[Sequence[str]], frozen=True, kw_only=True):
    """Asks for addresses that were published to and begin with a prefix, sorted.

    Where there are `limit`, more may follow: ask with the last one as `after`.
    """

    prefix: str = ""
    limit: int = 1_000
    after: str = ""


class FoundMessages(Value, frozen=True, kw_only=True):
    """A page of messages, their ids filled in. `after` is for asking for the next, None when there is none.

    It is sealed for an asker restricted by rules.
    """

    messages: Sequence[Message]
    after: str | None


class FindMessages(Request[FoundMessages], frozen=True, kw_only=True):
    """Stored messages with one key, address or id, newest first.

    Refused with MALFORMED unless one of the three is given, with PRECONDITION where messages are not found by it.
    """

    key: str | None = None  # the ordering key, or the device where a message has none
    address: str | None = None
    id: str | None = None
    from_ms: int = 0  # stored then or later
    until_ms: int = 1 << 63  # and before
    where: str | None = None  # as in `Subscribe`
    after: str | None = None  # the one of the page before
    limit: int = 100
    wait_ms: int = 0  # for the first one, where there is none


class ExpectAnswer(Request[None], frozen=True, kw_only=True):
    """Notes the first message from now on that has this correlation at this address.

    Refused with QUOTA or OVERLOAD where too many answers are expected.
    """

    number: int  # chosen by the adapter; unique among the answers that its connection expects
    address: str
    correlation: bytes
    wait_ms: int
    host: str = ""  # of its client, where the connection is that of a proxy


class AwaitAnswer(Request[Message | None], frozen=True, kw_only=True):
    """Asks for the expected message, its id filled in; None once its time is up. It is not expected any more then.

    Where the request was stored before, `behind` is its position: then the last message at the address may be the
    answer that has come already, unless it was stored before the request.
    """

    number: int
    behind: Position | None = None


class ForgetAnswer(Request[None], frozen=True, kw_only=True):
    """Ends the wait for an answer: who has asked for it is told that there is none."""

    number: int


class QueuedMessage(NamedTuple):
    """A message, its id filled in, its offset in its queue, and when it was stored, in ms since 1970."""

    offset: int
    stored_at_ms: int
    topic: str
    message: Message


class QueuedMessages(Value, frozen=True, kw_only=True):
    """A part of a queue. `after` is the offset to go on at, None where there is nothing more to read."""

    messages: Sequence[QueuedMessage]
    after: int | None


class ReadQueue(Request[QueuedMessages], frozen=True, kw_only=True):
    """The messages of some addresses in a part of a topic's queue, oldest first. No index is needed.

    An answer may be short, or empty, though more follow. Refused with DAMAGED where the next record is lost.
    """

    queue: int
    addresses: tuple[str, ...]  # of `ADDRESSES_COUNT_MAX` at most
    offset: int = 0  # from which on
    from_ms: int = 0  # stored then or later
    until_ms: int = 1 << 63  # and before
    where: str | None = None  # as in `Subscribe`
    limit: int = 100


ADDRESSES_COUNT_MAX = 64  # of one `ReadQueue`
