"""The base of all calls: the engine, what is recent, and waiting for threads and views."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

from store.base.errors import BadArgument, CorruptFrame, ReplicaIncomplete, StoreClosed
from store.engine.engine import Engine
from store.engine.replication_hooks import ReplicationHooks
from store.format.frame import FIRST_QUEUE, LogOffset, QueueNumber
from store.local.reader import NotInMemory, Reader
from store.local.recorder import Recorder
from store.recent.recent import Recent

__all__ = ["Calls", "check_messages_queue"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


REPAIR_S_MAX = 5.0  # that a read waits for the repair of what it needs
LOST_LOOK_S = 0.25  # in which somebody who waits learns that it is lost
_QUEUE_MAX = (1 << 32) - 1


def check_messages_queue(queue: QueueNumber) -> None:
    """Raise `BadArgument` for what can be no queue of messages."""
    if not FIRST_QUEUE <= queue <= _QUEUE_MAX:
        raise BadArgument(f"no queue of messages has the number {queue}")


class Calls:
    """Some calls of a store, which sets what they need."""

    _loop: asyncio.AbstractEventLoop
    _pool: Executor  # threads that may wait for a disk
    _engine: Engine
    _recent: Recent
    _reader: Reader
    _recorder: Recorder
    _closing: asyncio.Future[None] | None
    _inherited_end: LogOffset
    _dispatch_waiters: list[tuple[LogOffset, asyncio.Future[None]]]
    _now_ms: Callable[[], int]
    _hooks: ReplicationHooks | None
    _repairs: int  # how often something was repaired
    _repair_waiters: list[asyncio.Future[None]]

    def _post(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            logger.warning("the event loop ended before the store was closed")

    async def _until_dispatched(self, until: LogOffset) -> None:
        """Wait until the views hold everything before a log offset."""
        if self._engine.error is not None:
            raise self._engine.error
        if until <= self._recent.start:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._dispatch_waiters.append((until, waiter))
        self._engine.apply_views(until)
        await waiter

    def _fail_waiters(self) -> None:
        """Fails those who wait for the views, as nothing more will be dispatched."""
        waiting, self._dispatch_waiters = self._dispatch_waiters, []
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(self._engine.error or StoreClosed("the store is shut down"))

    async def _read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the reader: here when memory is enough, else in a thread."""
        try:
            return call(*args, **kwargs, in_memory=True)  # type: ignore[arg-type]
        except NotInMemory:
            return await self._blocking(call, *args, **kwargs)

    async def _blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask in a thread. Where the log is damaged and another replica may have it, wait for the repair."""
        until = 0.0
        while True:
            self._check_open()
            repairs = self._repairs
            try:
                return await self._loop.run_in_executor(self._pool, partial(call, *args, **kwargs))
            except CorruptFrame as error:
                until = until or self._loop.time() + REPAIR_S_MAX
                await self._until_repaired(error, repairs, until)

    async def _until_repaired(self, error: CorruptFrame, repairs: int, until: float) -> None:
        """Wait until something is repaired. Raises the error where it is lost, `ReplicaIncomplete` after a time."""
        while self._repairs == repairs:
            if self._is_lost(LogOffset(error.log_offset)):
                raise error
            self._check_running()
            left = until - self._loop.time()
            if left <= 0:
                raise ReplicaIncomplete(f"{error}; it is being repaired from another replica") from error
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._repair_waiters.append(waiter)
            await asyncio.wait([waiter], timeout=min(left, LOST_LOOK_S))
            self._repair_waiters.remove(waiter)

    def _is_lost(self, at: LogOffset) -> bool:
        """Returns whether what is damaged at a log offset exists nowhere else. Any thread may ask."""
        return self._hooks is None or self._hooks.lost(at)

    def _repaired(self) -> None:
        """A damaged range is sound again: whoever waits for one tries again."""
        self._repairs += 1
        for waiter in self._repair_waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def _inherits(self) -> bool:
        """Returns whether part of a new master's log from before its election is not confirmed yet."""
        return self._recent.confirmed < self._inherited_end

    def _check_running(self) -> None:
        if self._closing is not None:
            raise StoreClosed("the store is shut down")

    def _check_open(self) -> None:
        self._check_running()
        if self._engine.filling is not None:
            raise self._engine.filling

    async def _queue(self, queue: QueueNumber) -> None:
        """Wait while the views still hold what a deleted queue had. Raises `BadArgument` for what can be no queue."""
        self._check_open()
        if not 0 <= queue <= _QUEUE_MAX:
            raise BadArgument(f"no queue has the number {queue}")
        while (at := self._recent.deletion(queue)) is not None:
            await self._until_dispatched(LogOffset(at + 1))
