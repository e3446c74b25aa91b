"""The queues of a `LocalStore`: reading their records, their retention, news of available messages, and losses."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from store.api.lost import LOST_RANGES_COUNT_MAX, NOTHING_LOST, LostMessages
from store.api.queues import Bounds, Fetched, QueuesListener
from store.base.errors import OffsetOutOfRange
from store.base.listeners import Listeners
from store.engine.lost import lost_messages
from store.format.frame import QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.format.records import QueueDeleted
from store.integrity.ledger import Damage
from store.local.core import Core, check_messages_queue
from store.recent.arrivals import WAIT_MS_MAX, Arrivals

logger = logging.getLogger(__name__)

_OFFSET_END = 1 << 63


class LocalQueues:
    """`QueueCalls` of one group in this process."""

    def __init__(self, core: Core, arrivals: Arrivals) -> None:
        self._core = core
        self._arrivals = arrivals
        self._listeners = Listeners[Sequence[QueueNumber]]("queues")
        self._lost = _LostLook(core)

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
        views = self._core.engine.views

        def newest() -> QueueNumber:
            with views.reading() as txn:
                return views.queues.newest(txn)

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
        await self._core.recorder.record(QueueDeleted(queue))
        await self._core.check_queue(queue)

    async def lost(self, limit: int = LOST_RANGES_COUNT_MAX) -> LostMessages:
        """See `QueueCalls.lost`."""
        return (await self._lost.messages()).first(limit)

    def lost_known(self) -> LostMessages | None:
        """Returns the lost messages without reading; None where `lost` has to be asked first."""
        return self._lost.known()

    async def close(self) -> None:
        """Waits for reads that are under way, and end since the store is closing."""
        await self._lost.close()

    def watch(self, listener: QueuesListener) -> Callable[[], None]:
        """See `QueueCalls.watch`."""
        return self._listeners.add(listener)

    def wake(self, queues: Sequence[QueueNumber]) -> None:
        """Tells the listeners that some queues have available messages."""
        self._listeners.tell(queues)


class _LostLook:
    """The lost messages of a store: those in open damages that no other replica can repair.

    A look reads views in a thread. Its result stays until other damages are lost, and it goes on when a caller is
    cancelled, so however many ask, and give up, one thread reads.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._found: tuple[tuple[Damage, ...], LostMessages] = (), NOTHING_LOST
        self._looking: asyncio.Task[None] | None = None  # the newest one

    async def messages(self) -> LostMessages:
        """Returns them. Raises `StoreError`."""
        while (damages := self._damages()) and damages != self._found[0]:
            await asyncio.shield(self._look(damages))
        return self._found[1] if damages else NOTHING_LOST

    def known(self) -> LostMessages | None:
        """Returns the same without reading; None where a look is due first."""
        damages = self._damages()
        return self._found[1] if damages == self._found[0] else None if damages else NOTHING_LOST

    async def close(self) -> None:
        """Waits for the end of a look, which comes soon once the store is closing."""
        if self._looking is not None:
            await asyncio.wait([self._looking])

    def _look(self, damages: tuple[Damage, ...]) -> "asyncio.Task[None]":
        if self._looking is None or self._looking.done():
            self._core.check_running()
            self._looking = asyncio.create_task(self._find(damages), name="look for lost messages")
            self._looking.add_done_callback(_heard)
        return self._looking

    async def _find(self, damages: tuple[Damage, ...]) -> None:
        core = self._core
        look = partial(lost_messages, core.engine.views, damages, core.check_running)
        self._found = damages, await core.loop.run_in_executor(core.pool, look)

    def _damages(self) -> tuple[Damage, ...]:
        core = self._core
        return tuple(one for one in core.damages if core.is_lost(one.start)) if core.engine.log.damages.count else ()


def _heard(looking: "asyncio.Task[None]") -> None:
    """Takes the error of a look, which those who wait for it raise: perhaps all of them have gone."""
    if not looking.cancelled():
        looking.exception()
