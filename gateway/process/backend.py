"""The backend of a gateway process: a store and a controller, in this process or across a network."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom
from typing import Any, Protocol

from controller.api.client import HOME_GROUP, ControllerClient
from controller.api.commands import ClusterLimits
from controller.api.names import no_group
from controller.api.requests import AskService
from controller.disk.known import KnownControllers
from controller.elections.health import ClusterHealth, GroupHealth, cluster_health, group_health
from controller.elections.registry import GroupRoute
from controller.node.local import LocalController
from controller.remote.finding import find, keep
from controller.remote.remote import RemoteController
from gateway.config.config import Config
from gateway.config.nodes import node_credentials
from gateway.ops.health_watch import GroupWatch
from gateway.ops.lost_watch import LostWatch
from gateway.ops.metrics import Metrics
from gateway.ops.status import DamageStatus, GroupStatus, LogStatus, ScrubStatus, ViewDamageStatus
from gateway.ownership.cluster_owners import ClusterOwners
from gateway.ownership.owners import LocalOwners, Owners
from gateway.process.metadata_check import check_alone, check_metadata
from gateway.process.store_figures import StoreFigures, topic_names
from gateway.process.store_options import naming_remedy, store_options
from store.api.client import StoreClient
from store.api.lost_status import LostList
from store.base import logs
from store.base.clock import now_ms
from store.base.errors import StoreError, StoreUnreachable
from store.base.expiry import expiry_warnings
from store.cluster.agreement import MetadataAgreement
from store.cluster.cluster import ClusterStore, connect_remote
from store.cluster.store_groups import Connect
from store.format.frame import LogOffset
from store.local.local import LocalStore
from store.reach.reporter import Reporter

NAMED_DIGITS = 16  # of the hash of the controllers that are named, in the name of a file

log = logs.get(__name__)


class Backend(Protocol):
    """The store and the controller of a gateway process, and their status."""

    @property
    def store(self) -> StoreClient:
        """The log, or all logs of a cluster."""

    @property
    def controller(self) -> ControllerClient:
        """The metadata."""

    @property
    def owners(self) -> Owners:
        """Returns the owners of sessions and queues among the processes on the same store."""

    @property
    def where(self) -> str:
        """Returns the location in words for people: a directory, or the controllers' addresses."""

    @property
    def alive(self) -> bool:
        """False when only a restart helps."""

    @property
    def ended(self) -> "asyncio.Future[Any] | None":
        """Returns a future that is set to the error for which the process has to stop; None: there can be none."""

    @property
    def makes_views_anew(self) -> bool:
        """Returns whether the store has damaged views that are made anew when it is opened again."""

    def troubles(self) -> Sequence[str]:
        """Returns the reasons why it cannot serve now."""

    def warnings(self) -> Sequence[str]:
        """Returns the faults that do not keep it from serving, a line each."""

    @property
    def low_disk(self) -> bool:
        """Returns whether a disk has little room, so that publishes may be refused soon."""

    def log(self) -> LogStatus:
        """Returns the positions of the log; in a cluster the home group's."""

    def damages(self) -> Sequence[DamageStatus]:
        """Returns the known damage on this process's disk."""

    async def lost(self) -> LostList:
        """Returns the messages that damage has taken, of a cluster as far as they are known. Raises `StoreError`."""

    def damaged_views(self) -> Sequence[ViewDamageStatus]:
        """Returns the known damage in the views on this process's disk."""

    def scrub(self) -> ScrubStatus:
        """Returns the progress of the search for damage."""

    def groups(self) -> Sequence[GroupStatus]:
        """Returns the store groups of a cluster."""

    def begin_timers(self) -> None:
        """Lets the timers of a store in this process fire: the wills that wait in them have been looked at."""

    def watch(self, metrics: Metrics) -> None:
        """Adds the log's figures to the metrics."""


class LocalBackend(StoreFigures):
    """The backend with store and controller in this process."""

    def __init__(self, config: Config, store: LocalStore, controller: LocalController) -> None:
        super().__init__(store, controller.topics)
        self.controller = controller
        self.owners: Owners = LocalOwners(store)
        self.where = str(config.store.data_dir)

    @property
    def metadata_failed(self) -> bool:
        """See `StoreFigures`."""
        return self.controller.error is not None

    def troubles(self) -> Sequence[str]:
        """See `Backend`."""
        metadata = self.controller.trouble
        return [*([] if metadata is None else [metadata]), *super().troubles()]

    def groups(self) -> Sequence[GroupStatus]:
        """See `Backend`: there is one, with one member."""
        return ()


