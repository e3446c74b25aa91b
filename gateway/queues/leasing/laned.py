"""The store as the consumers of queues see it: the lanes of a queue are one queue.

Its offsets are those of its lanes, with the lane's place in their upper bits (`gateway.publishing.routing.lanes`).
Messages are taken from the first lane, in the order of reading, that has some; those given back return to their
place. A lane in which nothing was found is not asked again before something has come to it, which the store tells
takers that have found nothing. What was published through another process the store tells a moment after it has
confirmed it. So counts ask all lanes where this process is not `alone`, and `came` is called where a client finds
nothing and there is something.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from gateway.publishing.routing.lanes import OFFSET_MASK, PLACE_SHIFT, Lanes, QueueLanes
from store.api.client import StoreClient
from store.api.leases import Lease, LeaseCalls
from store.api.queues import Fetched, QueueCalls
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.frame import QueueNumber, QueueOffset


class _Found:
    """The lanes in which nothing was found, as far as this process has heard."""

    def __init__(self) -> None:
        self._arrivals: dict[int, int] = {}  # of each lane that was asked: how often something may have come to it
        self._empty: dict[int, int] = {}  # lane -> `_arrivals` when nothing was found

    def stamp(self, lane: int) -> int:
        """Returns the argument of `nothing_in`, from before the store was asked."""
        return self._arrivals.setdefault(lane, 0)

    def nothing_in(self, lane: int, stamp: int) -> None:
        """Notes that a lane was found empty, unless it was forgotten meanwhile."""
        if lane in self._arrivals:
            self._empty[lane] = stamp

    def may_have(self, lane: int) -> bool:
        """Returns whether something may be in a lane."""
        return self._empty.get(lane, -1) != self._arrivals.get(lane, 0)

    def came(self, lanes: Iterable[int]) -> None:
        """Notes messages that have come to lanes, or back to them."""
        for lane in lanes:
            if lane in self._arrivals:
                self._arrivals[lane] += 1

    def forget(self, lanes: Iterable[int]) -> None:
        """Forgets lanes that are gone."""
        for lane in lanes:
            self._arrivals.pop(lane, None)
            self._empty.pop(lane, None)


def at(place: int, offset: int) -> QueueOffset:
    """Returns the offset in a queue of an offset in its lane."""
    return QueueOffset(place << PLACE_SHIFT | offset)


class LanedLeases:
    """`LeaseCalls` for consumers of named queues; other calls go to the store as they are."""

    def __init__(self, leases: LeaseCalls, lanes: Lanes, found: _Found, *, alone: bool) -> None:
        self._leases = leases
        self._lanes = lanes
        self._found = found
        self._alone = alone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)

    def _candidates(self, lanes: QueueLanes) -> list[tuple[int, QueueNumber]]:
        """Returns places and lanes in which something may be, in the order of reading."""
        return [one for one in lanes.order if self._found.may_have(one[1])]

    async def take(self, queue: QueueNumber, owner: int, *, max_count: int, **options: Any) -> Sequence[Lease]:
        """See `LeaseCalls.take`: the highest priority first, and of that the former store group."""
        lanes = self._lanes.of(queue)
        if lanes is None:
            return await self._leases.take(queue, owner, max_count=max_count, **options)
        taken: list[Lease] = []
        if not max_count:  # it is asked to be told of the next message, in whatever lane
            asked = [self._leases.take(lane, owner, max_count=0, **options) for _, lane in self._candidates(lanes)]
            await asyncio.gather(*asked)
            return taken
        for place, lane in self._candidates(lanes):
            stamp, wanted = self._found.stamp(lane), max_count - len(taken)
            try:
                some = await self._leases.take(lane, owner, max_count=wanted, **options)
            except BaseException:
                for number, offsets in self._lanes.split(queue, [one.offset for one in taken]):
                    self._leases.requeue(number, owner, offsets, delivered=False)
                raise
            taken += [one._replace(offset=at(place, one.offset)) for one in some]
            if not some:
                self._found.nothing_in(lane, stamp)
            if len(taken) >= max_count or (some and len(some) < wanted):
                break  # enough, or as much as one answer holds: in this lane there may be more
        return taken

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset]) -> None:
        """See `LeaseCalls.settle`."""
        parts = self._lanes.split(queue, offsets)
        if len(parts) == 1:
            await self._leases.settle(parts[0][0], owner, parts[0][1])
        else:  # each in a frame of its own: they may lie in two store groups
            await asyncio.gather(*(self._leases.settle(lane, owner, some) for lane, some in parts))

    def settle_soon(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset]) -> "asyncio.Future[Any]":
        """See `LeaseCalls.settle_soon`."""
        parts = self._lanes.split(queue, offsets)
        settling = [self._leases.settle_soon(lane, owner, some) for lane, some in parts]
        return settling[0] if len(settling) == 1 else asyncio.gather(*settling)

    async def forward(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], rows: bytes, payload: bytes
    ) -> None:
        """See `LeaseCalls.forward`. Of a queue with lanes all offsets are in one store group."""
        if self._lanes.of(queue) is not None:
            await self._leases.commit(owner, self._lanes.split(queue, offsets), rows, payload)
        else:
            await self._leases.forward(queue, owner, offsets, rows, payload)

    def requeue(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, delivered: bool = True
    ) -> None:
        """See `LeaseCalls.requeue`."""
        for lane, some in self._lanes.split(queue, offsets):
            self._leases.requeue(lane, owner, some, delivered=delivered)
            self._found.came([lane])

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `LeaseCalls.release`."""
        released = self._leases.release(owner)
        self._found.came(released)
        return released

    async def waiting(self, queue: QueueNumber) -> int:
        """See `LeaseCalls.waiting`."""
        lanes = self._lanes.of(queue)
        if lanes is None:
            return await self._leases.waiting(queue)
        asked = [lane for _, lane in (self._candidates(lanes) if self._alone else lanes.order)]
        return sum(await asyncio.gather(*(self._leases.waiting(lane) for lane in asked)))

    async def first_waiting(self, queue: QueueNumber) -> QueueOffset | None:
        """See `LeaseCalls.first_waiting`: the one that is taken first."""
        lanes = self._lanes.of(queue)
        if lanes is None:
            return await self._leases.first_waiting(queue)
        for place, lane in self._candidates(lanes):
            first = await self._leases.first_waiting(lane)
            if first is not None:
                return at(place, first)
        return None

    async def purge(self, queue: QueueNumber) -> int:
        """See `LeaseCalls.purge`."""
        lanes = self._lanes.read_in_order(queue)
        return sum(await asyncio.gather(*(self._leases.purge(lane) for lane in lanes)))


