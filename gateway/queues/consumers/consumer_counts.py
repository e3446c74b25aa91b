"""The number of consumers that a queue has at all proxies together.

Each proxy that has some owns a name for them (`gateway.ownership.owners`), so that they do not outlive it, and a record
beside it holds their number. A proxy first writes a consumer down, then looks for others: of two that exclude each
other at least one finds the other.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec

from gateway.base.turns import Turns
from gateway.domain.errors import Cause, Refusal
from gateway.domain.keys import kv_key
from gateway.domain.vhosts import said
from gateway.ownership.owners import Operations, Owned, Owners, OwnershipLost
from gateway.ownership.stored_entries import stored_entries
from store.api.client import StoreClient
from store.api.keys import Delete, Put
from store.base import logs
from store.base.errors import StoreError

PREFIX = "consumers/"  # of the names that are owned
COUNTS = "amqp/consumers"

log = logs.get(__name__)


def exclusive_consumer(queue: str) -> Refusal:
    """Returns the refusal for a consumer beside an exclusive one."""
    return Refusal(Cause.FORBIDDEN, f"queue {said(queue)} in exclusive use")


class ConsumerCount(msgspec.Struct, frozen=True):
    """The consumers of one queue at one proxy."""

    queue: str
    proxy: str
    count: int
    exclusive: bool


_count = msgspec.msgpack.Decoder(ConsumerCount).decode


class ConsumerCounts(Protocol):
    """The consumers that are known elsewhere."""

    async def join(self, queue: str, *, exclusive: bool) -> None:
        """Counts a consumer more here. Raises `Refusal` where that is not allowed, `StoreError`."""

    async def leave(self, queue: str, *, exclusive: bool) -> None:
        """Counts a consumer less here; others see it now, or when `finish` is called."""

    async def elsewhere(self, queue: str) -> int:
        """Returns how many consumers there are at other proxies. Raises `StoreError`."""

    async def finish(self) -> None:
        """Tries again to show others the consumers that have left."""

    @property
    def behind(self) -> bool:
        """Returns whether others still see a consumer that has left."""


class LocalConsumerCounts:
    """The consumer counts of a gateway that is alone."""

    async def join(self, queue: str, *, exclusive: bool) -> None:
        """See `ConsumerCounts`."""

    async def leave(self, queue: str, *, exclusive: bool) -> None:
        """See `ConsumerCounts`."""

    async def elsewhere(self, queue: str) -> int:
        """See `ConsumerCounts`."""
        return 0

    async def finish(self) -> None:
        """See `ConsumerCounts`."""

    @property
    def behind(self) -> bool:
        """See `ConsumerCounts`."""
        return False


class _LocalCount:
    """The number of consumers of one queue at this proxy."""

    def __init__(self, owned: Owned, key: str) -> None:
        self.owned = owned
        self.key = key
        self.count = 0
        self.exclusive = 0  # of `count`: several for the moment in which all but one are refused


class SharedConsumerCounts:
    """The consumer counts of one of several proxies.

    `unfinished` is called when `finish` is to be called later.
    """

    def __init__(self, store: StoreClient, owners: Owners, unfinished: Callable[[], None]) -> None:
        self._store = store
        self._owners = owners
        self._unfinished = unfinished
        self._behind: dict[str, None] = {}  # queues whose records count consumers that have left
        self._here: dict[str, _LocalCount] = {}
        self._turns = Turns()  # by queue: one change at a time

    async def join(self, queue: str, *, exclusive: bool) -> None:
        """See `ConsumerCounts`."""
        async with self._turns.at(queue):
            here = self._here.get(queue)
            if here is not None and not here.count:  # the last one has left, and the store did not take that
                await self._end(queue, here)
                here = None
            if here is None:
                proxy = self._owners.id
                owned = await self._owners.take(f"{PREFIX}{queue}/{proxy}", wait=False)
                here = self._here[queue] = _LocalCount(owned, kv_key(COUNTS, f"{queue}/{proxy}"))
            here.count += 1
            here.exclusive += exclusive
            try:
                await self._write(queue, here)
                others = await self._others(queue)
                if others and (exclusive or any(one.exclusive for one in others)):
                    raise exclusive_consumer(queue)
            except BaseException:
                await self._leave(queue, here, exclusive=exclusive)
                raise

    async def leave(self, queue: str, *, exclusive: bool) -> None:
        """See `ConsumerCounts`."""
        async with self._turns.at(queue):
            here = self._here.get(queue)
            if here is not None:
                await self._leave(queue, here, exclusive=exclusive)

    async def _leave(self, queue: str, here: _LocalCount, *, exclusive: bool) -> None:
        here.count -= 1
        here.exclusive -= exclusive
        await self._show(queue, here)

    async def _show(self, queue: str, here: _LocalCount) -> None:
        """Shows others how many consumers there are here, fewer than before, now or later."""
        try:
            await (self._write(queue, here) if here.count else self._end(queue, here))
        except OwnershipLost as error:  # others have removed the record, or will
            log.debug("a consumer that has ended is not in the count", queue=queue, error=str(error))
        except StoreError as error:
            log.warning(
                "a consumer that has ended could not be removed from the count yet", queue=queue, error=str(error)
            )
            self._behind[queue] = None
            self._unfinished()
            return
        self._behind.pop(queue, None)

    async def _end(self, queue: str, here: _LocalCount) -> None:
        """Removes the record of a queue without consumers here."""
        try:
            await here.owned.release([Delete(here.key)])
        except OwnershipLost:
            log.debug("the record of a queue's consumers is gone already", queue=queue)
        if self._here.get(queue) is here:
            del self._here[queue]

    async def finish(self) -> None:
        """See `ConsumerCounts`."""
        for queue in list(self._behind):
            async with self._turns.at(queue):
                here = self._here.get(queue)
                if here is not None:
                    await self._show(queue, here)
                else:
                    self._behind.pop(queue, None)

    @property
    def behind(self) -> bool:
        """See `ConsumerCounts`."""
        return bool(self._behind)

    async def elsewhere(self, queue: str) -> int:
        """See `ConsumerCounts`."""
        return sum([one.count for one in await self._others(queue)])

    async def _write(self, queue: str, here: _LocalCount) -> None:
        record = ConsumerCount(queue, self._owners.id, here.count, here.exclusive > 0)
        operations: Operations = [Put(here.key, msgspec.msgpack.encode(record))]
        await here.owned.write(operations)

    async def _others(self, queue: str) -> list[ConsumerCount]:
        found = [_count(entry.value) async for entry in stored_entries(self._store, kv_key(COUNTS, queue))]
        return [one for one in found if one.queue == queue and one.proxy != self._owners.id]

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> str:
        """Removes the count that a proxy that is gone has left under a name; returns its queue."""
        queue, _, proxy = name.removeprefix(PREFIX).rpartition("/")
        await (await take()).release([Delete(kv_key(COUNTS, f"{queue}/{proxy}"))])
        return queue

    def on_fenced(self) -> None:
        """Forgets the own consumers, which other proxies do not count any more."""
        self._here.clear()
        self._behind.clear()