class ClusterBackend:
    """Store groups and controllers elsewhere: this process keeps nothing."""

    def __init__(
        self,
        config: Config,
        store: ClusterStore,
        controller: RemoteController,
        watch: GroupWatch | None = None,
        credentials: Any = None,
        *,
        ended: "asyncio.Future[Any] | None" = None,
    ) -> None:
        """Takes `watch`, which knows the controllers' heartbeats; without it their metadata has to do."""
        self.ended = ended
        self._credentials = credentials
        self.store = store
        self.controller = controller
        self._watch = watch
        self._proxies = ClusterOwners(
            store,
            ttl_s=config.proxy.ttl_s,
            random=SystemRandom(),
            service=lambda: controller.do(AskService(group=controller.home)),
            outage_s=config.proxy.outage_s,
        )
        self.owners: Owners = self._proxies
        self._lost = LostWatch(
            controller.groups,
            self._routes,
            lambda: store.reached,
            lambda: topic_names(controller.topics()),
        )
        self.alive = True
        self.makes_views_anew = False  # the stores do so themselves
        self.where = ", ".join(config.cluster.controllers.values())

    def troubles(self) -> Sequence[str]:
        """See `Backend`. Controllers that do not answer are only a warning: the present masters and topics go on.

        Nor is one store group of several that takes nothing: it takes nothing from clients of other proxies either.
        """
        found = list(self._health().reasons)
        if self.controller.distrust:
            found.append(self.controller.distrust)
        if not self._proxies.presence.present:
            found.append("this proxy is not one of the others: sessions are refused")
        return found

    def warnings(self) -> Sequence[str]:
        """See `Backend`."""
        unfollowed = []
        if self.controller.leaderless:
            unfollowed.append("the controllers have no leader: no elections, no new topics")
        elif not self.controller.connected:
            unfollowed.append("no controller answers: no elections, no new topics")
        expiry = expiry_warnings(self._credentials, time.time())
        watched = [] if self._watch is None else self._watch.warnings
        return [*self._health().warnings, *self._lost.words(), *unfollowed, *watched, *expiry]

    @property
    def low_disk(self) -> bool:
        """See `Backend`: of any group whose master is alive."""
        return any(group.low for group in self._groups())

    def _health(self) -> ClusterHealth:
        return cluster_health(self._groups(), home=self.controller.home)

    def _groups(self) -> Sequence[GroupHealth]:
        gone, troubles = set(self.store.unreachable), self.store.troubles
        routes = self._routes()
        return [
            group_health(
                group,
                routes.get(group.number),
                reached=group.number not in gone,
                refused=troubles.get(group.number, ""),
            )
            for group in self.controller.groups()
        ]

    def _routes(self) -> Mapping[int, GroupRoute]:
        return {} if self._watch is None else self._watch.routes

    def log(self) -> LogStatus:
        """See `Backend`."""
        try:
            confirmed = self.store.log.confirmed
        except StoreError:  # never reached yet
            confirmed = LogOffset(0)
        return LogStatus(end=confirmed, confirmed=confirmed, pending_bytes=self.store.log.pending_bytes)

    def damages(self) -> Sequence[DamageStatus]:
        """See `Backend`: store nodes report their own."""
        return ()

    async def lost(self) -> LostList:
        """See `Backend`."""
        await self._lost.settle()
        return self._lost.list()

    def damaged_views(self) -> Sequence[ViewDamageStatus]:
        """See `Backend`: store nodes report their own."""
        return ()

    def scrub(self) -> ScrubStatus:
        """See `Backend`."""
        return ScrubStatus()

    def begin_timers(self) -> None:
        """See `Backend`: the stores of a cluster fire theirs, whether proxies run or not."""

    def groups(self) -> Sequence[GroupStatus]:
        """See `Backend`."""
        gone = set(self.store.unreachable)
        return [
            GroupStatus(
                number=group.number,
                master=group.master,
                master_epoch=group.master_epoch,
                sync_set=group.sync_set,
                sync_epoch=group.sync_epoch,
                reached=group.number not in gone,
                writable=health.writable,
                troubles=(*health.refusals, *health.warnings),
                lost_messages=loss.messages,
                lost_unknown=loss.uncounted,
            )
            for group, health, loss in zip(self.controller.groups(), self._groups(), self._lost.losses(), strict=True)
        ]

    async def close(self) -> None:
        """Ends the look for lost messages."""
        await self._lost.close()

    def watch(self, metrics: Metrics) -> None:
        """See `Backend`."""
        metrics.watch_log(
            end=lambda: self.log().end,
            confirmed=lambda: self.log().confirmed,
            pending=lambda: self.store.log.pending_bytes,
        )
        metrics.watch_groups(self._groups, self._lost.losses)
        metrics.watch_damage(damages=lambda: sum(one.damages for one in self._groups()), scrubbed=None)


