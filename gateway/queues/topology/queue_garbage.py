"""The garbage of deleted queues: rows, a number, and the marker of those that no restart should find.

A queue counts as deleted once its clients have been told so. Rows and number are removed now or, when the store
refuses, later.
"""

import asyncio
from collections.abc import Collection, Iterable

from controller.api.client import ControllerClient, ControllerError, NamedQueue
from controller.api.commands import ForgetQueue, NameQueue
from gateway.domain.keys import kv_key
from gateway.ownership.stored_entries import stored_entries
from gateway.queues.topology.lane_names import OF_MOVES
from store.api.client import StoreClient
from store.base import logs
from store.base.errors import StoreError
from store.format.frame import QueueNumber

log = logs.get(__name__)


class QueueGarbage:
    """Collects the garbage of deleted queues. `namespace` is where the markers are."""

    def __init__(self, store: StoreClient, controller: ControllerClient, namespace: str) -> None:
        self._store = store
        self._controller = controller
        self._namespace = namespace
        self._left: dict[str, int] = {}  # numbers by name; no more than queues that were declared

    @property
    def pending(self) -> bool:
        """Returns whether anything is left to remove."""
        return bool(self._left)

    async def load(self, there: Collection[int]) -> None:
        """Clears away what an earlier run has left: the queues whose markers it has, and lanes of moves not ended.

        The marker of a declaration that failed may be that of a queue which is `there`, by its number: that one stays.
        Raises `StoreError`, `ControllerError`.
        """
        async for entry in stored_entries(self._store, self._namespace):
            name = entry.value.decode()
            number = (await self._controller.do(NameQueue(name=name))).number
            if number in there:
                await self._store.keys.delete(entry.key)
            else:
                await self._clear(name, number)
        begun = [one for name, one in self._controller.named_queues().items() if name.startswith(OF_MOVES)]
        for queue in [one for one in begun if one.number not in there]:  # a move was not ended
            await self._clear(queue.name, queue.number)

    async def mark(self, name: str) -> None:
        """Notes that a queue is to be cleared away at the next start. Raises `StoreError`."""
        await self._store.keys.put(kv_key(self._namespace, name), name.encode())

    async def unmark(self, names: Iterable[str]) -> None:
        """Takes marks back, of queues that were not made. Raises `StoreError`."""
        for name in names:
            await self._store.keys.delete(kv_key(self._namespace, name))

    async def fresh(self, name: str, group: int | None = None) -> NamedQueue:
        """Returns the number for a new queue of this name: one without rows, in the store group given, if any.

        Raises `StoreError`, `ControllerError`.
        """
        queue = await self._controller.do(NameQueue(name=name, group=group))
        number, store = QueueNumber(queue.number), self._store
        bounds, retired = await asyncio.gather(store.queues.bounds(number), store.leases.is_retired(number))
        if group not in (None, queue.group) or bounds.next or retired:
            await self._forget(name, queue.number)
            queue = await self._controller.do(NameQueue(name=name, group=group))
        self._left.pop(name, None)
        return queue

    def named(self, names: Iterable[str]) -> list[tuple[str, int]]:
        """Returns those of some names that have a number, with it."""
        known = self._controller.named_queues()
        return [(name, known[name].number) for name in names if name in known]

    async def remove(self, name: str, number: int) -> None:
        """Removes the remains of a queue that is gone. Raises `StoreError`, `ControllerError`."""
        await self._clear(name, number)

    async def clear(self, name: str, number: int) -> None:
        """Removes the remains of a queue that is gone, or remembers to."""
        self._left[name] = number
        await self._try(name)

    async def retry(self) -> None:
        """Removes remains that could not be removed before."""
        for name in list(self._left):
            await self._try(name)

    async def _try(self, name: str) -> None:
        try:
            await self._clear(name, self._left[name])
        except (StoreError, ControllerError) as error:
            log.warning("the records of a deleted queue could not be removed now", queue=name, error=str(error))
        else:
            self._left.pop(name, None)

    async def _clear(self, name: str, number: int) -> None:
        await self._forget(name, number)
        await self._store.keys.delete(kv_key(self._namespace, name))

    async def _forget(self, name: str, number: int) -> None:
        await self._store.queues.delete(QueueNumber(number))
        await self._controller.do(ForgetQueue(name=name, number=number))
