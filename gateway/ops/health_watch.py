"""Polls the controllers for the health of store groups, which they alone know: full disks, silent nodes, damage."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from controller.api.client import ControllerError
from controller.elections.registry import GroupRoute
from controller.remote.remote import RemoteController
from store.base.rhythm import until_next_s
from store.base.streams.event_wait import wait_at_most

LOOK_S = 5.0  # between two looks
SOON_S = 0.5  # after a group has changed: until all controllers know the cause
REFUSED_S = 0.5  # between two looks while a master takes no writes: a new one does not for a moment
STALE_S = 3 * LOOK_S  # without an answer: longer than one look that waits for its timeout


class GroupWatch:
    """The newest answers. They stay while no controller answers, but not for long that a master takes no writes.

    The state passes without a message about its end: then only the master's own answers to writes count.
    """

    def __init__(self, controller: RemoteController, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self.routes: Mapping[int, GroupRoute] = {}
        self._controller = controller
        self._now_s = now_s
        self._answered_s = now_s()
        self._changed = asyncio.Event()

    @property
    def warnings(self) -> list[str]:
        """Returns a warning where the health of the store groups has been unknown for long."""
        silent_s = self._now_s() - self._answered_s
        if silent_s < STALE_S:
            return []
        return [
            f"no controller has said for {silent_s:.0f} s how the store groups are: disks and replicas are as of then"
        ]

    @asynccontextmanager
    async def looking(self) -> AsyncIterator["GroupWatch"]:
        """Looks until the exit."""
        unwatch = self._controller.watch(self._changed.set)
        task = asyncio.create_task(self._look(), name="health of the store groups")
        try:
            yield self
        finally:
            unwatch()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            try:
                self.routes = {route.group: route for route in await self._controller.routes()}
                self._answered_s = self._now_s()
            except ControllerError:
                if self._now_s() - self._answered_s >= STALE_S:
                    self.routes = {number: _without_refusals(route) for number, route in self.routes.items()}
            refused = any(route.refuses for route in self.routes.values())
            if await wait_at_most(self._changed, until_next_s(REFUSED_S if refused else LOOK_S)):
                await asyncio.sleep(SOON_S)
                self._changed.clear()


def _without_refusals(route: GroupRoute) -> GroupRoute:
    if not route.refuses:
        return route
    replicas = (
        msgspec.structs.replace(one, stalled=False, full=False) if one.id == route.master else one
        for one in route.replicas
    )
    return msgspec.structs.replace(route, replicas=tuple(replicas))
