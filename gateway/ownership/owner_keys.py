"""The records of owners of names (`gateway.ownership.cluster_owners`), and a name that one of several proxies owns."""

import asyncio
from typing import Protocol

import msgspec

from gateway.domain.keys import kv_key
from gateway.domain.session_user import SessionUser
from gateway.ownership.owners import Cursor, Operations, OwnershipLost, cursor_key, decode_cursor, forget_cursor
from gateway.ownership.presence import Presence
from store.api.client import StoreClient
from store.api.keys import Delete, Put
from store.base import logs
from store.base.errors import AppendOutcomeUnknown, NotWritable, RevisionConflict, StoreFull, StoreUnreachable
from store.base.streams.backoff import Backoff

AGAIN_MIN_S, AGAIN_MAX_S = 0.1, 2.0  # until a change that the store refused is tried again: of many sessions, maybe
OWNERS, RELEASE_REQUESTS = "owners", "proxies/wanted"


log = logs.get(__name__)


class OwnerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The owner of a name, and its user; `user` is None for any user, or where none was given."""

    name: str
    proxy: str
    user: SessionUser | None = None


class ReleaseRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of one proxy to another for a name, and for which user; None as above."""

    name: str
    by: str
    of: str
    user: SessionUser | None = None


encode = msgspec.msgpack.encode
decode_owner = msgspec.msgpack.Decoder(OwnerRecord).decode
decode_release_request = msgspec.msgpack.Decoder(ReleaseRequest).decode


class PendingTakeover:
    """A request of this proxy for a name that another proxy owns."""

    __slots__ = ("asked", "changed", "mine", "others")

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.asked = ""  # the proxy that was asked
        self.mine = 1 << 63  # the revision of our asking, the newest one
        self.others = 0  # that of a third proxy's

    @property
    def outbid(self) -> bool:
        """Returns whether another proxy has asked since: the newest request wins."""
        return self.others > self.mine


class Owning(Protocol):
    """The owner of names: its store, its presence and the requests to it."""

    store: StoreClient
    presence: Presence
    asked: dict[str, ReleaseRequest]  # names that other proxies ask this one for

    def released(self, name: str, owned: "OwnedName") -> None:
        """Notes that a name is owned no more, by its last owner's own doing."""


class OwnedName:
    """A name that this proxy owns, by the revision of its key."""

    __slots__ = ("__weakref__", "_key", "_name", "_owners", "_revision", "_user", "as_seen")

    def __init__(
        self, owners: Owning, name: str, revision: int, *, user: SessionUser | None = None, as_seen: bool = False
    ) -> None:
        """Begins to own a name; `user` is the user that its key names."""
        self.as_seen = as_seen
        self._user = user
        self._owners = owners
        self._name = name
        self._key = owner_key(name)
        self._revision = revision

    @property
    def epoch(self) -> int:
        """See `Owned`: the revision of the name's key."""
        return self._revision

    async def confirm(self) -> None:
        """See `Owned`."""
        await self._claim(self._user)

    async def _claim(self, user: SessionUser | None) -> None:
        record = OwnerRecord(self._name, self._owners.presence.id, user)
        self._revision = await self._transact((Put(self._key, encode(record)),))

    async def belong(self, user: SessionUser | None) -> None:
        """See `Owned`. A proxy that has asked for it on behalf of the user before cannot replace the key any more."""
        if user != self._user:
            await self._claim(user)
            self._user = user

    async def write(self, operations: Operations = (), *, cursor: Cursor | None = None) -> None:
        """See `Owned`. While the store takes nothing this waits, as long as the name is certainly still ours."""
        if cursor is not None:
            operations = (*operations, self._put(cursor))
        if operations:
            await self._transact_again(operations)

    async def release(self, operations: Operations = (), *, cursor: Cursor | None = None) -> None:
        """See `Owned`."""
        if cursor is not None:
            operations = (*operations, self._put(cursor))
        wanted = self._owners.asked.get(self._name)
        if wanted is None:
            last: Operations = (Delete(self._key),)
        else:
            new = Put(self._key, encode(OwnerRecord(self._name, wanted.by, wanted.user)))
            last = (new, Delete(release_request_key(self._name)))
        await self._transact((*operations, *last))
        self._owners.released(self._name, self)

    async def forget(self, operations: Operations = ()) -> None:
        """See `Owned`."""
        store = self._owners.store
        await self._transact((*operations, Delete(cursor_key(self._name))))
        if await store.groups.offsets(self._name):  # of a gateway that was alone
            await forget_cursor(store, self._name)

    async def cursor(self) -> Cursor:
        """See `Owned`."""
        store = self._owners.store
        entry = await store.keys.get(cursor_key(self._name))
        if entry is None:
            return await store.groups.offsets(self._name)
        return decode_cursor(entry.value)

    async def _transact_again(self, operations: Operations) -> None:
        """Makes changes that may be made twice: values that are compared are not among them."""
        backoff = Backoff(AGAIN_MIN_S, AGAIN_MAX_S)
        while True:
            try:
                await self._transact(operations)
                return
            except (StoreUnreachable, AppendOutcomeUnknown, NotWritable, StoreFull) as error:
                log.debug("a write of an owner's key is repeated", name=self._name, error=str(error))
            await backoff.pause()

    def _put(self, cursor: Cursor) -> Put:
        return Put(cursor_key(self._name), encode({int(queue): at for queue, at in cursor.items()}))

    async def _transact(self, operations: Operations) -> int:
        """Makes changes; their revision."""
        if self._owners.presence.remaining_s <= 0:
            raise OwnershipLost(self._name)
        try:
            return (await self._owners.store.keys.transact({self._key: self._revision}, operations)).revision
        except RevisionConflict as lost:
            raise OwnershipLost(self._name) from lost


def owner_key(name: str) -> str:
    """Returns the key of a name's owner record."""
    return kv_key(OWNERS, name)


def release_request_key(name: str) -> str:
    """Returns the key of the request for a name."""
    return kv_key(RELEASE_REQUESTS, name)
