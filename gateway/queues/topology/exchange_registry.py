"""The exchanges and the bindings between them: declared, kept in the KV, and passed to the router.

The definition of an exchange holds the bindings that lead to it, as a queue's does; the first binding that leads to a
predeclared exchange stores a definition for it.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial

import msgspec

from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import local_name, said
from gateway.port.queues import (
    EXCHANGE_KINDS,
    HASHED,
    BindExchange,
    DeclareExchange,
    DeleteExchange,
    OpenVhost,
    UnbindExchange,
    field_type,
)
from gateway.publishing.routing.router import check_binding_pattern
from gateway.queues.leasing.pump import ConsumerConnection
from gateway.queues.model.bindings import (
    ALTERNATE,
    KIND_ARGUMENTS,
    PREDECLARED,
    Binding,
    Exchange,
    QueueDefinition,
    binding_predicate,
    check_exchange_arguments,
    hash_weight,
    patterns,
)
from gateway.queues.model.queue import Queue
from gateway.queues.operated.vhosts import VhostConnection
from gateway.queues.topology.definitions import Changed
from gateway.queues.topology.lane_names import RESERVED
from gateway.queues.topology.settings_registry import SettingsRegistry
from store.base import logs
from store.base.errors import StoreError

BINDINGS_COUNT_MAX = 10_000  # of one queue, or of one exchange to others
EXCHANGES_COUNT_MAX = 10_000

log = logs.get(__name__)


class ExchangeRegistry(SettingsRegistry):
    """Changes exchanges, and the bindings of queues and exchanges to them."""

    async def consumers_of(self, queue: Queue) -> int:
        """Returns how many consumers a queue has, at all proxies. Raises `StoreError`."""
        return len(queue.pump.consumers) + await self._counts.elsewhere(queue.definition.name)

    @property
    def exchanges(self) -> Collection[Exchange]:
        """Returns the exchanges that are known here."""
        return self._exchanges.values()

    async def open_vhost(self, conn: VhostConnection, request: OpenVhost) -> None:
        """See `OpenVhost`. Raises `Refusal`, `StoreError`."""
        if not await self.has_vhost(request.name):
            raise Refusal(Cause.NOT_FOUND, f"vhost {request.name} not found")
        self.vhosts.enter(request.name, conn)

    async def declare_exchange(self, _conn: ConsumerConnection, request: DeclareExchange) -> None:
        """See `DeclareExchange`. Raises `Refusal`."""
        if not local_name(request.name):
            raise default_exchange()
        async with self._changing.of(""):
            there = await self._is_declared(request)
        if not there:
            await self._change(lambda: self._declare_exchange(request))

    async def _is_declared(self, request: DeclareExchange) -> bool:
        """Returns whether the exchange is there, as declared. Raises `Refusal` where it is another, or has to be."""
        await self._learn_of(request.name, exchange=True)
        existing = self._exchanges.get(request.name)
        if existing is None:
            if request.passive:
                raise Refusal(Cause.NOT_FOUND, f"no exchange {said(request.name)}")
            return False
        if not request.passive:
            check_same_exchange(existing, exchange_of(request))
        return True

    async def _declare_exchange(self, request: DeclareExchange) -> None:
        if await self._is_declared(request):
            return
        wanted = exchange_of(request)
        check_new_exchange(request)
        self.vhosts.check(request.name)
        if len(self._exchanges) - len(PREDECLARED) * len(self.vhosts.names) >= EXCHANGES_COUNT_MAX:
            raise Refusal(Cause.QUOTA, f"there are {EXCHANGES_COUNT_MAX} exchanges already")
        self._revisions[wanted.name] = await self._definitions.put(wanted, 0, lasting=wanted.durable)
        self._set_exchange(wanted)
        self._notify_exchanges()

    async def delete_exchange(self, _conn: ConsumerConnection, request: DeleteExchange) -> None:
        """See `DeleteExchange`. Raises `Refusal`."""
        await self._change(lambda: self._delete_exchange(request))

    async def _delete_exchange(self, request: DeleteExchange) -> None:
        name = local_name(request.name)
        if not name:
            raise default_exchange()
        if name.startswith(RESERVED):
            raise Refusal(Cause.FORBIDDEN, f"deletion of system exchange {said(request.name)} not allowed")
        await self._learn_of(request.name, exchange=True)
        exchange = self._exchanges.get(request.name)
        if exchange is None:
            return
        if request.if_unused and self._is_bound(request.name):
            raise Refusal(Cause.PRECONDITION, f"exchange {said(request.name)} in use")
        for name in dict.fromkeys(name for name, _ in self._routes.bound.get(request.name, {})):
            queue = self.queues[name]
            await self._change_bindings(
                queue, tuple(b for b in queue.definition.bindings if b.exchange != request.name)
            )
        for name in dict.fromkeys(name for name, _ in self._linked.get(request.name, {})):
            if name != request.name:
                target = self._exchanges[name]
                await self._change_links(target, tuple(b for b in target.bindings if b.exchange != request.name))
        await self._drop_exchange(exchange)

    async def _drop_exchange(self, exchange: Exchange) -> None:
        revision = self._revisions.get(exchange.name, 0)
        gone = await self._definitions.delete(exchange, revision, lasting=exchange.durable)
        self._went(exchange.name, gone, exchange=True)
        self._revisions.pop(exchange.name, None)
        sources = [binding.exchange for binding in self._exchanges[exchange.name].bindings]
        self._forget_exchange(exchange.name)
        await self._drop_unbound(sources)

    async def _drop_unbound(self, exchanges: Iterable[str]) -> None:
        """Removes exchanges that lived for their bindings alone, now or when `finish` is called."""
        for name in dict.fromkeys(exchanges):
            self._idle.pop(name, None)
            if self._is_unused(name):
                try:
                    await self._drop_exchange(self._exchanges[name])
                except Changed:
                    await self._look_again(name, exchange=True)
                except StoreError as error:
                    log.warning(
                        "an unused auto-delete exchange could not be deleted yet", exchange=name, error=str(error)
                    )
                    self._idle[name] = None
                    self._unfinished()

    def _is_unused(self, name: str) -> bool:
        """Returns whether an exchange lived for its bindings alone, and has none."""
        exchange = self._exchanges.get(name)
        return exchange is not None and exchange.auto_delete and not self._is_bound(name)

    # ---- bindings

    async def bind_exchange(self, _conn: ConsumerConnection, request: BindExchange) -> None:
        """See `BindExchange`. Raises `Refusal`."""
        judged = self._exchanges.get(request.source)
        await self._change(lambda: self._bind_exchange(request, judged))

    async def _bind_exchange(self, request: BindExchange, judged: Exchange | None) -> None:
        _refuse_default(request)
        for name in (request.source, request.destination):
            await self._learn_of(name, exchange=True)
        source, target = self._known_exchange(request.source), self._known_exchange(request.destination)
        check_judged(judged, source)
        binding = Binding(exchange=source.name, routing_key=request.routing_key, arguments=dict(request.arguments))
        check_binding(source, binding)
        if (target.name, binding.identity) in self._linked.get(source.name, {}):
            return
        if len(target.bindings) >= BINDINGS_COUNT_MAX:
            name = said(target.name)
            raise Refusal(Cause.QUOTA, f"exchange {name} has {BINDINGS_COUNT_MAX} bindings to others already")
        await self._change_links(target, (*target.bindings, binding), source)

    async def unbind_exchange(self, _conn: ConsumerConnection, request: UnbindExchange) -> None:
        """See `UnbindExchange`. Raises `Refusal`."""
        await self._change(lambda: self._unbind_exchange(request))

    async def _unbind_exchange(self, request: UnbindExchange) -> None:
        _refuse_default(request)
        await self._learn_of(request.destination, exchange=True)
        target = self._exchanges.get(request.destination)
        if target is None:
            return
        gone = Binding(
            exchange=request.source, routing_key=request.routing_key, arguments=dict(request.arguments)
        ).identity
        kept = tuple(b for b in target.bindings if b.identity != gone)
        if len(kept) < len(target.bindings):
            await self._change_links(target, kept)
            await self._drop_unbound([request.source])

    def _known_exchange(self, name: str) -> Exchange:
        """Returns an exchange. Raises `Refusal` (NOT_FOUND)."""
        self.vhosts.check(name)
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise Refusal(Cause.NOT_FOUND, f"no exchange {said(name)}")
        return exchange

    async def _change_links(
        self, target: Exchange, bindings: tuple[Binding, ...], source: Exchange | None = None
    ) -> None:
        """Gives an exchange other bindings to exchanges, `source`: to one as it is known here; on disk first."""
        changed = msgspec.structs.replace(target, bindings=bindings)
        stored = msgspec.structs.replace(target, bindings=self._stored(bindings))
        revision = self._revisions.get(target.name, 0)
        put = partial(self._definitions.put, stored, revision, lasting=target.durable)
        self._revisions[target.name] = await self._bound(put, source)
        self._set_exchange(changed)

    async def _change_bindings(
        self, queue: Queue, bindings: tuple[Binding, ...], source: Exchange | None = None
    ) -> None:
        """Gives a queue other bindings, `source`: to an exchange as it is known here; on disk before they count."""
        await self._redefine(queue, msgspec.structs.replace(queue.definition, bindings=bindings), source)

    async def _redefine(self, queue: Queue, definition: QueueDefinition, source: Exchange | None = None) -> None:
        """Gives a queue another definition: on disk before it counts. Raises `Changed`, `StoreError`."""
        stored = msgspec.structs.replace(definition, bindings=self._stored(definition.bindings))
        put = partial(self._definitions.put, stored, queue.revision, lasting=queue.lasting)
        queue.revision = await self._bound(put, source)
        self._rebind(queue, definition)

    async def _bound(self, put: Callable[..., Awaitable[int]], source: Exchange | None) -> int:
        """Stores a definition, unless the exchange that it is bound to is another one by now. Raises `Changed`."""
        revision = None if source is None else self._revisions.get(source.name)
        if source is None or revision is None:
            return await put()
        try:
            return await put(also=self._definitions.guard(source, revision, lasting=source.durable))
        except Changed as changed:
            raise Changed(source.name, *changed.names) from changed

    async def _learn_exchange(self, exchange: Exchange, revision: int) -> None:
        """See `Topology`. Where it is of another type than it was, all that is bound to it is learned anew, too."""
        name, there = exchange.name, self._exchanges.get(exchange.name)
        queues: list[Queue] = []
        targets: list[str] = []
        if there is not None and not there.routes_like(exchange):  # it was deleted in between, with its routes
            bound = dict.fromkeys(queue for queue, _ in self._routes.bound.get(name, {}))
            queues = [self.queues[queue] for queue in bound]
            targets = list(dict.fromkeys(target for target, _ in self._linked.get(name, {})))
            for queue in queues:
                kept = tuple(b for b in queue.definition.bindings if b.exchange != name)
                self._rebind(queue, msgspec.structs.replace(queue.definition, bindings=kept))
                queue.revision = 0
            await self._removed_elsewhere(name, exchange=True)
            self._revisions.update(dict.fromkeys(targets, 0))
        self._revisions[name] = revision
        if name not in self._exchanges:  # from now on it is known: two may lead to each other
            self._exchanges[name] = msgspec.structs.replace(exchange, bindings=())
        await self._learn_sources(exchange.bindings)
        self._set_exchange(exchange)
        self._notify_exchanges()
        for target in targets:
            await self._look_again(target, exchange=True)
        for queue in queues:
            await self._look_again(queue.definition.name, exchange=False)

    def _stored(self, bindings: tuple[Binding, ...]) -> tuple[Binding, ...]:
        """Returns the bindings to store: several proxies share all; a gateway alone keeps those that outlive it."""
        if self._definitions.shared:
            return bindings
        return tuple(b for b in bindings if self._exchanges[b.exchange].durable)


def check_judged(judged: Exchange | None, exchange: Exchange) -> None:
    """Raises `Refusal` (PRECONDITION) where an exchange is not the one by which the rights to bind were judged.

    Another proxy has declared it anew, as one that routes otherwise. Where none was known all that it may take counted.
    """
    if judged is not None and not judged.routes_like(exchange):
        name = said(exchange.name)
        raise Refusal(Cause.PRECONDITION, f"exchange {name} has just been declared anew, of another type: bind again")


def exchange_of(request: DeclareExchange) -> Exchange:
    """Returns the exchange that a declaration asks for."""
    return Exchange(
        name=request.name,
        kind=request.kind,
        durable=request.durable,
        auto_delete=request.auto_delete,
        internal=request.internal,
        alternate=request.arguments.get(ALTERNATE),
        arguments={name: request.arguments[name] for name in KIND_ARGUMENTS if name in request.arguments},
    )


def check_same_exchange(existing: Exchange, wanted: Exchange) -> None:
    """Raises `Refusal` (PRECONDITION) when a declaration differs from the exchange that exists."""
    fields = ("kind", "durable", "auto_delete", "internal", "alternate")
    check_same("exchange", wanted.name, existing, wanted, fields)
    for name in KIND_ARGUMENTS:
        check_equal("exchange", wanted.name, name, existing.arguments.get(name), wanted.arguments.get(name))


def check_new_exchange(request: DeclareExchange) -> None:
    """Raises `Refusal` for an exchange that no client may make."""
    name = local_name(request.name)
    if not name:
        raise default_exchange()
    if name.startswith(RESERVED):
        raise reserved_name("exchange", name)
    if request.kind not in EXCHANGE_KINDS:
        raise Refusal(Cause.PRECONDITION, f"exchanges are {', '.join(EXCHANGE_KINDS)}, not {request.kind!r}")
    check_exchange_arguments(request.kind, request.arguments, f"exchange {said(request.name)}")


def check_binding(exchange: Exchange, binding: Binding) -> None:
    """Raises `Refusal` (PRECONDITION) for a binding that an exchange cannot have."""
    binding_predicate(exchange, binding)
    if exchange.routes_as == HASHED:
        hash_weight(binding)
    for pattern in patterns(exchange, binding.routing_key):
        check_binding_pattern(pattern)


def check_same(what: str, name: str, existing: object, asked: object, fields: Iterable[str]) -> None:
    """Raises `Refusal` (PRECONDITION) when a declaration differs from the existing one (AMQP 0-9-1, queues.declare)."""
    for field in fields:
        argument = {"kind": "type", "alternate": ALTERNATE}.get(field, field)
        check_equal(what, name, argument, getattr(existing, field), getattr(asked, field))


def check_equal(what: str, name: str, argument: str, current: object, received: object) -> None:
    """Raises `Refusal` (PRECONDITION) unless two values of an argument are the same; the text is RabbitMQ's."""
    if current != received or isinstance(current, bool) != isinstance(received, bool):
        show = _typed_text if current is None or received is None else _text
        texts = ["none" if value is None else show(value) for value in (received, current)]
        raise Refusal(
            Cause.PRECONDITION,
            f"inequivalent arg '{argument}' for {what} {said(name)}: received {texts[0]} but current is {texts[1]}",
        )


def _text(value: object) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


def _typed_text(value: object) -> str:
    """Returns a value with the type that clients give it, for RabbitMQ's words where the other one is missing."""
    return f"the value {_text(value)} of type '{field_type(value)}'"


def _refuse_default(request: BindExchange | UnbindExchange) -> None:
    if not local_name(request.source) or not local_name(request.destination):
        raise default_exchange()


def default_exchange() -> Refusal:
    """Returns the refusal of a change of the default exchange: every queue is bound to it by its name alone."""
    return Refusal(Cause.FORBIDDEN, "operation not permitted on the default exchange")


def reserved_name(what: str, name: str) -> Refusal:
    """Returns the refusal of a name that only the gateway gives a queue or an exchange."""
    prefix = f"{RESERVED}*" if name.startswith(RESERVED) else name.split("/", 1)[0]
    return Refusal(Cause.FORBIDDEN, f"{what} name '{name}' contains reserved prefix '{prefix}'")
