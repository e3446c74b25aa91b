"""The bridges of this process: of several proxies one runs each, and another one goes on when it dies.

The process that runs a bridge owns its name (`gateway.ownership.owners`). Before it connects upstream it raises the
name's fence in every log (`gateway.publishing.fences`): messages that a former owner still has in its buffers come
again from the upstream, and are stored once. Messages that a former owner has stored and not acknowledged are stored
again: a bridge is at least once.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.bridges.bridge import Bridge
from gateway.bridges.shared.addresses import DestinationMap
from gateway.bridges.shared.figures import Figures
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.storing import Store
from gateway.bridges.shared.upstream_stream import dial
from gateway.delivery.fanout import Fanout
from gateway.domain.session_user import SessionUser
from gateway.ops.status import BridgeStatus
from gateway.ownership.owned_task import OwnedTask
from gateway.ownership.owners import Owned, Owners, OwnershipLost
from gateway.port.adapter import AdapterFactory
from gateway.port.bridge import BridgeFactory, BrokerFactory, Scheme, UpstreamFilter, UpstreamSettings
from gateway.port.marks import Fence
from gateway.publishing.fences import fence_of, raise_fences
from store.api.client import StoreClient
from store.base import logs
from store.base.errors import StoreError
from store.base.process_errors import ConfigError

PREFIX = "bridge/"  # of the names that are owned
LOOK_S = 2.0  # between two looks whether a bridge is free, about
AGAIN_S = 5.0  # after a failure that is our own
FENCE_S = 5.0  # that the logs have to take a fence before the bridge runs all the same

log = logs.get(__name__)


class AnyBridge(Protocol):
    """A bridge of any protocol."""

    name: str
    figures: Figures

    async def run(self, fence: Fence | None, owned: Owned) -> None:
        """Runs until cancelled, for the owner with that fence. Raises `OwnershipLost` when there is a later one."""


class BridgeHost(Protocol):
    """The interface to the gateway that bridges need."""

    @property
    def owners(self) -> Owners:
        """Returns the owners of names among the processes."""

    @property
    def store(self) -> StoreClient:
        """Returns the store that the bridges' messages go to."""

    @property
    def fanout(self) -> Fanout:
        """Returns the fan-out that forwarded messages come from."""

    @property
    def crowded(self) -> bool:
        """Returns whether so many bytes wait to be durable that no connection should be read."""

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Runs a coroutine as a supervised task."""


class Bridges:
    """All configured bridges. `adapters` are the factories by entry point, with their options."""

    def __init__(
        self,
        configs: Mapping[str, BridgeConfig],
        adapters: Mapping[str, tuple[AdapterFactory, Any]],
        gate: BridgeHost,
        *,
        store: Store,
        registry: CollectorRegistry,
        now_ms: Callable[[], int],
        message_bytes_max: int,
        gateway_id: str = "",
    ) -> None:
        """Raises `ConfigError` for a URL that no adapter speaks."""
        self._gate = gate
        self.runners: dict[str, _BridgeRunner] = {}
        chance = random.SystemRandom()
        makers = _makers(
            adapters,
            gate,
            _Parts(
                store=store,
                crowded=lambda: gate.crowded,
                now_ms=now_ms,
                chance=chance,
                message_bytes_max=message_bytes_max,
                gateway_id=gateway_id,
            ),
        )
        for name, config in configs.items():
            scheme = config.url.partition(":")[0].lower()
            if scheme not in makers:
                raise ConfigError(f"bridges.{name}.url: no adapter speaks {scheme!r}; write mqtt://host:port")
            self.runners[name] = _BridgeRunner(makers[scheme](name, config), gate.owners, gate.store, chance)
        if self.runners:
            registry.register(_Figures([keeper.bridge for keeper in self.runners.values()]))

    def start(self) -> None:
        """Runs those that are not another process's."""
        if self.runners:
            self._gate.owners.serve(PREFIX, self)
        for keeper in self.runners.values():
            keeper.task = self._gate.spawn(keeper.owned_task.run())

    async def stop(self) -> None:
        """Stops reading, and lets others go on. Stored messages are acknowledged."""
        for keeper in self.runners.values():
            if keeper.task is not None:
                keeper.task.cancel()
        await asyncio.gather(*(keeper.ended() for keeper in self.runners.values()))

    def status(self) -> tuple[BridgeStatus, ...]:
        """Returns the status of each bridge."""
        return tuple([_status(name, keeper.bridge) for name, keeper in self.runners.items()])

    # ---- `gateway.ownership.owners.OwnershipListener`

    async def on_release_requested(self, name: str, user: SessionUser | None) -> None:
        """See `OwnershipListener`."""
        if (keeper := self._keeper(name)) is not None:
            await keeper.owned_task.hand_over()

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """See `OwnershipListener`. It is free from now on: the first who looks runs it."""
        await (await take()).release()
        if (keeper := self._keeper(name)) is not None:
            keeper.owned_task.look_now()

    async def on_fenced(self) -> None:
        """See `OwnershipListener`."""
        for keeper in self.runners.values():
            keeper.owned_task.lose()

    def _keeper(self, name: str) -> "_BridgeRunner | None":
        return self.runners.get(name.removeprefix(PREFIX))


