"""A store group whose reads a replica near by answers, as far as it has the records."""

from collections.abc import Sequence
from typing import Any

from store.api.queues import Bounds, Fetched
from store.base.errors import StoreError
from store.format.frame import Frame, LogOffset, Position, QueueNumber, QueueOffset
from store.remoting.client import RemoteStore
from store.remoting.connection import Resolve
from store.remoting.core import Remote
from store.remoting.log import RemoteLog
from store.remoting.queues import RemoteQueues

NEAR_BUDGET_S = 0.5  # that a read waits for a replica that has gone away, before the master is asked


class NearStore(RemoteStore):
    """A `RemoteStore` whose `scan`, `fetch`, `read` and `bounds` are answered by a replica where that cannot be seen.

    `near` says where the replica is; with None, or while it is away or behind, the master is asked. The master has
    everything that the replica has confirmed, so a record that is found is right; that there is none, only the master
    can say, and the replica while it is not behind anything this client knows of.
    """

    def __init__(self, group: int, resolve: Resolve, *, near: Resolve, **options: Any) -> None:
        super().__init__(group, resolve, **options)
        same = {name: options[name] for name in ("credentials", "cluster", "agree") if name in options}
        self.near = RemoteStore(group, near, budget_s=NEAR_BUDGET_S, reading=True, **same)
        self.log = _NearLog(self._remote, self.near)  # type: ignore[abstract]
        self.queues = _NearQueues(self._remote, self.near)  # type: ignore[abstract]

    async def _close(self) -> None:
        await self.near.close()
        await super()._close()

    def moved(self) -> None:
        """See `RemoteStore.moved`."""
        super().moved()
        self.near.moved()


def _has(near: RemoteStore, at: LogOffset) -> bool:
    """Returns whether the replica has confirmed everything before an offset of the log."""
    return near.is_connected and near.log.confirmed >= at


class _NearLog(RemoteLog):
    def __init__(self, remote: Remote, near: RemoteStore) -> None:
        super().__init__(remote)
        self._near = near

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `LogCalls.scan`."""
        if _has(self._near, LogOffset(start.frame + 1)):
            try:
                return await self._near.log.scan(start, queues, max_bytes=max_bytes)
            except StoreError:
                pass
        return await super().scan(start, queues, max_bytes=max_bytes)

    async def read(self, position: Position) -> bytes | None:
        """See `LogCalls.read`."""
        if _has(self._near, LogOffset(position.frame + 1)):
            try:
                return await self._near.log.read(position)
            except StoreError:
                pass
        return await super().read(position)


class _NearQueues(RemoteQueues):
    def __init__(self, remote: Remote, near: RemoteStore) -> None:
        super().__init__(remote)
        self._near = near

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """See `QueueCalls.fetch`."""
        if self._near.is_connected:
            try:
                fetched = await self._near.queues.fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows)
                if fetched.next > offset:
                    return fetched
            except StoreError:
                pass
        return await super().fetch(queue, offset, max_bytes=max_bytes, max_rows=max_rows, max_wait_ms=max_wait_ms)

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """See `QueueCalls.bounds`."""
        if self._remote.connection.sessions and _has(self._near, self._remote.confirmed):
            try:
                return await self._near.queues.bounds(queue)
            except StoreError:
                pass
        return await super().bounds(queue)  # type: ignore[safe-super]  # it is made from the table
