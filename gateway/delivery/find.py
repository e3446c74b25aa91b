"""Finding messages by key, address or id: positions from the store's index, checked against the messages themselves.

Messages that the asker may not read are skipped before anything is counted, compared or made a cursor of.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from gateway.delivery.last_value import QueuesAt, anywhere
from gateway.delivery.search_cursors import PlainCursors
from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.domain.sql92 import Where, compile_where
from gateway.port.reads import FindMessages, FoundMessages
from store.api.client import StoreClient
from store.api.log import IndexKind
from store.api.message import Message, decode
from store.base import logs
from store.base.errors import CorruptFrame
from store.format.frame import FIRST_QUEUE, Position, QueueNumber

PAGE = 500  # positions asked of the store at a time
LOOKED_MAX = 5_000  # positions looked at for one answer: with a filter that little passes, the answer may be short
PASSED_OVER_MAX = 10_000  # of messages that the asker may not read, besides; then the answer may be short, too

_PLAIN = PlainCursors()

log = logs.get(__name__)


class Cursors(Protocol):
    """The format of cursors; see `gateway.delivery.search_cursors`."""

    def seal(self, position: Position) -> str:
        """Returns a cursor that stands for a position."""

    def open(self, text: str) -> Position:
        """Returns the position of a cursor. Raises `Refusal`."""


async def find_messages(
    store: StoreClient,
    request: FindMessages,
    *,
    now_ms: int,
    indexed: Callable[[IndexKind, str], bool],
    readable: Callable[[str], bool] | None = None,
    cursors: Cursors = _PLAIN,
    queues_at: QueuesAt = anywhere,
) -> FoundMessages:
    """Returns the answer to a request. Raises `Refusal`.

    `indexed` says whether messages are found by a key or an address at all, `readable` whether the asker may read an
    address; None: everything. Expired messages are left out. A message that is lost to damage is refused with
    `Cause.DAMAGED`, or left out where it is not certain that the asker may read it. The cursor is that of the last
    message that may be read, so it does not tell of others, but where `PASSED_OVER_MAX` of them were met.
    """
    kind, text = _asked(request)
    where = compile_where(request.where) if request.where is not None else None
    below = None if request.after is None else cursors.open(request.after)
    given = await _by_position(store, text, certain=readable is None) if kind is IndexKind.ID else None
    if given is not None and (readable is None or readable(given.address)):
        return FoundMessages(messages=_passing([given], where, now_ms), after=None)
    if not indexed(kind, text):
        raise Refusal(
            Cause.PRECONDITION,
            f"messages cannot be found by {kind.name.lower()}: their topic is configured without that index",
        )
    at = queues_at(text) if kind is IndexKind.ADDRESS else None
    queues = None if at is None else [QueueNumber(queue) for queue in at]
    found: list[Message] = []
    looked = passed_over = 0
    while True:
        positions = await store.log.find(
            kind,
            hash64(text),
            from_ms=request.from_ms,
            until_ms=request.until_ms,
            below=below,
            limit=PAGE,
            queues=queues,
        )
        for position in positions:
            try:
                message = await _read(store, position)
            except CorruptFrame as error:
                if readable is None or (kind is IndexKind.ADDRESS and readable(text)):
                    if found:  # they come first, and the next page begins with the error
                        return FoundMessages(messages=found, after=None if below is None else cursors.seal(below))
                    raise Refusal(
                        Cause.DAMAGED,
                        f"the message at {position} is lost: {error}; reading can go on with "
                        f"after={cursors.seal(position)}",
                    ) from error
                log.error("a damaged message is left out", position=str(position), error=str(error))
                message = None
            below = position
            if readable is not None and (message is None or not readable(message.address)):
                passed_over += 1
                if passed_over == PASSED_OVER_MAX:
                    return FoundMessages(messages=found, after=cursors.seal(position))
                continue
            if message is not None and _is(kind, text, message):
                found += _passing([_with_id(message, position)], where, now_ms)
            looked += 1
            if len(found) == request.limit or looked == LOOKED_MAX:
                return FoundMessages(messages=found, after=cursors.seal(position))
        if len(positions) < PAGE:
            return FoundMessages(messages=found, after=None)


def _asked(request: FindMessages) -> tuple[IndexKind, str]:
    """Returns the one thing that messages are to be found by."""
    given = [
        (kind, text)
        for kind, text in (
            (IndexKind.KEY, request.key),
            (IndexKind.ADDRESS, request.address),
            (IndexKind.ID, request.id),
        )
        if text
    ]
    if len(given) != 1:
        raise Refusal(Cause.MALFORMED, "messages are found by one of key, address and id")
    return given[0]


def _is(kind: IndexKind, text: str, message: Message) -> bool:
    """Returns whether a message is one that was asked for, and not another of the same hash."""
    if kind is IndexKind.KEY:
        return (message.key or message.device) == text
    return text == (message.address if kind is IndexKind.ADDRESS else message.id)


async def _by_position(store: StoreClient, text: str, *, certain: bool) -> Message | None:
    """Returns the message whose id is its position, which the index does not have.

    Raises `Refusal` (DAMAGED) where it is lost and it is `certain` that the asker may read it.
    """
    try:
        position = Position.parse(text)
    except ValueError:
        return None
    try:
        message = await _read(store, position)
    except CorruptFrame as error:
        if certain:
            raise Refusal(Cause.DAMAGED, f"the message at {position} is lost: {error}") from error
        log.error("a damaged message is left out", position=str(position), error=str(error))
        return None
    if message is None or message.id or not await _is_indexed(store, position):
        return None
    return _with_id(message, position)


async def _is_indexed(store: StoreClient, position: Position) -> bool:
    """Returns whether a queue has the frame at a position, which a client has named.

    A record may hold the bytes of a frame: it would be a message that nobody had a right to publish.
    """
    frames, _ = await store.log.scan(position, None, max_bytes=1)
    if not frames or frames[0].start != position.frame:
        return False
    queue = QueueNumber(int(frames[0].rows["queue"][position.row]))
    if queue < FIRST_QUEUE:
        return False
    frames, _ = await store.log.scan(position, [queue], max_bytes=1)
    return bool(frames) and frames[0].start == position.frame


async def _read(store: StoreClient, position: Position) -> Message | None:
    """Returns the message at a position; None where nothing is left, or no message. Raises `CorruptFrame`."""
    try:
        record = await store.log.read(position)
        return None if record is None else decode(record)
    except msgspec.MsgspecError:
        log.warning("a record that is not a message is left out", position=str(position))
    return None


def _with_id(message: Message, position: Position) -> Message:
    return message if message.id else msgspec.structs.replace(message, id=str(position))


def _passing(messages: Iterable[Message], where: Where | None, now_ms: int) -> list[Message]:
    return [m for m in messages if not m.expired(now_ms) and (where is None or where.matches(m))]
