"""Locks by name, granted in the order of requests.

Nearly all are free: then a turn is an entry in a dictionary, and costs half as much as a lock.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from store.base.errors import StoreOverloaded

LIMIT_S: Final = 10.0  # as long as the store may take for the request in front

_Waiting = deque[asyncio.Future[None]]


class Turns:
    """Turns by name, taken one after the other, in one event loop. Names without a turn take no memory."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting | None] = {}  # by name, while it is locked

    def at(self, name: str) -> "Turn":
        """Returns a turn, for `async with`."""
        return Turn(self, name)

    @asynccontextmanager
    async def within(self, name: str, limit_s: float = LIMIT_S) -> AsyncIterator[None]:
        """Waits for a turn so long at most. Raises `StoreOverloaded`: those in front of it wait for the store."""
        try:
            async with asyncio.timeout(limit_s):
                await self.begin(name)
        except TimeoutError:
            raise StoreOverloaded(f"requests in front of it wait for the store for more than {limit_s:g} s") from None
        try:
            yield
        finally:
            self.end(name)

    async def begin(self, name: str) -> None:
        """Waits for a turn; `end` follows."""
        waiting = self._waiting
        if name not in waiting:
            waiting[name] = None
            return
        queue = waiting[name]
        if queue is None:
            queue = waiting[name] = deque()
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except BaseException:  # cancelled, or closed as an abandoned coroutine
            if not (turn.cancel() or turn.cancelled()):  # it had been given to us when we gave up
                self.end(name)
            raise

    def end(self, name: str) -> None:
        """Ends the turn and begins the next one."""
        queue = self._waiting[name]
        while queue:
            turn = queue.popleft()
            if not turn.done():  # its waiter has not given up
                turn.set_result(None)
                return
        del self._waiting[name]


class Turn:
    """One turn, as a context."""

    __slots__ = ("_name", "_turns")

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns = turns
        self._name = name

    async def __aenter__(self) -> None:
        await self._turns.begin(self._name)

    async def __aexit__(self, *_: object) -> None:
        self._turns.end(self._name)
