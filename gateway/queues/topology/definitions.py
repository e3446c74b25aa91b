"""The stored definitions of exchanges and queues, on which several proxies agree.

A gateway that is alone keeps the durable ones, and is the only one to change them. Several proxies keep all, those that
are not durable in places of their own; they change them by compare-and-set, and follow each other by a watch. Revisions
tell which change is newer: a change that arrives late has no effect.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, NoReturn, Protocol

import msgspec

from gateway.domain.keys import kv_key
from gateway.domain.vhosts import DEFAULT_VHOST, vhost_of
from gateway.ownership.following import below, follow_keys
from gateway.ownership.stored_entries import stored_entries
from gateway.queues.model.bindings import Exchange, QueueDefinition
from gateway.queues.operated.stored import deleted_key, is_setting
from store.api.client import StoreClient
from store.api.keys import Change, Delete, Entry, Put
from store.base import logs
from store.base.errors import RevisionConflict

EXCHANGES, QUEUES = "amqp/exchanges", "amqp/queues"
LIVE_EXCHANGES, LIVE_QUEUES = "amqp/live/exchanges", "amqp/live/queues"  # of several proxies, and not durable
AMQP = "amqp"
NOTHING: Mapping[str, int] = MappingProxyType({})

_encode = msgspec.msgpack.encode
_exchange = msgspec.msgpack.Decoder(Exchange).decode
_queue = msgspec.msgpack.Decoder(QueueDefinition).decode

log = logs.get(__name__)


class Changed(Exception):
    """Raised when another proxy has changed a definition first, one of these names."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.names = names


class StoredDefinition(NamedTuple):
    """A definition as it is stored. None: it is gone, as of that revision."""

    name: str
    definition: Exchange | QueueDefinition | None
    revision: int
    exchange: bool  # it is, or was, an exchange


class Definitions(Protocol):
    """Reads and writes definitions. All methods raise `StoreError`."""

    shared: bool  # other processes change them, too

    def load(self) -> AsyncIterator[StoredDefinition]:
        """Returns all definitions, exchanges first."""

    async def clear(self) -> None:
        """Forgets definitions that are not durable: no process that could know them is there."""

    async def find(self, name: str, *, exchange: bool) -> StoredDefinition | None:
        """Returns a definition that is not known here, but perhaps elsewhere."""

    async def put(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool, also: Mapping[str, int] = NOTHING
    ) -> int:
        """Stores a definition in the place of the one of a revision (0: of none). Its revision. Raises `Changed`.

        Of several proxies only if other keys, too, are at the revisions in `also`.
        """

    async def put_with(self, settings: Awaitable[None], definition: QueueDefinition, *, lasting: bool) -> int:
        """Stores the definition of a new queue, and what is awaited: the store's settings of it.

        Returns its revision. Raises `Changed`. When one fails, the other may be stored: another
        declaration stores both.
        """

    async def delete(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool, also: Mapping[str, int] = NOTHING
    ) -> int:
        """Removes a definition; returns the revision of its removal. Raises `Changed`.

        Of several proxies only if other keys, too, are at the revisions in `also`.
        """

    def guard(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool = True
    ) -> Mapping[str, int]:
        """Returns the revisions that a transaction has to compare to fail once a definition is not as known here."""


