"""The hub: the state that all connections of a process share, and the tasks that work for them."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from controller.api.client import ControllerClient
from gateway.base.eager import eager_start
from gateway.base.pause_guard import PauseGuard
from gateway.base.periodic import endless, every
from gateway.config.config import Config
from gateway.delivery.answers import AnswerWaits
from gateway.delivery.fanout import Fanout
from gateway.delivery.find_waits import FindWaits
from gateway.delivery.lanes import NOBODY
from gateway.delivery.read_slots import MessageReads
from gateway.domain.errors import Cause, Refusal
from gateway.domain.forwarding import ForwardingSettings
from gateway.groups.consumer_groups import ConsumerGroups
from gateway.groups.environment import GroupEnvironment
from gateway.groups.lease_groups import LeaseGroups
from gateway.groups.lease_letters import LeaseLetters
from gateway.kv.kv import KeyValues
from gateway.ops.metrics import Metrics
from gateway.ops.pressure import Pressure
from gateway.oscore.contexts_file import Provisioned
from gateway.oscore.keeper import ContextKeeper
from gateway.ownership.metadata_barrier import MetadataBarrier
from gateway.ownership.owners import LocalOwners, Owners
from gateway.port.adapter import Authenticate, Call, Consume, Outcome, Request, SettleLeased
from gateway.port.reads import Retained, RetainedPage
from gateway.port.sessions import OpenSession
from gateway.publishing.ingest import Ingest
from gateway.publishing.moving import Mover
from gateway.publishing.routing.directory import Directory
from gateway.publishing.routing.router import Router, TopicRule
from gateway.publishing.timer_secrets import TimerSecrets
from gateway.push.push import Push
from gateway.queues.leaving.policies import Policies
from gateway.queues.queues import NamedQueues
from gateway.queues.shared.subscriptions import SWEEP_SHARED_INTERVAL_MS, SharedSubscriptions
from gateway.runtime.access_requests import check_consume
from gateway.runtime.endpoint import Endpoint, ListenerContext
from gateway.runtime.pressing import notify_of_pressure, watch_pressure
from gateway.runtime.requests import answer, outcome
from gateway.runtime.sys_topics import SAMPLE_INTERVAL_MS, SysTopics
from gateway.runtime.topics import TOPICS_INTERVAL_MS, TopicKeeper
from gateway.runtime.turn import ReadBatch, StreamEndpoint, StreamHub
from gateway.runtime.unread import UnreadBudget
from gateway.security.access_control import AccessControl
from gateway.security.auth import Authenticator
from gateway.security.limits import ConnectionLimiter
from gateway.security.reconnect_penalty import ReconnectPenalty
from gateway.sessions.record import session_key
from gateway.sessions.sessions import COMMIT_INTERVAL_MS, SWEEP_INTERVAL_MS, Sessions
from gateway.sessions.will_rights import WaitingWills
from gateway.sessions.wills import Wills
from store.api.client import StoreClient
from store.base import logs
from store.base.clock import now_ms, steady_ms
from store.base.listening.places import below_files
from store.base.memory import memory_limit_bytes
from store.format.frame import QueueNumber

RELIEF_INTERVAL_S = 0.005  # between two looks whether it is still crowded
CALLS_MAX = 1_024  # requests of one connection in flight; more are refused
FILES_KEPT = 1_024  # that connections leave for the store, sinks, bridges, and connections that are refused

log = logs.get(__name__)


class ProcessHub(StreamHub):
    """The middle of a gateway process: connections on one side, store and controller on the other."""

    def __init__(
        self,
        config: Config,
        store: StoreClient,
        controller: ControllerClient,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        *,
        owners: Owners | None = None,
    ) -> None:
        self.store = store
        self.controller = controller
        self.metrics = metrics
        self.random = random.SystemRandom()
        limits, self.write_buffer_bytes_max = config.gateway, config.gateway.write_buffer_bytes_max
        self.others, self.unread = dict[str, ListenerContext](), UnreadBudget(config.gateway.unread_bytes_max)
        self.finds, self.reads = (
            FindWaits(store),
            MessageReads(limits.unread_bytes_max, limits.max_message_bytes, lambda: self.unread.held_bytes),
        )
        self.router = Router(
            controller,
            [TopicRule(rule.pattern, rule.topic) for rule in config.routes],
            index=config.topics.index,
            zone=config.cluster.zone,
        )
        self.groups = ConsumerGroups(
            GroupEnvironment(
                store=store,
                controller=controller,
                random=self.random,
                now_ms=now_ms,
                config=config.groups,
                may_come=config.topics.auto_create,
                delivered=lambda protocol, topic, count: metrics.sent(metrics.flow(protocol), topic, count),
                patterns_of=self.router.patterns_of,
            ),
            spawn=self.spawn,
        )
        self.lingering = 0  # connections that are closing: see `gateway.runtime.connection`
        self.timer_secrets = TimerSecrets()
        self.authenticator = Authenticator(
            config.auth, controller.user, tls=config.tls, secret=self.timer_secrets.of, now_ms=now_ms
        )
        self.access = AccessControl(
            config.access, controller, metrics, clock=time.monotonic, changed=self._access_has_changed
        )
        self.owners, self.access.has_own = owners or LocalOwners(store), self.authenticator.has_own
        self.pauses = PauseGuard(self.owners.renew)
        self.limits, self.forwarding = config.limits, ForwardingSettings.of(config.forwarding)
        self.reconnect_penalty = ReconnectPenalty()
        self.connection_limiter = ConnectionLimiter(
            config.limits, below_files(config.gateway.connections_max, FILES_KEPT), now_ms=now_ms()
        )
        self.connections = {}
        self.body_bytes_max = config.gateway.max_message_bytes
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._ids = 0
        self._calls: dict[int, int] = {}  # endpoint id -> requests in flight
        self._paused: dict[Endpoint, None] = {}  # not read from while it is crowded
        self._relief: asyncio.TimerHandle | None = None
        self.topics = TopicKeeper(
            store, controller, config.topics, spawn=self.spawn, clock=time.monotonic, created=self._topic_created
        )
        self._work: set[asyncio.Task[None]] = set()
        self._releasing = 0  # connections that have ended and still hold something
        self._changed = asyncio.Event()  # set when something has ended that `quiet` may be waiting for
        self._pending_bytes_high = limits.pending_bytes_max // 2
        self.pressure = Pressure(
            memory_bytes_max=memory_limit_bytes(limits.memory_high_bytes), crowded=lambda: self.crowded
        )
        self.directory = Directory(store, spawn=self.spawn)
        self.router.met = self.directory.offer
        self.fanout = Fanout(
            store,
            queues_of=self._queues_of,
            group_of=controller.group_of_queue,
            barrier=MetadataBarrier(controller.barrier, spawn=self.spawn).passed,
            spawn=self.spawn,
        )
        controller.watch(self.fanout.changed)
        controller.watch(self.topics.changed)
        policies = Policies(config.queues, creates_topics=config.topics.auto_create)
        self.queues = NamedQueues(
            store, controller, self.router, policies=policies, owners=self.owners, steady_ms=steady_ms
        )
        self.lease_groups = LeaseGroups(
            self.groups,
            letters=LeaseLetters(
                Mover(
                    store=store,
                    controller=controller,
                    router=self.router,
                    appended=self.queues.appended,
                    creates_topics=config.topics.auto_create,
                )
            ),
        )
        self.answers, self.keys, self.contexts = (
            AnswerWaits(
                self.fanout,
                store,
                self.reads.single,
                now_ms=now_ms,
                later=self.later,
                queues_at=self.router.queues_at,
            ),
            KeyValues(store, config.kv, now_ms=now_ms),
            ContextKeeper(Provisioned(config.auth.oscore_file, now_ms=now_ms), store, self.owners),
        )
        self.turn = ReadBatch(self)
        self.ingest = Ingest(
            store,
            self.router,
            metrics,
            new_producer=lambda: self.random.getrandbits(63) | 1,
            message_bytes_max=config.gateway.max_message_bytes,
            soon=self._loop.call_soon,
            clock=time.perf_counter,
            create_topic=self.topics.create,
            appended_to=self.queues.appended,
            drained=self._drained,
            acknowledged=self.turn.acknowledged,
            compress_bytes_min=config.store.compress_bytes_min,
            gathers=self.owners.alone,
        )
        wills = Wills(store, self.ingest.publish, now_ms=now_ms, random=self.random, check=self.access.check_publisher)
        self.waiting_wills = WaitingWills(store, self.access.check_publisher, spawn=self.spawn)
        self.sessions = Sessions(store, self.fanout, wills, now_ms=now_ms, steady_ms=steady_ms, owners=self.owners)
        self.shared = SharedSubscriptions(
            store,
            self.owners,
            self.queues.registry,
            self.sessions,
            groups_max=config.shared_subscriptions.groups_max,
            spawn=self.spawn,
        )
        self.sessions.ended = self.shared.ended
        self.push = Push(self, config.subscriptions)
        self._sys_topics = SysTopics(self, node=config.cluster.node, now_ms=now_ms)

    async def start(self) -> None:
        """Loads the stored state and begins the periodic work."""
        await self.topics.configure()
        await self.queues.load()
        await self.keys.start()
        await self.timer_secrets.load(self.store)
        self.store.queues.watch(self.queues.appended)
        orphans = await self.sessions.load()
        await self.shared.begin()
        await self.owners.start(self.spawn)
        if not self.owners.alone:
            self.spawn(self.pauses.run())
        queues = self.queues
        for work in (partial(watch_pressure, self), queues.follow, queues.keeper.run, queues.follow_members):
            self.spawn(endless(work))
        self.spawn(every(SWEEP_SHARED_INTERVAL_MS, self.shared.sweep))
        self.spawn(every(SAMPLE_INTERVAL_MS, self._sys_topics.sample))
        if orphans:
            self.spawn(self.sessions.end_orphans(orphans))
        self.spawn(every(TOPICS_INTERVAL_MS, self.topics.follow))
        self.spawn(every(COMMIT_INTERVAL_MS, self.sessions.commit))
        self.spawn(every(SWEEP_INTERVAL_MS, self.sessions.sweep))

    # ---- small things that endpoints ask for

    def next_id(self) -> int:
        """Returns a number that no other endpoint of this process has."""
        self._ids += 1
        return self._ids

    def later(self, seconds: float, work: Callable[[], object]) -> asyncio.TimerHandle:
        """Runs something later."""
        return self._loop.call_later(seconds, work)

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Runs a coroutine as a task whose failure is logged and ends nothing else."""
        task = self._tasks.create_task(_logged(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        task.add_done_callback(lambda _: work.close())  # of one that was cancelled before its first step
        return task

    def cancel_tasks(self) -> None:
        """Ends all that `spawn` began."""
        for task in self._work:
            task.cancel()

    # ---- connections

    def joined(self, connection: StreamEndpoint) -> None:
        """Counts a connection that has begun."""
        self.connections[connection.id] = connection
        connection.flow.open += 1
        connection.flow.accepted += 1
        if self.pressure.reason:
            notify_of_pressure(connection, self.pressure.reason)

    def left(self, connection: StreamEndpoint) -> None:
        """Releases everything that an ended connection held."""
        if self.connections.pop(connection.id, None) is None:
            return
        connection.flow.open -= 1
        self.connection_limiter.release(connection.admission)
        self._paused.pop(connection, None)
        self._releasing += 1
        if self.owners.alone and not self.calls_under_way(connection):  # which come first
            rest = eager_start(_logged(self._release(connection))).rest
            if rest is not None:
                self.spawn(rest)
        else:
            self.spawn(self._release(connection))

    async def _release(self, endpoint: Endpoint) -> None:
        """Releases everything that an endpoint held. Its session's cursor is read before its subscriptions end."""
        try:
            if endpoint.has_session:
                await self.sessions.close(endpoint)
        finally:
            self.fanout.leave(endpoint.subscriber)
            self.shared.left(endpoint)
            self.answers.left(endpoint)
            try:
                try:
                    await self.keys.leave(endpoint)
                finally:
                    await self.queues.connection_lost(endpoint)
            finally:
                self._releasing -= 1
                self._changed.set()
                endpoint.subscriber.receiver = NOBODY  # each knows the other; spares the collector such cycles

    async def quiet(self) -> None:
        """Waits until no connection is open and nothing they asked for is in flight."""
        while self.connections or self._releasing or self._calls or not self.ingest.idle:
            self._changed.clear()
            await self._changed.wait()

    def system_page(self, request: Retained, *, readable: Callable[[str], bool] | None = None) -> RetainedPage:
        """Returns this process's own values at `$SYS` addresses."""
        return self._sys_topics.page(request, readable=readable)

    @property
    def crowded(self) -> bool:
        """Returns whether so many bytes wait to be durable that no connection should be read."""
        return self.store.log.pending_bytes + self.ingest.waiting_bytes > self._pending_bytes_high

    def paused(self, endpoint: Endpoint) -> None:
        """Notes an endpoint that is not read from because it is crowded, to have it look again when that is over."""
        self._paused[endpoint] = None
        if self._relief is None:
            # The crowd may be of the store's own records, whose end is not announced.
            self._relief = self.later(RELIEF_INTERVAL_S, self._relieve)

    def _relieve(self) -> None:
        self._relief = None
        waiting, self._paused = self._paused, {}
        for endpoint in waiting:
            endpoint.flush()

    def _drained(self) -> None:
        self._changed.set()

    # ---- carrying out effects

    def call(self, endpoint: Endpoint, call: Call) -> None:
        """Answers a request: in a task of its own, unless nothing has to be waited for."""
        work = answer(self, endpoint, call)
        if not self._begins_at_once(endpoint, call.request):
            self._ask(endpoint, call.token, work)
            return
        begun = eager_start(outcome(work))
        if begun.rest is not None:
            self._await(endpoint, call.token, begun.rest)
            return
        self._count(endpoint, begun.value)
        endpoint.answers.append((call.token, begun.value))

    def _begins_at_once(self, endpoint: Endpoint, request: Request[Any]) -> bool:
        """Returns whether a request begins at once and may overtake earlier ones; all of a superseded connection do."""
        if endpoint.superseded or not self.owners.alone:
            return endpoint.superseded  # its session is about to be taken: it is saved now, or never
        if isinstance(request, OpenSession):
            return not self.sessions.holds(session_key(endpoint.protocol, request.session_id))
        return isinstance(request, Authenticate)

    def consume(self, endpoint: Endpoint, effect: Consume) -> None:
        """Begins a consumer."""
        self._ask(endpoint, effect.token, self._consume(endpoint, effect))

    async def _consume(self, endpoint: Endpoint, effect: Consume) -> None:
        permissions = endpoint.principal.permissions
        check_consume(permissions, effect)
        await self.queues.consume(endpoint, effect, permissions)

    def settle(self, endpoint: Endpoint, effect: SettleLeased) -> None:
        """Settles leased messages: with the next commit where no caller waits for it."""
        if effect.token is not None:
            self._ask(endpoint, effect.token, self.queues.settle(endpoint, effect))
            return
        settling, moving = self.queues.settle_soon(endpoint, effect)
        settling.add_done_callback(partial(self._settled, endpoint))
        if moving is not None:
            self._ask(endpoint, None, moving)

    def _settled(self, endpoint: Endpoint, settling: "asyncio.Future[None]") -> None:
        if not settling.cancelled() and settling.exception() is not None:
            self._await(endpoint, None, outcome(settling))

    def _ask(self, endpoint: Endpoint, token: Any, work: Coroutine[Any, Any, Any]) -> None:
        under_way = self._calls.get(endpoint.id, 0)
        if under_way >= CALLS_MAX and token is not None:
            work.close()
            refusal = Refusal(
                Cause.OVERLOAD, f"{CALLS_MAX} requests are in flight; wait for answers", retry_after_ms=1000
            )
            self._loop.call_soon(endpoint.completed, token, Outcome(error=refusal))
            return
        self._await(endpoint, token, outcome(work))

    def _await(self, endpoint: Endpoint, token: Any, work: Coroutine[Any, Any, Outcome]) -> None:
        self._calls[endpoint.id] = self._calls.get(endpoint.id, 0) + 1
        self.spawn(self._answer(endpoint, token, work))

    def _count(self, endpoint: Endpoint, outcome: Outcome) -> None:
        if outcome.error is not None:
            self.metrics.errors(endpoint.protocol, outcome.error.cause.value).inc()

    def calls_under_way(self, endpoint: Endpoint) -> int:
        """Returns how many requests of an endpoint have no answer yet."""
        return self._calls.get(endpoint.id, 0)

    async def _answer(self, endpoint: Endpoint, token: Any, work: Coroutine[Any, Any, Outcome]) -> None:
        try:
            outcome = await work
        finally:
            self._calls[endpoint.id] -= 1
            if not self._calls[endpoint.id]:
                del self._calls[endpoint.id]
                self._changed.set()
        self._count(endpoint, outcome)
        if token is not None:
            endpoint.completed(token, outcome)
        else:
            endpoint.flush()  # a peer that has sent its last may have waited for this alone

    # ---- topics

    def _queues_of(self, pattern: str) -> Sequence[QueueNumber] | None:
        names = self.router.topics_of(pattern)
        if names is None:
            return None
        topics = [self.controller.topic(name) for name in names]
        return [QueueNumber(queue) for topic in topics if topic is not None for queue in topic.queues]

    def _topic_created(self, name: str, refusal: Refusal | None, creator: str) -> None:
        self.ingest.resume(name, refusal, creator=creator)

    def _access_has_changed(self) -> None:
        self.fanout.changed()
        self.queues.wake()
        self.waiting_wills.look()


async def _logged(work: Coroutine[Any, Any, object]) -> None:
    try:
        await work
    except Exception:  # a task of one connection must not end the others
        log.exception("a task failed")
