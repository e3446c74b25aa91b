"""`headgate controller`: one of the cluster's controllers in a process of its own."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from controller.api.client import ControllerError
from controller.api.commands import ClusterLimits
from controller.disk.migration import RAFT
from controller.node.node import ControllerNode
from controller.node.service import ControllerService
from store.base import logs
from store.base.admin import AdminServer, AdminSettings, ReadyState, process_registry
from store.base.clock import now_ms
from store.base.expiry import expiry_warnings
from store.base.process_errors import ServerFailed, cannot_listen
from store.base.rhythm import pause
from store.base.runner import ServerRun, run_server
from store.disk.presence import PRESENCE_LOOK_S, identity_of, is_in_place

log = logs.get(__name__)


class ControllerRun(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one controller. It listens on `listen`; others reach it at `address`, both "host:port"."""

    id: int
    listen: str
    address: str
    members: Mapping[int, str]
    directory: Path
    name: str
    limits: ClusterLimits
    tick_ms: int
    admin: AdminSettings
    join: bool = False
    server_credentials: Any = None  # None: without TLS
    channel_credentials: Any = None


async def _run(run: ServerRun, said: ControllerRun) -> None:
    """Runs a controller until it is asked to stop. Raises `ServerFailed`."""
    try:
        node = await ControllerNode.open(
            said.directory,
            node_id=said.id,
            members=said.members,
            join=said.join,
            address=said.address,
            node=said.name,
            limits=said.limits,
            now_ms=now_ms,
            credentials=said.channel_credentials,
            tick_s=said.tick_ms / 1000,
        )
    except ControllerError as error:
        raise ServerFailed(f"{said.directory}: {error}") from error
    except OSError as error:
        raise ServerFailed(f"{error.filename or said.directory}: {error.strerror or error}") from error
    run.stack.push_async_callback(node.close)
    try:
        service = await ControllerService.start(node, said.listen, credentials=said.server_credentials)
    except OSError as error:
        raise ServerFailed(cannot_listen("controller", said.listen, error)) from error
    run.stack.push_async_callback(service.stop)
    admin = await _admin(said.admin, node, said.channel_credentials)
    run.stack.push_async_callback(admin.stop)
    run.settle()
    log.info("ready", controller=said.id, address=said.address, admin_port=admin.port, data_dir=str(said.directory))
    await _until(run.stopped, node, said.directory)
    await node.resign()


async def _until(stopped: asyncio.Event, node: ControllerNode, directory: Path) -> None:
    """Waits for a signal. Raises `ServerFailed` when the node fails before, or its directory is removed."""
    waiting = asyncio.ensure_future(stopped.wait())
    looking = asyncio.ensure_future(_removed(directory / RAFT / "data.mdb"))
    either: list[asyncio.Future[Any]] = [waiting, looking, node.failed]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            raise ServerFailed(looking.result())
    finally:
        waiting.cancel()
        looking.cancel()
    if node.failed.done():
        raise ServerFailed(f"the controller has failed: {node.failed.result()}")


async def _removed(file: Path) -> str:
    """Waits until the file of a controller's log is not the one that is open: its votes are not kept then."""
    opened = identity_of(file)
    while is_in_place(file, opened):  # no event tells of files
        await pause(PRESENCE_LOOK_S)
    return (
        f"{file} was removed or replaced while the controller had it open: its votes would be forgotten. Put the "
        "directory back, or start this controller with an empty one: the others take it in again (docs/cluster.md)"
    )


async def _admin(settings: AdminSettings, node: ControllerNode, credentials: Any = None) -> AdminServer:
    return await AdminServer.start(
        settings, ready=lambda: _ready(node, credentials), status=node.status, registry=_metrics(node)
    )


def _ready(node: ControllerNode, credentials: Any = None) -> ReadyState:
    reasons = []
    if node.failed.done():
        reasons.append(f"the controller has failed: {node.failed.result()}")
    elif node.memory.reasons:
        if not node.has_leader:
            reasons.append("the controllers have no leader")
        reasons.extend(node.memory.reasons)
    elif not node.current.is_set():
        reasons.append("catching up with the other controllers")
    elif not node.is_member:
        reasons.append("this controller is not in the cluster")
    elif not node.has_leader:
        reasons.append("this controller is not part of a majority: it knows no leader")
    elif node.id not in node.membership.voters:
        reasons.append("this controller does not vote yet: it is catching up")
    if node.driver.full is not None and not node.failed.done():
        reasons.append(f"the metadata cannot be written: {node.driver.full}")
    warnings = expiry_warnings(credentials, time.time())
    return ReadyState(ready=not reasons, reasons=tuple(reasons), alive=not node.failed.done(), warnings=warnings)


def _metrics(node: ControllerNode) -> CollectorRegistry:
    """Returns the metrics for Prometheus, which ask the node at each scrape."""
    registry = process_registry()
    gauges = {
        "leading": ("Whether this controller leads", lambda: float(node.leading is not None)),
        "has_leader": ("Whether a leader is known", lambda: float(node.has_leader)),
        "term": ("The Raft term", lambda: float(node.status().term)),
        "commit": ("The index of the last entry known to be committed", lambda: float(node.status().commit)),
        "applied": ("The index of the last entry applied", lambda: float(node.applied)),
        "members": ("Controllers that vote", lambda: float(len(node.membership.voters))),
        "topics": ("Topics", lambda: float(node.status().topics)),
        "groups": ("Store groups", lambda: float(node.status().groups)),
        "replicas_alive": ("Registered replicas that are alive", lambda: float(node.status().replicas_alive)),
    }
    for name, (what, value) in gauges.items():
        Gauge(f"headgate_controller_{name}", what, registry=registry).set_function(value)
    return registry


def serve(said: ControllerRun) -> int:
    """Runs a controller in this process; the exit status. Raises `ServerFailed`."""
    return run_server(lambda run: _run(run, said))
