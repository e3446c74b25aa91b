"""The part that all subjects of a store share: the engine, recent records, and waiting for threads and views."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from store.base.clock import RisingClock
from store.base.errors import BadArgument, CorruptFrame, ReplicaIncomplete, StoreClosed
from store.engine.engine import Engine
from store.engine.replication_hooks import ReplicationHooks
from store.format.frame import FIRST_QUEUE, LogOffset, QueueNumber
from store.integrity.ledger import Damage
from store.local.reader import NotInMemory, StoreReader
from store.local.recorder import Recorder
from store.log.retention import ReadableRange
from store.recent.recent import Recent

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


READERS = 4  # threads that may wait for a disk
REPAIR_S_MAX = 5.0  # that a read waits for the repair of the frames that it needs
LOST_LOOK_S = 0.25  # in which a waiting caller learns that it is lost
_QUEUE_MAX = (1 << 32) - 1


def check_messages_queue(queue: QueueNumber) -> None:
    """Raises `BadArgument` for a number that can be no queue of messages."""
    if not FIRST_QUEUE <= queue <= _QUEUE_MAX:
        raise BadArgument(f"no queue of messages has the number {queue}")


async def _alone() -> None:
    """Returns at once: no other replica can be the master."""


def _answered() -> bool:
    """Returns False: no answer is awaited."""
    return False


class Core:
    """The state of a store that its subjects share. Belongs to the thread of the event loop.

    The store sets `engine`, `recent`, `reader` and `recorder` while it opens, before its first call. On the master of
    several replicas `agreed` returns when the confirmed state is the newest there is, and `cut_off` says whether too
    few replicas answer.
    """

    engine: Engine
    recent: Recent
    reader: StoreReader
    recorder: Recorder

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ms: RisingClock, hooks: ReplicationHooks | None) -> None:
        self.loop = loop
        self.now_ms = now_ms
        self.hooks = hooks
        self.pool = ThreadPoolExecutor(READERS, "store-read")
        self.closing: asyncio.Future[None] | None = None
        self.predecessor_end = LogOffset(0)  # of a new master's log from before its election
        self.agreed: Callable[[], Awaitable[None]] = _alone
        self.cut_off: Callable[[], bool] = _answered
        self._dispatch_waiters: list[tuple[LogOffset, asyncio.Future[None]]] = []
        self._repairs = 0  # how often something was repaired
        self._repair_waiters: list[asyncio.Future[None]] = []

    def post(self, call: Callable[..., None], *args: object) -> None:
        """Calls something on the loop's thread; any thread may ask."""
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: no caller is left to be told
            logger.warning("the event loop ended before the store was closed")

    # ---- open or closed

    @property
    def writable(self) -> bool:
        """Returns whether appends are taken, but for want of room or too many in flight."""
        return self.closing is None and self.engine.refusal is None and self.engine.error is None

    @property
    def awaits_predecessor(self) -> bool:
        """Returns whether part of a new master's log from before its election is not confirmed yet."""
        return self.recent.confirmed < self.predecessor_end

    def check_running(self) -> None:
        """Raises `StoreClosed`."""
        if self.closing is not None:
            raise StoreClosed("the store is shut down")

    def check_open(self) -> None:
        """Raises `StoreClosed`, and where a replica's views are being filled why nothing can be read."""
        self.check_running()
        if self.engine.filling is not None:
            raise self.engine.filling

    async def check_queue(self, queue: QueueNumber) -> None:
        """Waits while the views still hold a deleted queue's entries. Raises `BadArgument` for a number of no queue."""
        self.check_open()
        if not 0 <= queue <= _QUEUE_MAX:
            raise BadArgument(f"no queue has the number {queue}")
        while (at := self.recent.deletion(queue)) is not None:
            await self.until_dispatched(LogOffset(at + 1))

    def kept(self, queue: QueueNumber) -> ReadableRange:
        """Returns the limits within which a queue can be read now."""
        return self.recent.limits.kept(queue, self.recent.first, self.now_ms())

    # ---- waiting for views

    async def until_dispatched(self, until: LogOffset) -> None:
        """Waits until the views hold everything before a log offset."""
        if self.engine.error is not None:
            raise self.engine.error
        if until <= self.recent.start:
            return
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._dispatch_waiters.append((until, waiter))
        self.engine.apply_views(until)
        await waiter

    def dispatched(self, dispatched: LogOffset) -> None:
        """Ends the waiting for the views as far as they have come."""
        waiting = []
        for until, waiter in self._dispatch_waiters:
            if until > dispatched:
                waiting.append((until, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._dispatch_waiters = waiting

    def fail_waiters(self) -> None:
        """Fails those who wait for the views, as nothing more will be dispatched."""
        waiting, self._dispatch_waiters = self._dispatch_waiters, []
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(self.engine.error or StoreClosed("the store is shut down"))

    # ---- waiting for a disk, and for repairs

    async def read(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Asks the reader: here when memory is enough, else in a thread."""
        try:
            return call(*args, **kwargs, in_memory=True)  # type: ignore[arg-type]
        except NotInMemory:
            return await self.blocking(call, *args, **kwargs)

    async def blocking(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Asks in a thread. Where the log is damaged and another replica may have it, waits for the repair."""
        until = 0.0
        while True:
            self.check_open()
            repairs = self._repairs
            try:
                return await self.loop.run_in_executor(self.pool, partial(call, *args, **kwargs))
            except CorruptFrame as error:
                until = until or self.loop.time() + REPAIR_S_MAX
                await self._until_repaired(error, repairs, until)

    async def _until_repaired(self, error: CorruptFrame, repairs: int, until: float) -> None:
        """Waits until something is repaired. Raises the error where it is lost, `ReplicaIncomplete` after a time."""
        while self._repairs == repairs:
            if self.is_lost(LogOffset(error.log_offset)):
                raise error
            self.check_running()
            left = until - self.loop.time()
            if left <= 0:
                raise ReplicaIncomplete(f"{error}; it is being repaired from another replica") from error
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._repair_waiters.append(waiter)
            try:
                await asyncio.wait([waiter], timeout=min(left, LOST_LOOK_S))
            finally:
                self._repair_waiters.remove(waiter)

    @property
    def damages(self) -> Sequence[Damage]:
        """The open damages of the log, missing ranges too, by log offset; repaired ones are gone from here."""
        first = min(self.engine.log.first, self.engine.views.first)
        return [damage for damage in self.engine.log.damages.open() if damage.end > first]

    def is_lost(self, at: LogOffset) -> bool:
        """Returns whether the data damaged at a log offset exists nowhere else. Any thread may ask."""
        return self.hooks is None or self.hooks.lost(at)

    def repaired(self) -> None:
        """Wakes the readers that wait for the repair of a damaged range."""
        self._repairs += 1
        for waiter in self._repair_waiters:
            if not waiter.done():
                waiter.set_result(None)
