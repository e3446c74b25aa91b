"""The messages of a queue that are not held and may not be leased, as an operation on them is in flight."""

import asyncio
from collections.abc import Iterable, Iterator

from store.format.ranges import Range, RangeSet


class InFlight:
    """The messages being settled, those set apart as dead letters or for inspection, and unreadable ones."""

    __slots__ = ("_waiters", "apart", "settling", "unreadable")

    def __init__(self) -> None:
        self.settling = RangeSet()
        self.apart = RangeSet()
        self.unreadable = RangeSet()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def __iter__(self) -> Iterator[Range]:
        """Yields the ranges that will be settled, given up, or leased again."""
        yield from self.settling
        yield from self.apart

    @property
    def busy(self) -> bool:
        """Returns whether there is anything here."""
        return bool(self.settling or self.apart or self.unreadable or self._waiters)

    def settle(self, ranges: Iterable[Range]) -> None:
        """Marks messages as being settled."""
        for start, end in ranges:
            self.settling.add(start, end)

    def set_apart(self, ranges: Iterable[Range]) -> None:
        """Marks messages as being inspected, or given up as dead letters."""
        for start, end in ranges:
            self.apart.add(start, end)

    def abandon(self, ranges: Iterable[Range]) -> None:
        """Marks messages as unreadable: nothing will become of them."""
        for start, end in ranges:
            self.apart.remove(start, end)
            self.unreadable.add(start, end)

    def end(self, ranges: Iterable[Range]) -> None:
        """Removes messages that are settled, given up, or back in the queue."""
        for start, end in ranges:
            self.settling.remove(start, end)
            self.apart.remove(start, end)
            self.unreadable.remove(start, end)
        if self._waiters:
            self._wake()

    def end_all(self) -> None:
        """Ends all: nothing is on its way any more."""
        self.settling, self.apart, self.unreadable = RangeSet(), RangeSet(), RangeSet()
        self._wake()

    def settled(self, offset: int) -> "asyncio.Future[None]":
        """Returns a future that ends when a message is settled, or when that has failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((offset, future))
        return future

    def _wake(self) -> None:
        waiting = []
        for offset, future in self._waiters:
            if offset in self.settling and not future.done():
                waiting.append((offset, future))
            elif not future.done():
                future.set_result(None)
        self._waiters = waiting
