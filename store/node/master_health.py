"""The health of a master: replicas that answer, room and speed of its disk, damage of its log.

The heartbeat reports missing answers; they come again, or an election helps. For the others a master hands over, if
another replica in sync has room, a faster disk, or a sound log: as planned, so that nothing in flight is lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

from controller.api.client import ControllerError
from controller.api.requests import AskService
from store.format.frame import LogOffset
from store.local.local import LocalStore
from store.node.replica.context import ReplicaContext
from store.node.syncs import Syncs
from store.replication.errors import CannotSwitchOver
from store.replication.master import Master

logger = logging.getLogger(__name__)

ROUND_MS = 1_000  # that a round may take; so often there is one, load or no load
FULL_MS = 1_000  # a disk is full for so long before anything follows from it: meanwhile others say that theirs are
DAMAGED_MS = 5_000  # that the repair of a master's own log may take: most take far less
RELIEF_AGAIN_MS = 30_000  # between two attempts to hand over, by this node, in whatever epoch
_Able: TypeAlias = Callable[[Collection[int]], Awaitable[Sequence[int]]]


class MasterHealth:
    """The health of one master. `look` is called with the time, several times a second."""

    def __init__(self, context: ReplicaContext, core: Master, switch_over: Callable[[int], Awaitable[int]]) -> None:
        self._context = context
        self._core = core
        self._switch_over = switch_over
        self._round = 0  # the one that is to be agreed
        self._asked_ms = context.now_ms() - ROUND_MS
        self._full_ms: int | None = None  # since when the disk is full
        self._syncs = Syncs()
        self._damaged_ms: int | None = None  # since when there is damage to repair
        self.stalled = False  # it takes no appends, or does not confirm those that it has taken
        self.cut_off = False  # the newest round was not answered in time
        self.relieving: asyncio.Task[None] | None = None

    def look(self, store: LocalStore | None, *, replicas: Collection[int]) -> None:
        """Takes in how the master is now; `replicas` are the replicas that are connected."""
        core, now_ms = self._core, self._context.now_ms()
        late = now_ms - self._asked_ms >= ROUND_MS
        self.cut_off = (self.cut_off or late) and self._round > core.round_agreed
        if late and not self.cut_off:
            self._round, self._asked_ms = core.ask_round(), now_ms
        full = store is not None and store.full is not None
        stalled = self.cut_off or full or core.refusal is not None
        if self._syncs.look(core.end, core.flushed, now_ms) or stalled != self.stalled:
            self.stalled = stalled
            self._context.send_heartbeat()
        self._full_ms = _since(self._full_ms, full, now_ms)
        self._damaged_ms = _since(self._damaged_ms, self._context.repairing.needs_repair, now_ms)
        if self.relieving is not None or now_ms < self._context.relief_ms:
            return
        if self._full_ms is not None and now_ms - self._full_ms >= FULL_MS:
            self._relieve(self._with_room, replicas, "its disk is full", "with room")
        elif self.slow:
            self._relieve(self._with_room, replicas, "its disk is slow", "and a disk that is not")
        elif self._damaged_ms is not None and now_ms - self._damaged_ms >= DAMAGED_MS:
            why = f"its log is not repaired after {DAMAGED_MS / 1000:g} s"
            self._relieve(self._without_damage, replicas, why, "and without damage")

    @property
    def slow(self) -> bool:
        """Returns whether the disk takes far too long to sync."""
        return self._syncs.slow

    def _relieve(self, able: _Able, replicas: Collection[int], why: str, what: str) -> None:
        self._context.relief_ms = self._context.now_ms() + RELIEF_AGAIN_MS
        self.relieving = asyncio.create_task(self._hand_over(able, replicas, why, what), name="relief of a master")

    async def _with_room(self, replicas: Collection[int]) -> Sequence[int]:
        """Raises `ControllerError`."""
        room = await self._fit()
        return [one for one in self._sound(replicas) if one in room]

    async def _without_damage(self, replicas: Collection[int]) -> Sequence[int]:
        """Returns those in whose way nothing else is, where there are any. Raises `ControllerError`."""
        fit, sound = await self._fit(), self._sound(replicas)
        return [one for one in sound if one in fit] or sound

    async def _fit(self) -> Collection[int]:
        """Returns the replicas in sync with room, a disk that is not slow and a certificate that others accept."""
        return (await self._context.controller.do(AskService(group=self._context.group))).room

    def _sound(self, replicas: Collection[int]) -> Sequence[int]:
        return [one for one in self._core.sync_set if one in replicas and not self._core.is_damaged(one)]

    async def _hand_over(self, able: _Able, replicas: Collection[int], why: str, what: str) -> None:
        """Hands over to the replica in sync that has most of those that are better off."""
        group, positions = self._context.group, self._core.positions()
        try:
            target = max(await able(replicas), key=lambda one: (positions.get(one, LogOffset(0)), -one), default=None)
            if target is None:
                logger.warning(
                    "the master of store group %d stays, although %s: no other replica is in sync %s", group, why, what
                )
                return
            logger.warning("the master of store group %d hands over to replica %d, as %s", group, target, why)
            await self._switch_over(target)
        except (ControllerError, CannotSwitchOver) as error:
            logger.warning("the master of store group %d stays, although %s: %s", group, why, error)
        finally:
            self.relieving = None


def _since(since_ms: int | None, holds: bool, now_ms: int) -> int | None:
    """Returns since when a condition holds; None while it does not."""
    if not holds:
        return None
    return now_ms if since_ms is None else since_ms
