"""A Raft node with its disk and its clock: it carries out the effects that the core (`controller.raft`) returns.

Whatever is proposed while the disk is busy is written together when it is free. The network is a function that takes
messages; messages that arrive are given to `step`. The state machine gets committed commands, in order.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Protocol

from controller.api.client import ControllerClosed, ControllerDamaged, ControllerError
from controller.disk.awaiting import AwaitedEntries, refuse
from controller.disk.ticks import Ticks
from controller.raft import (
    Entry,
    EntryKind,
    LastReport,
    Membership,
    MembershipChange,
    Message,
    NotLeader,
    ProposalDropped,
    Raft,
    RaftError,
    RaftSettings,
    RaftStatus,
    Ready,
    Role,
    Snapshot,
    Storage,
    StorageFailed,
    StorageFull,
)

logger = logging.getLogger(__name__)

COMPACT_BYTES = 8 << 20  # of applied entries between two snapshots, at least; or as much as the snapshot has
KEEP_ENTRIES = 8_192  # that stay behind a snapshot, for followers that are a little late
PROPOSALS_MAX = 10_000  # in flight
FULL_AGAIN_S = 1.0  # until a full disk is tried again
ENTRY_BYTES = 64  # bytes that count for an entry without data


class OutcomeUnknown(RaftError):
    """The leadership was lost before the command was committed: it may still happen, or not."""


class Machine(Protocol):
    """The state machine that the log is for."""

    def apply(self, entry: Entry) -> Any:
        """Applies a committed command; its answer. Raises `ControllerError`: refused, on every node alike.

        Raises `ControllerDamaged` for an entry that it cannot read: the node stops.
        """

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces the state by that of the snapshot. Raises `ControllerDamaged`."""

    def snapshot(self) -> bytes:
        """Returns the state after all that was applied."""

    def moved(self) -> None:
        """Takes the news: more is applied, or the role, the leader or the membership has changed."""


