"""Messages of a queue that nobody holds and nobody may be lent, as something is being done with them."""

import asyncio
from collections.abc import Iterable, Iterator

from store.format.ranges import Range, RangeSet

__all__ = ["Transit"]


class Transit:
    """The messages being settled, those taken aside as dead letters or for a look, and unreadable ones, which stay."""

    __slots__ = ("_waiters", "aside", "settling", "unreadable")

    def __init__(self) -> None:
        self.settling = RangeSet()
        self.aside = RangeSet()
        self.unreadable = RangeSet()
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def __iter__(self) -> Iterator[Range]:
        """Yields the ranges that will arrive."""
        yield from self.settling
        yield from self.aside

    @property
    def busy(self) -> bool:
        """Returns whether there is anything here."""
        return bool(self.settling or self.aside or self.unreadable or self._waiters)

    def settle(self, ranges: Iterable[Range]) -> None:
        """These are being settled."""
        for start, end in ranges:
            self.settling.add(start, end)

    def take_aside(self, ranges: Iterable[Range]) -> None:
        """These are being looked at, or buried."""
        for start, end in ranges:
            self.aside.add(start, end)

    def abandon(self, ranges: Iterable[Range]) -> None:
        """These cannot be read: nothing will become of them."""
        for start, end in ranges:
            self.aside.remove(start, end)
            self.unreadable.add(start, end)

    def end(self, ranges: Iterable[Range]) -> None:
        """These have arrived, at either end."""
        for start, end in ranges:
            self.settling.remove(start, end)
            self.aside.remove(start, end)
            self.unreadable.remove(start, end)
        if self._waiters:
            self._wake()

    def end_all(self) -> None:
        """Ends all: nothing is on its way any more."""
        self.settling, self.aside, self.unreadable = RangeSet(), RangeSet(), RangeSet()
        self._wake()

    def settled(self, offset: int) -> "asyncio.Future[None]":
        """Ends when a message is not being settled any more: it is settled, or that has failed."""
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
