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
from gateway.queues.model.queue import Queue
from store.api.client import StoreClient
from store.base import logs
from store.base.errors import StoreError
from store.format.frame import QueueNumber

HEARD_MS: Final = 10_000  # after that proxies have mostly heard of a move: nobody has to be refused
LOOK_MS: Final = 1_000  # between two looks at a former group that holds messages still
AGAIN_MS: Final = 10_000  # between two attempts to end a move, as when timers are left

log = logs.get(__name__)


class QueueMoves:
    """Looks at queues that are being moved. `finish` ends a move of a queue, and returns whether it has."""

    def __init__(
        self, store: StoreClient, *, finish: Callable[[str, int, int], Awaitable[bool]], now_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._finish = finish
        self._now_ms = now_ms

    async def look_after(self, queue: Queue) -> int | None:
        """Ends the move of a queue where it can; returns when to look again."""
        definition, move, now_ms = queue.definition, queue.definition.move, self._now_ms()
        if move is None or not definition.is_moving:
            return None
        if now_ms < move.at_ms + HEARD_MS:
            return move.at_ms + HEARD_MS
        try:
            asked = (self._store.leases.unsettled(QueueNumber(number)) for number in definition.earlier)
            if any(await asyncio.gather(*asked)):
                return now_ms + LOOK_MS
            done = await self._finish(definition.name, definition.number, move.count)
        except (StoreError, ControllerError, Refusal) as error:
            log.warning("a queue's move is not ended yet", queue=definition.name, error=str(error))
            return now_ms + AGAIN_MS
        return None if done else now_ms + AGAIN_MS
