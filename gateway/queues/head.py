"""The head of a queue: messages that leave it because they have expired."""

from collections.abc import Callable, Sequence

from gateway.queues.deaths import Reason
from gateway.queues.reading import Bury, Found, read
from gateway.queues.rules import QueueRules
from store.api.client import StoreClient
from store.api.leases import Lease
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.frame import QueueNumber, QueueOffset

__all__ = ["BATCH_COUNT_MAX", "QueueHead"]

BATCH_COUNT_MAX = 256  # messages leased at once
PEEK_BYTES = 1 << 20  # of messages looked at, at once, for whether they have expired


class QueueHead:
    """Removes from the head of one queue what is not to be delivered any more.

    `rules` says what that is; `bury` takes what is removed. Those behind a message that has not expired stay until they
    are at the head, as in RabbitMQ: with a time to live of the queue's own there are none.
    """

    def __init__(
        self,
        store: StoreClient,
        number: QueueNumber,
        *,
        rules: Callable[[], QueueRules],
        now_ms: Callable[[], int],
        bury: Bury,
        woken: Callable[[], None],
    ) -> None:
        self._store = store
        self._number = number
        self._rules = rules
        self._now_ms = now_ms
        self._bury = bury
        self._woken = woken  # told that something was given back

    async def waiting(self, owner: int) -> int:
        """Returns how many messages wait, after `trim`."""
        await self.trim(owner)
        return await self._store.leases.waiting(self._number)

    async def trim(self, owner: int) -> int | None:
        """Removes what has expired at the head; `owner` leases it meanwhile. Returns when the next message expires.

        None where it never does, or nothing waits. What has not expired is not leased, so that consumers keep its
        order. Damage is left to whoever reads the queue. Raises `StoreError`.
        """
        store, number, count = self._store, self._number, 1  # mostly the first one says that there is nothing to do
        while (first := await store.leases.first_waiting(number)) is not None:
            try:
                fetched = await store.queues.fetch(number, first, max_bytes=PEEK_BYTES, max_rows=count)
            except (OffsetOutOfRange, CorruptFrame):
                return None
            places = [(frame, row) for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]
            peeked = [Lease(QueueOffset(fetched.offset + n), 0, *place) for n, place in enumerate(places)]
            found = self.read(peeked)
            expired = found.live[0].offset - fetched.offset if found.live else len(peeked)
            if expired and not await self._remove(owner, expired):
                return None  # others have taken some of it: whoever they are looks again
            if found.live:
                return self._due_ms(found)
            if not expired:
                return None
            count = BATCH_COUNT_MAX
        return None

    def _due_ms(self, found: Found) -> int | None:
        """Returns when the first message that has not expired does."""
        dues = [found.messages[0].expires_at_ms]
        ttl_ms = self._rules().message_ttl_ms
        if ttl_ms is not None:
            dues.append(found.live[0].frame.header.stored_at_ms + ttl_ms)
        return min((due for due in dues if due is not None), default=None)

    async def _remove(self, owner: int, count: int) -> bool:
        """Leases `count` messages and removes what has expired of them; returns whether that was all."""
        leases = await self._store.leases.take(self._number, owner, max_count=count)
        found = self.read(leases)
        if found.live:  # others have taken some of what was at the head
            offsets = [lease.offset for lease in found.live]
            self._store.leases.requeue(self._number, owner, offsets, delivered=False)
            self._woken()
        await self.discard(owner, found)
        return bool(leases) and not found.live

    def read(self, leases: Sequence[Lease], hungry_since_ms: int | None = None) -> Found:
        """Returns what leases stand for, as of now."""
        return read(leases, now_ms=self._now_ms(), rules=self._rules(), hungry_since_ms=hungry_since_ms)

    async def discard(self, owner: int, found: Found) -> None:
        """Removes what is not to be delivered of what an owner has leased. Raises `StoreError`."""
        if found.expired:
            await self._bury(owner, found.expired, Reason.EXPIRED)
        if found.broken:
            await self._store.leases.settle(self._number, owner, found.broken)
