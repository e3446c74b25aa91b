"""`headgate controller`: one of the cluster's controllers in a process of its own."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from controller.client import ControllerError
from controller.front import Limits
from controller.migration import RAFT
from controller.node import ControllerNode
from controller.raft import Settings
from controller.service import ControllerService
from controller.wire import COMMAND_BYTES_MAX
from gateway import logs
from gateway.admin import AdminServer, ReadyState
from gateway.cluster_settings import ClusterConfig, NodeAddress
from gateway.config import Config, is_loopback
from gateway.endpoint import now_ms
from gateway.errors import ConfigError, HeadgateError, cannot_listen
from gateway.file_limit import raise_file_limit
from gateway.signals import stop_on_signals
from store.credentials import CredentialFiles
from store.integrity.presence import PRESENCE_LOOK_S, identity_of

__all__ = ["ControllerFailed", "NodeCredentials", "node_credentials", "place", "run", "serve"]

log = logs.get(__name__)


class ControllerFailed(HeadgateError):
    """The controller cannot start, or cannot go on."""


class NodeCredentials(NamedTuple):
    """gRPC credentials of a node, both None where nodes do not prove who they are."""

    server: Any
    channel: Any


def node_credentials(cluster: ClusterConfig, *, host: str, key: str) -> NodeCredentials:
    """The credentials of a node that listens on `host`, as the key `key` says.

    Raises `ConfigError` for files that cannot be used, and for an address beyond this machine without them.
    """
    tls = cluster.tls
    if tls.cert_file is None or tls.key_file is None or tls.ca_file is None:
        if not cluster.insecure and not is_loopback(host):
            raise ConfigError(
                f"{key}: {host} can be reached from other machines; write [cluster.tls], or cluster.insecure = true"
            )
        return NodeCredentials(None, None)
    files = CredentialFiles(tls.cert_file, tls.key_file, tls.ca_file)
    try:
        return NodeCredentials(files.server(), files.channel())
    except OSError as error:
        raise ConfigError(f"cluster.tls: {error.filename} cannot be read: {error.strerror}") from error


class _Place(NamedTuple):
    """Which controller this is, where, and among whom."""

    address: str
    members: Mapping[int, str]
    directory: Path
    join: bool


def place(config: Config, *, join: bool) -> _Place:
    """Which controller a configuration makes of this process. Raises `ConfigError`."""
    mine = config.controller
    members = {id_: str(at) for id_, at in config.cluster.addresses.items()}
    join = join or mine.join
    address = mine.advertise or members.get(mine.id) or str(NodeAddress(mine.host, mine.port))
    if join and not members.keys() - {mine.id}:
        raise ConfigError("cluster.controllers: names nobody to join; write where the controllers are")
    if not join and members and mine.id not in members:
        known = ", ".join(map(str, members))
        raise ConfigError(f"controller.id: {mine.id} is none of {known}; write one of them, or start with --join")
    if not mine.advertise and mine.id not in members and not mine.port:
        raise ConfigError("controller.port: 0 is found by nobody; write a port, or controller.advertise")
    directory = mine.data_dir or config.store.data_dir / "controller"
    return _Place(address, members if join or members else {mine.id: address}, directory, join)


async def run(config: Config, *, join: bool = False) -> None:
    """Run a controller until SIGTERM or SIGINT. Raises `ConfigError`, `ControllerFailed`."""
    mine, here = config.controller, place(config, join=join)
    credentials = node_credentials(config.cluster, host=mine.host, key="controller.host")
    stopped = stop_on_signals()
    async with contextlib.AsyncExitStack() as stack:
        try:
            node = await ControllerNode.open(
                here.directory,
                node_id=mine.id,
                members=here.members,
                join=here.join,
                address=here.address,
                node=config.cluster.node_name,
                limits=Limits(
                    topics_max=config.topics.topics_max,
                    topics_per_creator_max=config.topics.topics_per_user_max,
                    default_queues=config.topics.default_queues,
                ),
                now_ms=now_ms,
                credentials=credentials.channel,
                settings=Settings(proposal_bytes_max=COMMAND_BYTES_MAX),
                tick_s=mine.tick_ms / 1000,
            )
        except (ControllerError, OSError) as error:
            raise ControllerFailed(f"{here.directory}: {error}") from error
        stack.push_async_callback(node.close)
        listening = str(NodeAddress(mine.host, mine.port))
        try:
            service = await ControllerService.start(node, listening, credentials=credentials.server)
        except OSError as error:
            raise ControllerFailed(cannot_listen("controller", listening, error)) from error
        stack.push_async_callback(service.stop)
        admin = await _admin(config, node)
        stack.push_async_callback(admin.stop)
        log.info("ready", controller=mine.id, address=here.address, admin_port=admin.port, data_dir=str(here.directory))
        await _until(stopped, node, here.directory)
        await node.resign()
    log.info("stopped")


async def _until(stopped: asyncio.Event, node: ControllerNode, directory: Path) -> None:
    """Wait for a signal. Raises `ControllerFailed` when the node fails before, or its directory is removed."""
    waiting = asyncio.ensure_future(stopped.wait())
    looking = asyncio.ensure_future(_removed(directory / RAFT / "data.mdb"))
    either: list[asyncio.Future[Any]] = [waiting, looking, node.failed]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            raise ControllerFailed(looking.result())
    finally:
        waiting.cancel()
        looking.cancel()
    if node.failed.done():
        raise ControllerFailed(f"the controller has failed: {node.failed.result()}")


async def _removed(file: Path) -> str:
    """Wait until the file of a controller's log is not the one that is open: what it votes is not kept then."""
    opened = identity_of(file)
    while identity_of(file) == opened:  # noqa: ASYNC110 - no event tells of files
        await asyncio.sleep(PRESENCE_LOOK_S)
    return (
        f"{file} was removed or replaced while the controller had it open: what it votes would be forgotten. Put the "
        "directory back, or let a new controller join in its place (docs/cluster.md)"
    )


