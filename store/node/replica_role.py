"""The role of a replica that is not master: follows its group's master, until it is elected or has to begin anew.

One task carries out the effects of the core (`store.replication.replica_core`), one after the other. Another one keeps
a stream to the master. The store is open as replica all the while and serves confirmed frames to readers.
"""

import asyncio
import logging
import random
from collections import deque
from enum import Enum, auto
from typing import Any

from controller.api.client import Group
from controller.complaints.messages import COMPLAIN_MS, HINT_MS, Complaint
from store.base.errors import CorruptFrame, StoreError, StoreFailed, StoreFull, StoreOverloaded, StoreUnreachable
from store.base.streams import Backoff, Stream, opened
from store.format.frame import LogOffset
from store.node.elected import ask_election, sound_to_lead
from store.node.looks import ReplicaLooks
from store.node.replacing import give_up, log_no_room, log_stop, start_over
from store.node.replica.auth import STRANGE, sign
from store.node.replica.context import ReplicaContext
from store.node.replica.identity import why_retired
from store.node.snapshots import fetch_snapshot
from store.node.streams import MasterStream
from store.node.syncs import Syncs
from store.reach.reachability import MasterReachability
from store.replication.effects import AcceptLoss, Close, Effect, Prepare, SaveEpochs, Send, TakeSnapshot, Write
from store.replication.messages import FromMaster, FromReplica, Hello, Refused
from store.replication.replica_core import ReplicaCore, Stage
from store.rpc import replica_wire as wire

logger = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 0.02, 0.5  # between streams to the master
LACKS_END = "its log has lost its end (if all have, accept the loss: headgate cluster elect --unclean)"
AGAIN_S = 1.0  # before a role begins anew that could not go on


class Ending(Enum):
    """The reasons why a replica's role ends or begins anew. The store stays open as replica, except after `INSTALL`."""

    ELECTED = auto()
    ANEW = auto()  # the core's view of the log is wrong, or its permissions have changed
    INSTALL = auto()  # a snapshot was fetched: it takes the place of log and views
    SUPERSEDED = auto()  # elected, it waited for a repair, and is not elected any more
    GIVE_UP = auto()  # as `ELECTED`, by an unclean election, with a log that has lost its end


