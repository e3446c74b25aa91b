"""The named queues of shared subscriptions: made when the first member joins, gone with the last.

Such a queue is filled by a filter instead of bindings, no exchange knows it, and it is kept as any topic is: members
that are away do not keep the log from growing old.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from gateway.domain.errors import Cause, Refusal
from gateway.port.shared import SharedName
from gateway.queues.model.bindings import QueueDefinition
from gateway.queues.model.queue import Queue
from gateway.queues.topology.claims import claim, release
from gateway.queues.topology.vhost_registry import VhostRegistry

# Asks whether a queue may be removed: None when it has members, else the keys, with their revisions, on which that
# depends.
Unless: TypeAlias = Callable[[], Awaitable[Mapping[str, int] | None]]


class SharedRegistry(VhostRegistry):
    """Changes exchanges, queues and bindings, and the queues of shared subscriptions."""

    async def share(self, shared: SharedName, *, groups_max: int) -> Queue:
        """Returns the queue of a shared subscription, made if there is none.

        Raises `Refusal` (QUOTA where there are `groups_max` already), `StoreError`, `ControllerError`.
        """
        return await self._change(lambda: self._share(shared, groups_max))

    async def _share(self, shared: SharedName, groups_max: int) -> Queue:
        name = shared.queue
        await self._make_way(name)
        await self._learn_of(name)
        if name in self.queues:
            return self.queues[name]
        if self.shared_count >= groups_max:
            raise Refusal(Cause.QUOTA, f"there are {groups_max} shared subscriptions already")
        owned = await claim(self._owners, name)
        try:
            await self._learn_of(name)  # another proxy may have made it until we had its name
            if name in self.queues:
                return self.queues[name]
            named = await self._garbage.fresh(name)
            definition = QueueDefinition(
                name=name, number=named.number, group=named.group, durable=True, pattern=shared.pattern
            )
            revision = await self._definitions.put(definition, 0, lasting=True)
            return self._add(definition, None, revision)
        finally:
            await release(owned)

    async def unshare(self, name: str, unless: Unless) -> bool:
        """Removes the queue of a shared subscription without members. Returns whether it is gone. Raises as `share`."""
        return await self._change(lambda: self._unshare(name, unless))

    async def _unshare(self, name: str, unless: Unless) -> bool:
        await self._learn_of(name)
        queue = self.queues.get(name)
        if queue is None:
            return True
        also = await unless()
        if also is None:
            return False
        await self._drop_unbound(await self._drop(queue, also))
        return True

    def guard(self, queue: Queue) -> Mapping[str, int]:
        """Returns the revisions that a transaction has to compare to fail once the queue is gone."""
        return self._definitions.guard(queue.definition, queue.revision)

    async def look_again(self, name: str) -> None:
        """Applies a change of a queue at another proxy. Raises `StoreError`."""
        async with self._changing:
            await self._look_again(name, exchange=False)

    @property
    def shared(self) -> list[Queue]:
        """The queues of shared subscriptions."""
        return [queue for queue in self.queues.values() if queue.shared]
