"""The queues of a `LocalStore`: reading their records, their retention, news of available messages, and losses."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from store.api.lost import LOST_RANGES_COUNT_MAX, NOTHING_LOST, LostMessages
from store.api.queues import Bounds, Fetched, QueuesListener
from store.base.errors import OffsetOutOfRange, ViewsDamaged
from store.base.listeners import Listeners
from store.engine.lost import lost_messages
from store.format.frame import LogOffset, QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.format.records import QueueDeleted
from store.integrity.ledger import Damage
from store.local.core import Core, check_messages_queue
from store.recent.arrivals import WAIT_MS_MAX, Arrivals

logger = logging.getLogger(__name__)

AGAIN_S = 30.0  # from one look for lost messages to the next: queues are deleted, and limits drop messages
_OFFSET_END = 1 << 63


class LocalQueues:
    """`QueueCalls` of one group in this process."""

    def __init__(self, core: Core, arrivals: Arrivals) -> None:
        self._core = core
        self._arrivals = arrivals
        self._listeners = Listeners[Sequence[QueueNumber]]("queues")
        self._lost = _LostLook(core)
        self._going: Counter[int] = Counter()  # queues whose deletion is on its way to the log

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `QueueCalls.fetch`. Raises `CorruptFrame` when the first record is in a damaged frame."""
        fetched = await self._fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
        if fetched.next > offset or max_wait_ms <= 0:
            return fetched
        recent = self._core.recent
        deadline = self._core.loop.time() + min(max_wait_ms, WAIT_MS_MAX) / 1000
        while fetched.next == offset:
            if recent.next_offset(queue) in {None, offset} and not await self._arrivals.wait(queue, deadline):
                break
            fetched = await self._fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
        return fetched

    async def _fetch(self, queue: QueueNumber, offset: QueueOffset, *, max_bytes: int, max_rows: int) -> Fetched:
        core = self._core
        await core.check_queue(queue)
        if not 0 <= offset < _OFFSET_END:
            bounds = await self.bounds(queue)
            raise OffsetOutOfRange(offset, bounds.first, bounds.next)
        if offset == core.recent.next_offset(queue):
            return Fetched((), (), offset, offset)
        return await core.read(
            core.reader.fetch,
            queue,
            offset,
            core.recent.chunks(queue),
            max_bytes=max_bytes,
            max_rows=max(max_rows, 1),
            kept=core.kept(queue),
        )

    async def newest(self) -> QueueNumber:
        """Returns the greatest number of a queue that has records, or had some; 0: none had. Raises `ViewsDamaged`."""
        views, recent = self._core.engine.views, self._core.recent.newest_queue()

        def newest() -> QueueNumber:
            with views.reading() as txn:
                return max(recent, views.queues.newest(txn))

        return await self._core.blocking(newest)

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """See `QueueCalls.bounds`."""
        core = self._core
        await core.check_queue(queue)
        return await core.read(core.reader.bounds, queue, core.recent.chunks(queue), kept=core.kept(queue))

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """See `QueueCalls.offset_at_time`."""
        core = self._core
        await core.check_queue(queue)
        recent = core.recent.chunks(queue)
        return await core.blocking(core.reader.offset_at_time, queue, time_ms, recent, kept=core.kept(queue))

    async def configure(self, configs: Sequence[QueueConfig]) -> None:
        """See `QueueCalls.configure`."""
        await asyncio.gather(*map(self._core.recorder.record, configs))

    def config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `QueueCalls.config`."""
        return self._core.recent.limits.get(queue)

    async def delete(self, queue: QueueNumber) -> None:
        """See `QueueCalls.delete`. Raises `BadArgument` for a queue of the store's own."""
        check_messages_queue(queue)
        self._going[queue] += 1
        try:
            await self._core.recorder.record(QueueDeleted(queue))
            await self._core.check_queue(queue)
        finally:
            self._going[queue] -= 1
            if not self._going[queue]:
                del self._going[queue]

    def deleted_at(self, queues: Collection[QueueNumber]) -> dict[QueueNumber, int]:
        """Returns where in the log some queues were deleted last, as far as the log and sound views know; -1: never.

        A deletion that is on its way there will be at its end.
        """
        recent, views = self._core.recent, self._core.engine.views
        found: dict[QueueNumber, int] = {}
        with views.reading() as txn:
            for queue in queues:
                at: int | None = self._core.engine.log.end if queue in self._going else recent.deletion(queue)
                with suppress(ViewsDamaged):
                    found[queue] = views.settled.queue_deleted_at(txn, queue) if at is None else at
                found.setdefault(queue, -1)
        return found

    async def lost(self, limit: int = LOST_RANGES_COUNT_MAX) -> LostMessages:
        """See `QueueCalls.lost`."""
        return (await self._lost.messages()).first(limit)

    def lost_known(self) -> LostMessages | None:
        """Returns the lost messages without reading; None where `lost` has to be asked first."""
        return self._lost.known()

    def watch(self, listener: QueuesListener) -> Callable[[], None]:
        """See `QueueCalls.watch`."""
        return self._listeners.add(listener)

    def wake(self, queues: Sequence[QueueNumber]) -> None:
        """Tells the listeners that some queues have available messages."""
        self._listeners.tell(queues)


