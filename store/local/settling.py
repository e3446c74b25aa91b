"""Settling leased messages: records in the log, and their effect on the leases once they are durable."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from store.api.log import Appended, OnAppended
from store.base.errors import StoreError
from store.format.frame import FIRST_QUEUE, ROW, QueueNumber, UnplacedFrame
from store.format.ranges import Range
from store.format.records import Record, Settled
from store.leases.leases import LeaseQueue


class Recording(Protocol):
    """A function of the recorder."""

    def __call__(self, record: Record, *, urgent: bool = True) -> "asyncio.Future[Any]":
        """Stores a record; one that is not urgent goes with the next commit."""


class Settlements:
    """The settlements of all queues on their way to the log. Belongs to the thread of the event loop.

    `record` stores a record, `append` a frame. `on_available` is called with queues that have available messages again.
    """

    def __init__(
        self,
        record: Recording,
        append: Callable[[UnplacedFrame, OnAppended], None],
        on_available: Callable[[Sequence[QueueNumber]], None],
    ) -> None:
        self._record = record
        self._append = append
        self._on_available = on_available

    async def settle(self, leases: LeaseQueue, ranges: Sequence[Range], *, delivered: bool) -> None:
        """Settles ranges of offsets, and waits for it."""
        await asyncio.shield(self.settling(leases, ranges, delivered=delivered))  # goes on when the caller goes away

    def settling(
        self, leases: LeaseQueue, ranges: Sequence[Range], *, delivered: bool, urgent: bool = True
    ) -> "asyncio.Future[Any]":
        """Settles messages set apart for it; the future ends when that is durable, and is not to be cancelled.

        It is leasable again when that fails; `delivered` as in `restore`.
        """

        def settled(outcome: asyncio.Future[Any]) -> None:
            if outcome.cancelled() or outcome.exception() is not None:
                leases.restore(ranges, delivered=delivered)
            else:
                self._advanced(leases)

        try:
            record = Settled(leases.queue, tuple(ranges), leases.group, leases.known)
            settling = self._record(record, urgent=urgent)
        except BaseException:
            leases.restore(ranges, delivered=delivered)
            raise
        settling.add_done_callback(settled)
        return settling

    def _advanced(self, leases: LeaseQueue) -> None:
        """Wakes waiters where settled messages unblock others of the same key."""
        if leases.order is not None and (leases.order.waiting or leases.take_unblocked()):
            self._on_available((leases.queue,))

    async def append(self, taken: Sequence[tuple[LeaseQueue, Sequence[Range]]], frame: UnplacedFrame) -> None:
        """Appends a frame that settles ranges without an owner. They are available again when that fails."""
        appended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | StoreError) -> None:
            if isinstance(outcome, StoreError):
                for leases, ranges in taken:
                    leases.restore(ranges, delivered=True)
                if not appended.done():
                    appended.set_exception(outcome)
                return
            queues = dict.fromkeys(queue for queue, *_ in ROW.iter_unpack(frame.rows) if queue >= FIRST_QUEUE)
            self._on_available([QueueNumber(queue) for queue in queues])
            for leases, _ in taken:
                self._advanced(leases)
            if not appended.done():
                appended.set_result(None)

        self._append(frame, done)
        await appended
