"""Polls the controllers for the health of store groups, which they alone know: full disks, silent nodes, damage."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from controller.api.client import ControllerError
from controller.elections.registry import GroupRoute
from controller.remote.remote import RemoteController

LOOK_S = 5.0  # between two looks
SOON_S = 0.5  # after a group has changed: until all controllers know the cause
REFUSED_S = 0.5  # between two looks while a master takes no writes: a new one does not for a moment


class GroupWatch:
    """The newest answers. They stay while no controller answers, of which `RemoteController.connected` tells."""

    def __init__(self, controller: RemoteController) -> None:
        self.routes: Mapping[int, GroupRoute] = {}
        self._controller = controller
        self._changed = asyncio.Event()

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
            with suppress(ControllerError):  # `connected` says so, and what is known stands
                self.routes = {route.group: route for route in await self._controller.routes()}
            refused = any(route.refuses for route in self.routes.values())
            try:
                async with asyncio.timeout(REFUSED_S if refused else LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(SOON_S)
            self._changed.clear()