class ReplicaRole:
    """One time of following. `run` does it; `heard` tells of the group."""

    master = False

    def __init__(self, context: ReplicaContext, group: Group) -> None:
        self.context = context
        self._group = group
        store = context.disk.store
        assert store is not None
        self._lossy = group.config.unclean_election, group.unclean_epoch  # the settings that allow giving up frames
        self._core = ReplicaCore(
            group=context.group,
            replica=context.replica,
            epochs=context.disk.epochs,
            promised=context.disk.promised,
            first=store.replication.first,
            end=store.replication.end,
            confirmed=store.log.confirmed,
            unclean_election=group.config.unclean_election,
            held=store.replication.held,
            followed=store.replication.followed,
            rebuildable=store.views_rebuildable,
            guessed=context.disk.guessed,
            unclean=context.disk.unclean,
            pace=context.pace,
        )
        self._core.damaged(context.repairing.needs_repair)
        self._confirmed = store.log.confirmed  # as the store was told
        self._began_full = context.disk.full
        self._stream: MasterStream | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._effects: deque[Effect] = deque()  # to be carried out
        self._working = False  # the task that carries them out is at it
        self._work_wanted = asyncio.Event()
        self._dial_wanted = asyncio.Event()
        self._synced = asyncio.Event()
        self._over: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self.broken = False  # an effect that the core counts as done has failed: only ANEW is possible
        self._error: Exception | None = None  # the first failure of the disk, whenever it came
        self._asking: asyncio.Task[None] | None = None
        self._reach = MasterReachability(context.answers, probe_ms=HINT_MS, complain_ms=COMPLAIN_MS)
        self._syncs = Syncs()
        self._retired = ""  # why it follows no master any more: its id is never given again
        self._looks = ReplicaLooks(self._look, self._fail)
        self._refusal = ""  # by a master of something else, as it was logged last

    # ---- from outside

    @property
    def core(self) -> ReplicaCore:
        """The replication core, which knows the log; for looking at."""
        return self._core

    @property
    def complaint(self) -> Complaint | None:
        """Returns its complaint about its master to the controllers."""
        return self._reach.complaint

    @property
    def slow(self) -> bool:
        """Returns whether its disk takes far too long to sync."""
        return self._syncs.slow

    @property
    def streaming(self) -> bool:
        """Returns whether the log follows the master's."""
        return self._core.stage is Stage.STREAMING

    def on_group(self, group: Group) -> None:
        """Promises the epoch of the group as it is now, and follows its master, or becomes it."""
        context, core, self._group = self.context, self._core, group
        if (retired := why_retired(group, context.replica)) and not self._retired:
            logger.error("%s", retired)
        self._retired = retired
        if group.master_epoch > core.promised:
            core.promise(group.master_epoch)
            self._after()
        if group.master == context.replica:
            self._elected(group)
        elif core.stage is Stage.DIVERGED and self._lossy != (group.config.unclean_election, group.unclean_epoch):
            self._end(Ending.ANEW)
        context.services.point_to(context.address_of_master(group))
        self._dial_wanted.set()

    def _elected(self, group: Group) -> None:
        """Becomes the master of a new epoch, or asks for another election where it may have led this one."""
        if group.master_epoch < self._core.promised or group.master_epoch in self.context.unfit:
            return
        if self._core.lacks_end and group.unclean_epoch == group.master_epoch > self.context.disk.unclean:
            self._end(Ending.GIVE_UP)
        elif group.master_epoch > max(self._core.epochs.newest, self.context.since):
            if self._core.lacks_end:  # which the controllers do not know yet
                logger.error(
                    "elected in epoch %d, this replica cannot become master: %s", group.master_epoch, LACKS_END
                )
                self.context.unfit.add(group.master_epoch)
            else:
                self._end(Ending.ELECTED)
        elif self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(ask_election(self.context, group.master_epoch), name="ask to be elected")

    # ---- events of the store

    def written(self, end: LogOffset) -> None:
        """See `ReplicationHooks`; of masters only."""

    def flushed(self, end: LogOffset) -> None:
        """See `ReplicationHooks`."""
        self._core.flushed_to(end)
        self._synced.set()
        self._after()

    def damaged(self) -> None:
        """See `ReplicationHooks`."""
        self.context.repairing.look()

    def repair_changed(self) -> None:
        """Tells the master that the log has damage that is to be repaired, or has none any more."""
        self._core.damaged(self.context.repairing.needs_repair)
        self._after()

    def failed(self, error: StoreError) -> None:
        """See `ReplicationHooks`."""
        self._fail(error)

    # ---- the time of following

    async def run(self) -> Ending:
        """Follows until that is over. Raises `StoreError`, OSError: the disk has failed."""
        context = self.context
        assert context.disk.store is not None
        context.disk.listener = self
        context.services.serve(context.disk.store, master=False, hint=context.address_of_master(self._group))
        parts: list[asyncio.Task[None]] = [asyncio.create_task(self._follow(), name="stream to the master")]
        working = asyncio.create_task(self._work(), name="work of a replica")
        self._looks.begin()
        try:
            self.on_group(self._group)
            events: list[asyncio.Future[Any]] = [*parts, working, self._over]
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            for part in (*parts, working):
                if part.done():
                    part.result()
            ending = self._over.result()
            await self._part([*parts, *filter(None, (self._fetching, self._asking))])
            self._looks.end()
            self._core.close()
            self._work_wanted.set()
            await working
            if ending is Ending.ELECTED and not self.broken:
                await self._until_synced()
                if not (self.broken or self._has_failed() or await sound_to_lead(context, self._has_failed)):
                    ending = Ending.SUPERSEDED
            if self._error is not None:
                raise self._error
            return Ending.ANEW if self.broken else ending
        finally:
            self._looks.end()
            await self._part([*parts, *filter(None, (self._fetching, self._asking)), working])
            await self._reach.close()
            context.disk.listener = None
            await context.services.stand_down(context.address_of_master(self._group))

    async def _part(self, tasks: "list[asyncio.Task[None]]") -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, ending: Ending) -> None:
        if not self._over.done():
            self._over.set_result(ending)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        if not self._over.done():
            self._over.set_exception(error)
        self._synced.set()

    def _has_failed(self) -> bool:
        return self._error is not None

    async def _until_synced(self) -> None:
        """Waits until all that was written is on disk."""
        store = self.context.disk.store
        assert store is not None
        while self._core.flushed < self._core.end and self._error is None:
            self._synced.clear()
            if store.replication.dropped is not None:
                self.broken = True
                return
            if store.error is not None:
                raise store.error
            await self._synced.wait()

    def _look(self) -> None:
        """Looks at the time."""
        core, store = self._core, self.context.disk.store
        core.tick(now_ms=self.context.now_ms())
        if store is not None and store.replication.first > core.first:
            core.trimmed(min(store.replication.first, core.confirmed))
        start_over(self.context, core)
        self._after()
        self._listen()

    def _listen(self) -> None:
        """Notices that the master is silent, and tells the controllers when that begins to count, or is over."""
        core, group, now_ms = self._core, self._group, self.context.now_ms()
        stops = self._retired or core.stage in {Stage.DIVERGED, Stage.SNAPSHOT}
        listens = not stops and group.master_epoch >= core.promised
        changed = self._reach.look(group if listens else None, now_ms, me=self.context.replica)
        if self._syncs.look(core.end, core.flushed, now_ms) or changed:
            self.context.send_heartbeat()

    # ---- the stream

    async def _follow(self) -> None:
        """Keeps a stream to the present master."""
        backoff, tried = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S), 0
        while True:
            self._dial_wanted.clear()
            address = self.context.address_of_master(self._group)
            if address is None or not self._may_dial():
                await self._dial_wanted.wait()
                continue
            if self._group.master_epoch != tried:  # a new master needs a moment to begin, and no more
                backoff.reset()
                tried = self._group.master_epoch
            before = self._core.confirmed
            await self._dial(address)
            if self._core.confirmed > before:
                backoff.reset()
            await backoff.pause(self._dial_wanted)

    def _may_dial(self) -> bool:
        idle = self._core.stage is Stage.IDLE and (self._fetching is None or self._fetching.done())
        current = self._group.master_epoch >= self._core.promised and not self._retired
        return idle and current and not self._over.done()

    async def _dial(self, address: str) -> None:
        """Follows until the stream breaks or is given up."""
        core, now_ms = self._core, self.context.now_ms
        await self.context.disk.belong(self._group.log)
        async with opened(self.context.dial(address)) as channel:
            try:
                call = channel.stream_stream(wire.path(wire.REPLICATE))()
                plain = Stream(call, wire.ERRORS, f"the master at {address}")
                stream = self._stream = MasterStream(plain, random.getrandbits(63), self._received)
                epoch, unclean_epoch = self._group.master_epoch, self._group.unclean_epoch
                core.connect(epoch, session=stream.session, now_ms=now_ms(), unclean_epoch=unclean_epoch)
                self._after()
                await stream.run()
            finally:
                self._stream = None
                if core.stage not in {Stage.SNAPSHOT, Stage.GIVING_UP}:
                    core.close()

    def _received(self, message: FromMaster) -> None:
        if isinstance(message, Refused) and message.why in STRANGE and message.text != self._refusal:
            self._refusal = message.text
            logger.error("the master does not take this replica: %s", message.text)
        self._reach.received()
        self._core.receive(message, now_ms=self.context.now_ms())
        if not self._looks.received():
            self._after()

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.end()

    # ---- effects

    def _after(self) -> None:
        """Carries out the core's effects, after each of its inputs."""
        store = self.context.disk.store
        if store is not None and self._core.confirmed > self._confirmed:
            self._confirmed = self._core.confirmed
            store.replication.confirm(self._confirmed)
        self._effects += self._core.take()
        if not self._done_at_once():
            self._work_wanted.set()

    def _done_at_once(self) -> bool:
        """Carries out effects that take no time, as long as no other is before them; returns whether all are done.

        In a stream nothing else comes, so that a turn of the loop is saved for all that arrives and all that is synced.
        """
        store = self.context.disk.store
        if self._working or self._over.done() or store is None or store.replication.dropped is not None:
            return False
        while self._effects:
            effect = self._effects[0]
            if isinstance(effect, Send):
                self._send(effect.message)
            elif isinstance(effect, Write):
                try:
                    store.replication.receive(effect.frames)
                except StoreError:  # which the task will meet again, and deal with
                    return False
            else:
                return False
            self._effects.popleft()
        return True

    def _send(self, message: FromReplica) -> None:
        if self._stream is not None and message.session == self._stream.session:
            me, disk = self.context.identity, self.context.disk
            self._stream.put(sign(message, me, disk.log) if isinstance(message, Hello) else message)

    async def _work(self) -> None:
        """Carries out the core's effects in order, at the end the rest of them."""
        while True:
            self._working = True
            try:
                self._check_kept()
                self._effects += self._core.take()
                while self._effects:
                    await self._carry_out(self._effects.popleft())
                    self._effects += self._core.take()
            except (StoreFull, StoreOverloaded, CorruptFrame) as error:
                log_no_room(error, again=self._began_full)
                self.broken = True  # before anything else can end it: frames dropped here are never written
                self.context.send_heartbeat()
                await asyncio.sleep(AGAIN_S)
                self._end(Ending.ANEW)
                return
            except (StoreError, OSError) as error:
                self._fail(error if isinstance(error, StoreError) else StoreFailed(str(error)))
                return
            if self._over.done():
                return
            self._working = False
            await self._work_wanted.wait()
            self._work_wanted.clear()

    def _check_kept(self) -> None:
        """Raises `StoreFull` when the store has not kept the frames that it took."""
        store = self.context.disk.store
        if store is not None and store.replication.dropped is not None:
            raise store.replication.dropped

    async def _carry_out(self, effect: Effect) -> None:
        context = self.context
        match effect:
            case Send(message):
                self._send(message)
            case SaveEpochs(epochs, promised):
                await context.disk.save(epochs, promised)
                context.send_heartbeat()
            case Prepare(cut_to, epochs, promised, unclean):
                if cut_to is not None:
                    await self._cut(cut_to)
                await context.disk.follow_unclean(unclean)
                await context.disk.save(epochs, promised)
                self._core.prepared()
                context.send_heartbeat()
                self._after()
            case Write(_, _, _, frames):
                assert context.disk.store is not None
                context.disk.store.replication.receive(frames)
            case AcceptLoss(cut_to, at, unclean):
                await context.services.stand_down(context.address_of_master(self._group))
                await give_up(context, at, unclean, cut_to=cut_to)
                self._end(Ending.ANEW)
            case TakeSnapshot(epoch):
                self._fetching = asyncio.create_task(self._fetch(epoch), name="fetching a snapshot")
                self._hang_up()
            case Close(why):
                log_stop(self._core, why)
                if self._core.stage in {Stage.IDLE, Stage.DIVERGED}:  # else there is a newer stream already
                    self._hang_up()
                    if self._fetching is not None:
                        self._fetching.cancel()

    async def _cut(self, end: LogOffset) -> None:
        context = self.context
        hint = context.address_of_master(self._group)
        await context.services.stand_down(hint)
        await context.disk.close()
        store = await context.disk.open_replica(end)
        self._confirmed = self._core.confirmed  # its views may not have come so far before it was closed
        store.replication.confirm(self._confirmed)
        context.services.serve(store, master=False, hint=hint)

    async def _fetch(self, epoch: int) -> None:
        context = self.context
        address = context.address_of_master(self._group)
        try:
            if address is None or self._group.master_epoch != epoch:
                raise StoreUnreachable("the group has another master by now")
            await fetch_snapshot(context, address, epoch, starts_over=self._core.starting_over)
        except (StoreError, OSError) as error:
            logger.warning("no snapshot from the master: %s", error)
            await asyncio.sleep(AGAIN_S)
            self._core.close()
        else:
            self._end(Ending.INSTALL)
        finally:
            self._fetching = None
            self._dial_wanted.set()
