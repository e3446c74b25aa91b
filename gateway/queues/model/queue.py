"""A named queue of this process, who may use it, and the router as queues see it."""

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Protocol, TypeAlias

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import said
from gateway.ownership.owners import Owned
from gateway.queues.leasing.pump import ConsumerConnection, Pump
from gateway.queues.leaving.rules import QueueRules
from gateway.queues.model.bindings import QueueDefinition
from gateway.queues.streams.arguments import is_stream
from gateway.queues.streams.pump import StreamPump
from store.api.message import Message
from store.format.frame import QueueNumber

Predicate: TypeAlias = Callable[[Message], bool]


class QueueRouter(Protocol):
    """The interface to the router that named queues need."""

    def bind(
        self,
        pattern: str,
        queue: int,
        predicate: Predicate | None = None,
        *,
        key: Hashable,
        group: int = 0,
        exchange: str | None = None,
    ) -> None:
        """Routes messages of matching addresses of an exchange to a queue, which lies in a store group."""

    def link(
        self, pattern: str, target: str, predicate: Predicate | None = None, *, key: Hashable, exchange: str
    ) -> None:
        """Routes messages of matching addresses of an exchange through the exchange `target` too."""

    def unbind(self, key: Hashable) -> None:
        """Ends a binding or a link."""

    def set_exchanges(self, names: Collection[str], internal: Collection[str], alternates: Mapping[str, str]) -> None:
        """Sets the exchanges there are, and which of them are internal, by their roots; alternates by name."""

    def named_queues(self, message: Message) -> list[int]:
        """Returns the named queues a message would be put in."""


class Queue:
    """A queue that exists."""

    __slots__ = ("definition", "members", "number", "owned", "owner", "pump", "revision", "rules")

    def __init__(
        self, definition: QueueDefinition, owner: int | None, pump: Pump | StreamPump, revision: int, rules: QueueRules
    ) -> None:
        self.definition = definition
        self.number = QueueNumber(definition.number)
        self.owner = owner  # the connection that alone may use it
        self.rules = rules
        self.pump = pump
        self.revision = revision  # of its definition, where several proxies share it
        self.owned: Owned | None = None  # its name, while this process keeps it
        self.members: set[int] = set()  # of a shared subscription: the connections of this process that may use it

    @property
    def shared(self) -> bool:
        """Returns whether it is a shared subscription's queue, which its members alone may use."""
        return bool(self.definition.pattern)

    @property
    def stream(self) -> bool:
        """Returns whether it is a stream, whose messages stay when they are read."""
        return is_stream(self.definition.arguments)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Returns all numbers in which its messages can be."""
        return self.definition.numbers

    @property
    def lasting(self) -> bool:
        """Returns whether it survives a restart."""
        return self.definition.durable and self.owner is None


def no_queue(name: str) -> Refusal:
    """Returns the refusal for a queue that does not exist."""
    return Refusal(Cause.NOT_FOUND, f"no queue {said(name)}")


def locked_queue(name: str) -> Refusal:
    """Returns the refusal for another connection's own queue, in RabbitMQ's words."""
    why = "It could be originally declared on another connection or the exclusive property value does not match"
    text = f"cannot obtain exclusive access to locked queue {said(name)}. {why} that of the original declaration."
    return Refusal(Cause.CONFLICT, text)


def is_hidden(conn: ConsumerConnection, queue: Queue) -> bool:
    """Returns whether a connection is not to know of a queue: that of a shared subscription of others."""
    return queue.shared and conn.id not in queue.members


def check_access(conn: ConsumerConnection, queue: Queue) -> None:
    """Raises `Refusal`: CONFLICT for another connection's own queue, NOT_FOUND for one that is hidden."""
    if is_hidden(conn, queue):
        raise no_queue(queue.definition.name)
    if queue.owner not in (None, conn.id):
        raise locked_queue(queue.definition.name)
