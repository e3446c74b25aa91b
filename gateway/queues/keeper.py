"""The keeper of a process's queues: moves away what leaves them without having been consumed."""

from collections.abc import Mapping, Sequence

from gateway.ownership.owners import Owners
from gateway.queues.dead_letters import DeadLetters
from gateway.queues.reading import Letter
from gateway.queues.rules import NO_RULES, QueueRules
from gateway.queues.topology import Queue
from gateway.queues.upkeep import OWNER, Upkeep
from store.api.client import StoreClient
from store.format.frame import QueueOffset

__all__ = ["Keeper"]


class Keeper:
    """Applies the rules of queues, which it finds by their numbers in `queues`."""

    def __init__(
        self, store: StoreClient, owners: Owners, queues: Mapping[int, Queue], letters: DeadLetters, upkeep: Upkeep
    ) -> None:
        self._store = store
        self._owners = owners
        self._queues = queues
        self._letters = letters
        self._upkeep = upkeep

    async def run(self) -> None:
        """Looks after queues, for ever."""
        await self._upkeep.run(self.look_after, self._watched)

    def rules(self, number: int) -> QueueRules:
        """Returns the rules of a queue."""
        queue = self._queues.get(number)
        return NO_RULES if queue is None else queue.rules

    def changed(self, number: int) -> None:
        """Something has come to a queue, or has left it."""
        if self.rules(number).watched:
            self._upkeep.changed(number)

    def _watched(self) -> list[int]:
        return [number for number, queue in self._queues.items() if queue.rules.watched]

    async def look_after(self, number: int) -> int | None:
        """Removes from a queue what is not to be delivered any more; returns when to look again. Raises `StoreError`.

        A queue whose consumers take what comes is theirs to look at.
        """
        queue = self._queues.get(number)
        if queue is None or not queue.rules.watched or queue.pump.hungry:
            return None
        due_ms = await queue.pump.head.trim(OWNER)
        if due_ms is None and not self._owners.alone:  # who finds nothing to lease is told of what comes
            leases = await self._store.leases.take(queue.number, OWNER, max_count=1)
            if leases:
                self._store.leases.requeue(queue.number, OWNER, [one.offset for one in leases], delivered=False)
                queue.pump.wake()
        return due_ms

    async def bury(self, number: int, owner: int, letters: Sequence[Letter], reason: str) -> None:
        """Moves what an owner holds and nobody is to get. Raises `StoreError`."""
        queue = self._queues.get(number)
        if queue is not None:
            await self._letters.bury(queue, owner, letters, reason)

    async def reject(self, queue: Queue, owner: int, offsets: Sequence[QueueOffset]) -> None:
        """Moves what an owner has rejected. Raises `StoreError`."""
        await self._letters.reject(queue, owner, offsets)

    async def finished(self, owner: int) -> None:
        """Waits until nothing is being moved that an owner holds."""
        await self._letters.finished(owner)
