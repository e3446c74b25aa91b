"""Lending messages of a queue: the leases of `store.leases`, the messages they stand for, and the log behind them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from store.client import Lease
from store.format import QueueNumber, QueueOffset
from store.leases import LeaseQueue
from store.ranges import Range
from store.reader import Located
from store.recent import Outcome, Recent
from store.records import Record, Settled

__all__ = ["Lending"]

PURGE_RANGES = 10_000  # in one settlement record


class _Locate(Protocol):
    def __call__(self, queue: QueueNumber, ranges: Sequence[Range], *, max_bytes: int) -> Awaitable[Located]: ...


class Lending:
    """The leases of all queues.

    `locate` finds records by their offsets, `stored` what the views know of a queue (settled ranges, next offset),
    `record` stores a record. Belongs to the thread of the event loop.
    """

    def __init__(
        self,
        recent: Recent,
        *,
        locate: _Locate,
        stored: Callable[[QueueNumber], Awaitable[tuple[Sequence[Range], QueueOffset]]],
        record: Callable[[Record], asyncio.Future[Outcome]],
    ) -> None:
        self._recent = recent
        self._locate = locate
        self._stored = stored
        self._record = record

    async def _leases(self, queue: QueueNumber) -> tuple[LeaseQueue, QueueOffset]:
        """The leases of a queue and the offset its next record will have."""
        leases, following = self._recent.leases.get(queue), self._recent.next_offset(queue)
        if leases is None or following is None:
            settled, known = await self._stored(queue)
            leases = self._recent.leases.get(queue) or self._recent.leases.load(queue, settled)
            following = self._recent.learn_next_offset(queue, known)
        return leases, following

    async def take(self, queue: QueueNumber, owner: int, *, max_count: int, max_bytes: int) -> Sequence[Lease]:
        """See `StoreClient.take`. What is released while this waits for a disk is not lent."""
        leases, following = await self._leases(queue)
        lent = self._recent.leases.lend(queue, owner, max_count, following)
        if not lent:
            return ()
        try:
            located = await self._locate(queue, lent, max_bytes=max_bytes)
        except BaseException:
            leases.requeue(owner, _offsets(lent), delivered=False)
            raise
        held = leases.held(owner)
        found = [
            Lease(QueueOffset(offset), leases.deliveries(offset), frame, row)
            for offset, frame, row in located.records
            if offset in held
        ]
        # What cannot be read is nobody's until the next start; what did not fit is lendable again.
        leases.begin_settling(owner, _offsets(located.unreadable))
        if len(found) < sum(end - start for start, end in lent):
            given = {lease.offset for lease in found}
            leases.requeue(owner, [o for o in _offsets(lent) if o not in given], delivered=False)
        return found

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset]) -> None:
        """See `StoreClient.settle`. When it raises, the messages will be lent again."""
        leases = self._recent.leases.get(queue)
        if leases is not None:
            ranges = leases.begin_settling(owner, offsets)
            if ranges:
                await self._settle(leases, queue, ranges, delivered=True)

    async def _settle(
        self, leases: LeaseQueue, queue: QueueNumber, ranges: Sequence[Range], *, delivered: bool
    ) -> None:
        def settled(outcome: asyncio.Future[Outcome]) -> None:
            if outcome.exception() is not None:
                leases.restore(ranges, delivered=delivered)

        try:
            settling = self._record(Settled(queue, tuple(ranges)))
        except BaseException:
            leases.restore(ranges, delivered=delivered)
            raise
        settling.add_done_callback(settled)
        await asyncio.shield(settling)  # a caller that goes away does not stop it

    def requeue(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, delivered: bool) -> None:
        """See `StoreClient.requeue`."""
        leases = self._recent.leases.get(queue)
        if leases is not None:
            leases.requeue(owner, offsets, delivered=delivered)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `StoreClient.release`."""
        return self._recent.leases.release(owner)

    async def waiting(self, queue: QueueNumber) -> int:
        """See `StoreClient.waiting`."""
        leases, following = await self._leases(queue)
        return leases.waiting(following)

    async def purge(self, queue: QueueNumber) -> int:
        """See `StoreClient.purge`."""
        leases, following = await self._leases(queue)
        ranges = leases.begin_purge(following)
        parts = [ranges[i : i + PURGE_RANGES] for i in range(0, len(ranges), PURGE_RANGES)]
        await asyncio.gather(*map(partial(self._settle, leases, queue, delivered=False), parts))
        return sum(end - start for start, end in ranges)


def _offsets(ranges: Iterable[Range]) -> Iterable[int]:
    return (offset for start, end in ranges for offset in range(start, end))