@asynccontextmanager
async def local_backend(config: Config) -> AsyncIterator[LocalBackend]:
    """Opens store and controller in the data directory. Raises `StoreError`, `ControllerError`, OSError."""
    said = config.store
    directory = said.data_dir / "controller"
    await asyncio.to_thread(check_alone, config, directory)
    with naming_remedy(said.data_dir):
        store = await LocalStore.open(said.data_dir, group=said.group, hold_timers=True, **store_options(said))
    async with store:
        controller = LocalController.open(directory, limits=metadata_limits(config), now_ms=now_ms)
        try:
            await check_metadata(store, controller, directory)
            yield LocalBackend(config, store, controller)
        finally:
            await controller.close()


@asynccontextmanager
async def cluster_backend(config: Config) -> AsyncIterator[ClusterBackend]:
    """Reaches a cluster; waits for its controllers and the master of its home group as long as that takes."""
    cluster, proxy = config.cluster, config.proxy
    credentials = node_credentials(cluster, host="localhost", key="cluster").channel
    addresses = list(cluster.controllers.values())
    controller = RemoteController(addresses, now_ms=now_ms, limits=metadata_limits(config), credentials=credentials)
    agreement = MetadataAgreement(controller)
    try:
        await _found(controller, addresses, proxy.state_dir)
        connect = connect_remote(
            controller,
            zone=cluster.zone if proxy.read_from == "nearest" else None,
            credentials=credentials,
            budget_s=proxy.failover_s,
            pending_bytes_max=config.store.pending_bytes_max,
            agree=agreement.check,
        )
        async with await _reached(controller, connect, agreement) as store, GroupWatch(controller).looking() as watch:
            reporter = Reporter(
                controller,
                lambda: store.logs,
                controller.do,
                now_ms=lambda: time.monotonic_ns() // 1_000_000,
                credentials=credentials,
            )
            reporting = asyncio.create_task(reporter.run(), name="which masters are reached")
            backend = ClusterBackend(config, store, controller, watch, credentials, ended=agreement.went_back)
            try:
                yield backend
            finally:
                await backend.close()
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
    finally:
        await agreement.close()
        await controller.close()


def kept_for(state_dir: Path, named: Iterable[str]) -> Path:
    """Returns the file with the last addresses of the controllers that were learned from the named ones.

    Each set of named ones has its own: those of another configuration may be of another cluster.
    """
    about = hashlib.sha256("\n".join(sorted(named)).encode()).hexdigest()
    return state_dir / f"controllers-{about[:NAMED_DIGITS]}"


async def _found(controller: RemoteController, named: Sequence[str], state_dir: Path | None) -> None:
    """Waits for a controller, and keeps in `state_dir` where they are. Raises `ControllerClosed`."""
    if state_dir is None:
        await controller.ready()
        return
    try:
        await asyncio.to_thread(state_dir.mkdir, parents=True, exist_ok=True)
    except OSError as error:
        log.warning("proxy.state_dir cannot be made: where controllers are is not kept", error=str(error))
    known = await asyncio.to_thread(KnownControllers, kept_for(state_dir, named))
    await find(controller, known)
    keep(controller, known)


async def _reached(controller: RemoteController, connect: Connect, agreement: MetadataAgreement) -> ClusterStore:
    """Returns all groups, as soon as the home group answers: the nodes of a cluster may be started in any order.

    Raises `MetadataWentBack`.
    """
    while True:
        try:
            return await ClusterStore.open(controller, connect)
        except StoreUnreachable as error:
            if agreement.went_back.done():
                raise agreement.went_back.result() from error
            missing = no_group(HOME_GROUP) if controller.group(HOME_GROUP) is None else str(error)
            log.warning("waiting for the home store group", error=missing)


def metadata_limits(config: Config) -> ClusterLimits:
    """Returns the limits of the cluster's metadata."""
    topics = config.topics
    return ClusterLimits(
        topics_max=topics.topics_max,
        topics_per_creator_max=topics.topics_per_user_max,
        default_queues=topics.default_queues,
    )
