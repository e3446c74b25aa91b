"""The pump of one named queue: leases its messages to its consumers as they come, in turn.

A consumer's credit is its adapter's business. Where the adapter names it, no more than that is lent. Otherwise the pump
learns it by offering: a consumer that takes less than offered is blocked until it is `Ready`, and what it had taken
since it was last ready is what it is offered next time, and a little more, in case it can take more now. One without a
limit gets whole batches.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

import msgspec
import numpy as np

from gateway.domain.access import OPEN, Access, Permissions
from gateway.domain.address import queue_address
from gateway.port.adapter import ConsumerId, Leased
from gateway.port.queues import ConsumerCancelled
from store.api.client import StoreClient
from store.api.leases import Lease
from store.api.message import Message, decode
from store.base import logs
from store.base.errors import CorruptFrame, OffsetOutOfRange, StoreError
from store.format.frame import ROW_EXTRA, Frame, Position, QueueNumber, QueueOffset

__all__ = ["BATCH_COUNT_MAX", "Connection", "Consumer", "Pump", "take_live"]

BATCH_COUNT_MAX = 256  # messages leased and offered to one consumer at once
PEEK_BYTES = 1 << 20  # of messages looked at, at once, for whether they have expired
RETRY_S = 1.0  # after the store has failed
SHARE_COUNT_MIN = 16  # messages offered at once where there are very many consumers, if so many wait
YIELD_S = 0.003  # what consumers at other proxies are left to be first, where ours have just been
_UNKNOWN_WINDOW = 1 << 30  # of a consumer that has never been blocked

log = logs.get(__name__)


class Connection(Protocol):
    """A consuming connection. `id` is unique among all connections that this process ever had: it owns the leases."""

    id: int
    gone: bool

    def deliver(self, deliveries: Leased | ConsumerCancelled, /) -> int:
        """Offers messages; returns how many were taken, from the first on."""


class Consumer:
    """One consumer of one queue."""

    __slots__ = (
        "_allowed",
        "blocked",
        "conn",
        "credit",
        "exclusive",
        "gone",
        "id",
        "pattern",
        "permissions",
        "probe",
        "queue",
        "settle_on_delivery",
        "taken",
        "window",
    )

    def __init__(
        self,
        conn: Connection,
        consumer: ConsumerId,
        queue: str,
        *,
        exclusive: bool,
        settle_on_delivery: bool,
        credit: int | None = None,
        pattern: str = "",
        permissions: Permissions = OPEN,
    ) -> None:
        self.conn = conn
        self.permissions = permissions  # whose it is
        self._allowed: tuple[Access | None, bool] = (None, True)  # what `allowed` was, by the access of then
        self.id = consumer
        self.queue = queue
        self.exclusive = exclusive
        self.settle_on_delivery = settle_on_delivery
        self.pattern = pattern  # that fills the queue of a shared subscription, "" for any other queue
        self.gone = False
        self.credit = credit  # messages it can take; None: unknown, and the following learn it
        self.blocked = credit == 0  # took less than offered, or all it had credit for
        self.taken = 0  # since it was last ready
        self.window = _UNKNOWN_WINDOW  # what it took the last time before it was blocked
        self.probe = 1  # offered beyond the window; doubles while it is taken

    @property
    def shared(self) -> bool:
        """Returns whether the consumer is a member of a shared subscription."""
        return bool(self.pattern)

    @property
    def allowed(self) -> bool:
        """Returns whether it may read all the queue's messages: for a shared subscription, all that the filter matches.

        A member with fewer rights would take messages from others that it must not have.
        """
        access = self.permissions.access
        if access is None:
            return True
        if not self.pattern:
            return access.may("subscribe", queue_address(self.queue))
        if self._allowed[0] is not access:
            self._allowed = access, access.reaches_all("subscribe", self.pattern)
        return self._allowed[1]

    @property
    def idle(self) -> bool:
        """Returns whether it gets nothing now: it has no room, its connection ends, or it may not read any more."""
        return self.blocked or self.conn.gone or not self.allowed

    def offer_count(self) -> int:
        """Returns how many messages to offer next."""
        if self.credit is not None:
            return min(self.credit, BATCH_COUNT_MAX)
        return min(max(0, self.window - self.taken) + self.probe, BATCH_COUNT_MAX)

    def took(self, count: int, offered: int) -> None:
        """Learns from how much of an offer was taken."""
        if self.credit is not None:
            self.credit = max(0, self.credit - count)
            self.blocked = count < offered or not self.credit
            return
        self.taken += count
        if count == offered and self.taken > self.window:
            self.probe = min(self.probe * 2, BATCH_COUNT_MAX)
        if count < offered:
            self.blocked = True
            self.window = max(1, self.taken)

    def ready(self, credit: int | None) -> bool:
        """It can take more; whether it could not before."""
        if credit is not None:
            self.credit = credit
        before, self.blocked = self.blocked, self.credit == 0
        self.taken, self.probe = 0, 1
        return before and not self.blocked


class Pump:
    """Delivers one queue. Its task lives while there are consumers; `failed` is told if it dies of a bug of ours.

    `elsewhere` says how many consumers the queue has at other proxies that are to have their fair share. What waits is
    divided by all of them; where there is less than one message for each, who has had its turn waits a moment.
    """

    def __init__(
        self,
        store: StoreClient,
        number: QueueNumber,
        *,
        ttl_ms: int | None,
        now_ms: Callable[[], int],
        failed: Callable[[BaseException], None],
        elsewhere: Callable[[], int] = lambda: 0,
    ) -> None:
        self._store = store
        self._number = number
        self._elsewhere = elsewhere
        self._ahead = 0  # messages our consumers have got since they last let others be first, while there were few
        self._plenty = False  # since it woke there was a message for everybody
        self._ttl_ms = ttl_ms
        self._now_ms = now_ms
        self._failed = failed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.consumers: list[Consumer] = []  # whoever got something last is last

    def add(self, consumer: Consumer) -> None:
        """Begins to deliver to a consumer."""
        self.consumers.append(consumer)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"pump of queue {self._number}")
            self._task.add_done_callback(self._ended)

    def remove(self, consumer: Consumer) -> None:
        """Delivers nothing more to a consumer; what is offered to it at this moment goes back."""
        consumer.gone = True
        self.consumers.remove(consumer)
        self._wake.set()

    def wake(self) -> None:
        """Something may be there to deliver."""
        self._wake.set()

    async def waiting(self, owner: int) -> int:
        """Returns how many messages wait, after `drop_expired`."""
        await self.drop_expired(owner)
        return await self._store.leases.waiting(self._number)

    async def drop_expired(self, owner: int) -> None:
        """Settles the messages at the head of the queue that have expired; `owner` leases them meanwhile.

        Those behind one that has not expired stay until they are at the head, as in RabbitMQ: with a time to live of
        the queue's own there are none. What has not expired is not leased, so that consumers keep its order. Damage is
        left to whoever reads the queue. Raises `StoreError`.
        """
        store, number, count = self._store, self._number, 1  # mostly the first one says that there is nothing to do
        while (first := await store.leases.first_waiting(number)) is not None:
            try:
                fetched = await store.queues.fetch(number, first, max_bytes=PEEK_BYTES, max_rows=count)
            except (OffsetOutOfRange, CorruptFrame):
                return
            found = [(frame, row) for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]
            peeked = [Lease(QueueOffset(fetched.offset + n), 0, *place) for n, place in enumerate(found)]
            expired = len(peeked)
            _, live, _ = read(peeked, now_ms=self._now_ms(), ttl_ms=self._ttl_ms)
            if live:
                expired = live[0].offset - fetched.offset
            if not expired or not await self._settle_expired(owner, expired) or live:
                return
            count = BATCH_COUNT_MAX

    async def _settle_expired(self, owner: int, count: int) -> bool:
        """Leases `count` messages and settles what has expired of them; returns whether that was all."""
        store, number = self._store, self._number
        leases = await store.leases.take(number, owner, max_count=count)
        _, live, dead = read(leases, now_ms=self._now_ms(), ttl_ms=self._ttl_ms)
        if live:  # others have taken some of what was at the head
            store.leases.requeue(number, owner, [lease.offset for lease in live], delivered=False)
            self.wake()
        if dead:
            await store.leases.settle(number, owner, dead)
        return bool(dead) and not live

    async def stop(self) -> None:
        """Ends the task. Its queue is gone, or the process ends."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _run(self) -> None:
        while self.consumers:
            await self._wake.wait()
            if self._ahead >= len(self.consumers) and self._elsewhere():
                await asyncio.sleep(YIELD_S)
                self._ahead = 0
            self._wake.clear()
            self._plenty = False
            try:
                while await self._round():
                    pass
                if self._plenty:
                    self._ahead = 0
            except StoreError as error:
                log.warning("cannot deliver a queue", queue=self._number, error=str(error), retry_s=RETRY_S)
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _round(self) -> bool:
        """Offers every consumer its share once; returns whether anything was there."""
        ready = [c for c in self.consumers if not c.idle]
        share = BATCH_COUNT_MAX
        among = len(ready) + (self._elsewhere() if ready else 0)
        if among > 1:
            waiting = await self._store.leases.waiting(self._number)
            # At least one: who has asked for nothing is not told of what comes. Among many a few, each in their turn,
            # so that there is not a call for every message.
            share = max(1, -(-waiting // among), min(among // 16, SHARE_COUNT_MIN))
            self._plenty = self._plenty or waiting >= among
        found = False
        for consumer in ready:
            if consumer.gone or consumer.idle:
                continue
            if not await self._serve(consumer, share):
                break
            found = True
        return found

    async def _serve(self, consumer: Consumer, share: int) -> bool:
        """Leases up to `share` messages to a consumer and offers them; returns whether any were there."""
        store, conn = self._store, consumer.conn
        leases = await store.leases.take(self._number, conn.id, max_count=min(share, consumer.offer_count()))
        if not leases:
            return False
        if consumer.gone or conn.gone or not consumer.allowed:
            store.leases.requeue(self._number, conn.id, [lease.offset for lease in leases], delivered=False)
            return True
        messages, live, dead = read(leases, now_ms=self._now_ms(), ttl_ms=self._ttl_ms)
        taken, offsets = 0, [lease.offset for lease in live]
        if messages:
            counts = [lease.deliveries for lease in live]
            taken = conn.deliver(Leased(consumer.id, messages, offsets, counts, self._number))
            consumer.took(taken, len(messages))
            if taken < len(messages):
                store.leases.requeue(self._number, conn.id, offsets[taken:], delivered=False)
        self._ahead += taken
        if taken and not consumer.gone:
            self.consumers.remove(consumer)
            self.consumers.append(consumer)
        done = dead + offsets[:taken] if consumer.settle_on_delivery else dead
        if done:
            await store.leases.settle(self._number, conn.id, done)
        return True


async def take_live(
    store: StoreClient, number: QueueNumber, owner: int, *, now_ms: Callable[[], int], ttl_ms: int | None
) -> tuple[Message, Lease] | None:
    """Leases the first message of a queue that has not expired; those before it are settled."""
    while leases := await store.leases.take(number, owner, max_count=1):
        messages, live, dead = read(leases, now_ms=now_ms(), ttl_ms=ttl_ms)
        if messages:
            return messages[0], live[0]
        await store.leases.settle(number, owner, dead)
    return None


def read(
    leases: Sequence[Lease], *, now_ms: int, ttl_ms: int | None
) -> tuple[list[Message], list[Lease], list[QueueOffset]]:
    """The messages of leases with their ids filled in, their leases, and the offsets of what is not to be delivered.

    That is what has expired, and what is no message: a fault of ours that must not stop the queue, so it is logged.
    """
    messages: list[Message] = []
    live: list[Lease] = []
    dead: list[QueueOffset] = []
    for _, group in groupby(leases, key=lambda lease: id(lease.frame)):
        of_frame = list(group)
        frame = of_frame[0].frame
        outlived = ttl_ms is not None and frame.header.stored_at_ms + ttl_ms <= now_ms
        for lease, (start, end, row) in zip(of_frame, _places(frame, [lease.row for lease in of_frame]), strict=True):
            try:
                message = decode(frame.plain[start:end])
            except msgspec.DecodeError as error:
                log.error(
                    "a queue holds a record that is not a message",
                    position=str(Position(frame.start, row)),
                    error=str(error),
                )
                dead.append(lease.offset)
                continue
            if outlived or message.expired(now_ms):
                dead.append(lease.offset)
                continue
            if not message.id:
                message = msgspec.structs.replace(message, id=str(Position(frame.start, row)))
            messages.append(message)
            live.append(lease)
    return messages, live, dead


def _places(frame: Frame, rows: Sequence[int]) -> list[tuple[int, int, int]]:
    """Returns where records are in `frame.plain`, and their row in their topic's queue, which a position names."""
    table = frame.rows
    positions = table["pos"]
    picked = positions[np.asarray(rows)].astype(np.int64)
    starts = picked + frame.payload_start
    ends = starts + table["len"][np.asarray(rows)]
    first_rows = np.flatnonzero(table["flags"] & ROW_EXTRA == 0)
    found = np.searchsorted(positions[first_rows], picked)  # records lie in the order of their first rows
    original = first_rows[np.minimum(found, len(first_rows) - 1)] if len(first_rows) else np.asarray(rows)
    same = positions[original] == picked
    return list(zip(starts.tolist(), ends.tolist(), np.where(same, original, rows).tolist(), strict=True))
