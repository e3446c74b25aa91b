"""What keeps a master from taking writes: too few replicas that answer, or a disk that is full.

The first is said in the heartbeat, and mends itself or is an election's. For the second a master hands over, if another
replica in sync has room: as planned, so that nothing is lost that was under way.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from controller.client import ControllerError
from store.format import LogOffset
from store.local import LocalStore
from store.node.place import Place
from store.replication.errors import CannotSwitchOver
from store.replication.master import Master

__all__ = ["Strain"]

logger = logging.getLogger(__name__)

ROUND_MS = 1_000  # that a round may take; so often there is one, load or no load
FULL_MS = 1_000  # a disk is full for so long before anything follows from it: meanwhile others say that theirs are
RELIEF_AGAIN_MS = 30_000  # between two attempts to hand over, by this node, in whatever epoch


class Strain:
    """Of one master. `look` is called with the time, every `TICK_S`."""

    def __init__(self, place: Place, core: Master, switch_over: Callable[[int], Awaitable[int]]) -> None:
        self._place = place
        self._core = core
        self._switch_over = switch_over
        self._round = 0  # the one that is to be agreed
        self._asked_ms = place.now_ms() - ROUND_MS
        self._full_ms: int | None = None  # since when the disk is full
        self.stalled = False  # nothing is taken, or what is taken is not confirmed
        self.cut_off = False  # the newest round was not answered in time
        self.relieving: asyncio.Task[None] | None = None

    def look(self, store: LocalStore | None, *, slaves: Mapping[int, object]) -> None:
        """See how it is now; `slaves` are the replicas that are connected."""
        core, now_ms = self._core, self._place.now_ms()
        late = now_ms - self._asked_ms >= ROUND_MS
        self.cut_off = (self.cut_off or late) and self._round > core.round_agreed
        if late and not self.cut_off:
            self._round, self._asked_ms = core.ask_round(), now_ms
        full = store is not None and store.full is not None
        stalled = self.cut_off or full or core.refusal is not None
        if stalled != self.stalled:
            self.stalled = stalled
            self._place.speak()
        if not full:
            self._full_ms = None
        elif self._full_ms is None:
            self._full_ms = now_ms
        elif now_ms - self._full_ms >= FULL_MS and self.relieving is None and now_ms >= self._place.relief_ms:
            self._place.relief_ms = now_ms + RELIEF_AGAIN_MS
            self.relieving = asyncio.create_task(self._relieve(slaves), name="relief of a full disk")

    async def _relieve(self, slaves: Mapping[int, object]) -> None:
        """Hand over to the replica in sync that has most of those with room."""
        core, group = self._core, self._place.group
        try:
            room = (await self._place.controller.service(group)).room
            positions = core.positions()
            able = [one for one in room if one in core.sync_set and one in slaves]
            target = max(able, key=lambda one: (positions.get(one, LogOffset(0)), -one), default=None)
            if target is None:
                logger.warning("the disk is full, and no other replica of group %d in sync has room", group)
                return
            logger.warning("the disk is full: replica %d of group %d has room, and is to be master", target, group)
            await self._switch_over(target)
        except (ControllerError, CannotSwitchOver) as error:
            logger.warning("the disk is full, and nobody takes over: %s", error)
        finally:
            self.relieving = None
