"""Waiting until a search finds something."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from gateway.base.reserving import reserved
from gateway.base.waits import Connected, Waits
from gateway.port.reads import FindMessages, FoundMessages
from store.api.client import StoreClient
from store.base.errors import StoreError
from store.base.streams.event_wait import wait_at_most

LOOK_S = 0.1  # between two looks whether a log has grown
FIND_S = 1.0  # between two searches, whether one has or not: of a group far away that is known late
WAITS_COUNT_MAX = 256  # of this process; a later one is answered as if the time were up
USER_WAITS_COUNT_MAX = 128  # likewise, of one user, or of all clients without a name at one host

Find = Callable[[], Awaitable[FoundMessages]]


class FindWaits:
    """Searches of this process that wait."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._stopped = asyncio.Event()
        self.waits = Waits()
        self._users: Counter[str] = Counter()  # the searches that wait now

    def stop(self) -> None:
        """Ends all waits: each search is answered now."""
        self._stopped.set()

    async def find(
        self, request: FindMessages, find: Find, *, connection: Connected, number: int | None, user: str
    ) -> FoundMessages:
        """Returns a search's results, at once or within the request's time to wait. Raises the errors of `find`.

        `number` is the request's of its connection, by which `waits` may give it up. `user` has a share of the waits.
        """
        with self.waits.waiting(connection, number, asyncio.Event()) as wanted:
            return await self._find(request, find, lambda: wanted() and not connection.ended, user)

    async def _find(self, request: FindMessages, find: Find, wanted: Callable[[], bool], user: str) -> FoundMessages:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.wait_ms / 1_000
        ends, next_s = self._ends() if request.wait_ms else (), loop.time() + FIND_S
        found = await find()
        full = self._users.total() >= WAITS_COUNT_MAX or self._users[user] >= USER_WAITS_COUNT_MAX
        if found.messages or found.after is not None or not request.wait_ms or full:
            return found
        with reserved(self._users, user):
            while wanted() and not (found.messages or found.after is not None or self._stopped.is_set()):
                left_s = until_s - loop.time()
                if left_s <= 0:
                    break
                await wait_at_most(self._stopped, min(left_s, LOOK_S))
                if (now := self._ends()) != ends or loop.time() >= next_s:
                    ends, next_s = now, loop.time() + FIND_S
                    found = await find()
        return found

    def _ends(self) -> tuple[int, ...]:
        """Returns the ends of the logs, as far as they are known: a log that has not grown has nothing new."""
        return tuple([_end(store) for _, store in sorted(self._store.logs.items())])


def _end(store: StoreClient) -> int:
    try:
        return store.log.confirmed
    except StoreError:
        return -1
