"""Store and metadata of a gateway of several workers, in the process that keeps both for them.

It is a cluster of one: one store group with one replica, one controller that votes alone. Both lie where a gateway in
one process has them, in the same form, so that either continues with the other's directory. The workers reach them by
Unix sockets in a directory that only this user may enter: a service that can write is not offered on a port to every
user of the machine.
"""

import asyncio
import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from controller.api.client import HOME_GROUP, ControllerError, Group, GroupConfig, Replica
from controller.api.commands import AddGroup
from controller.elections.registry import HEARTBEAT_MS, Heartbeat
from controller.node.node import ControllerNode
from controller.node.service import ControllerService
from gateway.config.config import Config
from gateway.process.backend import metadata_limits
from gateway.process.metadata_check import check_alone, check_metadata
from gateway.process.store_figures import StoreFigures
from gateway.process.store_options import naming_remedy, store_options
from store.base.clock import now_ms
from store.local.local import LocalStore
from store.node.replica.identity import register
from store.node.syncs import Syncs
from store.serving.rpc import StoreService
from store.serving.service import NodeService

STORE_SOCKET, CONTROLLER_SOCKET = "store.sock", "controller.sock"
LONGEST_NAME = CONTROLLER_SOCKET  # of all sockets, those of workers too
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un, unix(7)
CLUSTERED = "the data directory is that of a cluster's node: start headgate controller, store and proxy on it"


class SharedStore(StoreFigures):
    """The store and the controller that a node's workers share."""

    def __init__(self, store: LocalStore, controller: ControllerNode, sockets: Path) -> None:
        super().__init__(store, controller.topics)
        self.controller = controller
        self.sockets = sockets  # the directory for them

    @property
    def controller_address(self) -> str:
        """Returns the address at which the workers find the metadata."""
        return _address(self.sockets, CONTROLLER_SOCKET)

    @property
    def metadata_failed(self) -> bool:
        """See `StoreFigures`."""
        return self.controller.failed.done()

    def troubles(self) -> Sequence[str]:
        """Returns the reasons why it cannot serve now."""
        failed, removed = self.controller.failed, self.controller.removed
        found = []
        if failed.done():
            found.append(f"the metadata's log has failed: {failed.result()}")
        elif removed is not None:
            found.append(f"the metadata cannot be written: {removed}")
        return [*found, *super().troubles()]


@asynccontextmanager
async def shared_store(config: Config) -> AsyncIterator[SharedStore]:
    """Opens store and metadata, and serves both at Unix sockets.

    Raises `StoreError`, `ControllerError`, OSError.
    """
    said = config.store
    directory = said.data_dir / "controller"
    await asyncio.to_thread(check_alone, config, directory)
    options = {**store_options(said), "hold_timers": True}
    async with contextlib.AsyncExitStack() as stack:
        with naming_remedy(said.data_dir):
            opened = await LocalStore.open(said.data_dir, group=said.group, **options)
        store = await stack.enter_async_context(opened)
        node = await ControllerNode.open(directory, limits=metadata_limits(config), now_ms=now_ms)
        stack.push_async_callback(node.close)
        await _alone(node)
        await check_metadata(store, node, directory)
        service = NodeService(said.group)
        service.serve(store, timers=options["timer_limits"])
        sockets = stack.enter_context(_directory(said.data_dir))  # not before the data directory is ours
        address = _address(sockets, STORE_SOCKET)
        rpc = await StoreService.start(store, node, address, node=service)
        stack.push_async_callback(rpc.stop, 1.0)
        replica = await _registered(node, config, address)
        await stack.enter_async_context(_ReplicaHeartbeats(node, store, replica).sending())
        front = await ControllerService.start(node, _address(sockets, CONTROLLER_SOCKET))
        stack.push_async_callback(front.stop)
        yield SharedStore(store, node, sockets)


def _address(sockets: Path, name: str) -> str:
    return f"unix:{sockets / name}"


@contextlib.contextmanager
def _directory(data_dir: Path) -> Iterator[Path]:
    """Makes a directory for sockets, of this user alone: in the data directory unless its path is too long for them."""
    there = data_dir.absolute() / "run"
    if len(bytes(there / LONGEST_NAME)) > SOCKET_PATH_BYTES_MAX:
        with tempfile.TemporaryDirectory(prefix="headgate-") as made:
            yield Path(made)
        return
    shutil.rmtree(there, ignore_errors=True)  # of a run that was killed
    there.mkdir(mode=0o700)
    try:
        yield there
    finally:
        shutil.rmtree(there, ignore_errors=True)


async def _alone(node: ControllerNode) -> None:
    """Checks that this directory is a cluster of one. Raises `ControllerError`."""
    if len(node.membership.ids) > 1:
        raise ControllerError(CLUSTERED)
    await node.current.wait()
    if node.group(HOME_GROUP) is None:
        await node.do(AddGroup(number=HOME_GROUP, config=GroupConfig()))
    groups = node.groups()
    if len(groups) > 1 or groups[0].config.replicas > 1 or len(groups[0].replicas) > 1:
        raise ControllerError(CLUSTERED)


async def _registered(node: ControllerNode, config: Config, address: str) -> Replica:
    """Registers the address of the group's only replica. Raises `ControllerError`."""

    def about(id_: int, check: str) -> Replica:
        return Replica(id=id_, node=config.cluster.node_name, address=address, zone=config.cluster.zone, check=check)

    identity, group = await register(node, config.store.data_dir, HOME_GROUP, about, opened=True)
    if len(group.replicas) > 1:
        raise ControllerError(CLUSTERED)
    return about(identity.id, identity.check)


class _ReplicaHeartbeats:
    """Says to the controller in this process that the replica lives, and that it is the master when it is."""

    def __init__(self, node: ControllerNode, store: LocalStore, replica: Replica) -> None:
        self._node = node
        self._store = store
        self._replica = replica
        self._incarnation = secrets.randbits(62)
        self._elected = asyncio.Event()
        self._syncs = Syncs()

    @asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Keeps the replica elected, and sends its heartbeats, from entry to exit."""
        unwatch = self._node.watch(self._send)
        task = asyncio.create_task(self._send_forever(), name="heartbeats")
        try:
            await self._elected.wait()
            yield
        finally:
            unwatch()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _send_forever(self) -> None:
        while True:
            self._send()
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    def _send(self) -> None:
        group = self._node.group(HOME_GROUP)
        if group is not None and not self._node.failed.done():
            master = group.master == self._replica.id
            self._node.heartbeat(self._heartbeat_of(group, master=master))
            if master:
                self._elected.set()

    def _heartbeat_of(self, group: Group, *, master: bool) -> Heartbeat:
        store, replica, syncs = self._store, self._replica, self._syncs
        syncs.look(store.replication.end, store.replication.flushed, now_ms())
        damages = store.damages
        damaged_bytes = sum(damage.end - damage.start for damage in damages)
        return Heartbeat(
            group=group.number,
            replica=replica.id,
            node=replica.node,
            address=replica.address,
            zone=replica.zone,
            master=master,
            master_epoch=group.master_epoch,
            log_epoch=group.master_epoch,
            log_end=store.replication.end,
            confirmed=store.log.confirmed,
            version=version("headgate"),
            incarnation=self._incarnation,
            failed=store.error is not None,
            stalled=store.full is not None or store.error is not None or syncs.hangs,
            full=store.full is not None,
            low=store.low,
            damages=len(damages),
            damaged_bytes=damaged_bytes,
            lost_bytes=damaged_bytes,  # no other replica has it
            slow=syncs.slow,
        )
