"""The task that has a node's damages repaired from other replicas, in whichever role the node is."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from controller.api.client import Group
from store.base.errors import CorruptFrame, StoreClosed, StoreError
from store.base.rhythm import until_next_s
from store.base.streams.event_wait import wait_at_most
from store.format.frame import LogOffset
from store.format.ranges import RangeSet
from store.integrity.ledger import Damage
from store.local.local import LocalStore
from store.node.repair.agreement import Agreement
from store.node.repair.fetching import fetch_range
from store.node.replica.context import ReplicaContext
from store.node.replica.disk import Disk
from store.replication.errors import BadMessage
from store.replication.repairs import AskReplica, FrameRange, RangeOutcome, Repairs

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # how often it looks for damages that were not reported
DISK_FAULT_S = 5.0  # before a damage is repaired again that could not be written


class OpenDamageStatus(NamedTuple):
    """An open damage, as `/status` says it. `repairing_from` is the replica that is asked now; `since_s` ago."""

    segment: str
    start: LogOffset
    end: LogOffset
    why: str
    found_by: str
    lost: bool
    repairing_from: int | None
    since_s: float


class Repairer:
    """The repairs of one node, from its registration until it is closed; see `store.node.replica.context.Repairing`.

    `changed` is called when `needs_repair` changes, and when other damage is found.
    """

    def __init__(self, disk: Disk, changed: Callable[[], None]) -> None:
        self._disk = disk
        self._changed = changed
        self._context: ReplicaContext | None = None
        self._core = Repairs()
        self._asking: AskReplica | None = None
        self._refused: dict[int, str] = {}  # by replica: why it was of no use, as it was logged last
        self._lost: frozenset[FrameRange] = frozenset()  # as it was logged
        self._told: tuple[object, ...] = ()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.damages: Sequence[Damage] = ()  # that are open, as it was looked last
        self.needs_repair = False
        self.cut_short = False
        self.unusable = False  # its store cannot be opened
        self.views_damaged = False  # which is for opening the store again, not for the repair

    def begin(self, context: ReplicaContext) -> None:
        """Repairs from now on."""
        self._context = context
        self.look()
        self.agreement = Agreement(context)
        self._tasks = [
            asyncio.create_task(self._run(context), name="repair of the log"),
            asyncio.create_task(self.agreement.run(), name="comparison of seals"),
        ]

    async def close(self) -> None:
        """Repairs nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- how it stands

    def look(self) -> None:
        """Takes in which damages there are now, and begins with their repair."""
        context, store = self._context, self._disk.store
        if context is not None and store is None and self._disk.unusable is not None and not self.unusable:
            self.unusable = self.needs_repair = self.cut_short = True  # the end of the log is not known
            self._changed()
        if context is None or store is None:
            return
        self.damages = tuple(store.damages) if store.is_damaged else ()
        self.views_damaged = bool(store.view_damages)
        if not self.damages and not self.views_damaged and not self._told and not self.unusable:
            return
        opened, self.unusable = self.unusable, False
        end = store.replication.mendable_end  # a lost end of the log counts as there when all of it is on disk again
        inside = [(one.start, min(one.end, end)) for one in self.damages if one.start < end]
        self._core.look(inside, self._peers(context), now_ms=context.now_ms())
        self.cut_short = any(one.end > end for one in self.damages)  # the master sends the frames behind the end
        self.needs_repair = self.cut_short or self._core.repairable or self.views_damaged
        self._log_lost()
        told: tuple[object, ...] = ()
        if self.damages or self.views_damaged:
            told = (self.needs_repair, self.cut_short, self.damages, self.lost_bytes, self._asking)
        if told != self._told or opened:
            self._told = told
            self._changed()
            self._news.set()

    def blocks(self, at: LogOffset) -> bool:
        """Returns whether the log is damaged at a log offset."""
        return any(one.start <= at < one.end for one in self.damages)

    def awaited(self, at: LogOffset) -> frozenset[int]:
        """Returns the replicas that may have the damage at a log offset sound, and were not reached last."""
        return self._core.awaited(at)

    @property
    def damaged_bytes(self) -> int:
        """The bytes of all open damages."""
        return sum(one.end - one.start for one in self.damages)

    @property
    def lost_bytes(self) -> int:
        """The bytes that no other replica has either."""
        return sum(one.end - one.start for one in self._core.lost) if self.damages else 0

    @property
    def repairing_from(self) -> int | None:
        """The replica that is asked now."""
        return self._asking.replica if self._asking is not None else None

    @property
    def status(self) -> Sequence[OpenDamageStatus]:
        """All open damages."""
        lost = RangeSet(self._core.lost)
        return [self._status(one, lost) for one in self.damages]

    def _status(self, one: Damage, lost: RangeSet) -> OpenDamageStatus:
        assert self._context is not None
        asking = self._asking
        now_ms = self._context.now_ms()
        since_ms = self._core.since_ms(one.start)
        return OpenDamageStatus(
            *one,
            lost=one.start in lost,
            repairing_from=asking.replica if asking is not None and asking.start <= one.start < asking.end else None,
            since_s=0.0 if since_ms is None else (now_ms - since_ms) / 1000,
        )

    def describe(self) -> str:
        """Returns a sentence on the damage and its repair; empty where nothing is."""
        if self.unusable:
            return f"damaged: {self._disk.unusable}; it starts over from a snapshot when a sound master serves"
        if not self.damages:
            return "damaged: its views" if self.views_damaged else ""
        said = f"damaged: {len(self.damages)} ranges, {self.damaged_bytes} bytes"
        if self.lost_bytes:
            said += f", {self.lost_bytes} of them lost, as no replica has them"
        if self.cut_short:
            said += ", the end of the log among them, which comes from the master"
        if self.repairing_from is not None:
            return f"{said}, repairing from replica {self.repairing_from}"
        return f"{said}, waiting for a replica to repair from" if self._core.repairable else said

    def _log_lost(self) -> None:
        """Logs, as critical, the ranges that no replica has."""
        lost = frozenset(self._core.lost) if self.damages else frozenset()
        for one in sorted(lost - self._lost):
            logger.critical(
                "the log is damaged from %d to %d, and no other replica has a sound copy: its records are lost, and "
                "readers get an error",
                one.start,
                one.end,
            )
        if lost != self._lost:
            self._lost, self._disk.lost_ranges = lost, RangeSet(sorted(lost))

    # ---- the work

    def _peers(self, context: ReplicaContext) -> list[int]:
        """Returns the other replicas, those to be asked first in front: the master, those in sync, the rest."""
        group: Group = context.known()
        others = [one.id for one in group.replicas if one.id != context.replica]
        return sorted(others, key=lambda id_: (id_ != group.master, id_ not in group.sync_set, id_))

    async def _run(self, context: ReplicaContext) -> None:
        while True:
            self._news.clear()
            self.look()
            ask = self._core.ask(now_ms=context.now_ms()) if self._can_repair else None
            try:
                if ask is None:
                    await self._wait(context)
                else:
                    await self._repair(context, ask)
            except Exception:  # no other part would repair this log any more
                logger.exception("the repair of a damaged range has failed")
                await asyncio.sleep(DISK_FAULT_S)

    @property
    def _can_repair(self) -> bool:
        """Tells whether there is damage, and an open store to mend: between two roles there is none."""
        return bool(self.damages) and self._disk.store is not None

    async def _wait(self, context: ReplicaContext) -> None:
        due_ms = self._core.due_ms if self._can_repair else None
        pause_s = until_next_s(LOOK_S)
        if due_ms is not None:
            pause_s = min(max((due_ms - context.now_ms()) / 1000, 0.01), pause_s)
        await wait_at_most(self._news, pause_s)

    async def _repair(self, context: ReplicaContext, ask: AskReplica) -> None:
        """Asks a replica for a range, and writes its answer in place of the damage."""
        store, replica = self._disk.store, context.known().replica(ask.replica)
        if store is None or replica is None:
            return
        self._asking = ask
        self.look()
        found = RangeOutcome.FAILED
        try:
            found = await self._fetch(context, store, ask, replica.address)
        finally:
            self._asking = None
            self.look()
            self._core.answered(ask, found, now_ms=context.now_ms())
            self.look()

    async def _fetch(self, context: ReplicaContext, store: LocalStore, ask: AskReplica, address: str) -> RangeOutcome:
        repaired = 0
        try:
            async with aclosing(
                fetch_range(context, address, ask.start, ask.end, log_end=store.replication.end)
            ) as parts:
                async for part in parts:
                    if not await self._mend(store, LogOffset(part.start), part.frames):
                        return RangeOutcome.FAILED
                    repaired += len(part.frames)
        except StoreClosed:  # this one, between two roles
            return RangeOutcome.FAILED
        except (BadMessage, CorruptFrame) as error:
            self._complain(ask.replica, f"its answer is of no use: {error}", logging.ERROR)
            return RangeOutcome.FAILED
        except StoreError as error:
            self._complain(ask.replica, str(error), logging.INFO)
            return RangeOutcome.FAILED
        if repaired:
            self._refused.pop(ask.replica, None)
            logger.info(
                "%d damaged bytes of the log from %d to %d are repaired from replica %d",
                repaired,
                ask.start,
                ask.end,
                ask.replica,
            )
        return RangeOutcome.ANSWERED

    async def _mend(self, store: LocalStore, at: LogOffset, frames: bytes) -> bool:
        """Writes frames into a damaged range; returns whether they were written.

        Raises `StoreError`: they are not fit for it, or the store is closed.
        """
        try:
            await store.replication.mend(at, frames)
        except OSError as error:
            logger.error("a damaged range at %d cannot be written: %s", at, error)
            await asyncio.sleep(DISK_FAULT_S)
            return False
        return True

    def _complain(self, replica: int, why: str, level: int) -> None:
        """Says once why a replica was of no use, not with every attempt."""
        if self._refused.get(replica) != why:
            self._refused[replica] = why
            logger.log(level, "replica %d does not help with the repair of the log: %s", replica, why)
