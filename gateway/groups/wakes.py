"""Wakes those who wait on a consumer group when its members or the owners of its queues have changed."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from gateway.groups.state import STATE, decode_queue
from gateway.ownership.following import below, follow_keys
from gateway.ownership.owners import Spawn
from store.api.client import StoreClient
from store.api.keys import Change


class _Waited:
    """A group that requests wait for, and its members as they were read last."""

    __slots__ = ("events", "members")

    def __init__(self) -> None:
        self.events: set[asyncio.Event] = set()
        self.members: set[str] = set()


class GroupWakes:
    """One watch of all groups, begun for the first waiting reader."""

    def __init__(self, store: StoreClient, spawn: Spawn) -> None:
        self._store = store
        self._spawn = spawn
        self._following = False
        self._waited: dict[str, _Waited] = {}

    @contextmanager
    def listening(self, group: str) -> Iterator[asyncio.Event]:
        """Opens an event that is set when a member comes or goes, a queue becomes free, or the topic gets others."""
        if not self._following:
            self._following = True
            self._spawn(self._follow())
        event = asyncio.Event()
        waited = self._waited.setdefault(group, _Waited())
        waited.events.add(event)
        try:
            yield event
        finally:
            waited.events.discard(event)
            if not waited.events:
                self._waited.pop(group, None)

    def know(self, group: str, members: Iterable[str]) -> None:
        """Notes that those who wait on a group have seen these members."""
        waited = self._waited.get(group)
        if waited is not None:
            waited.members.update(members)

    def wake_all(self) -> None:
        """Wakes all waiters."""
        for waited in self._waited.values():
            for event in waited.events:
                event.set()

    async def _follow(self) -> None:
        await follow_keys(
            self._store,
            below(STATE),
            look=self._look,
            changed=self._changed,
            trouble="changes of consumer groups cannot be read now",
        )

    async def _look(self) -> None:
        self.wake_all()  # they read the group themselves

    async def _changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            group, _, rest = change.key[len(STATE) + 1 :].partition("/")
            waited = self._waited.get(group)
            if waited is not None and _concerns_others(waited.members, rest, change):
                for event in waited.events:
                    event.set()


def _concerns_others(members: set[str], key: str, change: Change) -> bool:
    """Returns whether a change concerns others than its author. A member that only renews itself concerns no other."""
    kind, _, member = key.partition("/")
    if kind == "m":
        if change.kind != "put":
            members.discard(member)
            return True
        known = member in members
        members.add(member)
        return not known
    return kind != "q" or change.kind != "put" or not decode_queue(change.value).member
