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
from gateway.ownership.owners import Operations, Owned, Owners
from gateway.ownership.stored_entries import stored_entries
from store.api.client import StoreClient
from store.api.keys import Delete, Put

PREFIX = "consumers/"  # of the names that are owned
COUNTS = "amqp/consumers"


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
    """The consumers that are known elsewhere. All methods raise `StoreError`."""

    async def join(self, queue: str, *, exclusive: bool) -> None:
        """Counts a consumer more here. Raises `Refusal` where that is not allowed."""

    async def leave(self, queue: str) -> int:
        """Counts a consumer less here; returns the number elsewhere."""

    async def elsewhere(self, queue: str) -> int:
        """Returns how many consumers there are at other proxies."""


class LocalConsumerCounts:
    """The consumer counts of a gateway that is alone."""

    async def join(self, queue: str, *, exclusive: bool) -> None:
        """See `ConsumerCounts`."""

    async def leave(self, queue: str) -> int:
        """See `ConsumerCounts`."""
        return 0

    async def elsewhere(self, queue: str) -> int:
        """See `ConsumerCounts`."""
        return 0


class _LocalCount:
    """The number of consumers of one queue at this proxy."""

    def __init__(self, owned: Owned, key: str) -> None:
        self.owned = owned
        self.key = key
        self.count = 0


class SharedConsumerCounts:
    """The consumer counts of one of several proxies."""

    def __init__(self, store: StoreClient, owners: Owners) -> None:
        self._store = store
        self._owners = owners
        self._here: dict[str, _LocalCount] = {}
        self._turns = Turns()  # by queue: one change at a time

    async def join(self, queue: str, *, exclusive: bool) -> None:
        """See `ConsumerCounts`."""
        async with self._turns.at(queue):
            here = self._here.get(queue)
            if here is None:
                proxy = self._owners.id
                owned = await self._owners.take(f"{PREFIX}{queue}/{proxy}", wait=False)
                here = self._here[queue] = _LocalCount(owned, kv_key(COUNTS, f"{queue}/{proxy}"))
            here.count += 1
            try:
                await self._write(queue, here, exclusive=exclusive)
                others = await self._others(queue)
                if others and (exclusive or any(one.exclusive for one in others)):
                    raise exclusive_consumer(queue)
            except BaseException:
                await self._leave(queue, here)
                raise

    async def leave(self, queue: str) -> int:
        """See `ConsumerCounts`."""
        async with self._turns.at(queue):
            here = self._here.get(queue)
            if here is not None:
                await self._leave(queue, here)
            return sum([one.count for one in await self._others(queue)])

    async def _leave(self, queue: str, here: _LocalCount) -> None:
        here.count -= 1
        if here.count > 0:
            await self._write(queue, here, exclusive=False)
        else:
            self._here.pop(queue, None)
            await here.owned.release([Delete(here.key)])

    async def elsewhere(self, queue: str) -> int:
        """See `ConsumerCounts`."""
        return sum([one.count for one in await self._others(queue)])

    async def _write(self, queue: str, here: _LocalCount, *, exclusive: bool) -> None:
        record = ConsumerCount(queue, self._owners.id, here.count, exclusive)
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
