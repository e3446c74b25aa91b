"""`headgate store`: a replica of a store group in a process of its own."""

import errno
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from controller.api.client import Group
from controller.api.names import no_group
from controller.disk.known import KnownControllers
from controller.elections.health import group_health
from controller.elections.registry import Heartbeat
from controller.remote.finding import find, keep
from controller.remote.heartbeats import Heartbeats
from controller.remote.remote import RemoteController
from store.api.lost_status import LostStatus
from store.base import logs
from store.base.admin import AdminAddress, AdminServer, AdminSettings, ReadyState, process_registry
from store.base.clock import now_ms
from store.base.expiry import expiry_warnings
from store.base.process_errors import ServerFailed, cannot_listen
from store.base.runner import ServerRun, run_server
from store.engine.lost_words import LostWords
from store.integrity.figures import LostFigures, RepairFigures
from store.node.master_role import MasterRole
from store.node.node import StoreNode
from store.node.repair.repairer import OpenDamageStatus
from store.node.replacing import why_diverged
from store.node.replica.identity import why_retired
from store.node.replica_role import ReplicaRole
from store.node.settings import Credentials, NodeSettings

CONTROLLERS_FILE = "controllers"  # in the data directory: where they were last
_OF_PORTS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})  # errors that no file has
REPLICA = "slave"  # the role of a replica that is not master in `/status` and in a metric's name: monitoring reads it

log = logs.get(__name__)


class StoreStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A store node's status. `lag_bytes`: how much of a master's log each replica does not have; empty on a replica."""

    version: str
    ready: bool
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    uptime_s: float
    data_dir: str
    address: str
    cluster: str  # the ids of cluster and log, as far as the node knows them
    log: str
    group: int
    replica: int | None
    role: str  # "master", `REPLICA`, "changing", "failed"
    stage: str  # of a replica: its current state
    master: int | None
    master_epoch: int
    promised_epoch: int
    epochs: tuple[tuple[int, int], ...]  # the newest: epoch, and where it began
    sync_set: tuple[int, ...]
    sync_epoch: int
    log_first: int
    log_end: int
    flushed: int
    confirmed: int
    lag_bytes: Mapping[int, int]
    refusal: str
    damages: tuple[OpenDamageStatus, ...]  # open ones, with the replica each is being repaired from
    lost: tuple[LostStatus, ...] = ()  # the messages that no replica has
    lost_more: int = 0  # ranges of them that are left out
    sessions: int
    controllers: int


class StoreRun(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one store node. It asks `controllers` first, each "host:port"."""

    node: NodeSettings
    controllers: tuple[str, ...] = ()
    credentials: Credentials = Credentials()
    admin: AdminSettings = AdminAddress("127.0.0.1", 0)


