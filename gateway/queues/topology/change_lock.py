"""The lock of a topology: for a change alone, or for changes of queues that do not concern each other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class _NamedLock(asyncio.Lock):
    """The lock of a name, and how many hold it or want it."""

    users = 0


class ChangeLock:
    """Admits one change of anything, or any number of changes of one queue each, of which no two have the same name.

    `async with lock` is for the first, `async with lock.of(name)` for the others. Each waits for those that have asked
    before it, so neither kind keeps the other out. A holder must not ask again.
    """

    def __init__(self) -> None:
        self._gate = asyncio.Lock()  # held by a change of anything, and by others for the moment in which they begin
        self._ended = asyncio.Event()  # set while no change of one queue is under way
        self._ended.set()
        self._count = 0  # of those
        self._names: dict[str, _NamedLock] = {}  # of which a change holds one, or wants it

    async def __aenter__(self) -> None:
        await self._gate.acquire()
        try:
            await self._ended.wait()
        except BaseException:
            self._gate.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._gate.release()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[None]:
        """Holds the lock for a change of the queue of a name; "": of one whose name nobody else can know."""
        async with self._gate:
            self._count += 1
            self._ended.clear()
        try:
            if name:
                async with self._named(name):
                    yield
            else:
                yield
        finally:
            self._count -= 1
            if not self._count:
                self._ended.set()

    @asynccontextmanager
    async def _named(self, name: str) -> AsyncIterator[None]:
        lock = self._names.setdefault(name, _NamedLock())
        lock.users += 1
        try:
            async with lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._names[name]
