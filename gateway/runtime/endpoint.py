"""The common part of the stream and datagram shells: holds one adapter and carries out its effects."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from controller.api.client import ControllerClient
from gateway.config.config import is_loopback
from gateway.delivery.answers import AnswerWaits
from gateway.delivery.delivered import count
from gateway.delivery.fanout import Fanout
from gateway.delivery.find_waits import FindWaits
from gateway.delivery.lanes import Subscriber
from gateway.delivery.read_slots import MessageReads
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.groups.consumer_groups import ConsumerGroups
from gateway.groups.lease_groups import LeaseGroups
from gateway.kv.kv import KeyValues
from gateway.ops.metrics import Metrics
from gateway.oscore.keeper import ContextKeeper
from gateway.ownership.owners import OwnershipLost
from gateway.port.adapter import (
    Adapter,
    AdapterFactory,
    Call,
    Cancel,
    Close,
    Consume,
    ConsumerCancelled,
    ConsumerId,
    Deliverable,
    Deliveries,
    Effect,
    GiveUp,
    HandOver,
    Outcome,
    Publish,
    Ready,
    Settled,
    SettleLeased,
    Subscribe,
    Token,
    Unsubscribe,
)
from gateway.port.datagram import DatagramAdapter
from gateway.port.reads import Retained, RetainedPage
from gateway.publishing.ingest import Ingest
from gateway.publishing.routing.directory import Directory
from gateway.publishing.routing.router import Router
from gateway.publishing.timer_secrets import TimerSecrets
from gateway.push.push import Push
from gateway.queues.queues import NamedQueues
from gateway.queues.shared.subscriptions import SharedSubscriptions
from gateway.security.access_control import AccessControl
from gateway.security.auth import Authenticator
from gateway.security.limits import SendingPace, network_of
from gateway.security.limits_settings import LimitsConfig
from gateway.security.reconnect_penalty import ReconnectingClient, ReconnectPenalty
from gateway.sessions.sessions import Sessions
from store.api.client import StoreClient
from store.base import logs
from store.base.clock import now_ms

OUTSTANDING_BYTES_MAX = 1 << 20  # read and not yet durable, of one connection; beyond, it is not read

CLOCK_STEP_MS = 1_000  # the clock was set, if it has moved so far against the steady one since the last look
LARGE_COUNT = 16  # a Publish of no more messages than this may be larger than the read that completed it

log = logs.get(__name__)


class ListenerContext(NamedTuple):
    """The attributes of a listener that its endpoints need."""

    name: str
    protocol: str  # the adapter's entry point
    factory: AdapterFactory
    options: Any


class Hub(ABC):
    """The parts of a gateway process that its endpoints and their requests share."""

    store: StoreClient
    controller: ControllerClient
    metrics: Metrics
    random: random.Random
    limits: LimitsConfig
    authenticator: Authenticator
    access: AccessControl
    timer_secrets: TimerSecrets
    contexts: ContextKeeper
    reconnect_penalty: ReconnectPenalty
    router: Router
    directory: Directory
    ingest: Ingest
    fanout: Fanout
    finds: FindWaits
    answers: AnswerWaits
    reads: MessageReads
    sessions: Sessions
    queues: NamedQueues
    shared: SharedSubscriptions
    groups: ConsumerGroups
    lease_groups: LeaseGroups
    keys: KeyValues
    push: Push

    @abstractmethod
    def next_id(self) -> int:
        """Returns a number that no other endpoint of this process has."""

    @abstractmethod
    def later(self, seconds: float, work: Callable[[], object]) -> asyncio.TimerHandle:
        """Runs something later."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Runs a coroutine as a task whose failure is logged and ends nothing else."""

    @property
    @abstractmethod
    def crowded(self) -> bool:
        """Returns whether so many bytes wait to be durable that no connection should be read."""

    @abstractmethod
    def paused(self, endpoint: "Endpoint") -> None:
        """Remembers an endpoint that is not read from because it is crowded."""

    @abstractmethod
    def call(self, endpoint: "Endpoint", call: Call) -> None:
        """Answers a request."""

    @abstractmethod
    def consume(self, endpoint: "Endpoint", effect: Consume) -> None:
        """Begins a consumer."""

    @abstractmethod
    def settle(self, endpoint: "Endpoint", effect: SettleLeased) -> None:
        """Settles leased messages."""

    @abstractmethod
    def system_page(self, request: Retained, *, readable: Callable[[str], bool] | None = None) -> RetainedPage:
        """Returns the gateway's own values at `$SYS` addresses."""


