"""The sizes of the messages that wait in a queue, for those that are limited in bytes."""

from array import array
from collections.abc import Callable, Sequence

from gateway.port.bodies import body_size
from gateway.queues.leaving.reading import read
from gateway.queues.leaving.rules import NO_RULES
from store.api.client import StoreClient
from store.api.leases import Lease
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.frame import QueueNumber, QueueOffset

READ_BYTES = 1 << 20  # of messages read at once
_COMPACT_MIN = 4_096  # sizes of messages that are gone: with fewer there is nothing to tidy up
_SIZE_MAX = (1 << 32) - 1


class QueueSizes:
    """The sizes of all bodies from the first message that waits: four bytes for each, read once.

    Where messages behind the first are leased, they are taken to be as large as the others.
    """

    def __init__(self, store: StoreClient, number: QueueNumber) -> None:
        self._store = store
        self._number = number
        self._sizes = array("I")
        self._start = 0  # the offset of the first size
        self._first = 0  # the first message that waits; _start <= _first
        self._total = 0  # of the sizes from _first on

    async def waiting_bytes(self) -> int:
        """Returns how many bytes wait. Raises `StoreError`."""
        count = await self._look()
        span = self._start + len(self._sizes) - self._first
        return self._total if count >= span else self._total * count // max(span, 1)

    async def excess(self, bytes_max: int) -> int:
        """Returns how many messages are to go, the oldest first, so that at most `bytes_max` wait. Raises as above."""
        return self.oldest(await self.waiting_bytes() - bytes_max)[0]

    def oldest(self, over: int) -> tuple[int, int]:
        """Returns how many of the oldest messages have so many bytes, as of the last look, and the missing bytes."""
        count = 0
        for size in self._sizes[self._first - self._start :] if over > 0 else ():
            if over <= 0:
                break
            over -= size
            count += 1
        return count, over

    async def _look(self) -> int:
        """Reads the sizes of new messages, and forgets those of old ones; returns how many wait."""
        leases = self._store.leases
        count, first = await leases.waiting(self._number), await leases.first_waiting(self._number)
        end = self._start + len(self._sizes)
        if first is None:
            self._forget(end)
            return 0
        if not self._start <= first <= end:
            self._sizes, self._start, self._first, self._total = array("I"), first, first, 0
        self._forget(first)
        await self._read()
        return count

    def _forget(self, first: int) -> None:
        gone = self._sizes[self._first - self._start : first - self._start]
        if first < self._first:  # given back
            self._total += sum(self._sizes[first - self._start : self._first - self._start])
        self._total -= sum(gone)
        self._first = first
        if first - self._start > max(_COMPACT_MIN, len(self._sizes) // 2):
            kept = first - _COMPACT_MIN // 2  # a few may be given back
            del self._sizes[: kept - self._start]
            self._start = kept

    async def _read(self) -> None:
        while True:
            at = self._start + len(self._sizes)
            try:
                fetched = await self._store.queues.fetch(self._number, QueueOffset(at), max_bytes=READ_BYTES)
            except OffsetOutOfRange:
                return
            except CorruptFrame as damaged:
                if damaged.next is None or damaged.next <= at:
                    return
                self._sizes.extend([0] * (damaged.next - at))
                continue
            places = [(frame, row) for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows]
            if not places:
                return
            leases = [Lease(QueueOffset(fetched.offset + n), 0, *place) for n, place in enumerate(places)]
            found = read(leases, now_ms=0, rules=NO_RULES)
            sizes = {lease.offset: body_size(one) for lease, one in zip(found.live, found.messages, strict=True)}
            new = [min(sizes.get(QueueOffset(offset), 0), _SIZE_MAX) for offset in range(at, fetched.next)]
            if at + len(new) != fetched.next or not new:
                return
            self._sizes.extend(new)
            self._total += sum(new)


class LanedSizes:
    """The same of a queue that is several of the store: `lanes` returns their numbers, in the order of reading."""

    def __init__(self, store: StoreClient, lanes: Callable[[], Sequence[QueueNumber]]) -> None:
        self._store = store
        self._numbers = lanes
        self._known: dict[QueueNumber, QueueSizes] = {}

    def _lanes(self) -> list[QueueSizes]:
        known = self._known
        self._known = {one: known.get(one) or QueueSizes(self._store, one) for one in self._numbers()}
        return list(self._known.values())

    async def waiting_bytes(self) -> int:
        """See `QueueSizes`."""
        return sum([await lane.waiting_bytes() for lane in self._lanes()])

    async def excess(self, bytes_max: int) -> int:
        """See `QueueSizes`. Messages that are taken first go first: those of the highest priority."""
        over, count = await self.waiting_bytes() - bytes_max, 0
        for lane in self._lanes():
            some, over = lane.oldest(over)
            count += some
        return count
