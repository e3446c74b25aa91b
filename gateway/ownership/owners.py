"""Owners of names: a name is a session's or an exclusive queue's, which one proxy at a time may serve.

Only the owner of a name writes for it. A gateway that is alone with its store owns every name, and that costs nothing;
each of several proxies owns the names it has a key for (`gateway.ownership.cluster_owners`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import msgspec

from gateway.domain.errors import Cause, Refusal
from gateway.domain.keys import kv_key
from gateway.domain.session_user import SessionUser
from store.api.client import StoreClient
from store.api.keys import Delete, Put
from store.format.frame import QueueNumber

Operations: TypeAlias = Sequence[Put | Delete]
Cursor: TypeAlias = Mapping[QueueNumber, int]  # as `GroupCalls.commit` takes it
Revisions: TypeAlias = Mapping[str, int]  # of keys; 0: not there
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, object]], object]

CURSORS = "session-cursors"  # the namespace of those that several proxies keep
NOTHING_SEEN: Revisions = MappingProxyType({})

decode_cursor = msgspec.msgpack.Decoder(dict[QueueNumber, int]).decode


class Taken(Refusal):
    """Raised when another proxy owns the name and keeps it."""

    def __init__(self, name: str) -> None:
        super().__init__(Cause.CONFLICT, f"{name!r} is in use elsewhere")


class OwnershipLost(Refusal):
    """Raised when another proxy owns the name: nothing was written."""

    def __init__(self, name: str) -> None:
        super().__init__(Cause.CONFLICT, f"{name!r} was taken over elsewhere")


class Owned(Protocol):
    """A name that this process owns. Its writes take effect if it still does."""

    @property
    def as_seen(self) -> bool:
        """Returns whether all is unchanged that was seen before the name was taken (`Owners.take`)."""

    @property
    def epoch(self) -> int:
        """The number of this ownership, greater than those of all owners before; 0 where no other proxy can own it."""

    async def confirm(self) -> None:
        """Makes sure that it is owned still. Raises `OwnershipLost`, `StoreError`."""

    async def belong(self, user: SessionUser | None) -> None:
        """Gives the name to a user from now on, visible to the other proxies. Raises `OwnershipLost`, `StoreError`."""

    async def write(self, operations: Operations = (), *, cursor: Cursor | None = None) -> None:
        """Makes changes, all or none, and moves the name's cursor. Raises `OwnershipLost`, `StoreError`."""

    async def release(self, operations: Operations = (), *, cursor: Cursor | None = None) -> None:
        """Makes the last changes, and lets go of the name or hands it to the process that waits for it.

        Raises the same.
        """

    async def forget(self, operations: Operations = ()) -> None:
        """Makes changes, and forgets the cursor. Raises the same."""

    async def cursor(self) -> Cursor:
        """Returns the name's cursor, empty when it has none. Raises `StoreError`."""


class OwnershipListener(Protocol):
    """A user of names. Its methods are called as tasks; a `StoreError` or `Refusal` that they raise is logged."""

    async def on_release_requested(self, name: str, user: SessionUser | None) -> None:
        """Releases soon, or loses, a name of this process that another proxy waits for.

        `user` is the user it is for; a name that another proxy owns now is not released.
        """

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """Takes a name whose owner is gone, finishes its work, and releases it."""

    async def on_fenced(self) -> None:
        """Stops the work of all names: this process owns nothing any more, and others may take them over."""


