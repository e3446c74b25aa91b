"""Named queues and exchanges of this process, after AMQP 0-9-1, over the store's leases.

A queue is a queue number whose rows the router adds to what is published; an exchange is a name that addresses begin
with. What is durable is in the KV: exchanges, and queues with their bindings. A queue that is not durable has a marker
there instead, so that one that a crash left behind is cleared away at the next start.
"""

import asyncio
import base64
import random as chance
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable
from typing import Any, Protocol

import msgspec

from controller.client import ControllerClient, ControllerError, TopicLimit
from gateway import logs
from gateway.errors import Cause, Refusal
from gateway.keys import kv_key
from gateway.message import Message
from gateway.port import Cancel, Consume, ConsumerId, Leased, Random, Ready, Request, SettleLeased
from gateway.queue_port import (
    BindQueue,
    ConsumerCancelled,
    CountRoutes,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    Got,
    PurgeQueue,
    QueueInfo,
    UnbindQueue,
)
from gateway.queue_pump import Connection, Consumer, Pump, take_live
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
    message_ttl_ms,
    patterns,
)
from store.client import StoreClient
from store.errors import StoreError
from store.format import QueueNumber

__all__ = ["BINDINGS_COUNT_MAX", "EXCHANGES_COUNT_MAX", "NamedQueues", "QueueRouter"]

BINDINGS_COUNT_MAX = 10_000  # of one queue
EXCHANGES_COUNT_MAX = 10_000
_PAGE_COUNT = 500

_EXCHANGES, _QUEUES, _TRANSIENT = "amqp/exchanges", "amqp/queues", "amqp/transient"
_RESERVED = "amq."
_encode = msgspec.msgpack.encode
_decode_exchange = msgspec.msgpack.Decoder(Exchange).decode
_decode_queue = msgspec.msgpack.Decoder(QueueDefinition).decode

log = logs.get(__name__)


class QueueRouter(Protocol):
    """What named queues need of the router."""

    def bind(
        self, pattern: str, queue: int, predicate: Callable[[Message], bool] | None = None, *, key: Hashable
    ) -> None:
        """From now on put messages of matching addresses in a queue."""

    def unbind(self, key: Hashable) -> None:
        """End a binding."""

    def set_exchanges(self, names: Collection[str]) -> None:
        """The exchanges that can be published to, as address levels."""

    def named_queues(self, message: Message) -> list[int]:
        """The named queues a message would be put in."""


class _Queue:
    """A queue that exists."""

    __slots__ = ("definition", "number", "owner", "pump")

    def __init__(self, definition: QueueDefinition, owner: int | None, pump: Pump) -> None:
        self.definition = definition
        self.number = QueueNumber(definition.number)
        self.owner = owner  # the connection that alone may use it
        self.pump = pump


