"""Push in one process: the requests about subscriptions, and the subscriptions that it runs."""

import asyncio
from collections.abc import Coroutine, Iterable
from random import Random
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.delivery.fanout import Fanout
from gateway.ownership.owners import Owners
from gateway.port.push import SinkFactory
from gateway.publishing.ingest import Ingest
from gateway.push.context import AttemptLimit, HeldBudget, PushContext, Totals
from gateway.push.guard import SinkGuard
from gateway.push.http_kind import HttpKind
from gateway.push.manager import PushManager
from gateway.push.registry import PushRegistry
from gateway.push.sender import SinkKind, SinkKinds
from gateway.push.settings import SubscriptionsConfig
from gateway.push.trust import SinkTrust
from gateway.security.access_control import AccessControl
from store.api.client import StoreClient
from store.base.clock import now_ms

ORIGIN: Final = "headgate"  # of WebHook-Request-Origin, where the configuration does not say
ID_BITS: Final = 96  # of a subscription's id: too many to guess one


class PushHost(Protocol):
    """The interface to the gateway that push needs."""

    store: StoreClient
    fanout: Fanout
    owners: Owners
    access: AccessControl
    ingest: Ingest

    @property
    def random(self) -> Random:
        """Returns the source of chance."""

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Runs a coroutine as a supervised task."""


class Push:
    """Subscriptions and their deliveries. It belongs to the event loop."""

    def __init__(self, host: PushHost, config: SubscriptionsConfig) -> None:
        guard, chance = SinkGuard(config), host.random
        self._kinds: dict[str, SinkKind] = {"HTTP": HttpKind()}
        self.registry = PushRegistry(
            host.store,
            config,
            guard,
            self._kinds,
            new_id=lambda: f"{chance.getrandbits(ID_BITS):024x}",
            now_ms=now_ms,
            owner=host.access.owner,
        )
        self._manager: PushManager | None = None
        self._host = host
        self._config = config
        self._guard = guard

    def speak(self, kinds: SinkKinds) -> None:
        """Adds protocols of sinks, before the first request for a subscription."""
        self._kinds.update(kinds)

    def start(self, codec: SinkFactory, registry: CollectorRegistry) -> None:
        """Runs the subscriptions that are not another process's; `codec` writes their events."""
        host, config = self._host, self._config
        context = PushContext(
            store=host.store,
            fanout=host.fanout,
            codec=codec,
            config=config,
            guard=self._guard,
            budget=HeldBudget(config.held_bytes_max),
            totals=Totals(),
            attempts=AttemptLimit(config.attempts_max),
            trust=SinkTrust(config.ca_file),
            origin=config.origin or ORIGIN,
            publish=host.ingest.publish,
            check_publisher=host.access.check_publisher,
            now_ms=now_ms,
            chance=host.random,
        )
        self._manager = PushManager(
            context, host.owners, self._kinds, permissions_of=host.access.permissions_of, spawn=host.spawn
        )
        registry.register(_Figures(context, self._manager))
        self._manager.start()

    async def stop(self) -> None:
        """Lets deliveries in flight end, and lets other processes go on."""
        if self._manager is not None:
            await self._manager.stop()


class _Figures(Collector):
    """The metrics of the subscriptions that this process runs."""

    def __init__(self, context: PushContext, manager: PushManager) -> None:
        self._context = context
        self._manager = manager

    def collect(self) -> Iterable[Metric]:
        """Returns a family for each figure."""
        events = CounterMetricFamily(
            "headgate_push_events",
            'Events of subscriptions that are settled: "delivered", "dead", "expired" or "looped"',
            labels=["how"],
        )
        totals = self._context.totals
        for how in ("delivered", "dead", "expired", "looped"):
            events.add_metric([how], getattr(totals, how))
        failed = CounterMetricFamily("headgate_push_failed_attempts", "Deliveries to sinks that failed")
        failed.add_metric([], totals.failed)
        held = GaugeMetricFamily("headgate_push_held_bytes", "Events in flight to sinks, or waiting for an attempt")
        held.add_metric([], self._context.budget.held_bytes)
        running: dict[str, int] = dict.fromkeys(("pending", "active", "failing", "paused", "gone"), 0)
        for one in self._manager.deliveries:
            running[one.state] += 1
        states = GaugeMetricFamily("headgate_push_subscriptions", "Subscriptions run here", labels=["state"])
        for state, count in running.items():
            states.add_metric([state], count)
        return events, failed, held, states