class _LostKey(NamedTuple):
    """The damages that a look is for, and how far the views have followed the log, up to the end of these."""

    damages: tuple[Damage, ...] = ()
    followed: LogOffset = LogOffset(0)


class _LostLook:
    """The lost messages of a store: those in open damages that no other replica can repair.

    A look reads views in a thread. Its result stays while `_LostKey` does, for `AGAIN_S` at most, and it goes on when a
    caller is cancelled, so however many ask, and give up, one thread reads. It ends soon when the store closes. After
    that time it is the answer once more, while the next look is under way, unless the one before has failed.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._found: tuple[_LostKey, LostMessages] = _LostKey(), NOTHING_LOST
        self._found_s = 0.0  # when that look began
        self._looking: asyncio.Task[None] | None = None  # the newest one
        self._failed = False  # the newest look that has ended did not succeed

    async def messages(self) -> LostMessages:
        """Returns them, as of the call or later, or as of before where only time has passed. Raises `StoreError`."""
        for _ in range(2):  # the look under way, and one that has begun since: more damage may be found all the time
            known = self.known()
            if known is not None and (known is NOTHING_LOST or self._core.loop.time() < self._found_s + AGAIN_S):
                return known
            look = self._look()
            if known is not None and not self._failed:  # the look goes on behind it, however long it takes
                return known
            await asyncio.shield(look)
        return self._found[1]

    def known(self) -> LostMessages | None:
        """Returns the same without reading, perhaps of longer ago; None where a look is due first."""
        key = self._key()
        return NOTHING_LOST if not key.damages else self._found[1] if key == self._found[0] else None

    def _look(self) -> "asyncio.Task[None]":
        if self._looking is None or self._looking.done():
            self._core.check_running()
            self._looking = asyncio.create_task(self._find(), name="look for lost messages")
            self._looking.add_done_callback(self._heard)
        return self._looking

    async def _find(self) -> None:
        core, key, began_s = self._core, self._key(), self._core.loop.time()
        look = partial(lost_messages, core.engine.views, key.damages, core.check_running, core.kept)
        self._found, self._found_s = (key, await core.loop.run_in_executor(core.pool, look)), began_s

    def _key(self) -> _LostKey:
        core, views = self._core, self._core.engine.views
        if not core.engine.log.damages.count:
            return _LostKey()
        damages = tuple(one for one in core.damages if core.is_lost(one.start))
        return _LostKey(damages, min(views.dispatched, damages[-1].end)) if damages else _LostKey()

    def _heard(self, looking: "asyncio.Task[None]") -> None:
        """Takes the error of a look, which those who wait for it raise: perhaps all of them have gone."""
        self._failed = looking.cancelled() or looking.exception() is not None
