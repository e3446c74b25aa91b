"""The head of a queue: messages that leave it because they have expired, or because the queue is too long."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate

from gateway.port.bodies import body_size
from gateway.queues.leaving.deaths import Reason
from gateway.queues.leaving.reading import DeadLettering, Found, Letter, read
from gateway.queues.leaving.rules import DROP_HEAD, QueueRules
from gateway.queues.leaving.sizes import LanedSizes, QueueSizes
from store.api.client import StoreClient
from store.api.leases import Lease
from store.base.errors import CorruptFrame, OffsetOutOfRange, StoreError
from store.format.frame import QueueNumber, QueueOffset

BATCH_COUNT_MAX = 256  # messages leased at once
TRIES_COUNT_MAX = 16  # of removing the excess, while others hold and give back the same
NO_LIMIT = 1 << 62
PEEK_BYTES = 1 << 20  # of messages looked at, at once, for whether they have expired


class QueueHead:
    """Removes from the head of one queue messages that are not to be delivered any more.

    `rules` decides; `dead_letter` takes the removed messages. Messages behind one that has not expired stay until they
    are at the head, as in RabbitMQ: with a time to live of the queue's own there are none. This process leases no
    messages while others at the head are leased that may have to be given back: they would come out of order.
    """

    def __init__(
        self,
        store: StoreClient,
        number: QueueNumber,
        *,
        rules: Callable[[], QueueRules],
        now_ms: Callable[[], int],
        dead_letter: DeadLettering,
        woken: Callable[[], None],
        sizes: LanedSizes | None = None,
    ) -> None:
        self._store = store
        self._number = number
        self._rules = rules
        self._now_ms = now_ms
        self._dead_letter = dead_letter
        self._woken = woken  # told that something was given back
        self._sizes = sizes or QueueSizes(store, number)
        self._leasing = asyncio.Lock()  # held from a lease to the decision whether it is given back

    async def take(self, owner: int, max_count: int) -> Sequence[Lease]:
        """Leases the first messages that wait, in order. Raises `StoreError`."""
        async with self._leasing:
            return await self._store.leases.take(self._number, owner, max_count=max_count)

    async def probe(self, owner: int) -> bool:
        """Returns whether a message waits. After a `False` the store tells of the next one. Raises `StoreError`.

        Nothing is leased for it: consumers at other proxies would get later messages first. Where a message waits the
        store is not asked to tell of more: each of them would bring a look at the queue.
        """
        if await self._store.leases.waiting(self._number):
            return True
        await self._store.leases.take(self._number, owner, max_count=0)
        return await self._store.leases.waiting(self._number) > 0  # one that has come before the store was asked

    async def waiting(self, owner: int) -> int:
        """Returns how many messages wait, after `trim`. Those that cannot be removed now are among them."""
        with suppress(StoreError):  # it may be of another store group, where dead letters go
            await self.trim(owner)
        return await self._store.leases.waiting(self._number)

    async def count(self) -> int:
        """Returns how many messages wait, those due for removal included. Raises `StoreError`."""
        return await self._store.leases.waiting(self._number)

    async def trim(self, owner: int, batches_max: int = NO_LIMIT) -> int | None:
        """Removes expired messages at the head, and the excess; `owner` leases them meanwhile.

        Returns when the next message expires, None where it never does, or nothing waits; the present time where there
        may be more to remove than `batches_max` batches. Messages that stay are not leased, so that consumers keep
        their order. The store skips and counts lost messages at the head, as it does for consumers. Raises
        `StoreError`.
        """
        due_ms = await self._drop_expired(owner, batches_max)
        rules = self._rules()
        if rules.limited and rules.overflow == DROP_HEAD:
            batches = await self._drop_excess(owner, rules, batches_max)
            if batches == batches_max:
                return self._now_ms()
            if batches:
                return await self._drop_expired(owner, batches_max)
        return due_ms

    async def length(self) -> tuple[int, int]:
        """Returns how many messages wait, and how many bytes their bodies have, 0 where no limit needs it."""
        count = await self._store.leases.waiting(self._number)
        return count, 0 if self._rules().max_bytes is None else await self._sizes.waiting_bytes()

    async def _drop_excess(self, owner: int, rules: QueueRules, batches_max: int) -> int:
        """Removes the oldest messages of a queue that is too long; returns how many batches of them there were.

        Other processes may do the same: messages that they have taken meanwhile count as gone, so that all together
        remove no more than the excess. Messages that they give back are looked at again; a message beside the oldest
        may go in its place then.
        """
        batches, in_vain = 0, 0
        while in_vain < TRIES_COUNT_MAX and batches < batches_max:
            async with self._leasing:
                excess = await self._excess(rules)
                if excess <= 0:
                    break
                leases = await self._store.leases.take(self._number, owner, max_count=min(excess, BATCH_COUNT_MAX))
                if not leases:
                    break
                found = self.read(leases)
                letters = [Letter(lease.offset, one) for lease, one in zip(found.live, found.messages, strict=True)]
                with self._removing(owner, [lease.offset for lease in leases]):
                    count = max(min(await self._excess(rules, letters), len(letters)), 0)  # lost ones have gone, too
                if kept := [letter.offset for letter in letters[count:]]:
                    self._store.leases.requeue(self._number, owner, kept, delivered=False)
                    self._woken()
            with self._removing(owner, [letter.offset for letter in letters[:count]]):
                await self.discard(owner, found)
                if count:
                    await self._dead_letter(owner, letters[:count], Reason.MAXLEN)
            removed = count or found.expired or found.exhausted or found.broken
            batches, in_vain = (batches + 1, 0) if removed else (batches, in_vain + 1)
        return batches

    async def _excess(self, rules: QueueRules, held: Sequence[Letter] = ()) -> int:
        """Returns how many of the oldest messages are too many: of those that wait, or of `held`, which are older."""
        excess = 0
        if rules.max_length is not None:
            excess = await self._store.leases.waiting(self._number) + len(held) - rules.max_length
        if rules.max_bytes is not None and not held:
            excess = max(excess, await self._sizes.excess(rules.max_bytes))
        elif rules.max_bytes is not None:
            sizes = [body_size(letter.message) for letter in held]
            over = await self._sizes.waiting_bytes() + sum(sizes) - rules.max_bytes
            gone = accumulate(sizes, initial=0)
            excess = max(excess, next((count for count, size in enumerate(gone) if size >= over), len(held)))
        return excess

    async def _drop_expired(self, owner: int, batches_max: int) -> int | None:
        store, number, count = self._store, self._number, 1  # mostly the first one says that there is nothing to do
        batches = 0
        while (first := await store.leases.first_waiting(number)) is not None:
            if batches == batches_max:
                return self._now_ms()
            batches += 1
            try:
                fetched = await store.queues.fetch(number, first, max_bytes=PEEK_BYTES, max_rows=count)
            except (OffsetOutOfRange, CorruptFrame):
                if not await self._skip_lost(owner, first):
                    return None
                continue
            places = [(frame, row) for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]
            peeked = [Lease(QueueOffset(fetched.offset + n), 0, *place) for n, place in enumerate(places)]
            found = self.read(peeked)
            expired = found.live[0].offset - fetched.offset if found.live else len(peeked)
            if not expired:  # the first that waits stays
                return self._due_ms(found) if found.live else None
            if not await self._remove(owner, expired):
                return None  # others have taken it, and look again
            count = BATCH_COUNT_MAX  # look again: messages that consumers hold have a place, and do not wait
        return None

    async def _skip_lost(self, owner: int, first: QueueOffset) -> bool:
        """Skips messages at the head that cannot be read; returns whether another message waits first now."""
        await self._remove(owner, 1)  # the store passes over them until it finds one
        return await self._store.leases.first_waiting(self._number) != first

    def _due_ms(self, found: Found) -> int | None:
        """Returns when the first message that has not expired does."""
        dues = [found.messages[0].expires_at_ms]
        ttl_ms = self._rules().message_ttl_ms
        if ttl_ms is not None:
            dues.append(found.live[0].frame.header.stored_at_ms + ttl_ms)
        return min((due for due in dues if due is not None), default=None)

    async def _remove(self, owner: int, count: int) -> bool:
        """Leases up to `count` messages and removes the expired ones; returns whether there were any."""
        async with self._leasing:
            leases = await self._store.leases.take(self._number, owner, max_count=count)
            found = self.read(leases)
            if found.live:  # others hold some messages of the head
                offsets = [lease.offset for lease in found.live]
                self._store.leases.requeue(self._number, owner, offsets, delivered=False)
                self._woken()
        await self.discard(owner, found)
        return len(found.live) < len(leases)

    def read(self, leases: Sequence[Lease], idle_since_ms: int | None = None) -> Found:
        """Returns the messages of leases, as of now."""
        return read(leases, now_ms=self._now_ms(), rules=self._rules(), idle_since_ms=idle_since_ms)

    async def discard(self, owner: int, found: Found) -> None:
        """Removes the messages that must not be delivered from those that an owner has leased. Raises `StoreError`."""
        gone = [*(letter.offset for letter in (*found.expired, *found.exhausted)), *found.broken]
        if not gone:
            return
        with self._removing(owner, gone):
            if found.expired:
                await self._dead_letter(owner, found.expired, Reason.EXPIRED)
            if found.exhausted:
                await self._dead_letter(owner, found.exhausted, Reason.DELIVERY_LIMIT)
            if found.broken:
                await self._store.leases.settle(self._number, owner, found.broken)

    @contextmanager
    def _removing(self, owner: int, offsets: Sequence[QueueOffset]) -> Iterator[None]:
        """Gives back those of some messages that an owner still holds when they could not be removed."""
        try:
            yield
        except BaseException:
            self._store.leases.requeue(self._number, owner, offsets, delivered=False)
            self._woken()
            raise