class Driver:
    """One node. Belongs to the event loop it is made on; `run` has to be running.

    `send` takes messages for peers and may lose them. `tick_s` is the pace; None: the caller calls `tick`.
    """

    def __init__(
        self,
        node_id: int,
        storage: Storage,
        machine: Machine,
        *,
        send: Callable[[Sequence[Message]], None],
        settings: RaftSettings | None = None,
        chance: random.Random | None = None,
        tick_s: float | None,
        compact_bytes: int = COMPACT_BYTES,
        keep_entries: int = KEEP_ENTRIES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings or RaftSettings()
        self._storage = storage
        self._machine = machine
        self._send = send
        self.compact_bytes, self.keep_entries = compact_bytes, keep_entries
        self.raft = Raft(node_id, storage, settings=self._settings, random=chance or random.Random())
        self._disk = ThreadPoolExecutor(1, "raft")
        self._wake = asyncio.Event()
        self._wake.set()
        self.ticks = Ticks(
            self.raft, self.tick, self._fail, tick_s=tick_s, heartbeat_ticks=self._settings.heartbeat_ticks
        )
        self._numbers = count()
        self._proposed: dict[int, tuple[int, asyncio.Future[Any]]] = {}  # index -> term, answer; len <= PROPOSALS_MAX
        self._reads: dict[bytes, asyncio.Future[int | None]] = {}
        self._awaited = AwaitedEntries()
        self._failed: Exception | None = None
        self.full: StorageFull | None = None  # why nothing can be written now
        snapshot = storage.snapshot()
        machine.restore(snapshot)
        self._snapshot_bytes = len(snapshot.data)
        self._logged_bytes = 0  # applied since that snapshot
        self.applied = snapshot.index
        self.status: RaftStatus = self.raft.status()  # as of the last turn

    # ---- life

    async def run(self) -> None:
        """Drives until cancelled. Raises `StorageFailed`, `ControllerDamaged`: this node must not go on."""
        failed: Exception = ControllerClosed("this controller is shut down")
        self.ticks.begin_in_step()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._check()
                dealt = False
                while (ready := self.raft.ready()) is not None:
                    await self._deal(ready)
                    dealt = True
                if not dealt:
                    self._look()
                self.ticks.arm()
        except Exception as error:
            failed = error
            raise
        finally:
            self._failed = self._failed or failed
            self.ticks.end()
            self._fail_all(self._failed)

    def close(self) -> None:
        """Waits for the disk. Call it when `run` has ended."""
        self._disk.shutdown()

    def tick(self) -> None:
        """Advances the core's time by one tick."""
        self.raft.tick()
        if not self.raft.at_rest:  # all other work sets it itself
            self._wake.set()

    def settle(self) -> None:
        """Lets a node that votes alone lead and apply all of its log, before `run`. Raises as `run` does.

        It would only wait for itself. Its disk is waited for here.
        """
        status = self.raft.status()
        if status.membership.voters != (status.id,) or not status.votes:
            return
        while self.status.role is not Role.LEADER or self.status.applied < self.status.last_index:
            self.raft.tick()
            while (ready := self.raft.ready()) is not None:
                self._storage.save(ready)
                self._finish(ready)

    def _fail(self, error: Exception) -> None:
        """Ends `run` with an error."""
        self._failed = error
        self._wake.set()

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed

    @property
    def committed(self) -> int:
        """The index of the last entry that is known to be committed, maybe not applied here yet."""
        return self.raft.node.log.committed

    # ---- which memory this is (see `controller.incarnations`)

    @property
    def legacy(self) -> bool:
        """Returns whether the storage is older than its incarnation."""
        return self._storage.legacy()

    def last_report(self, node_id: int) -> LastReport | None:
        """Returns a node's progress as last heard; None when nothing was heard."""
        return self.raft.last_report(node_id)

    def form(self, membership: Membership) -> None:
        """Begins a new cluster, unless this node knows of one; with a slow disk `status` says that later."""
        if self.raft.is_fresh:
            self.ticks.pass_time()
            self.raft.form(membership)
            self._wake.set()

    def prove(self, *, proven: bool, term: int = 0, floor: tuple[int, int] = (0, 0)) -> None:
        """Says whether this node may vote, and for whom (see `Raft.prove`)."""
        self.ticks.pass_time()
        self.raft.prove(proven=proven, term=term, floor=floor)
        self._wake.set()

    async def renew(self, incarnation: str) -> None:
        """Becomes another node with the same log. Raises `StorageFailed`."""
        await self._loop.run_in_executor(self._disk, self._storage.renew, incarnation)
        self.ticks.pass_time()
        self.raft.renew(incarnation)
        self._wake.set()
        self._look(news=True)

    async def keep(self) -> None:
        """Keeps its identity in a copied directory. Raises `StorageFailed`."""
        await self._loop.run_in_executor(self._disk, self._storage.keep)

    # ---- inputs

    def step(self, message: Message) -> None:
        """Takes a peer's message. Raises `BadMessage`; `StorageFailed`: the log cannot be read, and `run` ends."""
        self._check()
        self.ticks.pass_time()
        raft, status = self.raft, self.status
        try:
            raft.step(message)
            self.ticks.arm()
        except StorageFailed as error:
            self._failed = error
            raise
        finally:  # most heartbeats of a leader change nothing
            if self._failed or raft.has_work or (raft.role, raft.node.leader) != (status.role, status.leader):
                self._wake.set()

    def unreachable(self, node_id: int) -> None:
        """Notes that recent messages to a peer are lost."""
        self.raft.unreachable(node_id)

    def propose(self, data: bytes, *, term: int | None = None) -> "asyncio.Future[Any]":
        """Proposes a command; the future has its answer, or the error that refused it, once it is applied here.

        `term`: only in this one. Raises `NotLeader`, `ProposalDropped`, `ProposalTooLarge`; the future `OutcomeUnknown`
        when the leadership is lost meanwhile.
        """
        self._check_proposal()
        if term is not None and self.raft.status().term != term:
            raise NotLeader(None)
        entry = self.raft.propose(data)
        return self._await_entry(entry.index, entry.term)

    async def change(self, change: MembershipChange) -> None:
        """Changes the membership, and waits until it is applied. Raises `NotLeader`, `ChangeRefused`, as `propose`."""
        self._check_proposal()
        entry = self.raft.propose_change(change)
        await self._await_entry(entry.index, entry.term)

    def transfer(self, to: int) -> None:
        """Hands the leadership over. Raises `NotLeader`, `TransferRefused`."""
        self._check()
        self.ticks.pass_time()
        self.raft.transfer(to)
        self._wake.set()

    async def barrier(self) -> int:
        """Waits until all is applied here that was committed anywhere when this was called; up to which index.

        Raises `NotLeader`: no leader is known, `ProposalDropped`.
        """
        while True:
            self._check()
            context = next(self._numbers).to_bytes(8, "big")
            future: asyncio.Future[int | None] = self._loop.create_future()
            self.raft.read_index(context)
            self._reads[context] = future
            self._wake.set()
            try:
                async with asyncio.timeout(self._patience_s):
                    index = await future
            except TimeoutError:
                continue
            finally:
                self._reads.pop(context, None)
            if index is not None:
                await self.until_applied(index)
                return index

    async def quiet(self) -> None:
        """Waits until no proposal is in flight."""
        while self._proposed:
            await asyncio.wait([future for _, future in self._proposed.values()])

    async def until_applied(self, index: int) -> None:
        """Waits until the state machine has the entry of `index`."""
        if index > self.applied:
            self._check()
            await self._awaited.wait(index)

    async def settled(self) -> None:
        """Waits until all entries of this leader's log are applied. Raises `NotLeader`: another one may drop them."""
        self._check()
        now = self.raft.status()
        if now.role is not Role.LEADER:
            raise NotLeader(now.leader)
        if now.last_index > self.applied:
            await self._awaited.wait(now.last_index, term=now.term)

    @property
    def _patience_s(self) -> float:
        return 2 * self._settings.election_ticks * (self.ticks.tick_s or 0.1)

    def _check_proposal(self) -> None:
        self._check()
        if self.full is not None:
            raise self.full
        if len(self._proposed) >= PROPOSALS_MAX:
            raise ProposalDropped(f"{PROPOSALS_MAX} commands are in flight")

    def _await_entry(self, index: int, term: int) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = self._loop.create_future()
        self._proposed[index] = (term, future)
        self._wake.set()
        return future

    # ---- a turn

    async def _deal(self, ready: Ready) -> None:
        """Carries out a `Ready`, in its order. Raises `StorageFailed`, `ControllerDamaged`."""
        self._send(ready.early)
        if ready.must_sync:
            await self._save(ready)
        else:
            self._storage.save(ready)  # without waiting for the disk
            if ready.committed:
                await asyncio.sleep(0)  # others have their turn
        self._finish(ready)

    async def _save(self, ready: Ready) -> None:
        """Writes the entries, as soon as there is room. Raises `StorageFailed`.

        Meanwhile nothing is sent, so others take over; pending proposals may still be committed.
        """
        while True:
            try:
                await self._loop.run_in_executor(self._disk, self._storage.save, ready)
            except StorageFull as full:
                if self.full is None:
                    logger.error("the disk of controller.data_dir is full: %s", full)
                self.full = full
                self._fail_proposals(OutcomeUnknown(f"the disk is full: {full}"))
                await asyncio.sleep(FULL_AGAIN_S)
            except (OSError, MemoryError) as error:
                raise StorageFailed(f"the log cannot be written: {error}") from error
            else:
                if self.full is not None:
                    logger.info("there is room on the disk again")
                self.full = None
                return

    def _finish(self, ready: Ready) -> None:
        """Does the rest of a `Ready` once it is on disk."""
        self._send(ready.messages)
        if ready.snapshot is not None:
            self._restore(ready.snapshot)
        for entry in ready.committed:
            self._apply(entry)
        for read in ready.reads:
            waiting = self._reads.pop(read.context, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(read.index)
        self.raft.advance(ready)
        if ready.snapshot is not None or ready.committed:
            self._awaited.applied(self.applied)
            self._compact()
        self._look(news=ready.snapshot is not None or bool(ready.committed))

    def _restore(self, snapshot: Snapshot) -> None:
        self._machine.restore(snapshot)
        self.applied = snapshot.index
        self._snapshot_bytes, self._logged_bytes = len(snapshot.data), 0
        for index in [index for index in self._proposed if index <= snapshot.index]:
            _, future = self._proposed.pop(index)
            refuse(future, OutcomeUnknown("the entry is part of a snapshot"))

    def _apply(self, entry: Entry) -> None:
        answer: Any = None
        refused: ControllerError | None = None
        if entry.kind is EntryKind.COMMAND:
            try:
                answer = self._machine.apply(entry)
            except ControllerDamaged:
                raise
            except ControllerError as error:
                refused = error
        term, future = self._proposed.pop(entry.index, (0, None))
        self.applied = entry.index
        self._logged_bytes += len(entry.data) + ENTRY_BYTES
        if future is None or future.done():
            return
        if term != entry.term:
            future.set_exception(ProposalDropped("another leader's entry has its place"))
        elif refused is not None:
            future.set_exception(refused)
        else:
            future.set_result(answer)

    def _compact(self) -> None:
        """Lets a snapshot stand for the log when as much has been applied since the last one as that is worth."""
        if self._logged_bytes < max(self.compact_bytes, self._snapshot_bytes):
            return
        data = self._machine.snapshot()
        self._snapshot_bytes, self._logged_bytes = len(data), 0
        self.raft.compact(self.applied, data, keep=self.keep_entries)
        self._wake.set()

    def _look(self, *, news: bool = False) -> None:
        """Tells the machine when the role, the leader or the term has changed."""
        before, self.status = self.status, self.raft.status()
        after = self.status
        if before.role is Role.LEADER and (after.role is not Role.LEADER or after.term != before.term):
            self._fail_proposals(OutcomeUnknown("the leadership was lost"))
        self._awaited.led(after.term if after.role is Role.LEADER else None, NotLeader(after.leader))
        if news or (before.role, before.leader, before.term, before.membership) != (
            after.role,
            after.leader,
            after.term,
            after.membership,
        ):
            self._machine.moved()

    # ---- the end of things

    def _fail_proposals(self, error: Exception) -> None:
        waiting, self._proposed = self._proposed, {}
        for _, future in waiting.values():
            refuse(future, error)

    def _fail_all(self, error: Exception) -> None:
        self._fail_proposals(error)
        for read in self._reads.values():
            refuse(read, error)
        self._awaited.fail(error)
        self._reads.clear()
