"""The timers of a cluster: those of all groups."""

from collections.abc import Sequence
from itertools import chain, islice

from store.api.timers import TimerCalls, TimerEntry, TimersHeld
from store.base.errors import NoSuchTimer
from store.cluster.store_groups import StoreGroups
from store.format.frame import group_of
from store.format.timer_key import TimerKey


class ClusterTimers(TimerCalls):
    """`TimerCalls` of all groups."""

    def __init__(self, stores: StoreGroups) -> None:
        self._stores = stores

    def admit(self, due_ms: int, size_bytes: int) -> None:
        """See `TimerCalls.admit`: of the home group. The log that the timer goes to admits it by itself."""
        self._stores.home.timers.admit(due_ms, size_bytes)

    @property
    def held(self) -> TimersHeld:
        """See `TimerCalls.held`: of all groups."""
        held = [store.timers.held for store in self._stores.logs.values()]
        return TimersHeld(sum([one.timers for one in held]), sum([one.size_bytes for one in held]))

    async def cancel(self, timer: str) -> bool:
        """See `TimerCalls.cancel`."""
        store = self._stores.logs.get(group_of(_timer_key(timer).frame))
        return False if store is None else await store.timers.cancel(timer)

    async def entries(self, *, after: str = "", limit: int = 1000) -> Sequence[TimerEntry]:
        """See `TimerCalls.entries`."""
        if after:
            _timer_key(after)
        found = await self._stores.all(lambda store: store.timers.entries(after=after, limit=limit))
        return list(islice(sorted(chain.from_iterable(found), key=lambda one: _timer_key(one.id)), max(limit, 0)))


def _timer_key(timer: str) -> TimerKey:
    try:
        return TimerKey.parse(timer)
    except ValueError as error:
        raise NoSuchTimer(timer) from error
