"""Leases: which messages of a queue are lent to whom. Soft state; what is settled comes from the log.

Every offset of a queue is in one of four states: lendable, held by an owner, on its way to be settled, settled.
"""

from collections.abc import Iterable, Sequence

from store.format import QueueNumber
from store.ranges import Range, RangeSet, ranges_of

__all__ = ["LeaseQueue", "LeaseTable"]

_OFFSET_MAX = 1 << 63


class LeaseQueue:
    """The leases of one queue."""

    __slots__ = ("_deliveries", "_held", "_lendable", "_seen")

    def __init__(self, settled: Iterable[Range] = ()) -> None:
        self._lendable = RangeSet([(0, _OFFSET_MAX)])  # also what is not written yet
        self._seen = 0  # below, what is not settled counts as delivered once before
        for start, end in settled:
            self._lendable.remove(start, end)
            self._seen = end
        self._held: dict[int, set[int]] = {}  # by owner
        self._deliveries: dict[int, int] = {}  # of offsets not settled, where it is not what `_seen` says

    def lend(self, owner: int, count: int, below: int) -> list[Range]:
        """Give an owner the lowest lendable offsets under `below`."""
        taken = self._lendable.take(count, below)
        if taken:
            held = self._held.setdefault(owner, set())
            for start, end in taken:
                held.update(range(start, end))
        return taken

    def held(self, owner: int) -> frozenset[int] | set[int]:
        """What an owner holds."""
        return self._held.get(owner, frozenset())

    def deliveries(self, offset: int) -> int:
        """How often a message had been lent before and counted."""
        return self._deliveries.get(offset, 1 if offset < self._seen else 0)

    def requeue(self, owner: int, offsets: Iterable[int], *, delivered: bool) -> bool:
        """Take back from an owner what it holds of some offsets; whether that was anything."""
        mine = self._drop(owner, offsets)
        self.restore(ranges_of(mine), delivered=delivered)
        return bool(mine)

    def begin_settling(self, owner: int, offsets: Iterable[int]) -> list[Range]:
        """What an owner holds of some offsets. It is nobody's until `settle`, or `restore` when that fails."""
        return ranges_of(self._drop(owner, offsets))

    def begin_purge(self, below: int) -> list[Range]:
        """Everything lendable under `below`, which is nobody's until `settle` or `restore`."""
        return self._lendable.take(_OFFSET_MAX, below)

    def restore(self, ranges: Iterable[Range], *, delivered: bool) -> None:
        """Make offsets lendable again; `delivered` says whether the attempt counts."""
        for start, end in ranges:
            self._lendable.add(start, end)
            if delivered:
                for offset in range(start, end):
                    self._deliveries[offset] = self.deliveries(offset) + 1

    def settle(self, ranges: Iterable[Range]) -> None:
        """These are settled in the log."""
        counts = self._deliveries
        for start, end in ranges:
            self._lendable.remove(start, end)
            if end - start < len(counts):
                for offset in range(start, end):
                    counts.pop(offset, None)
            else:
                for offset in [o for o in counts if start <= o < end]:
                    del counts[offset]

    def waiting(self, below: int) -> int:
        """How many offsets under `below` are lendable."""
        return self._lendable.count_below(below)

    def _drop(self, owner: int, offsets: Iterable[int]) -> list[int]:
        held = self._held.get(owner)
        if held is None:
            return []
        mine = sorted(held.intersection(offsets))
        held.difference_update(mine)
        if not held:
            del self._held[owner]
        return mine


class LeaseTable:
    """The leases of all queues that were lent from since the start."""

    def __init__(self) -> None:
        self._queues: dict[QueueNumber, LeaseQueue] = {}
        self._owners: dict[int, dict[QueueNumber, None]] = {}  # the queues an owner may hold something of

    def get(self, queue: QueueNumber) -> LeaseQueue | None:
        """The leases of a queue, None before `load`."""
        return self._queues.get(queue)

    def load(self, queue: QueueNumber, settled: Iterable[Range]) -> LeaseQueue:
        """Begin to keep the leases of a queue."""
        assert queue not in self._queues
        found = self._queues[queue] = LeaseQueue(settled)
        return found

    def lend(self, queue: QueueNumber, owner: int, count: int, below: int) -> list[Range]:
        """See `LeaseQueue.lend`."""
        taken = self._queues[queue].lend(owner, count, below)
        if taken:
            self._owners.setdefault(owner, {})[queue] = None
        return taken

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """Take everything back from an owner; the queues it held something of."""
        released = []
        for queue in self._owners.pop(owner, {}):
            leases = self._queues.get(queue)
            if leases is not None and leases.requeue(owner, leases.held(owner), delivered=True):
                released.append(queue)
        return released

    def settle(self, queue: QueueNumber, ranges: Iterable[Range]) -> None:
        """These are settled in the log."""
        leases = self._queues.get(queue)
        if leases is not None:
            leases.settle(ranges)

    def forget(self, queue: QueueNumber) -> None:
        """A queue is deleted: nothing is held of it and nothing settled."""
        self._queues[queue] = LeaseQueue()