class LanedQueues:
    """`QueueCalls` for consumers of named queues; other calls go to the store as they are."""

    def __init__(self, queues: QueueCalls, lanes: Lanes) -> None:
        self._queues = queues
        self._lanes = lanes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queues, name)

    async def fetch(self, queue: QueueNumber, offset: QueueOffset, **options: Any) -> Fetched:
        """See `QueueCalls.fetch`: within one lane."""
        lanes = self._lanes.of(queue)
        if lanes is None:
            return await self._queues.fetch(queue, offset, **options)
        place = offset >> PLACE_SHIFT
        if place not in lanes.places:  # a lane that was empty, and is gone
            raise OffsetOutOfRange(offset, QueueOffset(offset + 1), QueueOffset(offset + 1))
        try:
            found = await self._queues.fetch(lanes.places[place], QueueOffset(offset & OFFSET_MASK), **options)
        except OffsetOutOfRange as gone:
            raise OffsetOutOfRange(offset, at(place, gone.first), at(place, gone.next)) from gone
        except CorruptFrame as damaged:
            behind = None if damaged.next is None else at(place, damaged.next)
            raise CorruptFrame(damaged.log_offset, damaged.why, behind, damaged.end) from damaged
        return found._replace(offset=at(place, found.offset), next=at(place, found.next))


class LanedStore:
    """The store of consumers of named queues."""

    def __init__(self, store: StoreClient, lanes: Lanes, *, alone: bool = True) -> None:
        """Takes whether no other process publishes to the lanes."""
        self._store = store
        self._found = _Found()
        self.came, self.forget = self._found.came, self._found.forget
        self.leases = LanedLeases(store.leases, lanes, self._found, alone=alone)
        self.queues = LanedQueues(store.queues, lanes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def moved(self, before: Iterable[int], lanes: Collection[int]) -> None:
        """Notes that a queue has other lanes than before, in which there may be something."""
        self.forget(set(before).difference(lanes))
        self.came(lanes)

    @property
    def client(self) -> StoreClient:
        """Returns this store with the type that its users expect."""
        return cast(StoreClient, self)
