"""The consumers of named queues that connections of this process have: begun, told of the end, removed."""

from collections.abc import Callable, Coroutine
from typing import Any

from gateway.domain.access import OPEN, Permissions
from gateway.domain.errors import Refusal
from gateway.ownership.owners import Owners
from gateway.port.adapter import Cancel, Consume, ConsumerCancelled, ConsumerId, Ready
from gateway.port.streams import StreamRead
from gateway.queues.consumers.consumer_counts import ConsumerCounts, exclusive_consumer
from gateway.queues.keeper import QueueKeeper
from gateway.queues.leasing.pump import NOWHERE, ConsumerConnection, QueueConsumer
from gateway.queues.model.queue import Queue
from gateway.queues.shared.counts import SharedCounts
from gateway.queues.shared.registry import SharedRegistry
from store.base import logs
from store.format.frame import QueueOffset

log = logs.get(__name__)


class _Gone(Exception):
    """Raised when the connection that asked is gone."""


class QueueConsumers:
    """Begins and ends consumers. `counts` are of all proxies, `shares` of the members of shared subscriptions."""

    def __init__(
        self,
        registry: SharedRegistry,
        keeper: QueueKeeper,
        *,
        owners: Owners,
        counts: ConsumerCounts,
        shares: SharedCounts,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._registry = registry
        self._keeper = keeper
        self._owners = owners
        self._counts = counts
        self._shares = shares
        self._spawn = spawn
        self._consumers: dict[int, dict[ConsumerId, QueueConsumer]] = {}  # by connection

    async def consume(self, conn: ConsumerConnection, effect: Consume, permissions: Permissions = OPEN) -> None:
        """Begins to deliver a queue to a connection, as long as `permissions` let it be read. Raises `Refusal`.

        Nothing is delivered before the caller's next await, so that it can tell the connection first.
        """
        queue = await self._registry.look_up(effect.queue, conn)
        if queue.shared:
            if not conn.gone:
                self._begin(queue, conn, effect, permissions, NOWHERE)
            return
        at = await queue.pump.begin(effect)
        self._check_consumers(queue, effect)
        await self._counts.join(effect.queue, exclusive=effect.exclusive)
        try:
            queue = self._registry.find(effect.queue, conn)
            self._check_consumers(queue, effect)
            if conn.gone:
                raise _Gone
        except (Refusal, _Gone) as why:
            await self._counts.leave(effect.queue, exclusive=effect.exclusive)
            if isinstance(why, _Gone):
                return
            raise
        self._begin(queue, conn, effect, permissions, at)

    def _begin(
        self, queue: Queue, conn: ConsumerConnection, effect: Consume, permissions: Permissions, at: QueueOffset
    ) -> None:
        consumer = QueueConsumer(
            conn,
            effect.consumer,
            effect.queue,
            exclusive=effect.exclusive,
            settle_on_delivery=effect.settle_on_delivery,
            credit=effect.credit,
            shares=effect.shares,
            priority=effect.priority,
            pattern=queue.definition.pattern,
            permissions=permissions,
            stream=(effect.stream or StreamRead()) if queue.stream else None,
            at=at,
        )
        self._consumers.setdefault(conn.id, {})[effect.consumer] = consumer
        queue.pump.add(consumer)
        self._keeper.changed(queue.number)
        if queue.shared:
            self._shares.here(effect.queue, len(queue.pump.consumers))

    def _check_consumers(self, queue: Queue, effect: Consume) -> None:
        others = queue.pump.consumers
        if effect.exclusive and queue.rules.single_active:
            raise exclusive_consumer(effect.queue)
        if others and (effect.exclusive or any(c.exclusive for c in others)):
            raise exclusive_consumer(effect.queue)

    def ready(self, conn: ConsumerConnection, effect: Ready) -> None:
        """Delivers again to a consumer that takes messages again."""
        consumer = self._consumers.get(conn.id, {}).get(effect.consumer)
        if consumer is not None:
            self._registry.queues[consumer.queue].pump.ready(consumer, effect.credit)

    def cancel(self, conn: ConsumerConnection, effect: Cancel) -> None:
        """Ends a consumer; a queue that lived for its consumers alone goes with the last."""
        consumer = self._consumers.get(conn.id, {}).pop(effect.consumer, None)
        if consumer is not None:
            unused = self._remove(consumer)
            if not consumer.shared and (unused or not self._owners.alone):
                self._spawn(self.left([consumer], [consumer.queue] if unused else []))

    def end(self, conn: ConsumerConnection) -> tuple[list[QueueConsumer], list[str]]:
        """Ends all consumers of a connection that has ended; returns the arguments of `left`."""
        ended = list(self._consumers.pop(conn.id, {}).values())
        unused = [consumer.queue for consumer in ended if self._remove(consumer)]
        return [consumer for consumer in ended if not consumer.shared], unused

    async def left(self, ended: list[QueueConsumer], unused: list[str]) -> None:
        """Sees to queues whose consumers have ended, some of them perhaps the last ones."""
        for consumer in ended:
            await self._counts.leave(consumer.queue, exclusive=consumer.exclusive)
        if unused:
            await self._registry.drop_unused(unused)

    def _remove(self, consumer: QueueConsumer) -> bool:
        """Takes a consumer from its queue; returns whether the queue should go with it."""
        queue = self._registry.queues[consumer.queue]
        queue.pump.remove(consumer)
        self._keeper.used(queue)
        if queue.shared:
            self._shares.here(consumer.queue, len(queue.pump.consumers))
        return queue.definition.auto_delete and not queue.pump.consumers

    def end_denied(self, queue: Queue) -> None:
        """Ends consumers whose right was revoked, where they would be in the way of others or are to hear of it.

        These are members of a shared subscription and exclusive consumers. Any other consumer has messages again when
        its right comes back. The queue stays, even where it lives for its consumers alone.
        """
        for consumer in list(queue.pump.consumers):
            if not consumer.shared and not consumer.exclusive:
                continue
            if not consumer.gone and not consumer.allowed:  # telling one may end others of its connection
                self._consumers.get(consumer.conn.id, {}).pop(consumer.id, None)
                self._remove(consumer)
                consumer.conn.deliver(ConsumerCancelled(consumer.id, denied=True))
                if not self._owners.alone and not consumer.shared:
                    self._spawn(self.left([consumer], []))

    def cancel_all(self, queue: Queue) -> None:
        """Cancels all consumers of a queue from which no more is delivered."""
        if queue.shared:
            self._shares.here(queue.definition.name, 0)
        for consumer in list(queue.pump.consumers):
            queue.pump.remove(consumer)
            self._consumers.get(consumer.conn.id, {}).pop(consumer.id, None)
            consumer.conn.deliver(ConsumerCancelled(consumer.id))
            if not self._owners.alone and not consumer.shared:
                self._spawn(self.left([consumer], []))

    def pump_failed(self, name: str, error: BaseException) -> None:
        """Ends the consumers of a pump that a bug of ours has ended."""
        log.error("delivering a queue has failed; its consumers are cancelled", queue=name, exc_info=error)
        queue = self._registry.queues.get(name)
        if queue is not None:
            self.cancel_all(queue)
