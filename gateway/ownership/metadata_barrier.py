"""The metadata barrier: one question to the controllers tells all who ask meanwhile whether the cache is current."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from controller.api.client import ControllerError
from store.base import logs

ANSWER_S = 1.0  # that controllers have: the caller has another way, which costs more
UNANSWERED_PAUSE_S = 5.0  # not asked again for so long after they have not answered

log = logs.get(__name__)


class MetadataBarrier:
    """Calls `barrier`, which returns when the cache of metadata holds all that was done before. `spawn` runs a task."""

    def __init__(
        self, barrier: Callable[[], Awaitable[None]], *, spawn: Callable[[Coroutine[Any, Any, object]], object]
    ) -> None:
        self._barrier = barrier
        self._spawn = spawn
        self._next: asyncio.Future[bool] | None = None  # of those who have come since the last question was asked
        self._asking = False
        self._paused_until_s = 0.0

    async def passed(self) -> bool:
        """Returns whether the cache has all that was done before this call; False when no controller can say."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._paused_until_s:
            return False
        if self._next is None:
            self._next = loop.create_future()
        following = self._next
        if not self._asking:
            self._asking = True
            self._spawn(self._ask())
        return await asyncio.shield(following)

    async def _ask(self) -> None:
        try:
            while (asked := self._next) is not None:
                self._next = None
                asked.set_result(await self._answer())
        finally:
            self._asking = False

    async def _answer(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._barrier()
        except (ControllerError, TimeoutError) as error:
            log.warning("the controllers did not answer a metadata barrier", error=repr(error))
            self._paused_until_s = asyncio.get_running_loop().time() + UNANSWERED_PAUSE_S
            return False
        return True
