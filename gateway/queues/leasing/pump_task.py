"""The task of a pump."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class PumpTask:
    """Runs a pump while it has consumers; `failed` is called if a bug of ours ends it.

    It does not know its pump while that is at rest: a deleted queue is freed without a search for cycles.
    """

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        self._name = name
        self._failed = failed
        self._task: asyncio.Task[None] | None = None

    def start(self, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the pump unless it is running."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(run(), name=self._name)
            self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Ends the pump. Its queue is gone, or the process ends."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
