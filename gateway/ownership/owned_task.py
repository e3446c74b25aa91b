"""Work that one of several processes does: the one that owns its name."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.domain.errors import Refusal
from gateway.ownership.owners import Operations, Owned, Owners, OwnershipLost, Taken
from store.base import logs
from store.base.errors import StoreError
from store.base.streams.event_wait import wait_at_most

log = logs.get(__name__)


class OwnedTask:
    """Runs `work` while this process owns a name, and looks again and again whether it could own it.

    The work is cancelled, once, when the name has to be released. When it ends by itself the name is released too, and
    the processes look for it again. It raises `OwnershipLost` when another process owns the name.
    `look_s` is about how long it is between two looks.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Owned], Coroutine[Any, Any, None]],
        owners: Owners,
        *,
        look_s: float,
        chance: random.Random,
    ) -> None:
        self._name = name
        self._work = work
        self._owners = owners
        self._look_s = look_s
        self._chance = chance
        self._look = asyncio.Event()  # set when the next look should be now
        self._owned: Owned | None = None
        self._working: asyncio.Task[None] | None = None
        self._stopping = False  # the work is cancelled, and may take a while to end
        self._releasing = asyncio.Lock()
        self._last_changes: Operations | None = None  # those of `end`

    async def run(self) -> None:
        """Runs until it is cancelled, or `end` is called."""
        try:
            while self._last_changes is None:
                self._look.clear()
                self._owned = await self._take()
                if self._owned is not None and self._last_changes is None:
                    await self._run(self._owned)
                    await self._release()
                await wait_at_most(self._look, self._look_s * self._chance.uniform(0.5, 1.0))
        finally:
            await self._release()

    def look_now(self) -> None:
        """Ends the wait for the next look: the name may be free."""
        self._look.set()

    def end(self, changes: Operations) -> None:
        """Ends the work for good; if the name is ours, these changes are made, and its cursor is forgotten."""
        self._last_changes = changes
        self._stop_work()
        self.look_now()

    def lose(self) -> None:
        """Stops the work: this process owns nothing any more."""
        self._owned = None
        self._stop_work()

    async def hand_over(self) -> None:
        """Stops the work and releases the name, as another process asks for it."""
        self._stop_work()
        if self._working is not None:
            await asyncio.wait([self._working])
        await self._release()

    # ---- inside

    async def _take(self) -> Owned | None:
        try:
            return await self._owners.take(self._name, wait=False)
        except Taken:
            return None
        except (StoreError, Refusal) as error:
            log.debug("the owner of a name is unknown for now", name=self._name, error=str(error))
            return None

    async def _run(self, owned: Owned) -> None:
        """Runs the work until its end."""
        working = self._working = asyncio.ensure_future(self._work(owned))
        self._stopping = False
        try:
            await asyncio.wait([working])
        finally:
            self._stop_work()
            await asyncio.gather(working, return_exceptions=True)
            self._working = None
        failure = None if working.cancelled() else working.exception()
        if isinstance(failure, OwnershipLost):
            if self._owned is not None:
                log.warning("another process owns the name by now; the work for it stops here", name=self._name)
            self._owned = None
        elif failure is not None:  # our own bug
            log.error("the work for an owned name failed", name=self._name, exc_info=failure)

    def _stop_work(self) -> None:
        if self._working is not None and not self._stopping:
            self._stopping = True
            self._working.cancel()

    async def _release(self) -> None:
        async with self._releasing:  # of two callers, the second returns when the first has released it
            owned, self._owned = self._owned, None
            if owned is None:
                return
            try:
                if self._last_changes is not None:
                    await owned.forget(self._last_changes)
                await owned.release()
            except OwnershipLost:
                pass
            except StoreError as error:
                log.warning(
                    "the ownership of a name was not released; other processes take it over when this one has ended",
                    name=self._name,
                    error=str(error),
                )
