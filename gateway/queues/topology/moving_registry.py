"""Moving queues between store groups.

A queue that is moved is written to in its new group from then on. What lies in the former group is consumed there,
before all else, and nothing is copied: so nothing is lost or doubled, whatever ends in between. Once the former group
holds nothing of the queue any more it is forgotten there (`gateway.queues.topology.queue_moves`).
"""

import asyncio

import msgspec

from controller.api.client import NamedQueue
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import said
from gateway.queues.model.bindings import Move, QueueDefinition
from gateway.queues.model.queue import Queue, no_queue
from gateway.queues.topology.claims import claim, release
from gateway.queues.topology.definitions import Changed
from gateway.queues.topology.lane_names import former_names, next_names
from gateway.queues.topology.registry import QueueRegistry


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
        if before is not None and not before.forgotten:
            why = f"is being moved from store group {before.group} still: what lies there has to be consumed first"
            raise Refusal(Cause.CONFLICT, f"queue {said(name)} {why}")
        owned = queue.owned or await claim(self._owners, name)
        try:
            await self._check_newest(queue)
            lanes = await self._new_lanes(queue, group)
            count = 1 if before is None else before.count + 1
            move = Move(count=count, at_ms=self._now_ms(), group=definition.group, earlier=definition.written)
            await self._redefine(queue, msgspec.structs.replace(definition, lanes=lanes, group=group, move=move))
        finally:
            if queue.owned is None:
                await release(owned)
        return queue.definition

    async def _new_lanes(self, queue: Queue, group: int) -> tuple[int, ...]:
        """Returns numbers in a group for all lanes of a queue."""
        definition = queue.definition
        names = next_names(definition)
        if not queue.lasting:
            await asyncio.gather(*(self._garbage.mark(one) for one in names))
        found = await asyncio.gather(*(self._garbage.fresh(one, group) for one in names), return_exceptions=True)
        named = [one for one in found if isinstance(one, NamedQueue)]
        for error in found:
            if isinstance(error, BaseException):  # such as for a group that there is not
                for one in named:
                    await self._garbage.clear(one.name, one.number)
                await self._garbage.unmark(names)
                raise error
        numbers = tuple(one.number for one in named)
        if not queue.shared:
            name, arguments = definition.name, definition.arguments
            await self._store.queues.configure([self._queue_config(one, name, arguments) for one in numbers])
        return numbers

    async def finish_move(self, name: str, number: int, count: int) -> None:
        """Ends the move of this count, of a queue with this number, whose former numbers are retired and empty.

        Raises `Refusal`, `StoreError`, `ControllerError`: then it is ended by another attempt.
        """
        await self._change_queue(name, lambda: self._finish_move(name, number, count))

    async def _finish_move(self, name: str, number: int, count: int) -> None:
        queue = self.queues.get(name)
        if queue is None or name in self._doomed:
            return
        owned = queue.owned or await claim(self._owners, name)  # while the queue is neither deleted nor moved again
        try:
            await self._check_newest(queue)
            definition, move = queue.definition, queue.definition.move
            if definition.number != number or move is None or move.count != count or move.forgotten:
                return
            if not move.empty:
                await self._note(queue, msgspec.structs.replace(move, empty=True))  # they are read no more
            for lane, its_number in former_names(queue.definition):
                await self._garbage.remove(lane, its_number)
            await self._note(queue, msgspec.structs.replace(move, empty=True, forgotten=True))
        finally:
            if queue.owned is None:
                await release(owned)

    async def _check_newest(self, queue: Queue) -> None:
        """Raises `Changed` where a queue is defined otherwise than it is known here."""
        name = queue.definition.name
        found = await self._definitions.find(name, exchange=False) if self._definitions.shared else None
        if self._definitions.shared and (found is None or found.revision != queue.revision):
            raise Changed(name)

    async def _note(self, queue: Queue, move: Move) -> None:
        await self._redefine(queue, msgspec.structs.replace(queue.definition, move=move))