class _Process:
    """The node with its controllers, metrics and admin port."""

    def __init__(self, options: StoreRun) -> None:
        self._options = options
        self._settings = options.node
        self._credentials = options.credentials
        self._began_s = time.monotonic()
        self.node: StoreNode | None = None
        self._heartbeats: Heartbeats | None = None
        self.controller: RemoteController | None = None
        self._known = KnownControllers(options.node.data_dir / CONTROLLERS_FILE)
        self._stopping = False
        self._lost: LostWords | None = None  # of the store as it is open now

    async def run(self, run: ServerRun) -> None:
        """Runs the node until it is asked to stop. Raises `ServerFailed`, `StoreError`."""
        settings = self._settings
        if settings.listen.endswith(":0") and not settings.advertise:
            log.info("rpc.port is 0: this node has another address after every restart")
        admin = await self._admin()
        run.stack.push_async_callback(admin.stop)
        controller = self.controller = RemoteController(
            self._options.controllers,
            now_ms=now_ms,
            credentials=self._credentials.channel,
        )
        run.stack.push_async_callback(controller.close)
        try:
            node = self.node = await run.start(self._start(controller))
            run.stack.push_async_callback(node.close)
            keep(controller, self._known)
            run.settle()
            assert node.identity is not None
            log.info(
                "ready",
                group=settings.group,
                replica=node.identity.id,
                address=node.address,
                admin_port=admin.port,
                data_dir=str(settings.data_dir),
            )
            await run.stopped.wait()
        finally:
            self._stopping = True

    async def _start(self, controller: RemoteController) -> StoreNode:
        try:
            await find(controller, self._known)
            return await StoreNode.start(
                self._settings,
                controller,
                lambda heartbeats, changed: self._connect(controller, heartbeats, changed),
                credentials=self._credentials,
            )
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno in _OF_PORTS:
                listening = self._settings.listen
                raise ServerFailed(cannot_listen("rpc", listening, error)) from error
            raise ServerFailed(f"{error.filename or 'store'}: {error.strerror or error}") from error

    def _connect(
        self,
        controller: RemoteController,
        heartbeats: Callable[[], Sequence[Heartbeat]],
        changed: Callable[[Group], None],
    ) -> Heartbeats:
        self._heartbeats = Heartbeats(
            [self._settings.group],
            controller.addresses,
            heartbeats,
            changed,
            cluster=lambda: controller.cluster,
            credentials=self._credentials.channel,
        )
        return self._heartbeats

    # ---- status and metrics

    async def _admin(self) -> AdminServer:
        return await AdminServer.start(
            self._options.admin, ready=self.ready, status=self.full_status, registry=_metrics(self)
        )

    def ready(self) -> ReadyState:
        """Returns whether it serves in a role, and if not, why."""
        node, group = self.node, self._settings.group
        distrust = "" if self.controller is None else self.controller.distrust
        reasons = [distrust] * bool(distrust)
        if self._stopping:
            reasons.append("shutting down")
        elif node is None:
            reasons.append(self._unregistered())
        elif node.failed.done():
            reasons.append(f"the store has failed: {node.failed.result()}")
        elif node.identity is not None and self.controller is not None and self.controller.group(group) is None:
            reasons.append(f"store group {group} was removed from the cluster: stop this store")
        elif reason := node.withdrawn or _role_reason(node):
            reasons.append(reason)
        if node is not None and node.disk.full and not node.failed.done():
            reasons.append("the disk is full: nothing is written until it has room (store.disk_reserve_bytes)")
        repairer = None if node is None else node.repairer
        if repairer is not None and repairer.needs_repair and (repairer.damages or repairer.unusable):
            reasons.append(self._with_lost(repairer.describe()))
        failed = node is not None and node.failed.done()
        warnings = expiry_warnings(self._credentials.channel, time.time())
        warnings += () if node is None else _warnings(node, self._with_lost)
        return ReadyState(ready=not reasons, reasons=tuple(reasons), alive=not failed, warnings=warnings)

    def lost_words(self) -> LostWords | None:
        """Returns the words for lost messages of the store that is open now."""
        store = None if self.node is None else self.node.disk.store
        if store is None:
            self._lost = None
        elif self._lost is None or self._lost.store is not store:
            self._lost = LostWords(store, self._topics)
        return self._lost

    def _topics(self) -> Mapping[int, str]:
        controller = self.controller
        return {} if controller is None else {one: topic.name for topic in controller.topics() for one in topic.queues}

    def _with_lost(self, words: str) -> str:
        """Returns words on damage with the messages that no replica has."""
        lost = self.lost_words()
        known = self.node is not None and self.node.repairer is not None and self.node.repairer.lost_bytes
        return f"{words}; {lost.words()}" if lost is not None and known else words

    async def full_status(self) -> StoreStatus:
        """Returns the document of /status with the messages that are lost."""
        lost = self.lost_words()
        if lost is None:
            return self.status()
        found = await lost.all()
        return msgspec.structs.replace(self.status(), lost=tuple(found.ranges), lost_more=found.more)

    def _unregistered(self) -> str:
        """Returns why there is no node yet."""
        controller, group = self.controller, self._settings.group
        if controller is not None and controller.trouble:
            return f"not registered with the controllers yet: no controller is reached: {controller.trouble}"
        if controller is not None and controller.connected and controller.index and controller.group(group) is None:
            return no_group(group)
        return "not registered with the controllers yet"

    def status(self) -> StoreStatus:
        """Returns the document of /status, without lost messages, which have to be looked up."""
        node, state, store = self.node, self.ready(), self._settings
        role = None if node is None else node.role
        disk = None if node is None else node.disk
        group = None if node is None else node.group
        core = None if role is None else role.core
        return StoreStatus(
            version=version("headgate"),
            ready=state.ready,
            reasons=state.reasons,
            warnings=state.warnings,
            uptime_s=round(time.monotonic() - self._began_s, 3),
            data_dir=str(store.data_dir),
            address="" if node is None else node.address,
            cluster="" if node is None or node.identity is None else node.identity.cluster,
            log="" if disk is None else disk.log,
            group=store.group,
            replica=None if node is None or node.identity is None else node.identity.id,
            role=_role(node),
            stage=role.core.stage.name.lower() if isinstance(role, ReplicaRole) else "",
            master=None if group is None else group.master,
            master_epoch=0 if group is None else group.master_epoch,
            promised_epoch=0 if disk is None else disk.promised,
            epochs=() if disk is None else tuple((one.epoch, one.start) for one in disk.epochs.entries[-8:]),
            sync_set=() if group is None else group.sync_set,
            sync_epoch=0 if group is None else group.sync_epoch,
            log_first=0 if core is None else core.first,
            log_end=0 if core is None else core.end,
            flushed=0 if core is None else core.flushed,
            confirmed=0 if core is None else core.confirmed,
            lag_bytes=self.lags(),
            refusal=str(role.core.refusal or "") if isinstance(role, MasterRole) else "",
            damages=() if node is None or node.repairer is None else tuple(node.repairer.status),
            sessions=0 if node is None else node.service.sessions,
            controllers=0 if self._heartbeats is None else self._heartbeats.connected,
        )

    def lags(self) -> Mapping[int, int]:
        """Returns the bytes of the log that each replica does not have, as the master knows; none on a replica."""
        role = None if self.node is None else self.node.role
        if isinstance(role, MasterRole):
            end = role.core.end
            return {replica: max(end - at, 0) for replica, at in role.core.positions().items()}
        return {}

    def damages(self) -> float:
        """Returns how many ranges of the log are damaged."""
        store = None if self.node is None else self.node.disk.store
        return float(0 if store is None else len(store.damages))

    def view_damages(self) -> float:
        """Returns how many places of the views are damaged."""
        store = None if self.node is None else self.node.disk.store
        return float(0 if store is None else len(store.view_damages))

    def repaired(self) -> float:
        """Returns how many damaged ranges of the log were repaired."""
        store = None if self.node is None else self.node.disk.store
        return float(0 if store is None else store.damages_repaired)

    def lost(self) -> float:
        """Returns how many messages consumers skipped because damage has taken them."""
        store = None if self.node is None else self.node.disk.store
        return float(0 if store is None else store.messages_lost)

    def scrubbed(self) -> float:
        """Returns the log offset up to which the scrub has read."""
        store = None if self.node is None else self.node.disk.store
        return float(0 if store is None else store.scrubbed.at)

    def is_full(self) -> float:
        """Returns whether nothing is written for now, as the disk is full (1 or 0)."""
        return float(self.node is not None and self.node.disk.full)

    def value(self, name: str) -> float:
        """Returns a figure of `status`."""
        found = getattr(self.status(), name)
        return float(len(found) if isinstance(found, tuple) else found)


