"""Settling messages that connections hold: consumed, rejected, or given back."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from gateway.port.adapter import SettleLeased
from gateway.queues.leaving.deaths import Reason
from gateway.queues.model.queue import Queue
from store.api.client import StoreClient
from store.base.errors import StoreError
from store.base.futures import succeeded
from store.format.frame import QueueOffset

_Letters: TypeAlias = Sequence[tuple[str, Sequence[QueueOffset]]]  # messages to be moved, by the reason


class Settlements:
    """Carries out the settlements of connections.

    `find` returns a queue by its name, `reject` moves dead letters for a reason, and `changed` is called with the
    returned messages.
    """

    def __init__(
        self,
        store: StoreClient,
        *,
        find: Callable[[str], Queue | None],
        reject: Callable[[Queue, int, Sequence[QueueOffset], str], Awaitable[None]],
        changed: Callable[[Queue], None],
    ) -> None:
        self._store = store
        self._find = find
        self._reject = reject
        self._changed = changed

    async def settle(self, owner: int, effect: SettleLeased) -> None:
        """Settles or gives back messages that an owner holds of a queue. Raises `StoreError`."""
        queue = self._queue_of(effect)
        if queue is None:
            return
        done, letters = self._give_back(queue, owner, effect)
        consumed = (self.consumed(queue, owner, done),) if done else ()  # first: it waits for no dead letter
        await asyncio.gather(*consumed, self._move(queue, owner, letters))

    def settle_soon(
        self, owner: int, effect: SettleLeased
    ) -> tuple["asyncio.Future[None]", Coroutine[Any, Any, None] | None]:
        """Does the same with the next commit; returns a future that ends with it, and may fail with `StoreError`.

        Where dead letters are to be moved, a coroutine is returned, too, that moves them, and may raise that: the
        messages that were consumed do not wait for it.
        """
        queue = self._queue_of(effect)
        if queue is None:
            return succeeded(), None
        done, letters = self._give_back(queue, owner, effect)
        moving = self._move(queue, owner, letters) if letters else None
        if not done:
            return succeeded(), moving
        settling = self._store.leases.settle_soon(queue.number, owner, done)
        settling.add_done_callback(partial(_wake_unless_settled, queue))
        return settling, moving

    async def _move(self, queue: Queue, owner: int, letters: _Letters) -> None:
        await asyncio.gather(*(self._reject(queue, owner, offsets, reason) for reason, offsets in letters))

    async def consumed(self, queue: Queue, owner: int, offsets: Sequence[QueueOffset]) -> None:
        """Settles messages. Those that cannot be settled are leased again. Raises `StoreError`."""
        try:
            await self._store.leases.settle(queue.number, owner, offsets)
        except StoreError:
            queue.pump.wake()
            raise

    def _queue_of(self, effect: SettleLeased) -> Queue | None:
        """Returns the queue that a settlement is of, None where there is nothing to settle: in a stream nothing is."""
        queue = self._find(effect.queue)
        if queue is None or effect.number not in (0, queue.number) or queue.stream:
            return None
        return queue

    def _give_back(
        self, queue: Queue, owner: int, effect: SettleLeased
    ) -> tuple[list[QueueOffset], list[tuple[str, list[QueueOffset]]]]:
        """Gives back messages to requeue; returns the consumed ones, and, by reason, those that become dead letters."""
        done, letters = list[QueueOffset](), dict[str, list[QueueOffset]]()
        last_tries, moves = queue.pump.last_tries, queue.rules.dead_letter_exchange is not None
        for disposition in effect.dispositions:
            offsets, reason = disposition.offsets, ""
            if disposition.outcome == "requeue":
                exhausted = last_tries.exhausted(offsets)
                if back := [one for one in offsets if one not in exhausted] if exhausted else offsets:
                    self._store.leases.requeue(queue.number, owner, back)
                    self._changed(queue)
                offsets, reason = exhausted, Reason.DELIVERY_LIMIT
            elif disposition.outcome == "reject":
                reason = Reason.REJECTED
            last_tries.left(offsets)
            if reason and moves:
                letters.setdefault(reason, []).extend(offsets)
            else:
                done += offsets
        return done, list(letters.items())


def _wake_unless_settled(queue: Queue, settling: "asyncio.Future[None]") -> None:
    """Wakes a queue's consumers for messages that could not be settled, and are there for others again."""
    if settling.cancelled() or settling.exception() is not None:
        queue.pump.wake()
