"""The logs of a cluster as one: calls that go to one of them, and searches in all."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

from store.api.client import StoreClient
from store.api.log import IndexKind, LogCalls, OnAppended, TailListener
from store.base.errors import StoreError
from store.cluster.store_groups import StoreGroups
from store.format.frame import ROW, Frame, LogOffset, Position, QueueNumber, UnplacedFrame, group_of


class ClusterLog(LogCalls):
    """`LogCalls` of all groups."""

    def __init__(self, stores: StoreGroups) -> None:
        self._stores = stores

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """Appends to the log of the first row's queue, where all of the frame's have to lie."""
        groups = self._stores
        try:
            store = groups.of(QueueNumber(ROW.unpack_from(frame.rows)[0])) if frame.rows else groups.home
        except StoreError as error:
            asyncio.get_running_loop().call_soon(done, error)
            return
        store.log.append(frame, done)

    @property
    def pending_bytes(self) -> int:
        """See `LogCalls.pending_bytes`: of all groups."""
        return sum([store.log.pending_bytes for store in self._stores.logs.values()])

    @property
    def confirmed(self) -> LogOffset:
        """See `LogCalls.confirmed`: of the home group's log."""
        return self._stores.home.log.confirmed

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `LogCalls.tail`: of all logs, each in its order."""
        return self._stores.listen(lambda store: store.log.tail(listener))

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `LogCalls.scan`: of the log that `start` is in, for those of the queues that lie in it."""
        group = group_of(start.frame)
        mine = None if queues is None else [queue for queue in queues if self._stores.store_group(queue) == group]
        return await self._stores.log(group).log.scan(start, mine, max_bytes=max_bytes)

    async def read(self, position: Position) -> bytes | None:
        """See `LogCalls.read`. In the log of a group that is gone there is nothing."""
        store = self._stores.logs.get(group_of(position.frame))
        return None if store is None else await store.log.read(position)

    async def last(self, address_hash: int, queues: Sequence[QueueNumber] | None = None) -> Position | None:
        """See `LogCalls.last`: of those that are there the one that was stored last, by the groups' clocks."""
        asked = await self._stores.of_any(queues, lambda store: store.log.last(address_hash))
        found = [at for at in asked if at is not None]
        if len(found) < 2:
            return found[0] if found else None
        times = await asyncio.gather(*map(self._stored_at_ms, found))
        return max(zip(times, found, strict=True))[1]

    async def _stored_at_ms(self, position: Position) -> tuple[bool, int]:
        """Returns whether the record at a position is there, and when it was stored."""
        frames, _ = await self.scan(position, None, max_bytes=1)
        there = bool(frames) and frames[0].start == position.frame
        return there, frames[0].header.stored_at_ms if there else 0

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
        queues: Sequence[QueueNumber] | None = None,
    ) -> Sequence[Position]:
        """See `LogCalls.find`: newest first within each group, group by group."""

        async def find(store: StoreClient) -> Sequence[Position]:
            if below is not None and store.group > group_of(below.frame):
                return ()
            return await store.log.find(kind, hash_, from_ms=from_ms, until_ms=until_ms, below=below, limit=limit)

        found = await self._stores.of_any(queues, find)
        return sorted(chain.from_iterable(found), reverse=True)[: max(limit, 0)]

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `LogCalls.addresses`."""
        return await self._stores.home.log.addresses(prefix, after=after, limit=limit)

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """See `LogCalls.note_addresses`."""
        await self._stores.home.log.note_addresses(addresses)
