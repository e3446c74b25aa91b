"""Callers that wait until the log is applied up to an index, and the end of their waiting."""

import asyncio
import contextlib
import heapq
from itertools import count
from typing import Any


class AwaitedEntries:
    """The callers that wait, those for the lowest index first. Belongs to the event loop it is used on."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap: index, number
        self._led: dict[asyncio.Future[None], int] = {}  # of these, the ones that end with the leadership; its term

    def wait(self, index: int, *, term: int | None = None) -> "asyncio.Future[None]":
        """Returns a future that is done when the entry of `index` is applied; `term`: or this node leads it no more."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (index, next(self._numbers), future))
        if term is not None:
            self._led[future] = term
            future.add_done_callback(self._led.pop)
        return future

    def applied(self, index: int) -> None:
        """Wakes those who wait for entries that are applied now."""
        while self._waiting and self._waiting[0][0] <= index:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)

    def led(self, term: int | None, error: Exception) -> None:
        """Ends the waiting for entries that another leader may drop: of all terms but the one that this node leads."""
        for future, begun in self._led.items():
            if begun != term:
                refuse(future, error)

    def fail(self, error: Exception) -> None:
        """Ends all waiting."""
        for _, _, future in self._waiting:
            refuse(future, error)
        self._waiting.clear()


def refuse(future: "asyncio.Future[Any]", error: Exception) -> None:
    """Ends a future with an error, unless it has ended."""
    if not future.done():
        future.set_exception(error)
        with contextlib.suppress(Exception, asyncio.CancelledError):
            future.exception()  # the caller may have gone; then asyncio logs no error
