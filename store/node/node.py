"""A store node: a replica with its port, its heartbeats, and the roles that the controllers give it, one after another.

It begins as replica, whatever it was before. A change of role closes the store and opens it again in the other role, in
this process (docs/decisions/0011). When the disk fails it gives up its role for good, and reports it: only a restart,
with another disk perhaps, helps then.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from controller.api.client import ControllerClient, ControllerError, Group, Replica, UnknownGroup
from controller.api.names import no_group
from controller.elections.registry import Heartbeat
from store.base import pipes
from store.base.errors import NotRebuildable, StoreError, StoreFailed, StoreFull, ViewsDamaged
from store.base.expiry import has_expired
from store.node.elected import group_to_lead
from store.node.master_role import MasterRole
from store.node.repair.repairer import Repairer
from store.node.repair.serving import RangeServer
from store.node.replacing import give_up, install
from store.node.replica.context import ReplicaContext, RoleServices
from store.node.replica.disk import Disk
from store.node.replica.identity import ReplicaIdentity, register
from store.node.replica.metadata_mark import MetadataMark
from store.node.replica_role import Ending, ReplicaRole
from store.node.replication_service import ReplicationService
from store.node.settings import Credentials, NodeSettings
from store.node.unusable import check_not_last, open_or_start_over
from store.reach.probe import answers
from store.replication.errors import CannotSwitchOver
from store.rpc import replica_wire as wire
from store.serving.rpc import StoreService
from store.serving.service import NodeService
from store.timers.timers import TimerLimits

logger = logging.getLogger(__name__)

REGISTER_S = 0.5  # between attempts to register
COMPLAIN_S = 10.0  # between two lines in the log that say why that does not succeed
LEAVE_S = 3.0  # that a master takes to hand over before it stops
WITHDRAWN_S = 2.0  # before a replica that is elsewhere too asks for its place again
REOPEN_S = 1.0  # before a replica goes on for which the disk has no room


class HeartbeatSender(Protocol):
    """The carrier of heartbeats to the controllers; `controller.remote.heartbeats.Heartbeats` is one."""

    def send_now(self) -> None:
        """Sends the heartbeats at once."""

    async def close(self) -> None:
        """Stops sending."""


Connect = Callable[[Callable[[], Sequence[Heartbeat]], Callable[[Group], None]], HeartbeatSender]


class StoreNode:
    """A running node; `start` makes one, `close` ends it. `failed` is set when it cannot go on."""

    def __init__(self, settings: NodeSettings, controller: ControllerClient, credentials: Credentials) -> None:
        self.settings = settings
        self.address = ""
        self.identity: ReplicaIdentity | None = None
        self.group: Group | None = None  # the newest known
        self.role: ReplicaRole | MasterRole | None = None  # None: between two of them
        self.disk = Disk(settings.data_dir, settings.group, settings.options)
        self.mark = MetadataMark(self.disk.files, settings.data_dir)
        self.failed: asyncio.Future[StoreError] = asyncio.get_running_loop().create_future()
        self.withdrawn = ""  # why it takes no part for now: another node claims this replica
        self.controller = controller
        self._credentials = credentials
        self.service = NodeService(settings.group)
        self.services = RoleServices(self.service, settings.options.get("timer_limits") or TimerLimits())
        self._incarnation = secrets.randbits(62)
        self.repairer: Repairer | None = None  # once it is registered
        self._now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
        self.context: ReplicaContext | None = None
        self.sender: HeartbeatSender | None = None
        self.task: asyncio.Task[None] | None = None
        self._withdrawal: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], Any] = lambda: None
        self._ends = 0, 0, 0  # log epoch, log end, confirmed: as they were last while the store was open

    @classmethod
    async def start(
        cls,
        settings: NodeSettings,
        controller: ControllerClient,
        connect: Connect,
        *,
        credentials: Credentials | None = None,
    ) -> "StoreNode":
        """Opens, listens, registers, and takes part. Waits for the controllers as long as that takes.

        `connect` is given the heartbeats' source and a callback for new groups, and begins to carry heartbeats. Raises
        `StoreError` (`DataDirLocked`, `WrongGroup`, `ForeignCluster`, `ForeignLog`), OSError.
        """
        node = cls(settings, controller, credentials or Credentials())
        try:
            await node._open()
            await node._register()
            check_not_last(node.disk, node.group)
            node._begin(connect)
        except BaseException:
            await node.close()
            raise
        return node

    # ---- up

    async def _open(self) -> None:
        settings = self.settings
        await self.disk.open_usable()
        await self.mark.load(self.disk.store)
        replication = ReplicationService(settings.group, self.services, lambda: self.disk.promised)
        self.services.rpc = await StoreService.start(
            self.disk.store,
            self.controller,
            settings.listen,
            node=self.service,
            credentials=self._credentials.server,
            more={wire.SERVICE: replication.handlers()},
        )
        host = settings.listen.rpartition(":")[0]
        self.address = settings.advertise or f"{host}:{self.services.rpc.port}"

    async def _register(self) -> None:
        """Registers this replica at the controllers."""
        settings, complained_s = self.settings, -COMPLAIN_S
        join = partial(register, self.controller, settings.data_dir, settings.group, self._about)
        while True:
            try:
                self.identity, group = await join(files=self.disk.files, known=self.mark.known)
            except ControllerError as error:
                if time.monotonic() - complained_s >= COMPLAIN_S:
                    complained_s = time.monotonic()
                    missing = no_group(settings.group) if isinstance(error, UnknownGroup) else str(error)
                    logger.warning("not registered in store group %d yet: %s", settings.group, missing)
                await asyncio.sleep(REGISTER_S)
            else:
                if self.group is None or group.epochs >= self.group.epochs:  # else a newer one was pushed meanwhile
                    self.group = group
                return

    def _about(self, id_: int, check: str) -> Replica:
        settings = self.settings
        return Replica(
            id=id_,
            node=settings.name,
            address=self.address,
            priority=settings.priority,
            zone=settings.zone,
            learner=settings.learner,
            check=check,
        )

    def _begin(self, connect: Connect) -> None:
        assert self.identity is not None
        assert self.group is not None
        self.service.cluster, self.service.known = self.identity.cluster, lambda: self.mark.known
        self.mark.follow(self.controller, self.disk.failed)
        repairer = self.repairer = Repairer(self.disk, self._damage_changed)
        context = self.context = ReplicaContext(
            group=self.settings.group,
            identity=self.identity,
            disk=self.disk,
            services=self.services,
            controller=self.controller,
            send_heartbeat=self._send_heartbeat,
            known=self._known,
            on_group=self._on_group,
            dial=lambda address: pipes.open_channel(address, self._credentials.channel),
            answers=partial(
                answers, group=self.settings.group, cluster=self.service.cluster, credentials=self._credentials.channel
            ),
            now_ms=self._now_ms,
            repairing=repairer,
            pace=self.settings.pace,
            since=self.group.master_epoch,
        )
        self.services.ranges = RangeServer(context)
        repairer.begin(context)
        self.sender = connect(self._heartbeats, self._on_group)
        self._unwatch = self.controller.watch(self._look)
        self._look()
        self.task = self._living(context)

    # ---- down

    async def close(self) -> None:
        """Ends it: a master hands over first, if a replica can take over."""
        self._unwatch()
        if self._withdrawal is not None:
            self._withdrawal.cancel()
            await asyncio.gather(self._withdrawal, return_exceptions=True)
        if isinstance(self.role, MasterRole) and self.role.serving:
            with suppress(CannotSwitchOver, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self.role.switch_over()
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        if self.repairer is not None:
            await self.repairer.close()
        if self.sender is not None:
            await self.sender.close()
        if self.services.rpc is not None:
            await self.services.rpc.stop(0.5)
        await self.mark.close()
        await self.disk.close()

    async def switch_over(self, target: int | None = None) -> int:
        """Lets another replica be master, as planned; returns which one is. Raises `CannotSwitchOver`."""
        if not isinstance(self.role, MasterRole) or not self.role.serving:
            raise CannotSwitchOver("this node is not the master")
        return await self.role.switch_over(target)

    # ---- roles

    def _living(self, context: ReplicaContext) -> "asyncio.Task[None]":
        return asyncio.create_task(self._live(context), name=f"replica of store group {self.settings.group}")

    async def _live(self, context: ReplicaContext) -> None:
        """Plays one role after the other."""
        try:
            while True:
                try:
                    await self._one_time(context)
                except (StoreFull, ViewsDamaged) as error:
                    await self._begin_again(error)
        except (StoreError, OSError) as error:
            logger.critical("this replica has failed, and serves nothing until it is restarted: %s", error)
            self._fail(error if isinstance(error, StoreError) else StoreFailed(str(error)))
        except Exception as error:
            logger.exception("this replica has failed, and serves nothing until it is restarted")
            self._fail(StoreFailed(f"{type(error).__name__}: {error}"))

    def _fail(self, error: StoreError) -> None:
        self._leave_role()
        if not self.failed.done():
            self.failed.set_result(error)
        self._send_heartbeat()

    async def _one_time(self, context: ReplicaContext) -> None:
        """Serves as a replica, and then perhaps the master."""
        if self.disk.store is None and not await open_or_start_over(context):
            return
        context.repairing.look()
        role = self.role = ReplicaRole(context, context.known())
        self._send_heartbeat()
        ending = await role.run()
        self._leave_role()
        match ending:
            case Ending.ANEW:
                await self.disk.close()
            case Ending.INSTALL:
                await install(context, role.core)
            case Ending.GIVE_UP:
                await self._give_up(context)
            case Ending.ELECTED:
                await self._lead(context)

    async def _begin_again(self, error: StoreFull | ViewsDamaged) -> None:
        """Closes the store and opens it later: when there is room again, or to rebuild damaged views."""
        self._leave_role()
        self._send_heartbeat()
        logger.warning("this replica waits and then opens its store again: %s", error)
        await self.disk.close()
        await asyncio.sleep(REOPEN_S)

    async def _give_up(self, context: ReplicaContext) -> None:
        """Gives up the lost end of the log: this replica was elected with the rest, by an unclean election."""
        assert self.group is not None
        assert self.disk.store is not None
        epoch = self.group.unclean_epoch
        if self.group.master != context.replica or self.group.master_epoch != epoch:
            return  # it has changed meanwhile
        try:
            await give_up(context, self.disk.store.replication.end, epoch)
        except NotRebuildable as error:
            logger.error("this replica cannot be the master of epoch %d: %s", epoch, error)
            context.unfit.add(epoch)

    async def _lead(self, context: ReplicaContext) -> None:
        group = await group_to_lead(context)
        if group is None:
            return  # it has changed meanwhile
        epoch, role = group.master_epoch, MasterRole(context, group)
        self.role = role
        try:
            await role.run()
        except StoreError as error:
            store_failed = isinstance(error, StoreFailed)
            unsaved = isinstance(error, StoreFull) and self.disk.epochs.newest < epoch  # so it has not begun
            if store_failed or role.serving or unsaved:
                raise
            logger.error("this replica cannot be the master of epoch %d: %s", epoch, error)
            context.unfit.add(epoch)
        finally:
            self._leave_role()

    # ---- another node that claims this replica

    def _look_for_another(self, group: Group) -> None:
        """Withdraws if a node with a copy of this directory has registered from another address since we did."""
        busy = self.failed.done() or (self._withdrawal is not None and not self._withdrawal.done())
        if not busy and self.context is not None and self._other(group) is not None:
            task = self._withdrawal = asyncio.create_task(self._withdraw(self.context), name="withdrawal")
            task.add_done_callback(self._look_again)

    def _look_again(self, done: "asyncio.Task[None]") -> None:
        """Looks at the group again after a withdrawal: changes in the meantime count too."""
        found = self.controller.group(self.settings.group)
        if not done.cancelled() and found is not None:
            self._look_for_another(found)

    def _other(self, group: Group | None) -> Replica | None:
        assert self.identity is not None
        known = group.replica(self.identity.id) if group is not None else None
        return known if known is not None and known.address != self.address else None

    async def _withdraw(self, context: ReplicaContext) -> None:
        """Takes no part until the other replica is gone, if it is there and that is no old news."""
        number = self.settings.group
        while True:
            with suppress(ControllerError):
                await self.controller.barrier()
                break
            await asyncio.sleep(REGISTER_S)
        other = self._other(self.controller.group(number))
        if other is None:
            return
        self.withdrawn = (
            f"replica {context.replica} of store group {number} was registered at {other.address}, and is here at "
            f"{self.address} too: one of both has a copy of the other's data directory"
        )
        logger.error("this node takes no part in its store group: %s", self.withdrawn)
        try:
            if self.task is not None:
                self.task.cancel()
                await asyncio.gather(self.task, return_exceptions=True)
            self._leave_role()
            await self.disk.close()
            await asyncio.sleep(WITHDRAWN_S)  # meanwhile the other one sends heartbeats
            await self._register()
        except (StoreError, OSError) as error:
            self._fail(error if isinstance(error, StoreError) else StoreFailed(str(error)))
            return
        assert self.identity is not None
        assert self.group is not None
        logger.warning("replica %d of store group %d is alone again and takes part", self.identity.id, number)
        context.identity, context.since, self.withdrawn = self.identity, self.group.master_epoch, ""
        self.task = self._living(context)

    def _damage_changed(self) -> None:
        """Acts on damage of the log that is new, or no more, or in other places."""
        if self.role is not None:
            self.role.repair_changed()
        self._send_heartbeat()

    # ---- the controllers

    def _on_group(self, group: Group) -> None:
        """Takes in a group that was pushed, or answered to a command: perhaps older than the known one."""
        if group.number != self.settings.group:
            return
        newest = self.controller.group(group.number)  # as of the metadata: an answer may be older, of the same epochs
        if newest is not None and newest.epochs >= group.epochs:
            group = newest
        if self.group is not None and group.epochs < self.group.epochs:
            return
        self.group = group
        self._look_for_another(group)
        if self.role is not None:
            self.role.on_group(group)

    def _known(self) -> Group:
        assert self.group is not None
        return self.group

    def _look(self) -> None:
        self.service.dropped = self.controller.dropped(self.settings.group)
        found = self.controller.group(self.settings.group)
        if found is not None and found != self.group:
            self._on_group(found)

    def _send_heartbeat(self) -> None:
        if self.sender is not None:
            self.sender.send_now()

    def _leave_role(self) -> None:
        """Ends the role. Heartbeats say how far the log is all the same: with a later promise that counts as final."""
        self._remember()
        self.role = None

    def _remember(self) -> None:
        """Remembers how far the log is, while that is known."""
        role, epochs = self.role, self.disk.epochs
        if role is not None:
            flushed = role.core.flushed
            self._ends = epochs.cut(flushed).newest, flushed, role.core.confirmed

    def _heartbeats(self) -> list[Heartbeat]:
        """Returns the heartbeats of this replica for the controllers; none while it is withdrawn."""
        assert self.identity is not None
        if self.withdrawn:
            return []  # the other one speaks
        self._remember()
        log_epoch, log_end, confirmed = self._ends
        repairer = self.repairer
        assert repairer is not None
        return [
            Heartbeat(
                group=self.settings.group,
                replica=self.identity.id,
                node=self.settings.name,
                address=self.address,
                zone=self.settings.zone,
                priority=self.settings.priority,
                master=isinstance(self.role, MasterRole) and self.role.serving,
                master_epoch=self.disk.promised,
                log_epoch=log_epoch,
                log_end=log_end,
                confirmed=confirmed,
                free_bytes=self.disk.free_bytes,
                version=self.settings.version,
                incarnation=self._incarnation,
                failed=self.failed.done() or self.disk.failed_for_good,  # the latter while its role ends, too
                stalled=isinstance(self.role, MasterRole) and self.role.health.stalled,
                full=self.disk.full,
                low=self.disk.low,
                damaged=repairer.needs_repair,
                cut_short=repairer.cut_short,
                damages=len(repairer.damages),
                damaged_bytes=repairer.damaged_bytes,
                lost_bytes=repairer.lost_bytes,
                repairing_from=repairer.repairing_from or 0,
                complaint=self.role.complaint if isinstance(self.role, ReplicaRole) else None,
                slow=self.role is not None and self.role.slow,
                expired=has_expired(self._credentials.server, time.time()),
            )
        ]
