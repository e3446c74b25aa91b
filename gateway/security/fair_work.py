"""Work that takes a processor for long, in a few threads, shared fairly by those who cause it.

Each network has a line of its own, and they are served in turn, a piece of work from each. When too much waits, the
longest line gets no longer: its newest work is refused. So a client that asks for a lot waits, and others hardly do.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from gateway.domain.errors import Cause, Refusal

T = TypeVar("T")


class _Piece(NamedTuple):
    work: Callable[[], Any]
    done: asyncio.Future[Any]


class FairWork:
    """Does work in `threads` threads; `waiting_max` pieces wait or are being done. Belongs to the event loop."""

    def __init__(self, threads: int, waiting_max: int, *, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._threads = threads
        self._waiting_max = waiting_max
        self._lines: dict[str, deque[_Piece]] = {}  # by network; none is empty; the next to be served is first
        self._waiting = 0  # pieces in lines
        self._running = 0  # <= threads

    async def do(self, work: Callable[[], T], *, network: str) -> T:
        """Does some work and returns its result. Raises `Refusal` (OVERLOAD) where too much waits."""
        line = self._lines.get(network)
        if self._waiting + self._running >= self._waiting_max:
            self._make_room(0 if line is None else len(line))
            line = self._lines.get(network)
        if line is None:
            line = self._lines[network] = deque()
        piece = _Piece(work, asyncio.get_running_loop().create_future())
        line.append(piece)
        self._waiting += 1
        self._go_on()
        found: T = await piece.done
        return found

    def _make_room(self, length: int) -> None:
        """Refuses the newest work of the longest line. Raises `Refusal` where the new work belongs to that line."""
        network, longest = max(self._lines.items(), key=lambda one: len(one[1]), default=("", deque[_Piece]()))
        if len(longest) <= length + 1:
            raise _refused()
        refused = longest.pop()
        self._waiting -= 1
        if not longest:
            del self._lines[network]
        if not refused.done.done():
            refused.done.set_exception(_refused())

    def _go_on(self) -> None:
        """Starts the work that can start."""
        loop = asyncio.get_running_loop()
        while self._running < self._threads and self._lines:
            network = next(iter(self._lines))
            line = self._lines.pop(network)
            piece = line.popleft()
            self._waiting -= 1
            if line:
                self._lines[network] = line  # behind all others
            if piece.done.done():  # the caller has gone
                continue
            self._running += 1
            loop.run_in_executor(self._pool, piece.work).add_done_callback(partial(self._end, piece))

    def _end(self, piece: _Piece, ended: asyncio.Future[Any]) -> None:
        self._running -= 1
        error = ended.exception()
        if not piece.done.done():
            if error is None:
                piece.done.set_result(ended.result())
            else:
                piece.done.set_exception(error)
        self._go_on()


def _refused() -> Refusal:
    return Refusal(Cause.OVERLOAD, "too many are logging in", retry_after_ms=1_000)
