"""A replica as the master of one epoch: from being elected until there is a newer epoch.

The core (`store.replication.master`) gets each event; after a turn of the loop with events, their effects are
done at once for all: readers and senders are answered, replicas are sent new frames, the controller is asked. Frames go
to the replicas from the memory in which they were written, without waiting for the disk.
"""

import asyncio
import logging
from collections.abc import Collection, Coroutine
from functools import partial
from typing import Any

from controller.api.client import (
    ControllerClosed,
    ControllerError,
    ControllerOverloaded,
    ControllerUnreachable,
    Group,
    StaleEpoch,
)
from controller.api.commands import AlterSyncSet
from controller.api.requests import Elect
from store.base.errors import CorruptFrame, NotMaster, OffsetOutOfRange, StoreClosed, StoreError
from store.format.frame import LogOffset
from store.local.local import LocalStore
from store.node.looks import MasterLooks
from store.node.master_health import MasterHealth
from store.node.replica.auth import refusal
from store.node.replica.context import TICK_S, ReplicaContext
from store.node.rounds import Rounds
from store.node.snapshots import SnapshotSender
from store.node.streams import ReplicaStream
from store.replication.agreement import Acknowledge
from store.replication.errors import BadMessage, CannotSwitchOver
from store.replication.master import Master
from store.replication.messages import FromReplica, Hello, decode, encode
from store.replication.sync_set import AlterSet
from store.rpc.replica_wire import SnapshotRequest
from store.rpc.replica_wire import decode as decode_request

logger = logging.getLogger(__name__)

PROBE_MS = 1_000  # how often the controller is asked for nothing, while a replica wants to be in sync
ELECTED_MS = 6_000  # that the controllers may take from naming no master to naming the next one
GRACE_S = 2.0  # for answers that are on their way to clients, when all that was taken is confirmed
FENCED_GRACE_S = 0.05  # where it is not, and never will be here
_UNANSWERED = (ControllerUnreachable, ControllerOverloaded, ControllerClosed)


