"""Which exchanges, queues and bindings there are: declared, kept in the KV, and told to the router.

A change is on disk before it counts. Exchanges and queues that are durable are entries of the KV, a queue's with its
bindings; a queue that is not has a marker there instead, so that one that a crash left behind is cleared away at the
next start.
"""

import asyncio
import base64
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Protocol, TypeAlias

import msgspec

from controller.client import ControllerClient, ControllerError
from gateway import logs
from gateway.errors import Cause, Refusal
from gateway.keys import kv_key
from gateway.message import Message
from gateway.port import Random
from gateway.queue_port import (
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    UnbindQueue,
)
from gateway.queue_pump import Connection, Pump
from gateway.queue_remains import QueueRemains, stored_values
from gateway.topology import (
    EXCHANGE_KINDS,
    PREDECLARED,
    Binding,
    Exchange,
    QueueDefinition,
    check_exchange_arguments,
    check_queue_arguments,
    exchange_level,
    header_predicate,
    patterns,
)
from store.client import StoreClient
from store.errors import StoreError
from store.format import QueueNumber
from store.queue_config import QueueConfig

__all__ = ["BINDINGS_COUNT_MAX", "EXCHANGES_COUNT_MAX", "Queue", "QueueRegistry", "QueueRouter"]

BINDINGS_COUNT_MAX = 10_000  # of one queue
EXCHANGES_COUNT_MAX = 10_000

_EXCHANGES, _QUEUES, _TRANSIENT = "amqp/exchanges", "amqp/queues", "amqp/transient"
_RESERVED = "amq."
_encode = msgspec.msgpack.encode
_decode_exchange = msgspec.msgpack.Decoder(Exchange).decode
_decode_queue = msgspec.msgpack.Decoder(QueueDefinition).decode

log = logs.get(__name__)


Predicate: TypeAlias = Callable[[Message], bool]


class QueueRouter(Protocol):
    """What named queues need of the router."""

    def bind(
        self, pattern: str, queue: int, predicate: Predicate | None = None, *, key: Hashable, group: int = 0
    ) -> None:
        """From now on put messages of matching addresses in a queue, which lies in a store group."""

    def unbind(self, key: Hashable) -> None:
        """End a binding."""

    def set_exchanges(self, names: Collection[str]) -> None:
        """The exchanges that can be published to, as address levels."""

    def named_queues(self, message: Message) -> list[int]:
        """The named queues a message would be put in."""


class Queue:
    """A queue that exists."""

    __slots__ = ("definition", "number", "owner", "pump")

    def __init__(self, definition: QueueDefinition, owner: int | None, pump: Pump) -> None:
        self.definition = definition
        self.number = QueueNumber(definition.number)
        self.owner = owner  # the connection that alone may use it
        self.pump = pump

    @property
    def lasting(self) -> bool:
        """Whether it survives a restart."""
        return self.definition.durable and self.owner is None


