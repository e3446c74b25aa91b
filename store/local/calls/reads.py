"""Reading the log and its queues, by position, offset, time, key and address; and what is said of queues."""

import asyncio
from collections.abc import Sequence

from store.api.client import Bounds, Fetched, IndexKind
from store.base.errors import BadArgument, OffsetOutOfRange
from store.format.frame import Frame, LogOffset, Position, QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.format.records import AddressesSeen, QueueDeleted
from store.local.calls.core import Calls, check_messages_queue
from store.local.finder import Finder
from store.log.retention import ReadableRange
from store.recent.arrivals import WAIT_MS_MAX, Arrivals
from store.views.index import IndexQuery

__all__ = ["ReadCalls"]


_UNSIGNED = 1 << 64


def _check_hash(hash_: int) -> None:
    if not 0 <= hash_ < _UNSIGNED:
        raise BadArgument(f"{hash_} is no hash of 64 bits")


class ReadCalls(Calls):
    """Reading."""

    _finder: Finder
    _arrivals: Arrivals

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `StoreClient.scan`."""
        self._check_open()
        end = self._recent.confirmed
        if queues is None:
            return await self._read(self._reader.scan, start.frame, end, max_bytes=max_bytes)
        for queue in queues:
            await self._queue(queue)
        recent = {queue: self._recent.chunks(queue) for queue in queues}
        end = self._recent.confirmed
        return await self._read(
            self._reader.scan_queues,
            start.frame,
            end,
            recent,
            self._recent.start,
            max_bytes=max_bytes,
            kept={queue: self._kept(queue) for queue in queues},
        )

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `StoreClient.fetch`. Raises `CorruptFrame` when the first record is in a damaged frame."""
        fetched = await self._fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
        if fetched.next > offset or max_wait_ms <= 0:
            return fetched
        deadline = self._loop.time() + min(max_wait_ms, WAIT_MS_MAX) / 1000
        while fetched.next == offset:
            if self._recent.next_offset(queue) in {None, offset} and not await self._arrivals.wait(queue, deadline):
                break
            fetched = await self._fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
        return fetched

    async def _fetch(self, queue: QueueNumber, offset: QueueOffset, *, max_bytes: int, max_rows: int) -> Fetched:
        await self._queue(queue)
        if not 0 <= offset < _UNSIGNED >> 1:
            bounds = await self.bounds(queue)
            raise OffsetOutOfRange(offset, bounds.first, bounds.next)
        if offset == self._recent.next_offset(queue):
            return Fetched((), (), offset, offset)
        recent = self._recent.chunks(queue)
        return await self._read(
            self._reader.fetch,
            queue,
            offset,
            recent,
            max_bytes=max_bytes,
            max_rows=max(max_rows, 1),
            kept=self._kept(queue),
        )

    async def read(self, position: Position) -> bytes | None:
        """See `StoreClient.read`. Raises `CorruptFrame` when the record's frame is damaged."""
        self._check_open()
        if not self._recent.first <= position.frame < self._recent.confirmed:
            return None
        frame = await self._read(self._reader.frame, position.frame)
        if frame is None or not 0 <= position.row < frame.header.row_count:
            return None
        return frame.record(position.row)

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """See `StoreClient.bounds`."""
        await self._queue(queue)
        return await self._read(self._reader.bounds, queue, self._recent.chunks(queue), kept=self._kept(queue))

    def _kept(self, queue: QueueNumber) -> ReadableRange:
        """Returns the limits within which a queue can be read now."""
        return self._recent.limits.kept(queue, self._recent.first, self._now_ms())

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """See `StoreClient.offset_at_time`."""
        await self._queue(queue)
        recent = self._recent.chunks(queue)
        return await self._blocking(self._reader.offset_at_time, queue, time_ms, recent, kept=self._kept(queue))

    async def last(self, address_hash: int) -> Position | None:
        """See `StoreClient.last`."""
        self._check_open()
        _check_hash(address_hash)
        found = self._recent.last(address_hash)
        if found is not None:
            return found
        with self._engine.views.reading() as txn:  # a lookup takes 5 us, a thread 50 to 100 us
            found = self._engine.views.last.get(txn, address_hash)
        return found if found is not None and found.frame >= self._recent.first else None

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
    ) -> Sequence[Position]:
        """See `StoreClient.find`."""
        _check_hash(hash_)
        wanted = IndexQuery.of(kind, hash_, from_ms=from_ms, until_ms=until_ms, below=below)
        return await self._blocking(self._finder.find, wanted, self._recent.runs(), limit)

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `StoreClient.addresses`."""
        recent = self._recent.addresses(prefix, after)
        return await self._blocking(self._finder.addresses, prefix, after, recent, limit)

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """See `StoreClient.note_addresses`. Those too long for the view's keys are passed over."""
        unknown = self._recent.unlisted(addresses)
        new = await self._blocking(self._finder.unlisted, unknown) if unknown else ()
        if new:
            await self._recorder.record(AddressesSeen(tuple(new)))

    async def configure_queues(self, configs: Sequence[QueueConfig]) -> None:
        """See `StoreClient.configure_queues`."""
        await asyncio.gather(*map(self._recorder.record, configs))

    def queue_config(self, queue: QueueNumber) -> QueueConfig | None:
        """See `StoreClient.queue_config`."""
        return self._recent.limits.get(queue)

    async def delete_queue(self, queue: QueueNumber) -> None:
        """See `StoreClient.delete_queue`. Raises `BadArgument` for a queue of the store's own."""
        check_messages_queue(queue)
        await self._recorder.record(QueueDeleted(queue))
        await self._queue(queue)
