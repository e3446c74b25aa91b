"""Moving queues between store groups.

A queue that is moved is written to in its new group from then on. What lies in the former group is consumed there,
before all else, and nothing is copied: so nothing is lost or doubled, whatever ends in between. Once the former group
holds nothing of the queue any more it is forgotten there (`gateway.queues.topology.queue_moves`).
"""

import asyncio
import time

import msgspec

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import said
from gateway.queues.model.bindings import Move, QueueDefinition
from gateway.queues.model.queue import Queue, no_queue
from gateway.queues.topology.claims import claim, release
from gateway.queues.topology.registry import QueueRegistry, former_names, lane_name


class MovingRegistry(QueueRegistry):
    """Changes exchanges, queues and bindings, and the store groups of queues."""

    async def move_queue(self, name: str, group: int) -> QueueDefinition:
        """Moves a queue to a store group; returns its definition. One that is there already stays as it is.

        Raises `Refusal` (NOT_FOUND, PRECONDITION for a stream, CONFLICT while an earlier move is under way),
        `StoreError`, `ControllerError` where there is no such group.
        """
        return await self._change_queue(name, lambda: self._move_queue(name, group))

    async def _move_queue(self, name: str, group: int) -> QueueDefinition:
        await self._learn_of(name)
        queue = self.queues.get(name)
        if queue is None or name in self._doomed:
            raise no_queue(name)
        definition, before = queue.definition, queue.definition.move
        if queue.stream:
            raise Refusal(Cause.PRECONDITION, f"stream {said(name)} is not moved: its readers hold offsets in it")
        if definition.group == group:
            return definition
        if before is not None and before.earlier:
            why = f"is being moved from store group {before.group} still: what lies there has to be consumed first"
            raise Refusal(Cause.CONFLICT, f"queue {said(name)} {why}")
        owned = queue.owned or await claim(self._owners, name)
        try:
            count = 1 if before is None else before.count + 1
            lanes = await self._new_lanes(queue, group, count)
            at_ms = time.time_ns() // 1_000_000
            move = Move(count=count, at_ms=at_ms, group=definition.group, earlier=definition.written)
            await self._redefine(queue, msgspec.structs.replace(definition, lanes=lanes, group=group, move=move))
        finally:
            if queue.owned is None:
                await release(owned)
        return queue.definition

    async def _new_lanes(self, queue: Queue, group: int, count: int) -> tuple[int, ...]:
        """Returns numbers in a group for all lanes of a queue."""
        definition = queue.definition
        names = [lane_name(definition.name, priority, count) for priority in range(len(definition.written))]
        if not queue.lasting:
            await asyncio.gather(*(self._garbage.mark(one) for one in names))
        named = await asyncio.gather(*(self._garbage.fresh(one, group) for one in names))
        numbers = tuple(one.number for one in named)
        if not queue.shared:
            name, arguments = definition.name, definition.arguments
            await self._store.queues.configure([self._queue_config(one, name, arguments) for one in numbers])
        return numbers

    async def finish_move(self, name: str, number: int) -> None:
        """Forgets the empty lanes of a queue, which has this number, in its former group. Raises as `move_queue`."""
        await self._change_queue(name, lambda: self._finish_move(name, number))

    async def _finish_move(self, name: str, number: int) -> None:
        queue = self.queues.get(name)
        if queue is None or queue.number != number or queue.definition.move is None:
            return
        former, move = former_names(queue.definition), queue.definition.move
        done = msgspec.structs.replace(move, earlier=())
        await self._redefine(queue, msgspec.structs.replace(queue.definition, move=done))
        for lane, its_number in former:
            await self._garbage.clear(lane, its_number)
        if self._garbage.pending:
            self._unfinished()