class Endpoint:
    """An adapter at work: effects go to the hub, outcomes and deliveries come back.

    An exception of the adapter's is our bug: it is logged with its trace and ends this endpoint alone.
    """

    ended: bool = False  # the peer has closed its half

    __slots__ = (  # of so many attributes a dictionary takes 1.5 KB more, of every connection
        "_gave_up",
        "_timer",
        "_timer_ms",
        "adapter",
        "answers",
        "certificate",
        "consumers",
        "flow",
        "gone",
        "has_session",
        "host",
        "hub",
        "id",
        "loopback",
        "outstanding_bytes",
        "outstanding_count",
        "pace",
        "principal",
        "protocol",
        "several",
        "subscriber",
        "superseded",
        "turned_away",
        "unanswered",
        "writable",
    )

    def __init__(self, hub: Hub, protocol: str, adapter: Adapter | DatagramAdapter, *, loopback: bool) -> None:
        self.hub = hub
        self.id = hub.next_id()
        self.protocol = protocol
        self.flow = hub.metrics.flow(protocol)
        self.adapter = adapter
        self.loopback = loopback
        self.host = ""  # of the peer's machine, where there is one peer
        self.certificate: Mapping[str, Any] | None = None  # of the peer, verified
        self.principal: Principal = hub.access.unauthenticated(protocol)
        self.subscriber = Subscriber(self)
        self.consumers: set[ConsumerId] = set()
        self._gave_up = False  # a call before its answer
        self.outstanding_count = 0  # Publish effects whose outcome has not come
        self.outstanding_bytes = 0
        self.pace: SendingPace | None = None  # None: it may send as fast as it can
        self.turned_away: Refusal | None = None  # why no user is let in here
        self.answers: list[tuple[Token, Outcome]] = []  # that were there at once, and that the adapter was not told yet
        self.unanswered: asyncio.Future[None] | None = None  # done when the last of them is answered
        self.writable = True  # the peer takes the bytes that are written
        self.gone = False  # no more input, output or deliveries
        self.has_session = False
        self.superseded = False  # another connection is taking its session
        self.several = False  # it has been several principals
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0  # when it fires

    def comes_from(self, address: str) -> None:
        """Takes note of the client's address, which a trusted proxy has named. Raises `Refusal`."""
        self.host, self.loopback = address, is_loopback(address)

    def reconnecting_client(self, client: str) -> ReconnectingClient:
        """Returns the identity of this endpoint's client, by which repeated closes for one reason are recognised."""
        return ReconnectingClient(self.protocol, network_of(self.host), self.principal.name, client)

    # ---- provided by a shell

    def force_close(self, reason: str) -> None:
        """Closes the connection for an operator; does nothing where its adapter knows no words for that."""

    @abstractmethod
    def flush(self) -> None:
        """Writes the adapter's output, notes its deadline, and continues or pauses reading."""

    @abstractmethod
    def close(self, reason: str) -> None:
        """Writes the rest of the output, then closes."""

    @abstractmethod
    def hand_over(self, effect: HandOver) -> None:
        """Hands the connection over to another adapter."""

    @abstractmethod
    def _fire(self) -> None:
        """Forgets the timer, and ticks where the adapter's deadline has come."""

    # ---- time

    def _arm(self) -> None:
        """Starts a timer for the adapter's deadline. One that is too early stays: it looks again when it fires."""
        deadline = self.adapter.deadline_ms()
        if deadline is None or (self._timer is not None and self._timer_ms <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline
        self._timer = self.hub.later(max(0.001, (deadline - now_ms()) / 1000), self._fire)

    # ---- from the adapter

    def act(self, effects: Sequence[Effect], size_bytes: int = 0) -> None:
        """Carries out effects, in order. `size_bytes` is the size of the input that caused them."""
        for effect in effects:
            if type(effect) is Publish:
                if len(effect.messages) <= LARGE_COUNT:  # a large message came in several reads
                    size_bytes = max(size_bytes, sum([len(message.body) for message in effect.messages]))
                self.outstanding_count += 1
                self.outstanding_bytes += size_bytes
                permissions = (effect.who or self.principal).permissions
                excess = None
                if self.pace is not None:
                    excess = self.pace.publish(len(effect.messages), size_bytes, now_ms=now_ms())
                if excess is not None:
                    self.hub.ingest.publish(
                        self, effect, size_bytes, dict.fromkeys(range(len(effect.messages)), excess)
                    )
                elif permissions.access is None:
                    self.hub.ingest.publish(self, effect, size_bytes)
                else:
                    self.hub.ingest.publish(self, effect, size_bytes, permissions.refused(effect.messages))
                size_bytes = 0
            else:
                _HANDLERS[type(effect)](self, effect)
        while self.answers and not self.gone:
            token, outcome = self.answers.pop(0)
            self.guard(partial(self._complete, token, outcome))

    def _complete(self, token: Token, outcome: Outcome) -> None:
        self.act(self.adapter.completed(token, outcome, now_ms=now_ms()))

    def _subscribe(self, effect: Subscribe) -> None:
        permissions = (effect.who or self.principal).permissions
        begun = self.hub.fanout.subscribe(
            self.subscriber, effect.sub, effect.pattern, effect.start, where=effect.where, permissions=permissions
        )
        if effect.token is not None:
            self.guard(partial(self._complete, effect.token, Outcome(value=begun)))

    def _unsubscribe(self, effect: Unsubscribe) -> None:
        self.hub.fanout.unsubscribe(self.subscriber, effect.sub)

    def _settled(self, effect: Settled) -> None:
        if self.has_session:
            self.hub.sessions.settled(self, effect.oldest)
        self.hub.fanout.wake(self.subscriber)

    def _consume(self, effect: Consume) -> None:
        self.consumers.add(effect.consumer)
        self.hub.consume(self, effect)

    def _settle_leased(self, effect: SettleLeased) -> None:
        self.hub.settle(self, effect)

    def _ready(self, effect: Ready) -> None:
        self.hub.queues.ready(self, effect)

    def _cancel(self, effect: Cancel) -> None:
        self.consumers.discard(effect.consumer)
        self.hub.queues.cancel(self, effect)

    def _call(self, effect: Call) -> None:
        self.hub.call(self, effect)

    def _give_up(self, effect: GiveUp) -> None:
        self._gave_up = True
        for waits in (self.hub.groups.waits, self.hub.finds.waits):
            waits.give_up(self, effect.token)

    def _close(self, effect: Close) -> None:
        if effect.again and (client := self.principal.permissions.identity.client_id):
            self.hub.reconnect_penalty.note(self.reconnecting_client(client), effect.reason, now_ms=now_ms())
        self.close(effect.reason)

    # ---- to the adapter

    def completed(self, token: Token, outcome: Outcome) -> None:
        """Tells the adapter how an effect ended."""
        if self._gave_up:
            for waits in (self.hub.groups.waits, self.hub.finds.waits):
                waits.answered(self, token)
        if not self.gone:
            self.guard(partial(self._complete, token, outcome))
            self.flush()

    def published(self, token: Token, outcome: Outcome, size_bytes: int) -> None:
        """Tells the adapter how a `Publish` ended."""
        self.outstanding_count -= 1
        self.outstanding_bytes -= size_bytes
        if isinstance(outcome.error, OwnershipLost):
            self.supersede()  # the session's new owner finds the outcome
        else:
            self.completed(token, outcome)
        if self.unanswered is not None:
            self.all_answered()

    def all_answered(self) -> None:
        """Tells the waiting callers when no publish is in flight."""
        if self.unanswered is not None and not self.outstanding_count:
            self.unanswered.set_result(None)
            self.unanswered = None

    async def answered(self) -> None:
        """Waits until nothing that was published is in flight."""
        if self.outstanding_count:
            self.unanswered = self.unanswered or asyncio.get_running_loop().create_future()
            await asyncio.shield(self.unanswered)

    def deliver(self, deliveries: Deliverable) -> int:
        """Offers deliveries, and returns how many were taken."""
        if self.gone or not (self.writable or _is_told(deliveries)):
            return 0
        taken = self._offer(deliveries)
        self.flush()
        if taken:
            count(self.hub.metrics, self.flow, deliveries, taken, self.hub.controller.topic_of_queue)
        return taken

    def _offer(self, deliveries: Deliverable) -> int:
        """Does what `guard` does, without a closure for each delivery."""
        try:
            return self.adapter.deliver(deliveries, now_ms=now_ms())
        except Exception:  # noqa: BLE001 - our own bug, whatever it is, must not reach other connections
            self._failed()
            return 0

    def resumed(self) -> None:
        """Offers a peer that reads again the deliveries that it missed."""
        self.hub.fanout.wake(self.subscriber)
        for consumer in sorted(self.consumers):
            self.hub.queues.ready(self, Ready(consumer=consumer))

    def supersede(self) -> None:
        """Ends: another connection has taken over the session."""

    def shut_down(self) -> None:
        """Ends: the gateway shuts down."""

    def guard(self, work: Callable[[], None]) -> None:
        """Does something with the adapter; if it raises, this endpoint ends and nothing else does."""
        try:
            work()
        except Exception:  # noqa: BLE001 - our own bug, whatever it is, must not reach other connections
            self._failed()

    def _failed(self) -> None:
        """Ends this endpoint, whose adapter has raised the exception that is being handled."""
        log.exception("an adapter failed", protocol=self.protocol, endpoint=self.id)
        self.close("internal error")


_HANDLERS: dict[type, Any] = {
    Subscribe: Endpoint._subscribe,  # noqa: SLF001 - this class's own table
    Unsubscribe: Endpoint._unsubscribe,  # noqa: SLF001
    Settled: Endpoint._settled,  # noqa: SLF001
    Consume: Endpoint._consume,  # noqa: SLF001
    SettleLeased: Endpoint._settle_leased,  # noqa: SLF001
    Ready: Endpoint._ready,  # noqa: SLF001
    Cancel: Endpoint._cancel,  # noqa: SLF001
    Call: Endpoint._call,  # noqa: SLF001
    GiveUp: Endpoint._give_up,  # noqa: SLF001
    Close: Endpoint._close,  # noqa: SLF001
    HandOver: lambda endpoint, effect: endpoint.hand_over(effect),
}


def _is_told(deliveries: Deliverable) -> bool:
    """Returns whether something is offered once, and has a few bytes: whatever else the peer has not read."""
    return isinstance(deliveries, ConsumerCancelled) or (isinstance(deliveries, Deliveries) and not deliveries.picks)
