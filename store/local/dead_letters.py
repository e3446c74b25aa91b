"""Dead letters of leased queues: messages that came back too often, or were rejected, move to another queue."""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Protocol

from store.base.errors import StoreError
from store.format.dead_letters import dead_letters_frame
from store.format.frame import QueueNumber
from store.format.ranges import Range, offsets_of, ranges_of
from store.leases.leases import LeaseQueue
from store.local.reader import Located
from store.local.settling import Settlements

logger = logging.getLogger(__name__)

DEAD_BYTES = 1 << 20  # of dead letters in one frame


class Locate(Protocol):
    """A function of the reader."""

    def __call__(self, queue: QueueNumber, ranges: Sequence[Range], *, max_bytes: int) -> Awaitable[Located]:
        """Finds the records of a queue by their offsets, until they come to `max_bytes`."""


class DeadLetters:
    """Moves messages to the queue that the policy of their lease names. Belongs to the thread of the event loop."""

    def __init__(self, locate: Locate, settlements: Settlements) -> None:
        self._locate = locate
        self._settlements = settlements
        self._work: set[asyncio.Task[None]] = set()

    def give_up(self, leases: LeaseQueue) -> None:
        """Moves messages that have come back too often to the dead letters."""
        ranges = leases.take_given_up()
        if ranges:
            task = asyncio.get_running_loop().create_task(self._move_later(leases, ranges), name="dead letters")
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _move_later(self, leases: LeaseQueue, ranges: Sequence[Range]) -> None:
        try:
            await self.move(leases, ranges, "delivery_limit")
        except StoreError as error:  # they can be leased again, and are moved when they come back the next time
            logger.warning("dead letters could not be moved", extra={"queue": leases.queue, "why": str(error)})
        except Exception:
            logger.exception("dead letters could not be moved", extra={"queue": leases.queue})

    async def move(self, leases: LeaseQueue, ranges: Sequence[Range], reason: str) -> None:
        """Moves ranges without an owner to the dead letter queue, or settles them where there is none."""
        target = leases.policy.target
        left = list(offsets_of(ranges))
        try:
            while left and target is not None:
                located = await self._locate(leases.queue, ranges_of(left), max_bytes=DEAD_BYTES)
                if leases.gone:  # the queue was deleted meanwhile: these are messages of another one
                    return
                records = located.records
                leases.abandon(located.unreadable)
                if not records:
                    break
                moved = [offset for offset, *_ in records]
                frame = dead_letters_frame(
                    records,
                    [leases.deliveries(offset) for offset in moved],
                    queue=leases.queue,
                    group=leases.group,
                    reason=reason,
                    target=target,
                    known=leases.known,
                )
                gone = {*moved, *offsets_of(located.unreadable)}
                left = [offset for offset in left if offset not in gone]
                await self._settlements.append([(leases, ranges_of(moved))], frame)
        except BaseException:
            leases.restore(ranges_of(left), delivered=False)
            raise
        if left and target is None and not leases.gone:
            await self._settlements.settle(leases, ranges_of(left), delivered=True)

    async def close(self) -> None:
        """Waits for moves in progress."""
        if self._work:
            await asyncio.wait(self._work)
