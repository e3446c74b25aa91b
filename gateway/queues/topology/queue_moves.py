"""The end of a queue's move: once nothing of it is in its former store group, it is forgotten there.

Another proxy may not have heard of the move yet, and write to the former group. So the stores are told to refuse that,
some time after the move, and the last look at the former group comes after they have heard it: a message is either seen
by that look, and consumed as ever, or refused, and its publisher is told.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from controller.api.client import ControllerClient, ControllerError
from controller.api.commands import RefuseQueue
from gateway.domain.errors import Refusal
from gateway.queues.model.queue import Queue
from gateway.queues.topology.registry import former_names
from store.api.client import StoreClient
from store.base import logs
from store.format.frame import QueueNumber

HEARD_MS: Final = 10_000  # after that all proxies that serve know of a move, and all masters of a queue to be refused
LOOK_MS: Final = 1_000  # between two looks at a former group that holds something still

log = logs.get(__name__)


class QueueMoves:
    """Looks at queues that are being moved. `finish` ends the move of a queue, by its name and its number."""

    def __init__(
        self,
        store: StoreClient,
        controller: ControllerClient,
        *,
        finish: Callable[[str, int], Awaitable[None]],
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._controller = controller
        self._finish = finish
        self._now_ms = now_ms
        self._refused_ms: dict[
            int, int
        ] = {}  # by queue: when the stores were told to refuse what comes to its former group

    async def look_after(self, queue: Queue) -> int | None:
        """Ends the move of a queue where it can; returns when to look again. Raises `StoreError`."""
        move, now_ms = queue.definition.move, self._now_ms()
        if move is None or not move.earlier:
            self.forget(queue.number)
            return None
        if now_ms < move.at_ms + HEARD_MS:
            return move.at_ms + HEARD_MS
        refused_ms = self._refused_ms.get(queue.number)
        if await self._holds_messages(move.earlier):
            return now_ms + LOOK_MS
        try:
            if refused_ms is None:
                for name, _ in former_names(queue.definition):
                    await self._controller.do(RefuseQueue(name=name))
                refused_ms = self._refused_ms[queue.number] = self._now_ms()
            if now_ms < refused_ms + HEARD_MS:
                return refused_ms + HEARD_MS
            await self._finish(queue.definition.name, queue.number)
        except (ControllerError, Refusal) as error:
            log.warning("a queue's move is not ended yet", queue=queue.definition.name, error=str(error))
            return now_ms + LOOK_MS
        return None

    def forget(self, number: int) -> None:
        """Forgets a queue that is gone, or whose move has ended."""
        self._refused_ms.pop(number, None)

    async def _holds_messages(self, lanes: Sequence[int]) -> bool:
        """Returns whether messages wait in any of some lanes, or somebody holds some of them."""
        leases = self._store.leases
        numbers = [QueueNumber(lane) for lane in lanes]
        asked = [*map(leases.waiting, numbers), *map(leases.leased, numbers)]
        return any(await asyncio.gather(*asked))
