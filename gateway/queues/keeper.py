"""The keeper of a process's queues: moves messages that leave them unconsumed, and removes unused queues."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from gateway.ownership.owners import Owners
from gateway.publishing.routing.length_gates import LengthGate
from gateway.publishing.routing.router import Router
from gateway.queues.consumers.single_active import SingleActive
from gateway.queues.consumers.uses import QueueUses
from gateway.queues.dead_letters import DeadLetters
from gateway.queues.leaving.reading import Letter
from gateway.queues.leaving.rules import DROP_HEAD, NO_RULES, REJECT_TO_DLX, QueueRules
from gateway.queues.leaving.upkeep import OWNER, Upkeep
from gateway.queues.model.bindings import QueueDefinition
from gateway.queues.model.queue import Queue
from gateway.queues.topology.queue_moves import QueueMoves
from store.api.client import StoreClient
from store.api.message import Message
from store.base import logs
from store.base.errors import StoreError
from store.format.frame import QueueOffset

LOOK_BATCHES_MAX: Final = 16  # of messages that leave by themselves: then other queues have their turn
COUNT_MS: Final = 1_000  # that messages wait for a count; without one the gate guesses for as long
COUNTS_MAX: Final = 8  # while messages of this process land; with those that wait there are soon none in flight

log = logs.get(__name__)


class QueueKeeper:
    """Applies the rules of queues, which it finds by their numbers in `queues`. `drop` removes a queue by its name."""

    def __init__(
        self,
        store: StoreClient,
        owners: Owners,
        router: Router,
        queues: Mapping[int, Queue],
        letters: DeadLetters,
        *,
        upkeep: Upkeep,
        uses: QueueUses,
        single: SingleActive,
        now_ms: Callable[[], int],
        moves: QueueMoves,
        drop: Callable[[str, Callable[[], Awaitable[bool]]], Awaitable[None]],
    ) -> None:
        self._store = store
        self._owners = owners
        self._router = router
        self._queues = queues
        self._letters, self.lost = letters, letters.lost
        self._upkeep = upkeep
        self._uses = uses
        self._single = single
        self._now_ms = now_ms
        self._moves = moves
        self._drop = drop

    @property
    def dropped(self) -> int:
        """Returns how many dead letters were dropped, as nothing took them."""
        return self._letters.dropped

    async def run(self) -> None:
        """Looks after queues, forever."""
        await self._upkeep.run(self.look_after, self._watched)

    def rules(self, number: int) -> QueueRules:
        """Returns the rules of a queue."""
        queue = self._queues.get(number)
        return NO_RULES if queue is None else queue.rules

    def added(self, queue: Queue) -> None:
        """Applies the rules of a queue that is there from now on."""
        self._router.lanes.set(queue.number, queue.definition.lanes, queue.definition.earlier)
        if queue.stream:
            self._router.lanes.streams.add(queue.number)
        queue.pump.active = self._owners.alone or not queue.rules.single_active
        self.ruled(queue)

    def moved(self, queue: Queue, before: QueueDefinition) -> None:
        """Follows a queue to other queues of the store; `before` is how it was defined until now."""
        self._router.lanes.set(queue.number, queue.definition.lanes, queue.definition.earlier)
        for number in before.numbers:
            if number not in queue.numbers:
                self._router.gates.pop(number, None)
        self.ruled(queue)
        self._upkeep.changed(queue.number)
        queue.pump.wake()

    def ruled(self, queue: Queue) -> None:
        """Applies other rules to a queue. Its time to live begins anew, as in RabbitMQ."""
        rules, number = queue.rules, queue.number
        gate = self._gate(queue)
        if rules.limited and rules.overflow != DROP_HEAD:
            if gate is None:
                gate = LengthGate(
                    touched=lambda: self._upkeep.changed(number),
                    refused=lambda message: self._refused(number, message),
                    room=lambda: self._room(number),
                    count=None if self._owners.alone else lambda: self._count(number),
                    now_ms=self._now_ms,
                )
            gate.limit(rules.max_length, rules.max_bytes)
            self._router.gates.update(dict.fromkeys(queue.numbers, gate))
        elif gate is not None:
            gate.limit(None, None)  # it stays: messages on their way through it land there
            self._router.gates.update(dict.fromkeys(queue.numbers, gate))
        self._uses.used(number)
        if is_watched(queue):
            self._upkeep.changed(number)

    def _gate(self, queue: Queue) -> LengthGate | None:
        """Returns the gate of a queue: all its lanes have the same."""
        gates = self._router.gates
        return next((gate for number in queue.numbers if (gate := gates.get(number)) is not None), None)

    def removed(self, queue: Queue) -> None:
        """Forgets a queue that is gone."""
        for number in queue.numbers:
            self._router.gates.pop(number, None)
        self._router.lanes.set(queue.number, ())
        self._router.lanes.streams.discard(queue.number)
        self._uses.forget(queue.number)
        self._upkeep.forget(queue.number)
        if self._single.leave(queue.number):
            self._upkeep.changed(queue.number)  # which lets go of the name: another queue may be called so

    def used(self, queue: Queue) -> None:
        """Keeps a queue from expiring for a while: it was declared again, asked for a message or left by a consumer."""
        self._uses.used(queue.number)
        self.changed(queue.number)

    def changed(self, number: int) -> None:
        """Notes that messages have come to a queue, or have left it."""
        if self.rules(number).watched:
            self._upkeep.changed(number)

    def _room(self, number: int) -> int:
        """Returns how many messages the consumers of a queue take at once."""
        queue = self._queues.get(number)
        return 0 if queue is None else queue.pump.room

    def _refused(self, number: int, message: Message) -> None:
        """Dead-letters a message that a full queue has not taken, where the queue's rules say so."""
        queue = self._queues.get(number)
        if queue is not None and queue.rules.overflow == REJECT_TO_DLX:
            self._letters.publish_soon(queue, message)

    def _watched(self) -> list[int]:
        return [number for number, queue in self._queues.items() if number == queue.number and is_watched(queue)]

    async def look_after(self, number: int) -> int | None:
        """Removes expired and excess messages from a queue; returns when to look again. Raises `StoreError`."""
        queue = self._queues.get(number)
        if queue is None:
            await self._single.forget(number)
        if queue is None or not is_watched(queue):
            return None
        asks_ms = await self._single.look_after(queue)
        dues = [await self._expire_queue(queue), await self._expire_messages(queue)]
        dues.append(None if asks_ms is None else self._now_ms() + asks_ms)
        gate = self._gate(queue)
        if gate is not None:
            queue.pump.look_again()
            if not await self._is_counted(queue, gate):
                self._upkeep.changed(number)
        dues.append(await self._moves.look_after(queue))
        return min((due for due in dues if due is not None), default=None)

    async def _is_counted(self, queue: Queue, gate: LengthGate) -> bool:
        """Counts a queue for its gate; returns False where it is to be counted again. Raises `StoreError`."""
        async with gate.lock:
            settled = gate.settled
            return gate.counted(settled, *await queue.pump.head.length())

    async def _count(self, number: int) -> None:
        """Counts a queue for its gate, as exactly as that matters, while messages wait for it."""
        queue = self._queues.get(number)
        gate = None if queue is None else self._gate(queue)
        if queue is None or gate is None:
            return
        try:
            async with asyncio.timeout(COUNT_MS / 1_000):
                for _ in range(COUNTS_MAX):
                    if await self._is_counted(queue, gate) or gate.has_room:
                        return
        except (StoreError, TimeoutError):  # the look at the queue says so, and the store refuses messages for it
            gate.guess(COUNT_MS)
        except Exception:  # our own bug: messages are not to wait for it forever
            log.exception("counting a queue has failed", queue=number)
            gate.guess(COUNT_MS)

    async def _expire_messages(self, queue: Queue) -> int | None:
        """Removes expired and excess messages. A queue whose consumers take every message is left to them."""
        if queue.pump.has_ready_consumer:
            return None
        due_ms = await queue.pump.head.trim(OWNER, LOOK_BATCHES_MAX)
        if due_ms is None and not self._owners.alone and await queue.pump.head.probe(OWNER):
            queue.pump.wake()
        return due_ms

    async def _expire_queue(self, queue: Queue) -> int | None:
        """Removes a queue that was not used for its `x-expires`; returns when it would be removed."""
        expires_ms = queue.rules.expires_ms
        if expires_ms is None:
            return None
        if not await self._uses.expired(queue, expires_ms):
            return self._uses.due_ms(queue.number, expires_ms)
        await self._drop(queue.definition.name, lambda: self._uses.expired(queue, expires_ms))
        return None

    async def dead_letter(self, number: int, owner: int, letters: Sequence[Letter], reason: str) -> None:
        """Moves messages that an owner holds and no consumer may get. Raises `StoreError`."""
        queue = self._queues.get(number)
        if queue is not None:
            await self._letters.dead_letter(queue, owner, letters, reason)

    async def reject(self, queue: Queue, owner: int, offsets: Sequence[QueueOffset], reason: str) -> None:
        """Moves messages that an owner has rejected, or given back too often. Raises `StoreError`."""
        await self._letters.reject(queue, owner, offsets, reason)

    async def finished(self, owner: int) -> None:
        """Waits until nothing is being moved that an owner holds."""
        await self._letters.finished(owner)


def is_watched(queue: Queue) -> bool:
    """Returns whether something happens to a queue by itself: its rules say so, or it is being moved."""
    return queue.rules.watched or queue.definition.is_moving