class MasterRole:
    """One epoch. `run` serves as master; `heard` passes on news of the group."""

    master = True

    def __init__(self, context: ReplicaContext, group: Group) -> None:
        store = context.disk.store
        assert store is not None
        assert group.master == context.replica, "it leads no epoch of another replica"
        assert store.replication.flushed == store.replication.end, "all of the log is on disk"
        self.context = context
        self._group = group
        self._loop = asyncio.get_running_loop()
        self._store: LocalStore | None = None  # while it is open
        self._core = Master(
            group=context.group,
            replica=context.replica,
            epoch=group.master_epoch,
            epochs=context.disk.epochs,
            first=store.replication.first,
            end=store.replication.end,
            confirmed=store.log.confirmed,
            replicas=_replicas(group),
            sync_set=group.sync_set,
            sync_epoch=group.sync_epoch,
            min_in_sync=group.config.min_in_sync,
            acknowledge=Acknowledge(group.config.acknowledge),
            now_ms=context.now_ms(),
            pace=context.pace,
        )
        self.serving = False
        self.health = MasterHealth(context, self._core, self.switch_over)
        self._streams: dict[int, ReplicaStream] = {}  # by replica
        self._snapshots = SnapshotSender(context.disk.data_dir)
        self._told = (store.log.confirmed, store.log.confirmed)  # to the store: confirmed, acknowledged
        self._refused: str | None = None  # why the store refuses appends, as it was told
        self._core.damaged(context.repairing.needs_repair)
        self._rounds = Rounds(self._core, context, self._pump_soon)
        self._pumping = False  # it will be done on the loop's next turn
        self._looks = MasterLooks(self._core, heartbeat_ms=context.pace.heartbeat_ms)
        self._asking: asyncio.Task[None] | None = None
        self._handing_over: asyncio.Task[None] | None = None
        self._probed_ms = context.now_ms() - PROBE_MS
        # Set when this log is confirmed up to where the earlier master's was: before that, readers would go back. By
        # quorum it takes a majority of replicas.
        self._known: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()

    # ---- from outside

    @property
    def core(self) -> Master:
        """The replication core, which knows the group; for looking at."""
        return self._core

    @property
    def slow(self) -> bool:
        """Returns whether its disk takes far too long to sync."""
        return self.health.slow

    @property
    def replicas(self) -> list[int]:
        """The replicas that are connected."""
        return sorted(self._streams)

    def on_group(self, group: Group) -> None:
        """Takes in the group as it is now."""
        core = self._core
        self._group = group
        core.fenced(group.master_epoch)
        if group.master_epoch == core.epoch and core.ended is None:
            config = group.config
            core.configure(
                _replicas(group), min_in_sync=config.min_in_sync, acknowledge=Acknowledge(config.acknowledge)
            )
            core.set_altered(group.sync_set, group.sync_epoch)
        self._pump_soon()

    async def switch_over(self, target: int | None = None) -> int:
        """Hands over to a replica in sync, or to the one that has most; returns who is master then.

        Raises `CannotSwitchOver`.
        """
        core = self._core
        if target is None:
            positions = core.positions()
            ready = [one for one in core.sync_set if one in self._streams and not core.is_damaged(one)]
            target = max(ready, key=lambda one: (positions.get(one, 0), -one), default=None)
            if target is None:
                raise CannotSwitchOver("no other replica is in sync and without damage")
        core.hand_over(target, now_ms=self.context.now_ms())
        self._looks.stir()
        logger.info("handing store group %d over to replica %d", self.context.group, target)
        self._pump_soon()
        while core.ended is None:
            if self._over.done() or core.successor is None:
                raise CannotSwitchOver(f"replica {target} did not get everything in time")
            await asyncio.sleep(TICK_S / 5)
        deadline_ms = self.context.now_ms() + ELECTED_MS
        while (found := self.context.known().master) is None:  # by quorum it takes two elections
            if self.context.now_ms() > deadline_ms:
                raise CannotSwitchOver("this node is not the master any more, and no other one is elected yet")
            await asyncio.sleep(TICK_S / 5)
        return found

    # ---- events of the store

    def written(self, end: LogOffset) -> None:
        """See `ReplicationHooks`."""
        self._core.written(end)
        self._looks.stir()
        self._pump_soon()

    def flushed(self, end: LogOffset) -> None:
        """See `ReplicationHooks`."""
        if end > self._core.flushed:
            self._core.flushed_to(end)
            self._pump_soon()

    def damaged(self) -> None:
        """See `ReplicationHooks`."""
        self.context.repairing.look()

    def repair_changed(self) -> None:
        """Notes that the log has damage to be repaired, or none any more, and retries work that waited for a repair."""
        self._core.damaged(self.context.repairing.needs_repair)
        self._looks.stir()
        for stream in self._streams.values():
            stream.news.set()
        self._pump_soon()

    def failed(self, error: StoreError) -> None:
        """See `ReplicationHooks`."""
        if not self._over.done():
            self._over.set_exception(error)
            self.context.send_heartbeat()  # another replica may be elected while this role ends

    # ---- the time as master

    async def run(self) -> None:
        """Serves as master until there is a newer epoch. Raises `StoreError`, OSError: the disk has failed."""
        context, core = self.context, self._core
        await context.disk.save(core.epochs, core.epoch)
        context.disk.listener = self
        ticking = self._loop.create_task(self._tick(), name="time of a master")
        try:
            store = await self._begin()
            context.services.master = self
            await asyncio.wait([ticking, self._over, self._known], return_when=asyncio.FIRST_COMPLETED)
            if self._known.done() and core.ended is None:
                self._serve(store)
            await asyncio.wait([ticking, self._over], return_when=asyncio.FIRST_COMPLETED)
            if ticking.done():
                ticking.result()
            self._over.result()
        finally:
            context.services.master = None
            await self._end([ticking])

    async def _begin(self) -> LocalStore:
        """Opens as master."""
        disk = self.context.disk
        await disk.close()
        store = await disk.open_master(self._core.epoch, self._core.confirmed)
        store.replication.ask_first(agreed=self._rounds.agreed, cut_off=lambda: self.health.cut_off)
        self._store = store
        self._pump()
        return store

    def _serve(self, store: LocalStore) -> None:
        context = self.context
        context.services.serve(store, master=True)
        self.serving = True
        logger.info("this is the master of store group %d in epoch %d", context.group, self._core.epoch)
        context.send_heartbeat()
        self._probe(joining=self._group.voters)  # they are about to connect

    async def _end(self, parts: "list[asyncio.Task[Any]]") -> None:
        context = self.context
        self.serving = False
        tasks = [*parts, *filter(None, (self._asking, self._handing_over, self.health.relieving))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._store = None
        hint = context.address_of_master(self._group)
        gone = NotMaster(f"this node is not the master of store group {context.group} any more", hint)
        self._rounds.end(gone)
        settled = self._core.confirmed == self._core.end  # as after handing over: all that was taken is answered
        await context.services.stand_down(hint, grace_s=GRACE_S if settled else FENCED_GRACE_S)
        for stream in list(self._streams.values()):
            stream.end()
        await context.disk.close(step_down=True)
        context.disk.listener = None
        logger.info("this is not the master of store group %d any more", context.group)

    async def _tick(self) -> None:
        core = self._core
        while True:
            await self._looks.next()
            core.tick(now_ms=self.context.now_ms())
            if self._store is not None and self._store.replication.first > core.first:
                core.trimmed(self._store.replication.first)
            self._probe()
            self.health.look(self._store, replicas=self._streams)
            self._pump()

    # ---- after whatever happened

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pumping = False
        try:
            self._pump()
        except Exception as error:  # no caller would see it
            if self._over.done():
                raise
            self._over.set_exception(error)

    def _pump(self) -> None:
        """Carries out the effects of all events that the core was given since the last time."""
        core = self._core
        if self._store is not None:
            self._tell(self._store)
        if core.confirmed >= core.start and not self._known.done():
            self._known.set_result(None)
        if core.ended is not None:
            if not self._over.done():
                self._over.set_result(None)
            return
        for replica, message in core.take():
            stream = self._streams.get(replica)
            if stream is not None and stream.session == message.session:  # else it was for one before this
                stream.put(message)
        for replica, stream in self._streams.items():
            if core.batch(replica) is not None:
                stream.news.set()
        self._rounds.answer()
        if self._asking is None and (ask := core.ask()) is not None:
            self._asking = self._spawn(self._alter(ask), "changing who is in sync")
        if self._handing_over is None and (target := core.handover) is not None:
            self._handing_over = self._spawn(self._hand_over(target), "handing over")

    def _tell(self, store: LocalStore) -> None:
        """Lets the store answer safe appends, and take or refuse new ones."""
        core = self._core
        told = core.confirmed, core.acknowledged
        if told != self._told:
            self._told = told
            store.replication.confirm(*told)
        refusal = core.refusal
        why = None if refusal is None else str(refusal)
        if why != self._refused:
            self._refused = why
            store.replication.refuse_appends(refusal)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        return self._loop.create_task(work, name=name)

    # ---- replicas

    async def attend(self, context: Any, hello: bytes) -> None:
        """See `MasterServices`."""
        first = decode(hello)
        assert isinstance(first, Hello)
        replica = first.replica
        refused = refusal(first, self.context.identity, self.context.disk.log, self._group)
        if refused is not None:
            await context.write(encode(refused))
            return
        stream = ReplicaStream(
            first,
            context,
            received=partial(self._received, replica),
            data=self._data,
            silence_s=2 * self.context.pace.silent_ms / 1000,
        )
        before = self._streams.get(replica)
        if before is not None:
            before.end()
        self._streams[replica] = stream
        self._looks.stir()
        try:
            self._received(replica, first)
            await stream.run()
        finally:
            if self._streams.get(replica) is stream:
                del self._streams[replica]
                self._core.left(replica)
                self._looks.stir()
                self._pump_soon()

    def _received(self, replica: int, message: FromReplica) -> None:
        self._core.receive(replica, message, now_ms=self.context.now_ms())
        self._pump_soon()

    async def _data(self, stream: ReplicaStream) -> bytes | None:
        """Returns the next frames for a replica, as a message; None while they wait for a repair of this log."""
        core, replica, repairing = self._core, stream.replica, self.context.repairing
        while (store := self._store) is not None and (batch := core.batch(replica)) is not None:
            limit = core.epochs.end_at(batch.start, core.end)
            if repairing.blocks(batch.start):
                return None
            try:
                frames = await store.replication.read_log(batch.start, batch.end - batch.start, end=limit)
                if not frames or self._streams.get(replica) is not stream:  # another stream sends from now on
                    return None
                return encode(core.sent(replica, batch.start, frames))
            except CorruptFrame as error:  # which is repaired while the stream stays
                repairing.look()
                if not repairing.blocks(batch.start):
                    raise
                logger.info("replica %d waits for the repair of this master's log: %s", replica, error)
                return None
            except OffsetOutOfRange:  # retention was faster
                core.trimmed(store.replication.first)
                self._pump_soon()
                return None
            except StoreClosed:
                return None
            except BadMessage:  # the replica has said Hello again meanwhile
                continue
        return None

    async def send_snapshot(self, context: Any, request: bytes) -> None:
        """See `MasterServices`."""
        asked = decode_request(request, SnapshotRequest)
        core = self._core
        store = self._store
        if asked.group != self.context.group or asked.epoch != core.epoch or core.ended is not None or store is None:
            raise NotMaster(f"this node is not the master of store group {asked.group} in epoch {asked.epoch}")
        if self._group.replica(asked.replica) is None:
            raise BadMessage(f"there is no replica {asked.replica}")
        await self._snapshots.send(store, core.epochs, asked, context)

    # ---- the controller

    def _probe(self, *, joining: Collection[int] | None = None) -> None:
        """Sends the controllers a change of nothing, while a replica wants to join: so it is known that they answer."""
        core, now_ms = self._core, self.context.now_ms()
        joining = self._streams if joining is None else joining
        outside = (set(joining) & set(self._group.voters)) - core.sync_set
        if outside and self._asking is None and now_ms - self._probed_ms >= PROBE_MS and core.ended is None:
            self._probed_ms = now_ms
            asked = AlterSet(core.group, core.replica, core.epoch, self._group.sync_epoch, core.sync_set)
            self._asking = self._spawn(self._alter(asked), "asking whether a controller leads")

    async def _alter(self, asked: AlterSet) -> None:
        core, context = self._core, self.context
        try:
            group = await context.controller.do(
                AlterSyncSet(
                    group=asked.group,
                    master=asked.master,
                    master_epoch=asked.master_epoch,
                    sync_epoch=asked.sync_epoch,
                    new_set=tuple(sorted(asked.sync_set)),
                )
            )
        except _UNANSWERED as error:
            logger.info("no controller answers the change of the SyncStateSet: %s", error)  # it is asked again
        except StaleEpoch as error:
            logger.info("the controllers have a newer SyncStateSet or epoch: %s", error)  # they tell every node
            core.controller_contacted(now_ms=context.now_ms())
        except ControllerError as error:
            logger.info("the controllers refuse the change of the SyncStateSet: %s", error)
            core.controller_contacted(now_ms=context.now_ms())
            core.set_refused(asked.sync_epoch)
        else:
            core.controller_contacted(now_ms=context.now_ms())
            context.on_group(group)
        finally:
            self._asking = None
            self._pump_soon()

    async def _hand_over(self, target: int) -> None:
        core, context = self._core, self.context
        try:
            group = await context.controller.do(
                Elect(group=context.group, candidate=target, master_epoch=core.epoch, sync_epoch=self._group.sync_epoch)
            )
        except ControllerError as error:
            logger.warning("replica %d is not elected: %s", target, error)
            core.call_off()
        else:
            context.on_group(group)
        finally:
            self._handing_over = None
            self._pump_soon()


def _replicas(group: Group) -> dict[int, bool]:
    return {one.id: one.learner for one in group.replicas}