async def _admin(config: Config, node: ControllerNode) -> AdminServer:
    host, port, names = config.admin.host, config.admin.port, config.admin.allowed_hosts
    try:
        return await AdminServer.start(
            host,
            port,
            ready=lambda: _ready(node),
            status=node.status,
            registry=_metrics(node),
            allowed_hosts=names,
        )
    except OSError as error:
        raise ControllerFailed(cannot_listen("admin", f"{host}:{port}", error)) from error


def _ready(node: ControllerNode) -> ReadyState:
    reasons = []
    if node.failed.done():
        reasons.append(f"the controller has failed: {node.failed.result()}")
    elif node.standing.reasons:
        if not node.has_leader:
            reasons.append("the controllers have no leader")
        reasons.extend(node.standing.reasons)
    elif not node.current.is_set():
        reasons.append("catching up with the other controllers")
    elif not node.is_member:
        reasons.append("this controller is not in the cluster")
    elif not node.has_leader:
        reasons.append("this controller is not part of a majority: it hears of no leader")
    elif node.id not in node.membership.voters:
        reasons.append("this controller does not vote yet: it is catching up")
    return ReadyState(ready=not reasons, reasons=tuple(reasons), alive=not node.failed.done())


def _metrics(node: ControllerNode) -> CollectorRegistry:
    """What Prometheus is told, asked of the node when somebody looks."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    gauges = {
        "leading": ("Whether this controller leads", lambda: float(node.leading is not None)),
        "has_leader": ("Whether a leader is known", lambda: float(node.has_leader)),
        "term": ("The Raft term", lambda: float(node.status().term)),
        "commit": ("The index of the last entry known to be committed", lambda: float(node.status().commit)),
        "applied": ("The index of the last entry applied", lambda: float(node.applied)),
        "members": ("Controllers that vote", lambda: float(len(node.membership.voters))),
        "topics": ("Topics", lambda: float(node.status().topics)),
        "groups": ("Store groups", lambda: float(node.status().groups)),
        "replicas_alive": ("Registered replicas that are heard of", lambda: float(node.status().replicas_alive)),
    }
    for name, (what, value) in gauges.items():
        Gauge(f"headgate_controller_{name}", what, registry=registry).set_function(value)
    return registry


def serve(config: Config, *, join: bool = False) -> int:
    """Run a controller in this process; the exit status. Raises `ConfigError`, `ControllerFailed`."""
    raise_file_limit()
    uvloop.run(run(config, join=join))
    return 0
