"""The controller in the process of its only node: a cluster of one controller, without network and without waiting.

Its directory is a controller's: started by `headgate controller` it can be joined by others.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from controller.api.client import (
    HOME_GROUP,
    OUTAGE_LEASE_MS,
    ControllerError,
    ControllerRequest,
    ControllerUnreachable,
    Group,
    NotElectable,
    Replica,
    Service,
    UnknownGroup,
)
from controller.api.commands import ClusterLimits, Command, ElectMaster, encode_command
from controller.api.requests import AskService, CompareMetadata, Elect
from controller.complaints.messages import Report
from controller.disk.driver import Driver, OutcomeUnknown
from controller.disk.migration import open_storage
from controller.metadata.machine import Metadata
from controller.node.leadership import name_cluster
from controller.raft import RaftSettings, Role
from controller.raft.lmdb_storage import LmdbStorage
from controller.wire.state_client import StateClient
from controller.wire.wire import COMMAND_BYTES_MAX

logger = logging.getLogger(__name__)

NODE_ID = 1
CACHE_BYTES_MAX = 1 << 20  # of applied commands in memory, in log and feed each: there are no followers to send them to
COMPACT_BYTES = 512 << 10  # of commands between snapshots, at least: a start reads them again


ALONE = Group(  # a single node's group, which has registered no replica
    number=HOME_GROUP, replicas=(Replica(id=1, node="local", address=""),), master=1, master_epoch=1, sync_set=(1,)
)


class LocalController(StateClient):
    """A `ControllerClient` over the log of a controller that votes alone.

    A command is synced before it is applied, so answered commands survive a crash.
    """

    def __init__(self, storage: LmdbStorage, limits: ClusterLimits, now_ms: Callable[[], int]) -> None:
        metadata = Metadata()
        metadata.feed.bytes_max = CACHE_BYTES_MAX
        super().__init__(metadata.state, limits, now_ms)
        self._metadata = metadata
        self.storage = storage
        self.driver = Driver(
            NODE_ID,
            storage,
            metadata,
            send=lambda _messages: None,
            settings=RaftSettings(proposal_bytes_max=COMMAND_BYTES_MAX, cache_bytes_max=CACHE_BYTES_MAX),
            tick_s=None,  # a single voter leads forever
            compact_bytes=COMPACT_BYTES,
            keep_entries=0,
        )
        self.driver.settle()
        if self.driver.status.role is not Role.LEADER:
            raise ControllerError("the directory is that of one controller of several: start headgate controller on it")
        self.state = metadata.state
        metadata.news = False
        metadata.on_move = self._moved
        self._naming: asyncio.Future[Any] | None = None  # the cluster gets an id
        if not metadata.state.cluster:
            self._naming = self.driver.propose(name_cluster(now_ms()))
            self._naming.add_done_callback(_noticed)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller")
        self._closed = False
        self.error: Exception | None = None  # why nothing is written any more, until a restart

    @classmethod
    def open(
        cls, directory: Path, *, limits: ClusterLimits | None = None, now_ms: Callable[[], int]
    ) -> "LocalController":
        """Opens or creates the controller's directory and reads its contents; an event loop has to be running.

        Raises `ControllerDamaged`, `StorageFailed`, `ControllerError`: it is one of several, OSError.
        """
        storage = open_storage(directory, NODE_ID, {NODE_ID: ""})
        try:
            return cls(storage, limits or ClusterLimits(), now_ms)
        except BaseException:
            storage.close()
            raise

    async def close(self) -> None:
        """Waits for writes in progress, and closes. Again does nothing."""
        if self._closed:
            return
        self._closed = True
        await self.driver.quiet()
        self._task.cancel()
        await asyncio.wait([self._task])
        self.driver.close()
        self.storage.close()

    async def barrier(self) -> None:
        """Waits until the cluster has an id; there are no other controllers to wait for."""
        if self._naming is not None:
            await asyncio.wait([self._naming])

    @property
    def trouble(self) -> str | None:
        """Returns why commands are refused; None: they are not."""
        if self.error is not None:
            return f"the metadata's log has failed: {self.error}"
        if self.storage.removed is not None:
            return f"the metadata cannot be written: {self.storage.removed}"
        return None if self.driver.full is None else f"the metadata cannot be written: {self.driver.full}"

    async def _run(self) -> None:
        try:
            await self.driver.run()
        except Exception as error:
            expected = isinstance(error, ControllerError)
            logger.critical("topics and queues cannot be changed any more: %s", error, exc_info=not expected)
            self.error = error

    def _moved(self) -> None:
        if self._metadata.news:
            self._metadata.news = False
            self._listeners.tell()

    # ---- the only group

    def groups(self) -> Sequence[Group]:
        """Returns all store groups, by number."""
        found = super().groups()
        return found if any(group.number == HOME_GROUP for group in found) else [ALONE, *found]

    def group(self, number: int) -> Group | None:
        """Returns a store group by number."""
        return super().group(number) or (ALONE if number == HOME_GROUP else None)

    def _applied(self) -> int:
        return self.driver.applied

    # ---- requests

    async def _request(self, request: ControllerRequest[Any]) -> Any:
        """Writes, then applies, in the order asked. Requests that come during a write are written together."""
        match request:
            case AskService():  # a single node sends no report about itself
                return Service(number=request.group, served=True, sure_ms=OUTAGE_LEASE_MS)
            case Report():  # there is no other replica to elect
                return None
            case CompareMetadata():
                return self._metadata.check(request.known, self.driver.applied)
            case Elect():
                return await self._elect(request)
            case Command():
                self.state.check(request)  # a command that is refused costs no write
                try:
                    return await self.driver.propose(encode_command(request))
                except OutcomeUnknown as unknown:
                    raise ControllerUnreachable(str(unknown)) from unknown
            case _:
                raise ControllerError("this process has the only controller: start headgate controller to have others")

    async def _elect(self, request: Elect) -> Group:
        """Makes the named replica master, or the first that the metadata names; heartbeats are not known here."""
        there = self.group(request.group)
        if there is None:
            raise UnknownGroup(f"there is no store group {request.group}")
        candidate = request.candidate
        if candidate is None:
            candidate = there.master or min(there.sync_set or there.voters, default=None)
        if candidate is None:
            raise NotElectable(f"store group {request.group} has no replica")
        if candidate == there.master:
            return there
        command = ElectMaster(
            group=request.group,
            candidate=candidate,
            master_epoch=there.master_epoch if request.master_epoch is None else request.master_epoch,
            sync_epoch=there.sync_epoch if request.sync_epoch is None else request.sync_epoch,
        )
        return await self.do(command)


def _noticed(naming: "asyncio.Future[Any]") -> None:
    """Logs that the cluster has no id yet; it gets one at the next start."""
    if not naming.cancelled() and (error := naming.exception()) is not None:
        logger.warning("the cluster has no id yet: %s", error)