class Owners(Protocol):
    """Gives names to this process."""

    @property
    def alone(self) -> bool:
        """Returns whether no other process can own anything, so that this process knows everything."""

    @property
    def id(self) -> str:
        """The name of this process among the others, another one whenever it owned nothing meanwhile."""

    async def is_first(self) -> bool:
        """Returns whether no other process is present now. Raises `StoreError`."""

    def serve(self, prefix: str, listener: OwnershipListener) -> None:
        """Gives names that begin with a prefix to a listener."""

    async def start(self, spawn: Spawn) -> None:
        """Begins; `spawn` runs a coroutine as a supervised task. Raises `StoreError`."""

    async def renew(self) -> None:
        """Renews this proxy's presence key; owns nothing any more if that comes too late. Takes a second or two."""

    async def close(self) -> None:
        """Deletes the presence key, after all names have been released."""

    async def take(
        self, name: str, *, wait: bool = True, user: SessionUser | None = None, seen: Revisions = NOTHING_SEEN
    ) -> Owned:
        """Takes a name, for a user where it matters who asks. Calls for one name may not overlap.

        A living owner is asked for it, and given up after a while; without `wait` that raises `Taken`. Raises `Taken`
        too when another proxy asks for it meanwhile; `NotItsUser` when a living owner has it for another user, who then
        hears nothing of it; `StoreError`. `seen` are keys that were read, and their revisions (`Owned.as_seen`).
        """


class _LocalOwned:
    """A name that no other proxy can know. `shared`: several proxies have kept cursors in this store."""

    __slots__ = ("_name", "_shared", "_store")
    as_seen = True  # no other process can have changed it
    epoch = 0

    def __init__(self, store: StoreClient, name: str, *, shared: bool) -> None:
        self._store = store
        self._name = name
        self._shared = shared

    async def confirm(self) -> None:
        """See `Owned`."""

    async def belong(self, user: SessionUser | None) -> None:
        """See `Owned`: no other proxy looks."""

    async def write(self, operations: Operations = (), *, cursor: Cursor | None = None) -> None:
        """See `Owned`."""
        if cursor is None:
            await self._change(operations)
        elif not operations:
            await self._store.groups.commit(self._name, cursor)
        else:  # at once, so that the store can put them in one frame
            await asyncio.gather(self._store.groups.commit(self._name, cursor), self._change(operations))

    async def _change(self, operations: Operations) -> None:
        if len(operations) > 1:
            await self._store.keys.transact({}, operations)
            return
        for one in operations:
            if isinstance(one, Put):
                await self._store.keys.put(one.key, one.value)
            else:
                await self._store.keys.delete(one.key)

    async def release(self, operations: Operations = (), *, cursor: Cursor | None = None) -> None:
        """See `Owned`."""
        await self.write(operations, cursor=cursor)

    async def forget(self, operations: Operations = ()) -> None:
        """See `Owned`."""
        await self.write(operations)
        await forget_cursor(self._store, self._name)
        if self._shared:
            await self._store.keys.delete(cursor_key(self._name))

    async def cursor(self) -> Cursor:
        """See `Owned`. One that several proxies have kept is newer than any of before; from now on it is kept here."""
        entry = await self._store.keys.get(cursor_key(self._name)) if self._shared else None
        if entry is not None:
            await self._store.groups.commit(self._name, decode_cursor(entry.value))
            await self._store.keys.delete(entry.key)
        return await self._store.groups.offsets(self._name)


class LocalOwners:
    """The owners of a process that is alone with its store."""

    alone = True
    id = ""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._shared = True  # not known yet

    async def is_first(self) -> bool:
        """See `Owners`."""
        return True

    def serve(self, prefix: str, listener: OwnershipListener) -> None:
        """See `Owners`: there are no other proxies."""

    async def start(self, spawn: Spawn) -> None:
        """See `Owners`."""
        self._shared = bool(await self._store.keys.prefix(f"{CURSORS}/", limit=1))

    async def renew(self) -> None:
        """See `Owners`."""

    async def close(self) -> None:
        """See `Owners`."""

    async def take(
        self, name: str, *, wait: bool = True, user: SessionUser | None = None, seen: Revisions = NOTHING_SEEN
    ) -> Owned:
        """See `Owners`."""
        return _LocalOwned(self._store, name, shared=self._shared)


def cursor_key(name: str) -> str:
    """Returns the key under which several proxies keep a name's cursor."""
    return kv_key(CURSORS, name)


async def forget_cursor(store: StoreClient, name: str) -> None:
    """Forgets the cursor of a name that is kept as a group's offsets: it has settled nothing, a cursor is all it is."""
    await store.logs[store.group].groups.delete(name)
