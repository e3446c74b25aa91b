"""Named queues of this process, after AMQP 0-9-1, over the store's leases.

A queue is a queue number whose rows the router adds to published messages (`gateway.queues.topology.registry` keeps
them); `gateway.queues.consuming` has its consumers. Here are the messages held by them and by clients that fetch one
at a time.
"""

import asyncio
import random as chance
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, TypeVar

from controller.api.client import ControllerClient, ControllerError, TopicLimit
from gateway.domain.errors import Cause, Refusal
from gateway.domain.session_user import SessionUser
from gateway.ownership.owners import LocalOwners, Owned, Owners
from gateway.port.adapter import ConsumerId, Leased, Random, SettleLeased
from gateway.port.queues import DeclareQueue, GetMessage, Got, PurgeQueue, QueueInfo
from gateway.publishing.bodies import Bodies
from gateway.publishing.moving import Mover
from gateway.publishing.publishing import refusal_of
from gateway.publishing.routing.router import Router
from gateway.queues.consumers import consumer_counts
from gateway.queues.consumers.consumer_counts import ConsumerCounts, LocalConsumerCounts, SharedConsumerCounts
from gateway.queues.consumers.single_active import SingleActive
from gateway.queues.consumers.uses import QueueUses
from gateway.queues.consuming import QueueConsumers
from gateway.queues.dead_letters import DeadLetters
from gateway.queues.keeper import QueueKeeper
from gateway.queues.leasing.laned import LanedStore
from gateway.queues.leasing.pump import ConsumerConnection, Pump
from gateway.queues.leaving.policies import Policies, QueuesConfig
from gateway.queues.leaving.sizes import LanedSizes
from gateway.queues.leaving.upkeep import Upkeep
from gateway.queues.model.bindings import Exchange, QueueDefinition
from gateway.queues.model.queue import Queue
from gateway.queues.settlements import Settlements
from gateway.queues.shared.counts import SharedCounts
from gateway.queues.shared.registry import SharedRegistry
from gateway.queues.streams.arguments import QUEUE_TYPE, is_stream
from gateway.queues.streams.pump import StreamPump
from gateway.queues.topology.claims import PREFIX
from gateway.queues.topology.queue_moves import QueueMoves
from store.api.client import StoreClient
from store.api.leases import Lease
from store.base import logs
from store.base.clock import SteadyClock, now_ms
from store.base.errors import StoreError
from store.base.streams import Backoff
from store.format.frame import QueueNumber

FINISH_S, FINISH_MAX_S = 1.0, 60.0  # between two attempts of a failed removal: at first, and at most

T = TypeVar("T")

log = logs.get(__name__)