class NamedQueues:
    """Handles the requests of `gateway.queue_port` and the port's lease effects for all connections of this process.

    It belongs to the event loop. `instance` tells the processes of one cluster apart: at `load` a process clears away
    what its own instance left behind.
    """

    def __init__(
        self,
        store: StoreClient,
        controller: ControllerClient,
        router: QueueRouter,
        *,
        instance: str = "0",
        random: Random | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._controller = controller
        self._router = router
        self._transient = f"{_TRANSIENT}/{instance}"
        self._random: Random = random or chance.SystemRandom()
        self._now_ms = now_ms
        self._exchanges = dict(PREDECLARED)
        self._bound: dict[str, dict[tuple[str, Hashable], None]] = {}  # by exchange: (queue, binding's identity)
        self._queues: dict[str, _Queue] = {}
        self._by_number: dict[int, _Queue] = {}
        self._consumers: dict[int, dict[ConsumerId, Consumer]] = {}  # by connection
        self._owned: dict[int, dict[str, None]] = {}  # exclusive queues by connection
        self._topology = asyncio.Lock()  # one change of exchanges, queues and bindings at a time
        self._tasks: set[asyncio.Task[None]] = set()
        self._handlers: dict[type[Request], Callable[[Connection, Any], Awaitable[Any]]] = {
            DeclareExchange: self._declare_exchange,
            DeleteExchange: self._delete_exchange,
            DeclareQueue: self._declare_queue,
            DeleteQueue: self._delete_queue,
            PurgeQueue: self._purge,
            BindQueue: self._bind,
            UnbindQueue: self._unbind,
            GetMessage: self._get,
            CountRoutes: self._count_routes,
        }

    # ---- the process

    async def load(self) -> None:
        """Know what was declared durable, and clear away what was not."""
        async for value in self._stored(_EXCHANGES):
            exchange = _decode_exchange(value)
            self._exchanges[exchange.name] = exchange
        self._tell_exchanges()
        async for value in self._stored(_QUEUES):
            definition = _decode_queue(value)
            kept = tuple(b for b in definition.bindings if b.exchange in self._exchanges)
            self._add(msgspec.structs.replace(definition, bindings=kept), None)
        async for value in self._stored(self._transient):
            name = value.decode()
            await self._forget(name, (await self._controller.name_queue(name)).number)
            await self._store.kv_delete(kv_key(self._transient, name))

    async def close(self) -> None:
        """Deliver nothing more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for queue in self._queues.values():
            await queue.pump.stop()

    async def _stored(self, namespace: str) -> Any:
        after = ""
        while page := await self._store.kv_prefix(f"{namespace}/", after=after, limit=_PAGE_COUNT):
            for entry in page:
                yield entry.value
            after = page[-1].key

    # ---- for the gateway's runtime

    def serves(self, request: Request) -> bool:
        """Whether this is a request for `request`."""
        return type(request) in self._handlers

    async def request(self, conn: Connection, request: Request) -> Any:
        """Answer one of `gateway.queue_port`'s requests. Raises `Refusal`."""
        try:
            return await self._handlers[type(request)](conn, request)
        except StoreError as error:
            raise Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=1_000) from error
        except TopicLimit as error:
            raise Refusal(Cause.QUOTA, str(error)) from error
        except ControllerError as error:
            raise Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=1_000) from error

    async def consume(self, conn: Connection, effect: Consume) -> None:
        """Begin to deliver a queue to a connection. Raises `Refusal`.

        Nothing is delivered before the caller's next await, so that it can tell the connection first.
        """
        queue = self._find(effect.queue)
        self._check_access(conn, queue)
        others = queue.pump.consumers
        if others and (effect.exclusive or any(c.exclusive for c in others)):
            raise Refusal(Cause.FORBIDDEN, f"queue {effect.queue!r} has an exclusive consumer, or cannot have one now")
        if conn.gone:
            return
        consumer = Consumer(
            conn,
            effect.consumer,
            effect.queue,
            exclusive=effect.exclusive,
            settle_on_delivery=effect.settle_on_delivery,
        )
        self._consumers.setdefault(conn.id, {})[effect.consumer] = consumer
        queue.pump.add(consumer)

    def ready(self, conn: Connection, effect: Ready) -> None:
        """A consumer takes messages again."""
        consumer = self._consumers.get(conn.id, {}).get(effect.consumer)
        if consumer is not None:
            consumer.ready()
            self._queues[consumer.queue].pump.wake()

    def cancel(self, conn: Connection, effect: Cancel) -> None:
        """End a consumer; a queue that lived for its consumers alone goes with the last."""
        consumer = self._consumers.get(conn.id, {}).pop(effect.consumer, None)
        if consumer is not None and self._remove(consumer):
            self._spawn(self._drop_unused([consumer.queue]))

    async def settle(self, conn: Connection, effect: SettleLeased) -> None:
        """Settle or give back what a connection holds of a queue. Raises `StoreError`."""
        queue = self._queues.get(effect.queue)
        if queue is None:
            return
        done: list[Any] = []
        for disposition in effect.dispositions:
            if disposition.outcome == "requeue":
                self._store.requeue(queue.number, conn.id, disposition.offsets)
                queue.pump.wake()
            else:  # "ack", and "reject": there is no dead-letter exchange that could want it
                done += disposition.offsets
        if done:
            await self._store.settle(queue.number, conn.id, done)

    async def connection_lost(self, conn: Connection) -> None:
        """A connection has ended: what it held is there for others again, what was its own is gone."""
        unused = [c.queue for c in self._consumers.pop(conn.id, {}).values() if self._remove(c)]
        self.appended(self._store.release(conn.id))
        if unused:
            await self._drop_unused(unused)
        async with self._topology:
            for name in self._owned.pop(conn.id, {}):
                if (queue := self._queues.get(name)) is not None:
                    await self._drop(queue)

    def appended(self, queue_numbers: Iterable[int]) -> None:
        """Rows of these queues have become visible."""
        by_number = self._by_number
        for number in queue_numbers:
            if (queue := by_number.get(number)) is not None:
                queue.pump.wake()

    # ---- exchanges

    async def _declare_exchange(self, _conn: Connection, request: DeclareExchange) -> None:
        async with self._topology:
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

    async def _delete_exchange(self, _conn: Connection, request: DeleteExchange) -> None:
        async with self._topology:
            if request.name in PREDECLARED:
                raise Refusal(Cause.FORBIDDEN, f"exchange {request.name!r} cannot be deleted")
            exchange = self._exchanges.get(request.name)
            if exchange is None:
                return
            bound = self._bound.get(request.name, {})
            if request.if_unused and bound:
                raise Refusal(Cause.PRECONDITION, f"exchange {request.name!r} is in use")
            for name in dict.fromkeys(name for name, _ in bound):
                queue = self._queues[name]
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

    async def _declare_queue(self, conn: Connection, request: DeclareQueue) -> QueueInfo:
        async with self._topology:
            queue = self._queues.get(request.name) if request.name else None
            if queue is not None:
                self._check_access(conn, queue)
                if not request.passive:
                    names = ("durable", "exclusive", "auto_delete", "arguments")
                    _check_same("queue", request.name, queue.definition, request, names)
            elif request.passive:
                raise _no_queue(request.name)
            elif request.name.startswith(_RESERVED):
                raise Refusal(Cause.FORBIDDEN, f"queue names that begin with {_RESERVED!r} are reserved")
            else:
                queue = await self._create(conn, request)
        waiting = await self._store.waiting(queue.number)
        return QueueInfo(name=queue.definition.name, messages=waiting, consumers=len(queue.pump.consumers))

    async def _create(self, conn: Connection, request: DeclareQueue) -> _Queue:
        check_queue_arguments(request.arguments)
        name = request.name or self._fresh_name()
        owner = conn.id if request.exclusive else None
        durable = request.durable and owner is None
        if not durable:
            await self._store.kv_put(kv_key(self._transient, name), name.encode())
        number = (await self._controller.name_queue(name)).number
        if (await self._store.bounds(QueueNumber(number))).next:  # left behind by a crash
            await self._forget(name, number)
            number = (await self._controller.name_queue(name)).number
        definition = QueueDefinition(
            name=name,
            number=number,
            durable=request.durable,
            auto_delete=request.auto_delete,
            exclusive=request.exclusive,
            arguments=dict(request.arguments),
        )
        if durable:
            await self._store.kv_put(kv_key(_QUEUES, name), _encode(definition))
        queue = self._add(definition, owner)
        if conn.gone and owner is not None:
            await self._drop(queue)
        return queue

    def _fresh_name(self) -> str:
        return "amq.gen-" + base64.urlsafe_b64encode(self._random.getrandbits(128).to_bytes(16, "big")).decode()[:22]

    def _add(self, definition: QueueDefinition, owner: int | None) -> _Queue:
        pump = Pump(
            self._store,
            QueueNumber(definition.number),
            ttl_ms=message_ttl_ms(definition),
            now_ms=self._now_ms,
            failed=lambda error: self._pump_failed(definition.name, error),
        )
        queue = self._queues[definition.name] = self._by_number[definition.number] = _Queue(definition, owner, pump)
        if owner is not None:
            self._owned.setdefault(owner, {})[definition.name] = None
        default = Binding(exchange="", routing_key=definition.name)
        for binding in (default, *definition.bindings):
            self._route(queue, binding)
        return queue

    async def _delete_queue(self, conn: Connection, request: DeleteQueue) -> int:
        async with self._topology:
            queue = self._queues.get(request.name)
            if queue is None:
                return 0
            self._check_access(conn, queue)
            if request.if_unused and queue.pump.consumers:
                raise Refusal(Cause.PRECONDITION, f"queue {request.name!r} is in use")
            waiting = await self._store.waiting(queue.number)
            if request.if_empty and waiting:
                raise Refusal(Cause.PRECONDITION, f"queue {request.name!r} is not empty")
            await self._drop(queue)
            return waiting

    async def _drop(self, queue: _Queue) -> None:
        """Remove a queue, with the topology locked. The one step that says so for good comes first."""
        definition = queue.definition
        name = definition.name
        if self._durable(queue):
            await self._store.kv_delete(kv_key(_QUEUES, name))
        del self._queues[name], self._by_number[queue.number]
        for binding in (Binding(exchange="", routing_key=name), *definition.bindings):
            self._unroute(queue, binding)
        await queue.pump.stop()
        for consumer in list(queue.pump.consumers):
            consumer.gone = True
            self._consumers.get(consumer.conn.id, {}).pop(consumer.id, None)
            consumer.conn.deliver(ConsumerCancelled(consumer.id))
        queue.pump.consumers.clear()
        if queue.owner is not None:
            self._owned.get(queue.owner, {}).pop(name, None)
        await self._forget(name, queue.number)
        if not self._durable(queue):
            await self._store.kv_delete(kv_key(self._transient, name))
        await self._drop_unbound(b.exchange for b in definition.bindings)

    async def _drop_unused(self, names: Iterable[str]) -> None:
        async with self._topology:
            for name in names:
                queue = self._queues.get(name)
                if queue is not None and queue.definition.auto_delete and not queue.pump.consumers:
                    await self._drop(queue)

    async def _forget(self, name: str, number: int) -> None:
        await self._store.delete_queue(QueueNumber(number))
        await self._controller.forget_queue(name)

    async def _purge(self, conn: Connection, request: PurgeQueue) -> int:
        queue = self._find(request.name)
        self._check_access(conn, queue)
        return await self._store.purge(queue.number)

    async def _get(self, conn: Connection, request: GetMessage) -> Got | None:
        queue = self._find(request.queue)
        self._check_access(conn, queue)
        if any(c.exclusive for c in queue.pump.consumers):
            raise Refusal(Cause.FORBIDDEN, f"queue {request.queue!r} has an exclusive consumer")
        ttl_ms = message_ttl_ms(queue.definition)
        found = await take_live(self._store, queue.number, conn.id, now_ms=self._now_ms, ttl_ms=ttl_ms)
        if found is None:
            return None
        message, lease = found
        if conn.gone:
            self._store.requeue(queue.number, conn.id, [lease.offset], delivered=False)
            return None
        if request.settle:
            await self._store.settle(queue.number, conn.id, [lease.offset])
        leased = Leased(ConsumerId(0), [message], [lease.offset], [lease.deliveries])
        return Got(leased=leased, remaining=await self._store.waiting(queue.number))

    # ---- bindings

    async def _bind(self, conn: Connection, request: BindQueue) -> None:
        async with self._topology:
            queue = self._find(request.queue)
            self._check_access(conn, queue)
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

    async def _unbind(self, conn: Connection, request: UnbindQueue) -> None:
        async with self._topology:
            queue = self._queues.get(request.queue)
            if queue is None:
                return
            self._check_access(conn, queue)
            if not request.exchange:
                raise Refusal(Cause.FORBIDDEN, "no queue can be unbound from the default exchange")
            gone = Binding(
                exchange=request.exchange, routing_key=request.routing_key, arguments=dict(request.arguments)
            ).identity
            kept = tuple(b for b in queue.definition.bindings if b.identity != gone)
            if len(kept) < len(queue.definition.bindings):
                await self._change_bindings(queue, kept)
                await self._drop_unbound([request.exchange])

    async def _change_bindings(self, queue: _Queue, bindings: tuple[Binding, ...]) -> None:
        """Give a queue other bindings: on disk before they count."""
        before = {b.identity: b for b in queue.definition.bindings}
        after = {b.identity: b for b in bindings}
        definition = msgspec.structs.replace(queue.definition, bindings=bindings)
        if self._durable(queue):
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
        """Remove exchanges that lived for their bindings alone."""
        for name in dict.fromkeys(exchanges):
            exchange = self._exchanges.get(name)
            if exchange is not None and exchange.auto_delete and not self._bound.get(name):
                await self._drop_exchange(exchange)

    def _route(self, queue: _Queue, binding: Binding) -> None:
        exchange = self._exchanges[binding.exchange]
        predicate = header_predicate(binding.arguments) if exchange.kind == "headers" else None
        name, identity = queue.definition.name, binding.identity
        for nth, pattern in enumerate(patterns(exchange, binding.routing_key)):
            self._router.bind(pattern, queue.number, predicate, key=(name, identity, nth))
        self._bound.setdefault(exchange.name, {})[name, identity] = None

    def _unroute(self, queue: _Queue, binding: Binding) -> None:
        name, identity = queue.definition.name, binding.identity
        for nth in range(2):
            self._router.unbind((name, identity, nth))
        self._bound.get(binding.exchange, {}).pop((name, identity), None)

    async def _count_routes(self, _conn: Connection, request: CountRoutes) -> list[int]:
        return [len(self._router.named_queues(message)) for message in request.messages]

    # ---- within

    def _find(self, name: str) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            raise _no_queue(name)
        return queue

    @staticmethod
    def _check_access(conn: Connection, queue: _Queue) -> None:
        if queue.owner not in (None, conn.id):
            raise Refusal(Cause.CONFLICT, f"queue {queue.definition.name!r} belongs to another connection")

    @staticmethod
    def _durable(queue: _Queue) -> bool:
        return queue.definition.durable and queue.owner is None

    def _remove(self, consumer: Consumer) -> bool:
        """Take a consumer from its queue; whether the queue should go with it."""
        queue = self._queues[consumer.queue]
        queue.pump.remove(consumer)
        return queue.definition.auto_delete and not queue.pump.consumers

    def _pump_failed(self, name: str, error: BaseException) -> None:
        """A bug of ours has ended a pump: the queue's consumers are told, so that nobody waits for nothing."""
        log.error("delivering a queue has failed", queue=name, exc_info=error)
        queue = self._queues.get(name)
        for consumer in list(queue.pump.consumers) if queue is not None else ():
            self._consumers.get(consumer.conn.id, {}).pop(consumer.id, None)
            self._remove(consumer)
            consumer.conn.deliver(ConsumerCancelled(consumer.id))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("clearing away an unused queue has failed", exc_info=error)


def _no_queue(name: str) -> Refusal:
    return Refusal(Cause.NOT_FOUND, f"no queue {name!r}")


def _check_same(what: str, name: str, existing: object, asked: object, fields: Iterable[str]) -> None:
    """Raise `Refusal` (PRECONDITION) when a declaration differs from what exists (AMQP 0-9-1, queue.declare)."""
    for field in fields:
        is_, wanted = getattr(existing, field), getattr(asked, field)
        if is_ != wanted:
            raise Refusal(Cause.PRECONDITION, f"{what} {name!r} has {field} {is_!r}, not {wanted!r}")