def _role_reason(node: StoreNode) -> str:
    """Returns why a node does not serve in its role, or ""."""
    role, group, identity = node.role, node.group, node.identity
    if group is not None and identity is not None and (retired := why_retired(group, identity.id)):
        return retired
    if isinstance(role, MasterRole):
        if not role.serving:
            return "about to be the master"
        return "" if role.core.refusal is None else f"writes are refused: {role.core.refusal}"
    if isinstance(role, ReplicaRole) and (diverged := why_diverged(role.core)):
        return diverged
    if not isinstance(role, ReplicaRole) or not role.streaming:
        return "not connected to a master"
    return "not in sync yet: catching up with the master" if _is_behind(node) else ""


def _is_behind(node: StoreNode) -> bool:
    """Returns whether a replica is to be in the SyncStateSet and is not."""
    group, identity = node.group, node.identity
    if group is None or identity is None:
        return True
    known = group.replica(identity.id)
    return known is not None and not known.learner and identity.id not in group.sync_set


def _warnings(node: StoreNode, with_lost: Callable[[str], str]) -> tuple[str, ...]:
    """Returns warnings of ranges that are lost for good; at the master, also of replicas that do not count."""
    repairer = node.repairer
    lost = (with_lost(repairer.describe()),) if repairer and repairer.damages and not repairer.needs_repair else ()
    if not isinstance(node.role, MasterRole) or node.group is None:
        return lost
    return (*lost, *group_health(node.group, None).warnings)


def _role(node: StoreNode | None) -> str:
    if node is not None and node.failed.done():
        return "failed"
    if node is None or node.role is None:
        return "changing"
    return "master" if node.role.master else REPLICA


_FIGURES = {
    "master_epoch": "The epoch of the group's newest master that is known here",
    "promised_epoch": "The newest epoch whose master is followed, or that is this node's",
    "sync_set": "Replicas in the SyncStateSet",
    "log_first": "Log offset of the first frame that is kept",
    "log_end": "Log offset behind the last frame",
    "flushed": "Log offset behind the last frame on this disk",
    "confirmed": "Log offset behind the last frame that readers may see",
    "sessions": "Clients that are connected",
    "controllers": "Controllers that receive this node's heartbeats",
}


def _metrics(process: _Process) -> CollectorRegistry:
    """Returns the metrics for Prometheus, asked of the node at each scrape."""
    registry = process_registry()
    for name, what in _FIGURES.items():
        Gauge(f"headgate_store_{name}", what, registry=registry).set_function(lambda name=name: process.value(name))  # type: ignore[misc]
    for role, what in (("master", "master"), (REPLICA, "a replica that is not master")):
        gauge = Gauge(f"headgate_store_{role}", f"Whether this node is {what} of its group", registry=registry)
        gauge.set_function(lambda role=role: float(process.status().role == role))  # type: ignore[misc]
    for name, what, value in (
        ("headgate_log_damages", "Ranges of the log that hold no valid frame", process.damages),
        ("headgate_scrub_bytes", "Log offset up to which the scrub has read in this pass", process.scrubbed),
        ("headgate_view_damages", "Known damage of the views", process.view_damages),
        ("headgate_store_full", "Whether the disk has no room for more", process.is_full),
    ):
        Gauge(name, what, registry=registry).set_function(value)
    registry.register(RepairFigures(process.repaired))
    registry.register(LostFigures(process.lost))
    lag = Gauge(
        "headgate_store_lag_bytes", "Bytes of the log that the replica furthest behind lacks", registry=registry
    )
    lag.set_function(lambda: float(max(process.lags().values(), default=0)))
    return registry


def serve(options: StoreRun) -> int:
    """Runs a store node in this process; the exit status. Raises `ServerFailed`, `StoreError`."""
    return run_server(lambda run: _Process(options).run(run))
