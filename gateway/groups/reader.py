"""Reading some queues at once, fairly, and waiting for the first of them that gets something."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from gateway.port.adapter import Random
from store.api.client import StoreClient
from store.api.message import Message, decode
from store.api.queues import Fetched
from store.base import logs
from store.base.errors import CorruptFrame, OffsetOutOfRange, StoreError
from store.base.streams.event_wait import wait_at_most
from store.format.frame import Frame, Position, QueueNumber, QueueOffset

FETCHES_AT_ONCE = 16
FETCH_BYTES_MIN = 64 << 10
ROUNDS_COUNT_MAX = 16  # of fetches for one answer; each asks all queues that may have more
FETCHES_COUNT_MAX = 32  # in flight in this process: each may bring a frame as long as frames can be
WAITED_QUEUES_COUNT_MAX = 64  # by one who waits; of those who have more, others in turn
WAITS_COUNT_MAX = 2_048  # in flight in this process; a later one looks again after a while
LOOK_S = 1.0  # after which those who cannot wait for all they read look again
PAUSE_S = 0.25  # where a queue cannot be read

log = logs.get(__name__)


class ReadLimits(NamedTuple):
    """The limits of a read: up to `limit` messages of about `max_bytes`, of those that have not expired at `now_ms`.

    Messages at an address for which `reads` returns False are skipped.
    """

    limit: int
    max_bytes: int
    now_ms: int
    reads: Callable[[str], bool] | None = None


@dataclass(slots=True)
class GroupRead:
    """The result of a read: messages with queue and offset, and the next offset of each queue."""

    positions: dict[int, int]
    messages: list[tuple[int, int, Message]] = field(default_factory=list)
    size_bytes: int = 0  # of bodies
    beyond: dict[int, int] = field(default_factory=dict)  # ends of queues that were to be read further behind
    failed: dict[int, StoreError] = field(default_factory=dict)


class QueueReader:
    """Reads queues of a store. `random` decides whose turn is first."""

    def __init__(self, store: StoreClient, *, random: Random) -> None:
        self._store = store
        self._random = random
        self._fetches = asyncio.Semaphore(FETCHES_COUNT_MAX)
        self._waits = 0  # <= WAITS_COUNT_MAX

    async def read(self, positions: Mapping[int, int], wanted: ReadLimits) -> GroupRead:
        """Reads as many messages as there are and are wanted, at least one if there is any.

        At first each queue has an equal share. Queues that cannot be read now, or whose next messages are lost, are in
        `failed`.
        """
        found = GroupRead(dict(positions))
        active = self._rotated(sorted(positions))
        for _ in range(ROUNDS_COUNT_MAX):
            left = wanted.limit - len(found.messages)
            if not active or left <= 0 or found.size_bytes >= wanted.max_bytes:
                break
            rows = -(-left // len(active))
            size = max((wanted.max_bytes - found.size_bytes) // len(active), FETCH_BYTES_MIN)
            more: list[int] = []
            for n in range(0, len(active), FETCHES_AT_ONCE):
                some = active[n : n + FETCHES_AT_ONCE]
                fetches = (self._fetch(queue, found.positions[queue], rows, size) for queue in some)
                for queue, fetched in zip(some, await asyncio.gather(*fetches), strict=True):
                    if _took(found, queue, fetched, wanted):
                        more.append(queue)
            active = more
        return found

    def _rotated(self, queues: list[int]) -> list[int]:
        start = self._random.getrandbits(16) % len(queues) if queues else 0
        return queues[start:] + queues[:start]

    async def _fetch(self, queue: int, at: int, rows: int, size: int) -> Fetched | StoreError:
        async with self._fetches:
            try:
                return await self._store.queues.fetch(
                    QueueNumber(queue), QueueOffset(at), max_bytes=size, max_rows=rows
                )
            except StoreError as error:
                return error

    async def wait(self, positions: Mapping[int, int], woken: asyncio.Event, wait_s: float) -> None:
        """Waits until a queue has a message at its position, `woken` is set, or time is up. May return early."""
        count = min(len(positions), WAITED_QUEUES_COUNT_MAX, WAITS_COUNT_MAX - self._waits)
        queues = self._rotated(sorted(positions))[:count]
        if count < len(positions):
            wait_s = min(wait_s, LOOK_S)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        waits = [asyncio.ensure_future(self._arrived(queue, positions[queue], wait_s)) for queue in queues]
        waking = asyncio.ensure_future(woken.wait())
        self._waits += count
        try:
            done, _ = await asyncio.wait([waking, *waits], timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waits -= count
            for task in (waking, *waits):
                task.cancel()
            await asyncio.wait([waking, *waits])
        if waking in done or any(task.result() for task in waits if task in done):
            return
        # Some fetches returned no message, as those of queues that cannot be read do: they are not repeated at once.
        await wait_at_most(woken, min(until_s - loop.time(), PAUSE_S))

    async def _arrived(self, queue: int, at: int, wait_s: float) -> bool:
        """Waits; returns whether there is something now."""
        try:
            fetched = await self._store.queues.fetch(
                QueueNumber(queue), QueueOffset(at), max_bytes=1, max_rows=1, max_wait_ms=max(1, int(wait_s * 1_000))
            )
        except StoreError:
            return False  # its reader reports it
        return fetched.next > at


def _took(found: GroupRead, queue: int, fetched: Fetched | StoreError, wanted: ReadLimits) -> bool:
    """Adds the messages fetched of a queue; returns whether it may have more."""
    at = found.positions[queue]
    if isinstance(fetched, OffsetOutOfRange):
        if at > fetched.next:
            found.beyond[queue] = fetched.next
            return False
        found.positions[queue] = max(at, fetched.first)
        return found.positions[queue] > at
    if isinstance(fetched, StoreError):
        found.failed[queue] = fetched
        return False
    found.positions[queue] = _take(found, queue, fetched, wanted)
    return found.positions[queue] > at


def _take(found: GroupRead, queue: int, fetched: Fetched, wanted: ReadLimits) -> int:
    """Adds messages of a queue while there is room; the offset behind the last row that was looked at."""
    messages, size = found.messages, found.size_bytes
    limit, max_bytes, now_ms, reads = wanted
    offset = int(fetched.offset)
    for frame, rows in zip(fetched.frames, fetched.rows, strict=True):
        for row, record in _records(frame, rows):
            if len(messages) >= limit:
                found.size_bytes = size
                return offset
            message = _message(record, frame, row)
            if message is not None and not message.expired(now_ms) and (reads is None or reads(message.address)):
                grown = size + len(message.body)
                if grown > max_bytes and messages:
                    found.size_bytes = max_bytes  # there is no room for the next one, so it is not read
                    return offset
                messages.append((queue, offset, message))
                size = grown
            offset += 1
    found.size_bytes = size
    return int(fetched.next)


def _records(frame: Frame, rows: Sequence[int]) -> list[tuple[int, bytes]]:
    """Returns records of a frame with their rows; empty ones where the frame is damaged."""
    numbers = np.asarray(rows)
    entries = frame.rows[numbers]
    try:
        data = frame.plain
    except CorruptFrame as error:
        log.error("damaged messages are left out", frame=frame.start, error=str(error))
        return [(row, b"") for row in numbers.tolist()]
    starts = entries["pos"].astype(np.int64) + frame.payload_start
    ends = starts + entries["len"]
    return [(row, data[s:e]) for row, s, e in zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True)]


def _message(record: bytes, frame: Frame, row: int) -> Message | None:
    try:
        message = decode(record)
    except msgspec.MsgspecError:
        return None
    return message if message.id else msgspec.structs.replace(message, id=str(Position(frame.start, row)))