class NamedQueues:
    """Handles the requests of `gateway.port.queues` and the port's lease effects for all connections of this process.

    It belongs to the event loop. At `load` a process removes the remains of its own `instance` of a cluster.
    """

    def __init__(
        self,
        store: StoreClient,
        controller: ControllerClient,
        router: Router,
        *,
        instance: str = "0",
        policies: Policies | None = None,
        random: Random | None = None,
        owners: Owners | None = None,
        now_ms: Callable[[], int] = now_ms,
        steady_ms: Callable[[], int] | None = None,
    ) -> None:
        random = random or chance.SystemRandom()
        self._owners = owners = owners or LocalOwners(store)
        self._plain, self._laned = store, LanedStore(store, router.lanes, alone=owners.alone)
        self._store = self._laned.client
        self._router = router
        self._now_ms = now_ms
        policies = policies or Policies(QueuesConfig())
        self._counts: ConsumerCounts = LocalConsumerCounts()
        if not owners.alone:
            self._counts = SharedConsumerCounts(store, owners, self._finish_later)
        self._shares = SharedCounts(store, owners)
        self._registry = SharedRegistry(
            store,
            controller,
            router,
            instance=instance,
            random=random,
            now_ms=now_ms,
            owners=owners,
            counts=self._counts,
            policies=policies,
            connections=self._shares,
            new_pump=self._new_pump,
            added=lambda queue: self.keeper.added(queue),  # noqa: PLW0108 - the keeper is made below, of this
            ruled=lambda queue: self.keeper.ruled(queue),  # noqa: PLW0108 - the same
            moved=self._has_moved,
            dropped=self._has_gone,
            unfinished=self._finish_later,
        )
        by_number = self._registry.by_number
        self.bodies = Bodies(store, router, random=random, appended=self.appended, now_ms=now_ms)
        self.bodies.takes = lambda number: (queue := by_number.get(number)) is None or not queue.shared
        mover = Mover(
            store=self._store,
            controller=controller,
            router=router,
            appended=self.appended,
            creates_topics=policies.creates_topics,
        )
        letters = DeadLetters(mover, bodies=self.bodies, queue_of=by_number.get, now_ms=now_ms)
        self.keeper = QueueKeeper(
            self._store,
            owners,
            router,
            by_number,
            letters,
            upkeep=Upkeep(now_ms),
            uses=QueueUses(store, owners, self._counts, now_ms=now_ms, steady_ms=steady_ms or SteadyClock(now_ms)),
            single=SingleActive(owners),
            now_ms=now_ms,
            moves=QueueMoves(self._laned, finish=self._registry.finish_move, now_ms=now_ms),
            drop=self._registry.drop_if,
        )
        self._settlements = Settlements(
            self._store, find=self._registry.queues.get, reject=self.keeper.reject, changed=self._changed
        )
        self._consumers = consumers = QueueConsumers(
            self._registry, self.keeper, owners=owners, counts=self._counts, shares=self._shares, spawn=self._spawn
        )
        self.consume, self.ready, self.cancel = consumers.consume, consumers.ready, consumers.cancel
        owners.serve(PREFIX, self)
        owners.serve(consumer_counts.PREFIX, self)
        self._finishing = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def registry(self) -> SharedRegistry:
        """Returns the registry of the queues."""
        return self._registry

    async def load(self) -> None:
        """Loads durable definitions, and removes the others."""
        await self._registry.load()

    async def follow(self) -> None:
        """Follows the declarations of other proxies, forever."""
        await self._registry.follow()

    async def follow_members(self) -> None:
        """Follows how many members shared subscriptions have at other proxies, forever."""
        await self._shares.follow()

    async def on_release_requested(self, name: str, user: SessionUser | None) -> None:
        """See `owners.OwnershipListener`: queues here are kept."""

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """See `owners.OwnershipListener`: exclusive queues and consumers go with their connections."""
        if name.startswith(PREFIX):
            await self._registry.on_owner_lost(name, take)
        elif isinstance(self._counts, SharedConsumerCounts):
            await self._registry.drop_unused([await self._counts.on_owner_lost(name, take)])

    async def on_fenced(self) -> None:
        """See `owners.OwnershipListener`: consumers are told, so that they begin again."""
        if isinstance(self._counts, SharedConsumerCounts):
            self._counts.on_fenced()
        await self._registry.on_fenced()
        for queue in list(self._registry.queues.values()):
            self._consumers.cancel_all(queue)

    async def close(self) -> None:
        """Delivers nothing more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for queue in self._registry.queues.values():
            await queue.pump.stop()

    async def answer(self, work: Awaitable[T]) -> T:
        """Awaits the answer to a request of `gateway.port.queues`, and raises all that refuses it as a `Refusal`."""
        try:
            return await work
        except TopicLimit as error:
            raise Refusal(Cause.QUOTA, str(error)) from error
        except StoreError as error:
            raise Refusal(Cause.UNAVAILABLE, refusal_of(error).detail, retry_after_ms=1_000) from error
        except ControllerError as error:
            raise Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=1_000) from error

    async def settle(self, conn: ConsumerConnection, effect: SettleLeased) -> None:
        """Settles or gives back messages that a connection holds of a queue. Raises `StoreError`."""
        await self._settlements.settle(conn.id, effect)

    def settle_soon(
        self, conn: ConsumerConnection, effect: SettleLeased
    ) -> tuple["asyncio.Future[None]", Coroutine[Any, Any, None] | None]:
        """See `Settlements.settle_soon`: for a settlement without a waiting caller."""
        return self._settlements.settle_soon(conn.id, effect)

    async def connection_lost(self, conn: ConsumerConnection) -> None:
        """Gives back the messages of a connection that has ended, and removes its exclusive queues."""
        self._registry.vhosts.leave(conn.id)
        counted, unused = self._consumers.end(conn)
        await self.keeper.finished(conn.id)
        self.appended(self._store.leases.release(conn.id))
        try:
            if counted:
                await self._consumers.left(counted, unused)
        finally:
            await self._registry.drop_owned(conn.id)

    def exchange(self, name: str) -> Exchange | None:
        """Returns an exchange that is known here."""
        return self._registry.exchange(name)

    def wake(self) -> None:
        """Ends members and exclusive consumers whose right was revoked; delivers to those that may read again."""
        for queue in list(self._registry.queues.values()):
            if queue.shared or (queue.pump.consumers and queue.pump.consumers[0].exclusive):  # which has none beside it
                self._consumers.end_denied(queue)
            self._changed(queue)

    def appended(self, queue_numbers: Iterable[int]) -> None:
        """Wakes queues whose rows have become visible."""
        by_number, numbers = self._registry.by_number, tuple(queue_numbers)
        self._laned.came(numbers)
        for number in numbers:
            if (queue := by_number.get(number)) is not None:
                self._changed(queue)

    def _changed(self, queue: Queue) -> None:
        """Notes messages that have come to a queue."""
        queue.pump.wake()
        self.keeper.changed(queue.number)

    # ---- requests

    async def declare(self, conn: ConsumerConnection, request: DeclareQueue) -> QueueInfo:
        """See `DeclareQueue`. Raises `Refusal`, `StoreError`."""
        queue, made = await self._registry.declare_queue(conn, request)
        self.keeper.used(queue)
        if made:
            return QueueInfo(name=queue.definition.name, messages=0, consumers=0)
        waiting = await queue.pump.head.waiting(conn.id)
        consumers = await self._registry.consumers_of(queue)
        return QueueInfo(name=queue.definition.name, messages=waiting, consumers=consumers)

    async def purge(self, conn: ConsumerConnection, request: PurgeQueue) -> int:
        """See `PurgeQueue`. Raises `Refusal`, `StoreError`."""
        queue = await self._registry.look_up(request.name, conn)
        if queue.stream:
            raise Refusal(Cause.PRECONDITION, "queue.purge is not supported by a queue of the type stream")
        await queue.pump.head.trim(conn.id)
        count = await self._store.leases.purge(queue.number)
        self.keeper.changed(queue.number)
        return count

    async def _has_news(self, queue: Queue) -> bool:
        """Returns whether messages wait, confirmed at other processes, in lanes that were found empty here."""
        if (
            self._owners.alone
            or self._router.lanes.of(queue.number) is None
            or not await self._store.leases.waiting(queue.number)
        ):
            return False
        self._laned.came(queue.numbers)
        return True

    async def get(self, conn: ConsumerConnection, request: GetMessage) -> Got | None:
        """See `GetMessage`. Raises `Refusal`, `StoreError`."""
        queue = await self._registry.look_up(request.queue, conn)
        found = await queue.pump.get(conn.id)
        if found is None and await self._has_news(queue):
            found = await queue.pump.get(conn.id)
        self.keeper.used(queue)
        if found is None:
            return None
        message, lease = found
        if conn.gone:
            self._return(queue, conn, lease)
            return None
        try:
            remaining = await queue.pump.head.waiting(conn.id)
        except BaseException:
            self._return(queue, conn, lease)
            raise
        if request.settle:  # last: what is settled has to be delivered
            await self._settlements.consumed(queue, conn.id, [lease.offset])
        leased = Leased(ConsumerId(0), [message], [lease.offset], [lease.delivered], queue.number)
        return Got(leased=leased, remaining=remaining)

    def _return(self, queue: Queue, conn: ConsumerConnection, lease: Lease) -> None:
        """Gives back a message that a connection has asked for and does not get."""
        self._store.leases.requeue(queue.number, conn.id, [lease.offset], delivered=False)
        self._changed(queue)

    # ---- consumers

    def _new_pump(self, definition: QueueDefinition) -> Pump | StreamPump:
        failed = partial(self._consumers.pump_failed, definition.name)
        if is_stream(definition.arguments):
            return StreamPump(self._plain, definition, lost=self.keeper.lost, now_ms=self._now_ms, failed=failed)
        return Pump(
            self._store,
            QueueNumber(definition.number),
            rules=lambda: self.keeper.rules(definition.number),
            now_ms=self._now_ms,
            dead_letter=partial(self.keeper.dead_letter, definition.number),
            taken=lambda: self.keeper.changed(definition.number),
            failed=failed,
            elsewhere=partial(self._shares.elsewhere, definition.name) if definition.pattern else lambda: 0,
            sizes=LanedSizes(self._plain, lambda: self._router.lanes.read_in_order(definition.number)),
            counted=definition.arguments.get(QUEUE_TYPE) == "quorum",
        )

    def _has_moved(self, queue: Queue, before: QueueDefinition) -> None:
        self._laned.moved(before.numbers, queue.numbers)
        self.keeper.moved(queue, before)

    def _has_gone(self, queue: Queue) -> None:
        self._laned.forget(queue.numbers)
        self.keeper.removed(queue)
        self._consumers.cancel_all(queue)

    def _finish_later(self) -> None:
        """Retries the end of a queue that should be gone, ever more seldom, until it succeeds."""
        if not self._finishing:
            self._finishing = True
            self._spawn(self._finish())

    async def _finish(self) -> None:
        backoff = Backoff(FINISH_S, FINISH_MAX_S)
        try:
            await backoff.pause()
            while not await self._registry.finish():
                await backoff.pause()
        finally:
            self._finishing = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("removing unused queues has failed", exc_info=error)
