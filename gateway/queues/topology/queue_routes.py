"""The routes of messages to queues: each binding of a queue is an entry of the router."""

from collections.abc import Hashable, Mapping

from gateway.queues.model.bindings import (
    Binding,
    Exchange,
    QueueDefinition,
    bindings_of,
    changed_bindings,
    patterns,
)
from gateway.queues.model.hashed_bindings import HashedBindings
from gateway.queues.model.queue import Queue, QueueRouter

_QUEUE = "queue"


class QueueRoutes:
    """The bindings of all queues, as the router has them. `exchanges` are those that are known, by name."""

    def __init__(self, router: QueueRouter, exchanges: Mapping[str, Exchange], hashed: HashedBindings) -> None:
        self._router = router
        self._exchanges = exchanges
        self._hashed = hashed
        self.bound: dict[str, dict[tuple[str, Hashable], None]] = {}  # by exchange: (queue, binding's identity)

    def add(self, queue: Queue) -> None:
        """Adds all bindings of a queue."""
        definition = queue.definition
        for binding in bindings_of(definition):
            self._route(queue, binding)
        if queue.shared:
            self._router.bind(definition.pattern, queue.number, key=_share_key(definition), group=definition.group)

    def remove(self, queue: Queue) -> None:
        """Removes all bindings of a queue."""
        for binding in bindings_of(queue.definition):
            self._unroute(queue, binding)
        if queue.shared:
            self._router.unbind(_share_key(queue.definition))

    def change(self, queue: Queue, definition: QueueDefinition) -> None:
        """Gives a queue another definition: other bindings, or another store group."""
        if definition.group != queue.definition.group:
            self.remove(queue)
            queue.definition = definition
            self.add(queue)
            return
        gone, came = changed_bindings(queue.definition.bindings, definition.bindings)
        queue.definition = definition
        for binding in gone:
            self._unroute(queue, binding)
        for binding in came:
            self._route(queue, binding)

    def _route(self, queue: Queue, binding: Binding) -> None:
        exchange = self._exchanges[binding.exchange]
        predicate = self._hashed.predicate(exchange, binding, (_QUEUE, queue.definition.name))
        name, identity = queue.definition.name, binding.identity
        for nth, pattern in enumerate(patterns(exchange, binding.routing_key)):
            self._router.bind(
                pattern,
                queue.number,
                predicate,
                key=(name, identity, nth),
                group=queue.definition.group,
                exchange=exchange.name,
            )
        self.bound.setdefault(exchange.name, {})[name, identity] = None

    def _unroute(self, queue: Queue, binding: Binding) -> None:
        name, identity = queue.definition.name, binding.identity
        for nth in range(2):
            self._router.unbind((name, identity, nth))
        self.bound.get(binding.exchange, {}).pop((name, identity), None)
        self._hashed.remove(binding, (_QUEUE, name))


def _share_key(definition: QueueDefinition) -> Hashable:
    """Returns the router's key of a shared subscription's filter."""
    return definition.name, "shared"