class _BridgeRunner:
    """Runs one bridge while this process owns its name."""

    def __init__(self, bridge: AnyBridge, owners: Owners, store: StoreClient, chance: random.Random) -> None:
        self.bridge = bridge
        self.task: asyncio.Task[None] | None = None
        self._store = store
        self._name = f"{PREFIX}{bridge.name}"
        self.owned_task = OwnedTask(self._name, self._run, owners, look_s=LOOK_S, chance=chance)

    async def ended(self) -> None:
        """Waits until its task has ended."""
        if self.task is not None:
            await asyncio.gather(self.task, return_exceptions=True)

    async def _run(self, owned: Owned) -> None:
        """Runs the bridge until it is not ours any more."""
        try:
            fence = await self._raise_fences(owned)
            log.info("bridge: runs here", bridge=self.bridge.name)
            await self.bridge.run(fence, owned)
        except OwnershipLost:
            raise
        except Exception:  # our own bug
            log.exception("bridge: failed", bridge=self.bridge.name)
            self.bridge.figures.error = "internal error; the log of the process says more"
            await asyncio.sleep(AGAIN_S)

    async def _raise_fences(self, owned: Owned) -> Fence | None:
        """Shuts the logs to former owners. A log that does not answer is shut by the first frame that it is sent."""
        try:
            async with asyncio.timeout(FENCE_S):
                return await raise_fences(self._store, self._name, owned)
        except (StoreError, TimeoutError) as error:
            log.warning(
                "bridge: a store group may take a former owner's messages", bridge=self._name, error=repr(error)
            )
            return fence_of(self._name, owned)


