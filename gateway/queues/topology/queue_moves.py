"""The end of a queue's move: once its former store group holds nothing of it, it is forgotten there.

Another proxy may not have heard of the move yet, and write to the former group. So the former group is asked to take
nothing more for the queue, and to say then whether nothing is left (`LeaseCalls.retire`): what came before is consumed
as ever, and the publisher of what comes later is told.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from controller.api.client import ControllerError
from gateway.domain.errors import Refusal
from gateway.queues.leasing.laned import LanedStore
from gateway.queues.model.queue import Queue
from store.base import logs
from store.base.errors import StoreError
from store.format.frame import QueueNumber

HEARD_MS: Final = 10_000  # after that proxies have mostly heard of a move: nobody has to be refused
LOOK_MS: Final = 1_000  # between two looks at a former group that holds messages still
AGAIN_MS: Final = 30_000  # between two attempts to end a move, as while delayed messages are on their way

log = logs.get(__name__)


class QueueMoves:
    """Looks at queues that are being moved. `finish` ends a move of a queue whose former numbers are retired."""

    def __init__(
        self, store: LanedStore, *, finish: Callable[[str, int, int], Awaitable[None]], now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._finish = finish
        self._now_ms = now_ms

    async def look_after(self, queue: Queue) -> int | None:
        """Ends the move of a queue where it can; returns when to look again."""
        definition, move, now_ms = queue.definition, queue.definition.move, self._now_ms()
        if move is None or not definition.is_moving or (definition.proxy and queue.owned is None):
            return None  # an exclusive queue is looked after where its connection is
        self._store.came(queue.numbers)  # it may just have become known here where they lie
        queue.pump.wake()
        if now_ms < move.at_ms + HEARD_MS:
            return min(move.at_ms + HEARD_MS, now_ms + LOOK_MS)
        try:
            leases, numbers = self._store.leases, [QueueNumber(number) for number in definition.earlier]
            if any(await asyncio.gather(*map(leases.unsettled, numbers))):
                return now_ms + LOOK_MS
            if not all(await asyncio.gather(*map(leases.retire, numbers))):
                return now_ms + AGAIN_MS
            await self._finish(definition.name, definition.number, move.count)
        except (StoreError, ControllerError, Refusal) as error:
            log.warning("a queue's move is not ended yet", queue=definition.name, error=str(error))
            return now_ms + AGAIN_MS
        return None
