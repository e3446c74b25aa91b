"""Reading a part of a queue: the messages of some addresses in it, oldest first, without an index.

Each row of a frame has the hash of its record's address, so that records of other addresses are not decoded.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.domain.sql92 import Where, compile_where
from gateway.port.reads import QueuedMessage, QueuedMessages, ReadQueue
from store.api.client import StoreClient
from store.api.message import Message, decode
from store.base import logs
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.frame import FIRST_QUEUE, ROW_EXTRA, Frame, Position, QueueNumber, QueueOffset

FETCH_BYTES, FETCH_ROWS = 1 << 20, 5_000  # read of a queue at a time, before others have their turn
LOOKED_MAX = 100_000  # rows looked at for one answer: where few are of the addresses, the answer may be short
BODY_BYTES_MAX = 4 << 20  # of one answer's messages, the first aside

log = logs.get(__name__)


async def read_queue(
    store: StoreClient,
    request: ReadQueue,
    topic_of: Callable[[str], str],
    topic_at: Callable[[int], str | None] | None = None,
    *,
    now_ms: int,
) -> QueuedMessages:
    """Returns the answer to a request. Raises `Refusal`, and `StoreError` where the store does not answer.

    `topic_of` returns the topic of an address. Expired messages are left out, and rows that only point to a record of
    another queue: a named queue of AMQP has such, and tells nobody here what it holds. With `topic_at`, which returns
    the topic of a queue, one of a topic that none of the addresses is in is answered as one that is not there: the
    offsets at which pages end, or are damaged, tell how much is in it.
    """
    where = compile_where(request.where) if request.where is not None else None
    queue = QueueNumber(request.queue)
    at, end = request.offset, None
    others = topic_at is not None and topic_at(queue) not in {topic_of(address) for address in request.addresses}
    if queue < FIRST_QUEUE or others:
        return QueuedMessages(messages=(), after=None)
    if request.from_ms > 0:
        at = max(at, await store.queues.offset_at_time(queue, request.from_ms))
    if request.until_ms < 1 << 63:
        end = await store.queues.offset_at_time(queue, request.until_ms)
    part = _Part(request, where, now_ms, topic_of, stop=at + LOOKED_MAX if end is None else min(end, at + LOOKED_MAX))
    while at < part.stop:
        try:
            rows_max = min(FETCH_ROWS, part.stop - at)
            fetched = await store.queues.fetch(queue, QueueOffset(at), max_bytes=FETCH_BYTES, max_rows=rows_max)
        except OffsetOutOfRange as error:
            if at >= error.next or error.first >= part.stop:
                return part.answer(None)
            at = error.first
            continue
        except CorruptFrame as error:
            if part.messages or error.next is None:
                if part.messages:  # they come first, and the next page begins with the error
                    return part.answer(at)
                raise
            raise Refusal(
                Cause.DAMAGED,
                f"the message at {queue}, {at} is lost: {error}; reading can go on with after={error.next}",
            ) from error
        if fetched.next <= at:
            return part.answer(None)
        offset = int(fetched.offset)
        for frame, rows in zip(fetched.frames, fetched.rows, strict=True):
            full = part.take(frame, rows, offset)
            if full is not None:
                return part.answer(full)
            offset += len(rows)
        at = int(fetched.next)
        await asyncio.sleep(0)  # records in memory are read without a wait; others have their turn all the same
    return part.answer(None if end is not None and at >= end else at)


class _Part:
    """The messages that were found so far, and the offset at which looking stops."""

    def __init__(
        self, request: ReadQueue, where: Where | None, now_ms: int, topic_of: Callable[[str], str], *, stop: int
    ) -> None:
        self.stop = stop
        self.messages: list[QueuedMessage] = []
        self._request, self._where, self._now_ms, self._topic_of = request, where, now_ms, topic_of
        self._hashes = {hash64(one) for one in request.addresses}
        self._array = np.array(sorted(self._hashes), np.uint64)
        self._addresses = frozenset(request.addresses)
        self._size_bytes = 0

    def answer(self, after: int | None) -> QueuedMessages:
        return QueuedMessages(messages=self.messages, after=after)

    def take(self, frame: Frame, rows: Sequence[int], first: int) -> int | None:
        """Adds a frame's messages, the first of which has an offset; returns where to go on where there is no room."""
        for n, row, start, end in self._wanted(frame, rows):
            message = _decoded(frame, row, start, end)
            if message is None or message.address not in self._addresses or message.expired(self._now_ms):
                continue  # hashes collide
            if self._where is not None and not self._where.matches(message):
                continue
            grown = self._size_bytes + len(message.body)
            if len(self.messages) == self._request.limit or (self.messages and grown > BODY_BYTES_MAX):
                return first + n
            topic = self._topic_of(message.address)
            self.messages.append(QueuedMessage(first + n, frame.header.stored_at_ms, topic, message))
            self._size_bytes = grown
        return None

    def _wanted(self, frame: Frame, rows: Sequence[int]) -> list[tuple[int, int, int, int]]:
        """Returns the rows with the hash of an address: place among `rows`, number, start and end of the record."""
        few = frame.few_rows()
        if few is not None:
            return [
                (n, row, few[row][1], few[row][1] + few[row][2])
                for n, row in enumerate(rows)
                if few[row][5] in self._hashes and not few[row][3] & ROW_EXTRA
            ]
        numbers = np.asarray(rows, np.int64)
        entries = frame.rows[numbers]
        at = np.flatnonzero(np.isin(entries["address_hash"], self._array) & (entries["flags"] & ROW_EXTRA == 0))
        starts = entries["pos"][at].astype(np.int64)
        ends = starts + entries["len"][at]
        return list(zip(at.tolist(), numbers[at].tolist(), starts.tolist(), ends.tolist(), strict=True))


def _decoded(frame: Frame, row: int, start: int, end: int) -> Message | None:
    """Returns the message of a row, its id filled in; None where it is damaged, or none."""
    try:
        message = decode(frame.plain[frame.payload_start + start : frame.payload_start + end])
    except (CorruptFrame, msgspec.MsgspecError) as error:
        log.error("a record is left out", position=str(Position(frame.start, row)), error=str(error))
        return None
    return message if message.id else msgspec.structs.replace(message, id=str(Position(frame.start, row)))
