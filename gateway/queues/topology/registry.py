"""The exchanges, queues and bindings: declared, kept in the KV, and passed to the router.

A change is on disk before it counts. Durable exchanges and queues are entries of the KV, a queue's with its bindings; a
queue that is not durable has a marker there instead, so that the next start removes one that a crash left behind.

Each of several proxies has all of them, and follows the changes of the others by
`gateway.queues.topology.definitions`. A proxy that makes or removes a queue owns its name meanwhile, so that two
proxies do not give it two numbers. The proxy of an exclusive queue keeps the name; the proxy that takes the name over
once that one is gone removes the queue.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from controller.api.client import ControllerError
from gateway.domain.errors import Cause, Refusal
from gateway.domain.vhosts import GENERATED, REPLIES, in_vhost, local_name, said, split_name
from gateway.ownership.owners import Owned
from gateway.port.queues import (
    BindQueue,
    DeclareQueue,
    DeleteQueue,
    UnbindQueue,
)
from gateway.port.shared import SHARED_PREFIX
from gateway.publishing.topic_shares import creator_of
from gateway.queues.leasing.pump import ConsumerConnection
from gateway.queues.leaving.rules import COMPARED, check_queue_arguments, max_priority
from gateway.queues.model.bindings import Binding, Exchange, QueueDefinition
from gateway.queues.model.queue import Queue, check_access, is_hidden, locked_queue, no_queue
from gateway.queues.streams.arguments import COMPARED_OF_STREAMS, QUEUE_TYPE, check_stream, is_other_type, is_stream
from gateway.queues.topology.claims import PREFIX, claim, release
from gateway.queues.topology.definitions import NOTHING, Changed
from gateway.queues.topology.exchange_registry import (
    BINDINGS_COUNT_MAX,
    ExchangeRegistry,
    check_binding,
    check_equal,
    check_judged,
    check_same,
    default_exchange,
    reserved_name,
)
from gateway.queues.topology.lane_names import RESERVED, lane_name, next_names, numbers_by_name
from gateway.queues.topology.topology import ELSEWHERE
from store.base import logs
from store.base.errors import StoreError

DROPPED_COUNT_MAX = 64  # queues that are removed at a time
_RESERVED_QUEUES = (RESERVED, SHARED_PREFIX)

log = logs.get(__name__)


class Declared(NamedTuple):
    """A queue that was declared. One that was `made` just now is empty."""

    queue: Queue
    made: bool


class QueueRegistry(ExchangeRegistry):
    """Changes exchanges, queues and bindings.

    When a removal has failed, `unfinished` is called, and `finish` is to be called again later.
    """

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """Removes an exclusive queue, as the proxy that owned its name is gone, and its connection with it."""
        queue_name = name.removeprefix(PREFIX)
        async with self._changing:
            owned = await take()
            await self._look_again(queue_name, exchange=False)
            queue = self.queues.get(queue_name)
            if queue is None or queue.owner != ELSEWHERE or queue.definition.proxy == self._owners.id:
                await owned.release()
                return
            queue.owned = owned
            await self._drop_soon([queue_name])

    async def on_fenced(self) -> None:
        """Drops the exclusive queues of this process, which others remove."""
        async with self._changing:
            for name in [name for names in self._owned.values() for name in names]:
                await self._removed_elsewhere(name, exchange=False)

    # ---- queues

    async def declare_queue(self, conn: ConsumerConnection, request: DeclareQueue) -> Declared:
        """See `DeclareQueue`. Raises `Refusal`."""
        name, declared = "" if _is_fresh(request) else request.name, None
        while declared is None:
            if name in self._doomed:
                await self._change(lambda: self._make_way(name))
            declared = await self._change_queue(name, lambda: self._declare_queue(conn, request))
        if conn.gone:
            await self.drop_owned(conn.id)
        return declared

    async def _declare_queue(self, conn: ConsumerConnection, request: DeclareQueue) -> Declared | None:
        """Returns None where the queue of that name is to be removed first."""
        if request.name in self._doomed:
            return None
        if not _is_fresh(request):
            await self._learn_of(request.name)
        queue = self.queues.get(request.name)
        if queue is not None and not is_hidden(conn, queue):
            if not request.passive or not local_name(request.name).startswith(REPLIES):
                check_access(conn, queue)
            if not request.passive:
                check_same_queue(queue, request)
                self._left.pop(request.name, None)  # it begins anew, and waits for consumers
        elif request.passive:
            raise no_queue(request.name)
        elif local_name(request.name).startswith(_RESERVED_QUEUES) and not _is_fresh(request):
            raise reserved_name("queue", local_name(request.name))
        else:
            self.vhosts.check(request.name)
            self.vhosts.check_new_queue(request.name)
            return Declared(await self._make(conn, request), made=True)
        return Declared(queue, made=False)

    async def _make_way(self, name: str) -> None:
        """Removes a queue that is to be removed, before another one of its name is made. Raises `StoreError`."""
        if name in self._doomed:
            await self._drop_unbound(await self._drop(self.queues[name]))

    async def _make(self, conn: ConsumerConnection, request: DeclareQueue) -> Queue:
        """Makes a queue, with its name claimed meanwhile, and as long as it is a connection's own."""
        check_new_queue(request)
        vhost, name = split_name(request.name)
        name = in_vhost(vhost, self._fresh_name(name) if _is_fresh(request) else name)
        owned = await claim(self._owners, name)
        kept = False
        try:
            if not _is_fresh(request):
                await self._learn_of(name)
                if name in self.queues:
                    raise Changed(name)
            with self.vhosts.making_queue(name):  # until it is counted as one that is there
                queue = await self._create(conn, request, name)
            if queue.owner is not None:
                queue.owned, kept = owned, True
        finally:
            if not kept:
                await owned.release()
        return queue

    async def _create(self, conn: ConsumerConnection, request: DeclareQueue, name: str) -> Queue:
        owner = conn.id if request.exclusive else None
        durable = request.durable and owner is None
        highest = max_priority(request.arguments)
        lanes = [lane_name(name, priority) for priority in range(1, highest + 1)]
        if not durable:
            await asyncio.gather(*(self._garbage.mark(one) for one in (name, *lanes)))
        named = await self._garbage.fresh(name)
        above = await asyncio.gather(*(self._garbage.fresh(lane, named.group) for lane in lanes))
        numbers = (named.number, *(one.number for one in above))
        settings = self._store.queues.configure([self._queue_config(one, name, request.arguments) for one in numbers])
        definition = QueueDefinition(
            name=name,
            number=named.number,
            group=named.group,
            durable=request.durable,
            auto_delete=request.auto_delete,
            exclusive=request.exclusive,
            arguments=dict(request.arguments),
            lanes=numbers if lanes else (),
            proxy=self._owners.id if owner is not None else "",
            creator=creator_of(conn.principal),
        )
        revision = await self._definitions.put_with(settings, definition, lasting=durable)
        return self._add(definition, owner, revision)

    def _fresh_name(self, prefix: str) -> str:
        token = base64.urlsafe_b64encode(self._random.getrandbits(128).to_bytes(16, "big")).decode()[:22]
        return (prefix or GENERATED) + token

    async def delete_queue(self, conn: ConsumerConnection, request: DeleteQueue) -> int:
        """See `DeleteQueue`. Raises `Refusal`."""
        waiting, exchanges = await self._change_queue(request.name, lambda: self._delete_queue(conn, request))
        if unused := [name for name in exchanges if self._is_unused(name)]:
            self._idle.update(dict.fromkeys(unused))  # so that `finish` removes them if this does not come to it
            async with self._changing:
                await self._drop_unbound(unused)
        return waiting

    async def _delete_queue(self, conn: ConsumerConnection, request: DeleteQueue) -> tuple[int, Sequence[str]]:
        """Returns how many messages waited, and the exchanges that the queue was bound to."""
        await self._learn_of(request.name)
        queue = self.queues.get(request.name)
        if queue is None or request.name in self._doomed or is_hidden(conn, queue):
            return 0, ()
        check_access(conn, queue)
        if request.if_unused and (queue.pump.consumers or await self._counts.elsewhere(request.name)):
            raise Refusal(Cause.PRECONDITION, f"queue {said(request.name)} in use")
        waiting = await queue.pump.head.waiting(conn.id)
        if request.if_empty and waiting:
            raise Refusal(Cause.PRECONDITION, f"queue {said(request.name)} not empty")
        return waiting, await self._drop(queue)

    async def _drop(self, queue: Queue, also: Mapping[str, int] = NOTHING) -> Sequence[str]:
        """Removes a queue, with the lock held for it; returns the exchanges it was bound to, for `_drop_unbound`.

        The step that makes it final comes first: if it fails, nothing has changed. `also` is as in
        `Definitions.delete`. Raises `StoreError`.
        """
        definition = queue.definition
        name = definition.name
        owned = queue.owned or await claim(self._owners, name)
        try:
            gone = await self._definitions.delete(definition, queue.revision, lasting=queue.lasting, also=also)
            self._went(name, gone, exchange=False)
            await self._remove(queue)
            begun = self._garbage.named(next_names(definition))  # by a move that was not ended
            for lane, number in (*numbers_by_name(definition), *begun):
                await self._garbage.clear(lane, number)
        finally:
            if queue.owned is None or name not in self.queues:
                await release(owned)
        if self._garbage.pending:
            self._unfinished()
        return [binding.exchange for binding in definition.bindings]

    async def drop_unused(self, names: Iterable[str]) -> None:
        """Removes those of these queues that lived for consumers alone, and has none; now, or by `finish`."""
        self._left.update(dict.fromkeys(names))
        async with self._changing:
            await self._drop_left()

    async def _drop_left(self) -> None:
        """Removes those of the queues whose consumers have ended here that lived for consumers alone, and has none."""
        unused: list[Queue] = []
        try:
            for name in list(self._left):
                if (queue := self.queues.get(name)) is not None and not await self._counts.elsewhere(name):
                    unused.append(queue)
                elif queue is not None and self._counts.behind:
                    continue  # others may let go of it by what they see of ours: we look again when they see it right
                self._left.pop(name, None)
        except StoreError as error:
            log.warning("the consumers of a queue at other proxies could not be counted", queue=name, error=str(error))
            self._unfinished()
        await self._drop_soon(q.definition.name for q in unused if q.definition.auto_delete and not q.pump.consumers)

    async def drop_if(self, name: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Removes a queue if a condition holds, with the topology locked. Raises the errors of `condition`."""
        async with self._changing:
            if name in self.queues and await condition():
                await self._drop_soon([name])

    async def drop_owned(self, owner: int) -> None:
        """Removes the exclusive queues of a connection that has ended, with those of others that wait for it."""
        self._doomed.update(self._owned.pop(owner, {}))
        if self._doomed:
            async with self._changing:
                await self._drop_soon(())

    async def _drop_soon(self, names: Iterable[str]) -> None:
        """Removes queues now, each for itself, or when `finish` is called; from now on they cannot be used."""
        self._doomed.update(dict.fromkeys(names))
        doomed = list(self._doomed)
        if doomed:
            await asyncio.sleep(0)  # an eager start is in no task up to here, and the groups ask for one
        for at in range(0, len(doomed), DROPPED_COUNT_MAX):
            async with asyncio.TaskGroup() as group:  # which leaves nothing behind that goes on without the lock
                some = doomed[at : at + DROPPED_COUNT_MAX]
                dropping = [group.create_task(self._drop_doomed(name)) for name in some]
            await self._drop_unbound(chain.from_iterable(task.result() for task in dropping))

    async def _drop_doomed(self, name: str) -> Sequence[str]:
        """Removes a queue or tries later; returns the exchanges it was bound to."""
        try:
            try:
                return await self._drop(self.queues[name])
            except Changed:
                await self._look_again(name, exchange=False)
        except (StoreError, ControllerError, Refusal) as error:
            log.warning("an unusable queue could not be deleted yet", queue=name, error=str(error))
        self._unfinished()
        return ()

    async def finish(self) -> bool:
        """Removes queues, and consumers of the counts, that could not be before; returns whether all is gone."""
        await self._counts.finish()
        async with self._changing:
            await self._drop_left()
            await self._drop_soon(())
            await self._drop_unbound(list(self._idle))
            await self._garbage.retry()
            if self._streams_behind:
                await self._configure_streams()
            pending = self._counts.behind or self._garbage.pending or self._streams_behind
            return not (self._doomed or self._idle or self._left or pending)

    # ---- bindings

    async def bind(self, conn: ConsumerConnection, request: BindQueue) -> None:
        """See `BindQueue`. Raises `Refusal`."""
        judged = self._exchanges.get(request.exchange)
        await self._change_queue(request.queue, lambda: self._bind(conn, request, judged))

    async def _bind(self, conn: ConsumerConnection, request: BindQueue, judged: Exchange | None) -> None:
        await self._learn_of(request.exchange, exchange=True)
        await self._learn_of(request.queue)
        exchange = self._known_exchange(request.exchange)
        queue = self.find(request.queue, conn)
        if not local_name(exchange.name):
            raise default_exchange()
        check_judged(judged, exchange)
        binding = Binding(exchange=exchange.name, routing_key=request.routing_key, arguments=dict(request.arguments))
        check_binding(exchange, binding)
        bindings = queue.definition.bindings
        if (queue.definition.name, binding.identity) in self._routes.bound.get(exchange.name, {}):
            return
        if len(bindings) >= BINDINGS_COUNT_MAX:
            raise Refusal(Cause.QUOTA, f"queue {said(request.queue)} has {BINDINGS_COUNT_MAX} bindings already")
        await self._change_bindings(queue, (*bindings, binding), exchange)

    async def unbind(self, conn: ConsumerConnection, request: UnbindQueue) -> None:
        """See `UnbindQueue`. Raises `Refusal`."""
        await self._change(lambda: self._unbind(conn, request))

    async def _unbind(self, conn: ConsumerConnection, request: UnbindQueue) -> None:
        await self._learn_of(request.queue)
        queue = self.queues.get(request.queue)
        if queue is None or request.queue in self._doomed or is_hidden(conn, queue):
            return
        check_access(conn, queue)
        if not local_name(request.exchange):
            raise default_exchange()
        gone = Binding(
            exchange=request.exchange, routing_key=request.routing_key, arguments=dict(request.arguments)
        ).identity
        kept = tuple(b for b in queue.definition.bindings if b.identity != gone)
        if len(kept) < len(queue.definition.bindings):
            await self._change_bindings(queue, kept)
            await self._drop_unbound([request.exchange])


def _is_fresh(request: DeclareQueue) -> bool:
    """Returns whether a declaration asks for a new name."""
    return local_name(request.name) in ("", REPLIES) and not request.passive


def check_new_queue(request: DeclareQueue) -> None:
    """Raises `Refusal` (PRECONDITION) for a queue that there cannot be."""
    if is_stream(request.arguments):
        check_stream(request)
    else:
        check_queue_arguments(request.arguments, f"queue {said(request.name)}")


def check_same_queue(queue: Queue, request: DeclareQueue) -> None:
    """Raises `Refusal` when a declaration differs from the queue that exists (AMQP 0-9-1, queues.declare), as RabbitMQ.

    CONFLICT where one of them is exclusive and the other is not, PRECONDITION for the rest. An exclusive queue goes
    with its connection: its durability does not matter.
    """
    if queue.definition.exclusive != request.exclusive:
        raise locked_queue(request.name)
    names = ("auto_delete",) if request.exclusive else ("durable", "auto_delete")
    check_same("queue", request.name, queue.definition, request, names)
    current, received = queue.definition.arguments, request.arguments
    for name in (*COMPARED, *COMPARED_OF_STREAMS):
        if name != QUEUE_TYPE or is_other_type(current.get(name), received.get(name)):
            check_equal("queue", request.name, name, current.get(name), received.get(name))
