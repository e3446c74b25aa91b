"""The leases that the owners of a client hold, so that they can be told which ones a broken connection has ended."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from store.api.leases import Lease
from store.format.frame import QueueNumber, QueueOffset
from store.format.ranges import Range, ranges_of

OFFSETS_COUNT_MAX = 1 << 20  # named by one call: of a longer range only the owner's leases


@dataclass(slots=True)
class _Holding:
    """An owner's leases of a group's messages of one queue. Leases that end by themselves are not counted."""

    held: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)  # with an earlier connection; they are leased to others now
    timed: bool = False  # some end by themselves


class HeldLeases:
    """Leases by owner, and takes in flight. As large as the held ranges."""

    def __init__(self) -> None:
        self._owners: dict[int, dict[tuple[QueueNumber, str], _Holding]] = {}
        self._taken: set[int] = set()  # owners that the session knows
        self._takes: dict[int, dict[object, QueueNumber]] = {}  # by owner; gone when it was released

    def begin_take(self, owner: int, queue: QueueNumber) -> object:
        """Notes that a take begins, and returns its mark for `end_take`."""
        take = object()
        self._takes.setdefault(owner, {})[take] = queue
        self._taken.add(owner)
        return take

    def end_take(self, take: object, owner: int, queue: QueueNumber, group: str, leases: Sequence[Lease]) -> bool:
        """Ends a take; returns False when its owner was released meanwhile, and its leases with it."""
        takes = self._takes.get(owner)
        if takes is None or take not in takes:
            return False
        del takes[take]
        if not takes:
            del self._takes[owner]
        if leases:
            holding = self._owners.setdefault(owner, {}).setdefault((queue, group), _Holding())
            if leases[0].grant is not None:
                holding.timed = True
            else:
                offsets = [lease.offset for lease in leases]
                holding.held.update(offsets)
                holding.lost.difference_update(offsets)
        return True

    def has_taken(self, owner: int) -> bool:
        """Returns whether the store knows an owner."""
        return owner in self._taken

    def drop(
        self, owner: int, queue: QueueNumber, group: str, offsets: Sequence[QueueOffset]
    ) -> tuple[Sequence[Range], Sequence[int]]:
        """Drops an owner's leases that it is done with; returns those to tell the store of, and those lost before."""
        return self._split(owner, queue, group, offsets, forget=True)

    def known(
        self, owner: int, queue: QueueNumber, group: str, offsets: Sequence[QueueOffset]
    ) -> tuple[Sequence[Range], Sequence[int]]:
        """Returns the same for leases that the owner keeps."""
        return self._split(owner, queue, group, offsets, forget=False)

    def _split(
        self, owner: int, queue: QueueNumber, group: str, offsets: Sequence[QueueOffset], *, forget: bool
    ) -> tuple[Sequence[Range], Sequence[int]]:
        holdings = self._owners.get(owner, {})
        holding = holdings.get((queue, group))
        if holding is None:
            return _ranges(offsets, ()), ()
        lost = sorted(_common(holding.lost, offsets))
        held = _common(holding.held, offsets)
        ranges = _ranges(offsets, held)
        if lost:
            ranges = ranges_of(sorted(set(_listed(ranges)).difference(lost)))
        if forget:
            holding.held -= held
            holding.lost.difference_update(lost)
            if not (holding.held or holding.lost or holding.timed):
                del holdings[queue, group]
        return ranges, lost

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """Gives back everything of an owner; returns the queues it held something of, or may have been about to."""
        self._taken.discard(owner)
        taking = self._takes.pop(owner, {}).values()
        holdings = self._owners.pop(owner, {})
        held = [queue for (queue, _), one in holdings.items() if one.held or one.timed]
        return list(dict.fromkeys((*held, *taking)))

    def lose(self) -> Sequence[QueueNumber]:
        """Forgets all leases, as the session is over; returns their queues. Takes in flight go on with the next one."""
        queues: dict[QueueNumber, None] = {}
        for owner, holdings in list(self._owners.items()):
            for (queue, group), one in list(holdings.items()):
                if one.held or one.timed:
                    queues[queue] = None
                one.lost |= one.held
                one.held, one.timed = set(), False
                if not one.lost:
                    del holdings[queue, group]
            if not holdings:
                del self._owners[owner]
        self._taken = set(self._takes)
        return list(queues)


def _common(numbers: set[int], offsets: Sequence[QueueOffset]) -> set[int]:
    if isinstance(offsets, range) and len(offsets) > len(numbers):
        return {n for n in numbers if n in offsets}
    return numbers.intersection(offsets)


def _ranges(offsets: Sequence[QueueOffset], held: Iterable[int]) -> Sequence[Range]:
    """Returns offsets as ranges; of too many only those that are known to be held."""
    if len(offsets) > OFFSETS_COUNT_MAX:
        return ranges_of(held)
    if isinstance(offsets, range) and offsets.step == 1:
        return [(offsets.start, offsets.stop)] if offsets else []
    return ranges_of(offsets)


def _listed(ranges: Sequence[Range]) -> list[int]:
    return [n for start, end in ranges for n in range(start, end)]