class LocalDefinitions:
    """The definitions of a gateway that is alone."""

    shared = False

    def __init__(self, store: StoreClient) -> None:
        self._store = store

    async def load(self) -> AsyncIterator[StoredDefinition]:
        """See `Definitions`."""
        for place in (EXCHANGES, QUEUES):
            async for entry in stored_entries(self._store, place):
                yield _found(entry)

    async def clear(self) -> None:
        """See `Definitions`: such are not kept."""

    async def find(self, name: str, *, exchange: bool) -> StoredDefinition | None:
        """See `Definitions`: a definition that is unknown here does not exist."""
        return None

    async def put(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool, also: Mapping[str, int] = NOTHING
    ) -> int:
        """See `Definitions`."""
        if lasting:
            await self._store.keys.put(_place(definition, lasting=True), _encode(definition))
        return revision

    async def put_with(self, settings: Awaitable[None], definition: QueueDefinition, *, lasting: bool) -> int:
        """See `Definitions`: both in one frame, with one sync."""
        outcomes = await asyncio.gather(settings, self.put(definition, 0, lasting=lasting), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return 0

    async def delete(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool, also: Mapping[str, int] = NOTHING
    ) -> int:
        """See `Definitions`."""
        if lasting:
            await self._store.keys.delete(_place(definition, lasting=True))
        return revision

    def guard(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool = True
    ) -> Mapping[str, int]:
        """See `Definitions`: no other proxy changes it."""
        return NOTHING


class SharedDefinitions:
    """The definitions that several proxies share."""

    shared = True

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._names: dict[str, str] = {}  # by key: a key may be shortened, and one that is gone has no value

    async def load(self) -> AsyncIterator[StoredDefinition]:
        """See `Definitions`."""
        for place in (EXCHANGES, LIVE_EXCHANGES, QUEUES, LIVE_QUEUES):
            async for entry in stored_entries(self._store, place):
                yield self._noted(entry.key, _found(entry))

    async def clear(self) -> None:
        """See `Definitions`."""
        for place in (LIVE_EXCHANGES, LIVE_QUEUES):
            async for entry in stored_entries(self._store, place):
                await self._store.keys.delete(entry.key)

    async def find(self, name: str, *, exchange: bool) -> StoredDefinition | None:
        """See `Definitions`."""
        for place in (EXCHANGES, LIVE_EXCHANGES) if exchange else (QUEUES, LIVE_QUEUES):
            entry = await self._store.keys.get(kv_key(place, name))
            if entry is not None:
                return self._noted(entry.key, _found(entry))
        return None

    async def put(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool, also: Mapping[str, int] = NOTHING
    ) -> int:
        """See `Definitions`."""
        key = _place(definition, lasting=lasting)
        self._names[key] = definition.name
        vhost = vhost_of(definition.name)
        there = NOTHING if vhost == DEFAULT_VHOST else {deleted_key(vhost): 0}  # another proxy may be deleting it
        return await self._transact(definition.name, {key: revision, **there, **also}, Put(key, _encode(definition)))

    async def put_with(self, settings: Awaitable[None], definition: QueueDefinition, *, lasting: bool) -> int:
        """See `Definitions`: the settings first, as other processes use a queue once they see its definition."""
        await settings
        return await self.put(definition, 0, lasting=lasting)

    async def delete(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool, also: Mapping[str, int] = NOTHING
    ) -> int:
        """See `Definitions`."""
        key = _place(definition, lasting=lasting)
        return await self._transact(definition.name, {key: revision, **also}, Delete(key))

    def guard(
        self, definition: Exchange | QueueDefinition, revision: int, *, lasting: bool = True
    ) -> Mapping[str, int]:
        """See `Definitions`."""
        return {_place(definition, lasting=lasting): revision}

    async def _transact(self, name: str, compares: Mapping[str, int], operation: Put | Delete) -> int:
        try:
            return (await self._store.keys.transact(compares, [operation])).revision
        except RevisionConflict as conflict:
            raise Changed(name) from conflict

    async def follow(
        self,
        look: Callable[[], Awaitable[None]],
        found: Callable[[Sequence[StoredDefinition]], Awaitable[None]],
        settings_changed: Callable[[], Awaitable[None]],
    ) -> NoReturn:
        """Tells `found` of changes, forever; `look` takes stock first (`gateway.ownership.following`).

        `settings_changed` is called before that where operators have set something (`gateway.queues.operated`).
        """

        async def changed(changes: Sequence[Change]) -> None:
            if any(is_setting(change.key) for change in changes):
                await settings_changed()
            await found([one for one in map(self._change, changes) if one is not None])

        await follow_keys(
            self._store,
            below(AMQP),
            look=look,
            changed=changed,
            trouble="declarations of other proxies cannot be read now",
        )

    def _change(self, change: Change) -> StoredDefinition | None:
        place = next(
            (p for p in (EXCHANGES, LIVE_EXCHANGES, QUEUES, LIVE_QUEUES) if change.key.startswith(f"{p}/")), ""
        )
        if not place:
            return None
        exchange = place in (EXCHANGES, LIVE_EXCHANGES)
        if change.kind == "put":
            definition = (_exchange if exchange else _queue)(change.value)
            return self._noted(change.key, StoredDefinition(definition.name, definition, change.revision, exchange))
        name = self._names.pop(change.key, None)
        return None if name is None else StoredDefinition(name, None, change.revision, exchange)

    def _noted(self, key: str, found: StoredDefinition) -> StoredDefinition:
        self._names[key] = found.name
        return found


def _found(entry: Entry) -> StoredDefinition:
    exchange = entry.key.startswith((f"{EXCHANGES}/", f"{LIVE_EXCHANGES}/"))
    definition = (_exchange if exchange else _queue)(entry.value)
    return StoredDefinition(definition.name, definition, entry.revision, exchange)


def _place(definition: Exchange | QueueDefinition, *, lasting: bool) -> str:
    if isinstance(definition, Exchange):
        return kv_key(EXCHANGES if lasting else LIVE_EXCHANGES, definition.name)
    return kv_key(QUEUES if lasting else LIVE_QUEUES, definition.name)
