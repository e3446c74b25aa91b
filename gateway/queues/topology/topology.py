"""The exchanges, queues and bindings that are known here: loaded, followed where other proxies change them, routed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from controller.api.client import ControllerClient
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import in_vhost, vhost_of
from gateway.ownership.owners import Owners
from gateway.port.adapter import Random
from gateway.port.queues import exchange_root
from gateway.queues.consumers.consumer_counts import ConsumerCounts
from gateway.queues.leasing.pump import ConsumerConnection, Pump
from gateway.queues.leaving.policies import Policies
from gateway.queues.leaving.rules import NO_RULES, QueueRules
from gateway.queues.model.bindings import (
    Binding,
    Exchange,
    QueueDefinition,
    changed_bindings,
    patterns,
    predeclared,
)
from gateway.queues.model.hashed_bindings import HashedBindings
from gateway.queues.model.queue import Queue, QueueRouter, check_access, no_queue
from gateway.queues.operated.stored import StoredSettings
from gateway.queues.operated.vhosts import ConnectionCounts, Vhosts
from gateway.queues.streams.arguments import is_stream, stream_config
from gateway.queues.streams.pump import StreamPump
from gateway.queues.topology.change_lock import ChangeLock
from gateway.queues.topology.definitions import (
    Changed,
    Definitions,
    LocalDefinitions,
    SharedDefinitions,
    StoredDefinition,
)
from gateway.queues.topology.queue_garbage import QueueGarbage
from gateway.queues.topology.queue_routes import QueueRoutes
from store.api.client import StoreClient
from store.base import logs
from store.format.frame import QueueNumber
from store.format.queue_config import QueueConfig

TRIES_COUNT_MAX = 16  # of one change, while other proxies change the same
GONE_COUNT_MAX = 10_000  # names of deleted queues and exchanges that are remembered, for definitions that arrive late

ELSEWHERE = -1  # no connection of this process
_TRANSIENT = "amqp/transient"
_LINK = "exchange"  # the router's keys of bindings between exchanges begin with it

log = logs.get(__name__)

T = TypeVar("T")


class Topology(ABC):
    """The exchanges, queues and bindings that `QueueRegistry` changes.

    `new_pump` makes the pump that delivers a queue; `added` is called with a new queue, `ruled` with one whose rules
    have changed, `moved` with one that lies in other queues of the store than its former definition says, and
    `dropped` with one that is gone. When a removal has failed, `unfinished` is called, and
    `finish` is to be called again later.
    """

    def __init__(
        self,
        store: StoreClient,
        controller: ControllerClient,
        router: QueueRouter,
        *,
        instance: str,
        random: Random,
        now_ms: Callable[[], int],
        owners: Owners,
        counts: ConsumerCounts,
        policies: Policies,
        connections: ConnectionCounts,
        new_pump: Callable[[QueueDefinition], Pump | StreamPump],
        added: Callable[[Queue], None],
        ruled: Callable[[Queue], None],
        moved: Callable[[Queue, QueueDefinition], None],
        dropped: Callable[[Queue], None],
        unfinished: Callable[[], None],
    ) -> None:
        self._store = store
        self._router = router
        self._owners = owners
        self._counts = counts
        self._definitions: Definitions = LocalDefinitions(store) if owners.alone else SharedDefinitions(store)
        self._settings = StoredSettings(store)
        self._garbage = QueueGarbage(store, controller, f"{_TRANSIENT}/{instance}")
        self._random = random
        self._now_ms = now_ms
        self._policies = policies
        self._new_pump = new_pump
        self._added = added
        self._ruled = ruled
        self._moved = moved
        self._dropped = dropped
        self._unfinished = unfinished
        self.vhosts = Vhosts(policies.vhosts, connections)
        self._exchanges: dict[str, Exchange] = {}
        self._revisions: dict[str, int] = {}  # of the definitions of exchanges
        self._gone: dict[tuple[str, bool], int] = {}  # when definitions were removed, newest last
        self._linked: dict[str, dict[tuple[str, Hashable], None]] = {}  # the same of exchanges bound to an exchange
        self._hashed = HashedBindings()
        self._routes = QueueRoutes(router, self._exchanges, self._hashed)
        self.queues: dict[str, Queue] = {}
        self.by_number: dict[int, Queue] = {}  # `known_by`
        self.shared_count = 0  # queues of shared subscriptions
        self._owned: dict[int, dict[str, None]] = {}  # exclusive queues by connection
        self._doomed: dict[str, None] = {}  # queues to be removed as soon as the store lets us: they cannot be used
        self._idle: dict[str, None] = {}  # exchanges for which that is true
        self._left: dict[str, None] = {}  # queues whose consumers here have ended, and perhaps those elsewhere
        self._changing = ChangeLock()
        for vhost in self.vhosts.names:
            self._exchanges |= predeclared(vhost)
        self._notify_exchanges()

    async def load(self) -> None:
        """Loads durable definitions, and removes the others."""
        first = await self._owners.is_first()
        if first:
            await self._definitions.clear()
        await self._take_stock()
        # An older version, or a crash, may have left settings of queues out of the store.
        said = self._store.queues.config
        wanted = [
            self._queue_config(number, queue.definition.name, queue.definition.arguments)
            for queue in self.queues.values()
            if not queue.shared
            for number in queue.definition.written
        ]
        await self._store.queues.configure([one for one in wanted if one != said(QueueNumber(one.queue))])
        if first:
            await self._garbage.load(self.by_number)

    async def _take_stock(self) -> None:
        """Loads the definitions in the store, and nothing else."""
        async with self._changing:
            await self._read_settings()
            there: set[tuple[str, bool]] = set()
            bound: list[Exchange] = []
            async for found in self._definitions.load():
                there.add((found.name, found.exchange))
                await self._learn(found)
                if isinstance(found.definition, Exchange) and self._revisions.get(found.name) == found.revision:
                    bound += [found.definition] if found.definition.bindings else []
            for definition in bound:  # once all sources are known
                self._set_exchange(definition)
            self._notify_exchanges()
            if self._definitions.shared:
                known = [(name, True) for name in self._revisions] + [(name, False) for name in self.queues]
                for name, exchange in [one for one in known if one not in there]:
                    await self._removed_elsewhere(name, exchange=exchange)

    # ---- changes by other proxies

    async def follow(self) -> None:
        """Follows the other proxies, forever."""
        if isinstance(self._definitions, SharedDefinitions):
            await self._definitions.follow(self._take_stock, self._learn_all, self._settings_changed)

    async def _settings_changed(self) -> None:
        async with self._changing:
            await self._read_settings()

    @abstractmethod
    async def _read_settings(self) -> None:
        """Takes over the operators' settings, with the topology locked. Raises `StoreError`."""

    async def _learn_all(self, found: Iterable[StoredDefinition]) -> None:
        async with self._changing:
            for one in found:
                await self._learn(one)

    async def _learn(self, found: StoredDefinition) -> None:
        """Takes over a definition, with the topology locked, if it is newer than the known one."""
        name, definition, revision, exchange = found
        queue = None if exchange else self.queues.get(name)
        known = self._revisions.get(name, 0) if exchange else 0 if queue is None else queue.revision
        if definition is None:
            if revision > known and (known or queue is not None):
                await self._removed_elsewhere(name, exchange=exchange)
                self._went(name, revision, exchange=exchange)
            return
        if revision <= max(known, self._gone.get((name, exchange), 0)):
            return
        self._know_vhost(vhost_of(name))
        if isinstance(definition, Exchange):
            await self._learn_exchange(definition, revision)
        else:
            await self._learn_sources(definition.bindings)
            kept = tuple(b for b in definition.bindings if b.exchange in self._exchanges)
            definition = msgspec.structs.replace(definition, bindings=kept)
            if queue is not None and queue.definition.number != definition.number:
                await self._removed_elsewhere(name, exchange=False)
                queue = None
            if queue is None:
                self._add(definition, ELSEWHERE if definition.proxy else None, revision)
            else:
                queue.revision = revision
                self._rebind(queue, definition)

    @abstractmethod
    async def _learn_exchange(self, exchange: Exchange, revision: int) -> None:
        """Takes over an exchange, with the topology locked."""

    async def _learn_sources(self, bindings: Iterable[Binding]) -> None:
        """Learns of the exchanges of bindings that are not known here yet: a binding without its own is left out."""
        for name in dict.fromkeys(binding.exchange for binding in bindings):
            await self._learn_of(name, exchange=True)

    async def _removed_elsewhere(self, name: str, *, exchange: bool) -> None:
        """Removes a definition that another proxy has deleted."""
        if exchange:
            self._revisions.pop(name, None)
            self._forget_exchange(name)
        elif (queue := self.queues.get(name)) is not None:
            await self._remove(queue)

    def _went(self, name: str, revision: int, *, exchange: bool) -> None:
        """Remembers when something was removed: an older definition of it may arrive later."""
        if not self._definitions.shared:
            return
        self._gone.pop((name, exchange), None)
        self._gone[name, exchange] = revision
        if len(self._gone) > GONE_COUNT_MAX:
            del self._gone[next(iter(self._gone))]

    async def _learn_of(self, name: str, *, exchange: bool = False) -> None:
        """Learns of something that another proxy may have made a moment ago."""
        if self._definitions.shared and name not in (self._exchanges if exchange else self.queues):
            found = await self._definitions.find(name, exchange=exchange)
            if found is not None:
                await self._learn(found)

    async def _change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does something with the topology locked, again when another proxy was first."""
        for _ in range(TRIES_COUNT_MAX):
            async with self._changing:
                try:
                    return await work()
                except Changed as changed:
                    await self._look_at(changed.names)
        raise _too_often()

    async def _change_queue(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does something with one queue, beside changes of others; again when another proxy was first.

        It must change no exchange and no other queue. `name` is as in `ChangeLock.of`.
        """
        for _ in range(TRIES_COUNT_MAX):
            try:
                async with self._changing.of(name):
                    return await work()
            except Changed as changed:
                async with self._changing:
                    await self._look_at(changed.names)
        raise _too_often()

    async def _look_at(self, names: Sequence[str]) -> None:
        """Learns of what others have made of some names, with the topology locked: of exchanges first."""
        for exchange in (True, False):
            for name in names:
                await self._look_again(name, exchange=exchange)

    async def _look_again(self, name: str, *, exchange: bool) -> None:
        found = await self._definitions.find(name, exchange=exchange)
        if found is not None:
            await self._learn(found)
        elif not exchange or name not in predeclared(vhost_of(name)):
            await self._removed_elsewhere(name, exchange=exchange)

    async def look_up(self, name: str, conn: ConsumerConnection) -> Queue:
        """Returns the same as `find`, also of a queue just declared elsewhere. Raises `StoreError` too."""
        if name not in self.queues and self._definitions.shared:
            async with self._changing.of(name):
                await self._learn_of(name)
        return self.find(name, conn)

    def exchange(self, name: str) -> Exchange | None:
        """Returns an exchange that is known here."""
        return self._exchanges.get(name)

    def find(self, name: str, conn: ConsumerConnection) -> Queue:
        """Returns a queue that a connection may use. Raises `Refusal`."""
        self.vhosts.check(name)
        queue = self.queues.get(name)
        if queue is None or name in self._doomed:
            raise no_queue(name)
        check_access(conn, queue)
        return queue

    # ---- virtual hosts

    def _know_vhost(self, vhost: str) -> None:
        """Makes the exchanges that each virtual host has, for one in which something is, deleted or not."""
        self.vhosts.know(vhost)
        if in_vhost(vhost, "") not in self._exchanges:
            self._exchanges |= predeclared(vhost)
            self._notify_exchanges()
        if vhost in self.vhosts.deleted:
            self._unfinished()  # until nothing is left

    # ---- lookups

    def _notify_exchanges(self) -> None:
        every = self._exchanges.values()
        self._router.set_exchanges(
            [exchange_root(one.name) for one in every],
            [exchange_root(one.name) for one in every if one.internal],
            {one.name: alternate for one in every if (alternate := self._alternate(one)) is not None},
        )

    def _alternate(self, exchange: Exchange) -> str | None:
        """Returns the exchange for messages that no binding of an exchange takes."""
        name = self._policies.alternate(exchange.name) if exchange.alternate is None else exchange.alternate
        return None if name is None else in_vhost(vhost_of(exchange.name), name)

    def _set_exchange(self, exchange: Exchange) -> None:
        """Applies a new exchange, or other bindings of a known one; leaves out those of exchanges that are gone."""
        before = self._exchanges.get(exchange.name)
        self._exchanges[exchange.name] = exchange
        kept = tuple(b for b in exchange.bindings if b.exchange in self._exchanges)
        self._exchanges[exchange.name] = msgspec.structs.replace(exchange, bindings=kept)
        gone, came = changed_bindings(() if before is None else before.bindings, kept)
        for binding in gone:
            self._unlink(exchange.name, binding)
        for binding in came:
            self._link(exchange.name, binding)

    def _forget_exchange(self, name: str) -> None:
        """Forgets an exchange, and the bindings that lead to it and away from it."""
        exchange = self._exchanges.pop(name, None)
        for binding in () if exchange is None else exchange.bindings:
            self._unlink(name, binding)
        for target in dict.fromkeys(target for target, _ in self._linked.get(name, {})):
            other = self._exchanges[target]
            kept = tuple(b for b in other.bindings if b.exchange != name)
            self._set_exchange(msgspec.structs.replace(other, bindings=kept))
        self._routes.bound.pop(name, None)
        self._linked.pop(name, None)
        self._hashed.forget(name)
        self._notify_exchanges()

    def _is_bound(self, name: str) -> bool:
        """Returns whether anything is bound to an exchange."""
        return bool(self._routes.bound.get(name) or self._linked.get(name))

    def _link(self, target: str, binding: Binding) -> None:
        """Routes the messages that a binding takes through the exchange `target`."""
        exchange = self._exchanges[binding.exchange]
        predicate = self._hashed.predicate(exchange, binding, (_LINK, target))
        for nth, pattern in enumerate(patterns(exchange, binding.routing_key)):
            key = _LINK, target, binding.identity, nth
            self._router.link(pattern, target, predicate, key=key, exchange=exchange.name)
        self._linked.setdefault(exchange.name, {})[target, binding.identity] = None

    def _unlink(self, target: str, binding: Binding) -> None:
        for nth in range(2):
            self._router.unbind((_LINK, target, binding.identity, nth))
        self._linked.get(binding.exchange, {}).pop((target, binding.identity), None)
        self._hashed.remove(binding, (_LINK, target))

    def _add(self, definition: QueueDefinition, owner: int | None, revision: int) -> Queue:
        queue = Queue(definition, owner, self._new_pump(definition), revision, self._rules(definition))
        self.queues[definition.name] = queue
        self.by_number |= dict.fromkeys(known_by(queue), queue)
        if owner is not None and owner != ELSEWHERE:
            self._owned.setdefault(owner, {})[definition.name] = None
        self._routes.add(queue)
        if queue.shared:
            self.shared_count += 1
        else:
            self.vhosts.queue_came(definition.name)
        self._added(queue)
        return queue

    def _rules(self, definition: QueueDefinition) -> QueueRules:
        """Returns the rules of a queue; its dead-letter exchange is one of its own virtual host."""
        if definition.pattern or is_stream(definition.arguments):
            return NO_RULES
        rules = self._policies.rules(definition.name, definition.arguments)
        if rules.dead_letter_exchange is None:
            return rules
        exchange = in_vhost(vhost_of(definition.name), rules.dead_letter_exchange)
        return msgspec.structs.replace(rules, dead_letter_exchange=exchange)

    def _queue_config(self, number: int, name: str, arguments: Mapping[str, Any]) -> QueueConfig:
        """Returns the store's settings of a queue: messages are kept until consumed, whatever the limits for topics.

        Those of a stream are kept as its policies and its arguments say.
        """
        if not is_stream(arguments):
            return QueueConfig(number, until_settled=True)
        return stream_config(number, arguments, self._policies.applied(name, arguments).effective)

    async def _remove(self, queue: Queue) -> None:
        """Removes a queue: at once nothing is routed there and nobody consumes it; later its pump is at rest, too."""
        name = queue.definition.name
        del self.queues[name]
        for number in known_by(queue):
            del self.by_number[number]
        self._doomed.pop(name, None)
        self._left.pop(name, None)
        self._routes.remove(queue)
        if queue.shared:
            self.shared_count -= 1
        else:
            self.vhosts.queue_came(name, -1)
        if queue.owner is not None:
            self._owned.get(queue.owner, {}).pop(name, None)
        self._dropped(queue)
        await queue.pump.stop()

    def _rebind(self, queue: Queue, definition: QueueDefinition) -> None:
        """Applies other bindings of a queue, or its move to another store group."""
        before, known = queue.definition, known_by(queue)
        self._routes.change(queue, definition)
        if definition.move != before.move:
            for number in known:
                del self.by_number[number]
            self.by_number |= dict.fromkeys(known_by(queue), queue)
            self._moved(queue, before)


def known_by(queue: Queue) -> set[int]:
    """Returns the numbers by which a queue is found: its own, which may be in no store any more, and its lanes'."""
    return {queue.number, *queue.numbers}


def _too_often() -> Refusal:
    return Refusal(Cause.OVERLOAD, "others change the same too often", retry_after_ms=1_000)