class _Figures(Collector):
    """The metrics of bridges that this process runs; the others' are theirs to say."""

    def __init__(self, bridges: Iterable[AnyBridge]) -> None:
        self._bridges = list(bridges)

    def collect(self) -> Iterable[Metric]:
        """Returns a family for each figure."""
        label = ["bridge"]
        connected = GaugeMetricFamily("headgate_bridge_connected", "1: connected and subscribed", labels=label)
        held = GaugeMetricFamily(
            "headgate_bridge_unacknowledged", "Messages not acknowledged, as they are not durable yet", labels=label
        )
        silent = GaugeMetricFamily(
            "headgate_bridge_last_message_age_seconds", "Since the last message was stored", labels=label
        )
        came = CounterMetricFamily(
            "headgate_bridge_messages",
            'Messages: "stored", or the cause of refusal',
            labels=[*label, "status"],
        )
        again = CounterMetricFamily("headgate_bridge_reconnects", "Connections after the first", labels=label)
        went = CounterMetricFamily(
            "headgate_bridge_forwarded_messages",
            'Messages for the upstream: "forwarded", "again", or why they are not',
            labels=[*label, "status"],
        )
        waiting = GaugeMetricFamily(
            "headgate_bridge_unconfirmed", "Messages that the upstream has not confirmed", labels=label
        )
        behind = GaugeMetricFamily(
            "headgate_bridge_behind_bytes", "Bytes of the log that are not forwarded yet", labels=label
        )
        for bridge in self._bridges:
            figures, name = bridge.figures, [bridge.name]
            connected.add_metric(name, float(figures.connected))
            held.add_metric(name, figures.unacknowledged)
            again.add_metric(name, max(0, figures.connects - 1))
            came.add_metric([*name, "stored"], figures.stored)
            for cause, count in figures.refused.items():
                came.add_metric([*name, cause], count)
            went.add_metric([*name, "forwarded"], figures.forwarded)
            for cause, count in figures.not_forwarded.items():
                went.add_metric([*name, cause], count)
            waiting.add_metric(name, figures.unconfirmed)
            if figures.behind_bytes is not None:
                behind.add_metric(name, figures.behind_bytes)
            if figures.here and figures.last_message_s is not None:
                silent.add_metric(name, time.monotonic() - figures.last_message_s)
        return connected, held, silent, came, again, went, waiting, behind


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the process that its bridges share."""

    store: Store
    crowded: Callable[[], bool]
    now_ms: Callable[[], int]
    chance: random.Random
    message_bytes_max: int
    gateway_id: str


_Maker: TypeAlias = Callable[[str, BridgeConfig], AnyBridge]


def _makers(
    adapters: Mapping[str, tuple[AdapterFactory, Any]], gate: BridgeHost, parts: _Parts
) -> Mapping[str, _Maker]:
    """Returns the factory of a bridge, by the scheme of its URL."""
    schemes: dict[str, Scheme] = {}
    makers: dict[str, _Maker] = {}
    for factory, options in adapters.values():
        if isinstance(factory, BridgeFactory):
            schemes.update(factory.schemes)
            makers.update(
                dict.fromkeys(
                    factory.schemes,
                    partial(_stream_bridge, factory=factory, options=options, schemes=schemes, parts=parts),
                )
            )
        if isinstance(factory, BrokerFactory):
            for name, scheme in factory.broker_schemes.items():
                makers[name] = partial(_amqp_bridge, factory=factory, scheme=scheme, gate=gate, parts=parts)
    return makers


def _stream_bridge(
    name: str,
    config: BridgeConfig,
    *,
    factory: BridgeFactory,
    options: Any,
    schemes: Mapping[str, Scheme],
    parts: _Parts,
) -> AnyBridge:
    terms = _terms(name, config, parts.message_bytes_max, parts.gateway_id)
    return Bridge(
        name,
        config,
        lambda: factory.upstream(terms, options),
        dial=lambda: dial(config, schemes),
        store=parts.store,
        crowded=parts.crowded,
        now_ms=parts.now_ms,
        chance=parts.chance,
    )


def _amqp_bridge(
    name: str, config: BridgeConfig, *, factory: BrokerFactory, scheme: Scheme, gate: BridgeHost, parts: _Parts
) -> AnyBridge:
    from gateway.bridges.amqp.bridge import AmqpBridge  # noqa: PLC0415 - aio-pika, for those that have such a bridge

    return AmqpBridge(
        name,
        config,
        scheme,
        factory.broker_codec(name, parts.gateway_id),
        fanout=gate.fanout,
        logs_of=gate.store,
        store=parts.store,
        crowded=parts.crowded,
        message_bytes_max=parts.message_bytes_max,
        now_ms=parts.now_ms,
        chance=parts.chance,
    )


def _terms(name: str, config: BridgeConfig, message_bytes_max: int, gateway_id: str) -> UpstreamSettings:
    subscriptions = config.subscriptions()
    return UpstreamSettings(
        bridge=name,
        client_id=config.client_id or f"headgate-{name}",
        username=config.username,
        password=None if config.password is None else config.password.reveal(),
        version=config.version,
        clean=config.clean,
        session_expiry_s=config.session_expiry_s,
        keep_alive_s=config.keep_alive_s,
        answer_timeout_ms=int(config.connect_timeout_s * 1_000),
        receive_maximum=config.receive_maximum,
        pending_bytes_max=config.pending_bytes_max,
        message_bytes_max=message_bytes_max,
        wanted=[UpstreamFilter(one.pattern, one.qos) for one in subscriptions],
        destination_of=DestinationMap(name, subscriptions),
        gateway=gateway_id,
    )


def _status(name: str, bridge: AnyBridge) -> BridgeStatus:
    figures = bridge.figures
    last_s = figures.last_message_s
    return BridgeStatus(
        name=name,
        here=figures.here,
        connected=figures.connected,
        stored=figures.stored,
        refused=dict(figures.refused),
        unacknowledged=figures.unacknowledged,
        reconnects=max(0, figures.connects - 1),
        forwarded=figures.forwarded,
        not_forwarded=dict(figures.not_forwarded),
        unconfirmed=figures.unconfirmed,
        behind_bytes=figures.behind_bytes,
        last_message_age_s=None if last_s is None else round(time.monotonic() - last_s, 3),
        error=figures.error,
    )
