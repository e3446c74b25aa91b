"""The single active consumer of a queue among several proxies: the proxy that owns a name for the queue has it.

Within a proxy it is the consumer that came first, of those that may read the queue. A proxy with such consumers asks
for the name again and again until it has it, and keeps it as long as it has some.
"""

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from gateway.domain.session_user import SessionUser
from gateway.ownership.owners import Owned, Owners, OwnershipLost, Taken
from gateway.queues.model.queue import Queue

PREFIX: Final = "active/"  # of the names that are owned
ASK_MS: Final = 1_000  # between two attempts to own a name


class SingleActive:
    """The names that this process owns, by queue."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        self._owned: dict[int, Owned] = {}
        self._leaving: dict[str, Owned] = {}  # names to let go of: nothing is delivered by them, whatever becomes of it
        self._names: dict[int, str] = {}  # of queues in `_owned`, asked for, and to let go of
        owners.serve(PREFIX, self)

    async def look_after(self, queue: Queue) -> int | None:
        """Sees to it that this process delivers a queue if it may; returns in how many ms to look again.

        Raises `StoreError`.
        """
        if self._owners.alone or not queue.rules.single_active:
            queue.pump.active = True
            return None
        number, name = queue.number, queue.definition.name
        if not any(consumer.allowed for consumer in queue.pump.consumers):
            queue.pump.active = False
            await self.forget(number)
            return None
        if number not in self._owned:
            queue.pump.active = False
            self._names[number] = name
            await self._let_go(name)  # of a queue that was called so before, or of an attempt that has failed
            try:
                self._owned[number] = await self._owners.take(f"{PREFIX}{name}", wait=False)
            except Taken:
                return ASK_MS
        if not queue.pump.active:
            queue.pump.active = True
            queue.pump.wake()
        return None

    def leave(self, number: int) -> bool:
        """Delivers a queue no more; returns whether `forget` has to be called for it."""
        name, owned = self._names.get(number), self._owned.pop(number, None)
        if name is not None and owned is not None:
            self._leaving[name] = owned
        return name is not None

    async def forget(self, number: int) -> None:
        """Lets another process deliver a queue, or the next one of its name. Raises `StoreError`: call it again."""
        if self.leave(number):
            await self._let_go(self._names[number])
            self._names.pop(number, None)

    async def _let_go(self, name: str) -> None:
        owned = self._leaving.get(name)
        if owned is None:
            return
        with suppress(OwnershipLost):  # an attempt before was successful, and its outcome unknown
            await owned.release()
        if self._leaving.get(name) is owned:
            del self._leaving[name]

    async def on_release_requested(self, name: str, user: SessionUser | None) -> None:
        """See `owners.OwnershipListener`: the name is kept as long as consumers may read."""

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """See `owners.OwnershipListener`: the name is free for the proxy that asks for it."""
        await (await take()).release()

    async def on_fenced(self) -> None:
        """See `owners.OwnershipListener`: other processes deliver in place of this one."""
        for known in (self._owned, self._leaving, self._names):
            known.clear()