class QueueRegistry:
    """Exchanges, queues and bindings of this process.

    `new_pump` makes what delivers a queue; `dropped` is told of a queue that is gone, while its pump is at rest. When
    something that should be gone could not be removed, `unfinished` is told, and `finish` is to be called again later.
    """

    def __init__(
        self,
        store: StoreClient,
        controller: ControllerClient,
        router: QueueRouter,
        *,
        instance: str,
        random: Random,
        new_pump: Callable[[QueueDefinition], Pump],
        dropped: Callable[[Queue], None],
        unfinished: Callable[[], None],
    ) -> None:
        self._store = store
        self._router = router
        self._remains = QueueRemains(store, controller, f"{_TRANSIENT}/{instance}")
        self._random = random
        self._new_pump = new_pump
        self._dropped = dropped
        self._unfinished = unfinished
        self._exchanges = dict(PREDECLARED)
        self._bound: dict[str, dict[tuple[str, Hashable], None]] = {}  # by exchange: (queue, binding's identity)
        self.queues: dict[str, Queue] = {}
        self.by_number: dict[int, Queue] = {}
        self._owned: dict[int, dict[str, None]] = {}  # exclusive queues by connection
        self._doomed: dict[str, None] = {}  # queues to be removed as soon as the store lets us: nobody can use them
        self._idle: dict[str, None] = {}  # exchanges of which that is true
        self._changing = asyncio.Lock()  # one change at a time

    async def load(self) -> None:
        """Know what was declared durable, and clear away what was not."""
        async for value in stored_values(self._store, _EXCHANGES):
            exchange = _decode_exchange(value)
            self._exchanges[exchange.name] = exchange
        self._tell_exchanges()
        async for value in stored_values(self._store, _QUEUES):
            definition = _decode_queue(value)
            kept = tuple(b for b in definition.bindings if b.exchange in self._exchanges)
            self._add(msgspec.structs.replace(definition, bindings=kept), None)
        # What an older version, or a crash, has left unsaid.
        said = self._store.queue_config
        wanted = [_kept(number) for number in self.by_number]
        await self._store.configure_queues([one for one in wanted if one != said(QueueNumber(one.queue))])
        await self._remains.load()

    def find(self, name: str, conn: Connection) -> Queue:
        """A queue that a connection may use. Raises `Refusal`."""
        queue = self.queues.get(name)
        if queue is None or name in self._doomed:
            raise _no_queue(name)
        _check_access(conn, queue)
        return queue

    # ---- exchanges

    async def declare_exchange(self, _conn: Connection, request: DeclareExchange) -> None:
        """See `DeclareExchange`. Raises `Refusal`."""
        async with self._changing:
            existing = self._exchanges.get(request.name)
            if request.passive:
                if existing is None:
                    raise Refusal(Cause.NOT_FOUND, f"no exchange {request.name!r}")
                return
            if not request.name:
                raise Refusal(Cause.FORBIDDEN, "the default exchange cannot be declared")
            if existing is not None:
                _check_same("exchange", request.name, existing, request, ("kind", "durable", "auto_delete"))
                return
            if request.name.startswith(_RESERVED):
                raise Refusal(Cause.FORBIDDEN, f"exchange names that begin with {_RESERVED!r} are reserved")
            if request.kind not in EXCHANGE_KINDS:
                raise Refusal(Cause.PRECONDITION, f"exchanges are {', '.join(EXCHANGE_KINDS)}, not {request.kind!r}")
            if request.internal:
                raise Refusal(Cause.PRECONDITION, "internal exchanges are not supported")
            check_exchange_arguments(request.arguments)
            exchange_level(request.name)
            if len(self._exchanges) >= EXCHANGES_COUNT_MAX:
                raise Refusal(Cause.QUOTA, f"there are {EXCHANGES_COUNT_MAX} exchanges already")
            exchange = Exchange(
                name=request.name, kind=request.kind, durable=request.durable, auto_delete=request.auto_delete
            )
            if exchange.durable:
                await self._store.kv_put(kv_key(_EXCHANGES, exchange.name), _encode(exchange))
            self._exchanges[exchange.name] = exchange
            self._tell_exchanges()

    async def delete_exchange(self, _conn: Connection, request: DeleteExchange) -> None:
        """See `DeleteExchange`. Raises `Refusal`."""
        async with self._changing:
            if request.name in PREDECLARED:
                raise Refusal(Cause.FORBIDDEN, f"exchange {request.name!r} cannot be deleted")
            exchange = self._exchanges.get(request.name)
            if exchange is None:
                return
            bound = self._bound.get(request.name, {})
            if request.if_unused and bound:
                raise Refusal(Cause.PRECONDITION, f"exchange {request.name!r} is in use")
            for name in dict.fromkeys(name for name, _ in bound):
                queue = self.queues[name]
                await self._change_bindings(
                    queue, tuple(b for b in queue.definition.bindings if b.exchange != request.name)
                )
            await self._drop_exchange(exchange)

    async def _drop_exchange(self, exchange: Exchange) -> None:
        if exchange.durable:
            await self._store.kv_delete(kv_key(_EXCHANGES, exchange.name))
        del self._exchanges[exchange.name]
        self._bound.pop(exchange.name, None)
        self._tell_exchanges()

    def _tell_exchanges(self) -> None:
        self._router.set_exchanges([exchange_level(name) for name in self._exchanges])

    # ---- queues

    async def declare_queue(self, conn: Connection, request: DeclareQueue) -> Queue:
        """See `DeclareQueue`. Raises `Refusal`."""
        async with self._changing:
            if request.name in self._doomed:
                await self._drop(self.queues[request.name])
            queue = self.queues.get(request.name) if request.name else None
            if queue is not None:
                _check_access(conn, queue)
                if not request.passive:
                    names = ("durable", "exclusive", "auto_delete", "arguments")
                    _check_same("queue", request.name, queue.definition, request, names)
            elif request.passive:
                raise _no_queue(request.name)
            elif request.name.startswith(_RESERVED):
                raise Refusal(Cause.FORBIDDEN, f"queue names that begin with {_RESERVED!r} are reserved")
            else:
                queue = await self._create(conn, request)
            return queue

    async def _create(self, conn: Connection, request: DeclareQueue) -> Queue:
        check_queue_arguments(request.arguments)
        name = request.name or self._fresh_name()
        owner = conn.id if request.exclusive else None
        durable = request.durable and owner is None
        if not durable:
            await self._remains.mark(name)
        named = await self._remains.fresh(name)
        await self._store.configure_queues([_kept(named.number)])
        definition = QueueDefinition(
            name=name,
            number=named.number,
            group=named.group,
            durable=request.durable,
            auto_delete=request.auto_delete,
            exclusive=request.exclusive,
            arguments=dict(request.arguments),
        )
        if durable:
            await self._store.kv_put(kv_key(_QUEUES, name), _encode(definition))
        queue = self._add(definition, owner)
        if conn.gone and owner is not None:
            await self._drop_soon([name])
        return queue

    def _fresh_name(self) -> str:
        return "amq.gen-" + base64.urlsafe_b64encode(self._random.getrandbits(128).to_bytes(16, "big")).decode()[:22]

    def _add(self, definition: QueueDefinition, owner: int | None) -> Queue:
        queue = Queue(definition, owner, self._new_pump(definition))
        self.queues[definition.name] = self.by_number[definition.number] = queue
        if owner is not None:
            self._owned.setdefault(owner, {})[definition.name] = None
        default = Binding(exchange="", routing_key=definition.name)
        for binding in (default, *definition.bindings):
            self._route(queue, binding)
        return queue

    async def delete_queue(self, conn: Connection, request: DeleteQueue) -> int:
        """See `DeleteQueue`. Raises `Refusal`."""
        async with self._changing:
            queue = self.queues.get(request.name)
            if queue is None or request.name in self._doomed:
                return 0
            _check_access(conn, queue)
            if request.if_unused and queue.pump.consumers:
                raise Refusal(Cause.PRECONDITION, f"queue {request.name!r} is in use")
            waiting = await self._store.waiting(queue.number)
            if request.if_empty and waiting:
                raise Refusal(Cause.PRECONDITION, f"queue {request.name!r} is not empty")
            await self._drop(queue)
            return waiting

    async def _drop(self, queue: Queue) -> None:
        """Remove a queue, with the topology locked. The one step that says so for good comes first: if it fails,
        nothing has changed. Raises `StoreError`.
        """
        definition = queue.definition
        name = definition.name
        if queue.lasting:
            await self._store.kv_delete(kv_key(_QUEUES, name))
        del self.queues[name], self.by_number[queue.number]
        self._doomed.pop(name, None)
        for binding in (Binding(exchange="", routing_key=name), *definition.bindings):
            self._unroute(queue, binding)
        await queue.pump.stop()
        self._dropped(queue)
        if queue.owner is not None:
            self._owned.get(queue.owner, {}).pop(name, None)
        await self._remains.clear(name, queue.number)
        await self._drop_unbound(b.exchange for b in definition.bindings)
        if self._remains.pending:
            self._unfinished()

    async def drop_unused(self, names: Iterable[str]) -> None:
        """Remove those of these queues that lived for consumers alone, and have none."""
        async with self._changing:
            found = [self.queues[name] for name in names if name in self.queues]
            await self._drop_soon(q.definition.name for q in found if q.definition.auto_delete and not q.pump.consumers)

    async def drop_owned(self, owner: int) -> None:
        """Remove the exclusive queues of a connection that has ended."""
        async with self._changing:
            await self._drop_soon(self._owned.pop(owner, {}))

    async def _drop_soon(self, names: Iterable[str]) -> None:
        """Remove queues now, each for itself, or when `finish` is called; from now on nobody can use them."""
        self._doomed.update(dict.fromkeys(names))
        for name in list(self._doomed):
            try:
                await self._drop(self.queues[name])
            except (StoreError, ControllerError) as error:
                log.warning("a queue that nobody can use any more is still there", queue=name, error=str(error))
                self._unfinished()

    async def finish(self) -> bool:
        """Remove what could not be removed before; whether all is gone."""
        async with self._changing:
            await self._drop_soon(())
            await self._drop_unbound(list(self._idle))
            await self._remains.retry()
            return not (self._doomed or self._idle or self._remains.pending)

    # ---- bindings

    async def bind(self, conn: Connection, request: BindQueue) -> None:
        """See `BindQueue`. Raises `Refusal`."""
        async with self._changing:
            queue = self.find(request.queue, conn)
            exchange = self._exchanges.get(request.exchange)
            if exchange is None:
                raise Refusal(Cause.NOT_FOUND, f"no exchange {request.exchange!r}")
            if not exchange.name:
                raise Refusal(Cause.FORBIDDEN, "every queue is bound to the default exchange, by its name alone")
            binding = Binding(
                exchange=exchange.name, routing_key=request.routing_key, arguments=dict(request.arguments)
            )
            if exchange.kind == "headers":
                header_predicate(binding.arguments)
            bindings = queue.definition.bindings
            if (queue.definition.name, binding.identity) in self._bound.get(exchange.name, {}):
                return
            if len(bindings) >= BINDINGS_COUNT_MAX:
                raise Refusal(Cause.QUOTA, f"queue {request.queue!r} has {BINDINGS_COUNT_MAX} bindings already")
            await self._change_bindings(queue, (*bindings, binding))

    async def unbind(self, conn: Connection, request: UnbindQueue) -> None:
        """See `UnbindQueue`. Raises `Refusal`."""
        async with self._changing:
            queue = self.queues.get(request.queue)
            if queue is None or request.queue in self._doomed:
                return
            _check_access(conn, queue)
            if not request.exchange:
                raise Refusal(Cause.FORBIDDEN, "no queue can be unbound from the default exchange")
            gone = Binding(
                exchange=request.exchange, routing_key=request.routing_key, arguments=dict(request.arguments)
            ).identity
            kept = tuple(b for b in queue.definition.bindings if b.identity != gone)
            if len(kept) < len(queue.definition.bindings):
                await self._change_bindings(queue, kept)
                await self._drop_unbound([request.exchange])

    async def _change_bindings(self, queue: Queue, bindings: tuple[Binding, ...]) -> None:
        """Give a queue other bindings: on disk before they count."""
        before = {b.identity: b for b in queue.definition.bindings}
        after = {b.identity: b for b in bindings}
        definition = msgspec.structs.replace(queue.definition, bindings=bindings)
        if queue.lasting:
            lasting = tuple(b for b in bindings if self._exchanges[b.exchange].durable)
            stored = msgspec.structs.replace(definition, bindings=lasting)
            await self._store.kv_put(kv_key(_QUEUES, definition.name), _encode(stored))
        queue.definition = definition
        for identity, binding in before.items():
            if identity not in after:
                self._unroute(queue, binding)
        for identity, binding in after.items():
            if identity not in before:
                self._route(queue, binding)

    async def _drop_unbound(self, exchanges: Iterable[str]) -> None:
        """Remove exchanges that lived for their bindings alone, now or when `finish` is called."""
        for name in dict.fromkeys(exchanges):
            self._idle.pop(name, None)
            exchange = self._exchanges.get(name)
            if exchange is not None and exchange.auto_delete and not self._bound.get(name):
                try:
                    await self._drop_exchange(exchange)
                except StoreError as error:
                    log.warning("an exchange that nothing is bound to is still there", exchange=name, error=str(error))
                    self._idle[name] = None
                    self._unfinished()

    def _route(self, queue: Queue, binding: Binding) -> None:
        exchange = self._exchanges[binding.exchange]
        predicate = header_predicate(binding.arguments) if exchange.kind == "headers" else None
        name, identity = queue.definition.name, binding.identity
        for nth, pattern in enumerate(patterns(exchange, binding.routing_key)):
            self._router.bind(pattern, queue.number, predicate, key=(name, identity, nth), group=queue.definition.group)
        self._bound.setdefault(exchange.name, {})[name, identity] = None

    def _unroute(self, queue: Queue, binding: Binding) -> None:
        name, identity = queue.definition.name, binding.identity
        for nth in range(2):
            self._router.unbind((name, identity, nth))
        self._bound.get(binding.exchange, {}).pop((name, identity), None)


def _kept(number: int) -> QueueConfig:
    """What is in a queue is kept until somebody has consumed it, whatever the store's limits for topics are."""
    return QueueConfig(number, until_settled=True)


def _no_queue(name: str) -> Refusal:
    return Refusal(Cause.NOT_FOUND, f"no queue {name!r}")


def _check_same(what: str, name: str, existing: object, asked: object, fields: Iterable[str]) -> None:
    """Raise `Refusal` (PRECONDITION) when a declaration differs from what exists (AMQP 0-9-1, queue.declare)."""
    for field in fields:
        is_, wanted = getattr(existing, field), getattr(asked, field)
        if is_ != wanted:
            raise Refusal(Cause.PRECONDITION, f"{what} {name!r} has {field} {is_!r}, not {wanted!r}")


def _check_access(conn: Connection, queue: Queue) -> None:
    if queue.owner not in (None, conn.id):
        raise Refusal(Cause.CONFLICT, f"queue {queue.definition.name!r} belongs to another connection")
