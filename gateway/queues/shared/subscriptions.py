"""Shared subscriptions: their member sessions, which decide how long their queues are there.

    shared/members/{queue}/{session}   the members of a shared subscription
    shared/of/{session}/{queue}        the same the other way round: the memberships that a session leaves when it ends
    shared/joins/{queue}               changes whenever a session joins, where there are several proxies

(`queue` and `session` are hashes; the records say the names.) A membership is as durable as its session is: a session
that is away is a member still. It ends when the session leaves or ends; `sweep` finds memberships that a crash leaves
of sessions that are gone. The queue goes with its last member, in a transaction that fails if one joins meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from controller.api.client import ControllerError, TopicLimit
from gateway.domain.access import OPEN, Permissions
from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.ownership.owner_keys import owner_key
from gateway.ownership.owners import Owned, Owners
from gateway.ownership.stored_entries import stored_entries
from gateway.port.shared import JoinShared, LeaveShared, SharedName
from gateway.publishing.publishing import refusal_of
from gateway.queues.model.queue import Queue
from gateway.queues.shared.registry import SharedRegistry
from store.api.client import StoreClient
from store.api.keys import Delete, Put
from store.base import logs
from store.base.errors import RevisionConflict, StoreError

SWEEP_SHARED_INTERVAL_MS = 1_800_000
MEMBERS, OF, JOINS = "shared/members", "shared/of", "shared/joins"
FORGET_COUNT_MAX = 256  # memberships that end in one transaction
TRIES_COUNT_MAX = 16  # of joining a queue that comes and goes meanwhile

log = logs.get(__name__)


class SharedMemberRecord(msgspec.Struct, frozen=True):
    """A session is a member of a shared subscription."""

    queue: str
    session: str


_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.Decoder(SharedMemberRecord).decode


class _JoinedConnection:
    """A connection whose session has joined something."""

    __slots__ = ("queues", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self.queues: dict[Queue, None] = {}


class SharedMember(Protocol):
    """A connection whose session can be a member."""

    id: int
    gone: bool


class SessionKeys(Protocol):
    """The interface to sessions that shared subscriptions need."""

    def key_of(self, holder: Any) -> str | None:
        """Returns the session that a connection holds, by its key."""

    def holds(self, key: str) -> bool:
        """Returns whether a connection of this process has the session, or the session's last record is not written."""


class SharedSubscriptions:
    """All memberships of sessions that this process holds. It belongs to the event loop."""

    def __init__(
        self,
        store: StoreClient,
        owners: Owners,
        registry: SharedRegistry,
        sessions: SessionKeys,
        *,
        groups_max: int,
        spawn: Callable[[Coroutine[Any, Any, object]], object],
    ) -> None:
        self._store = store
        self._owners = owners
        self._registry = registry
        self._sessions = sessions
        self._groups_max = groups_max
        self._spawn = spawn
        self._joining: Counter[str] = Counter()  # queues that a session here is about to join
        self._joined: dict[str, int] = {}  # sessions that have joined something here, and their connections
        self._here: dict[int, _JoinedConnection] = {}  # those connections

    async def begin(self) -> None:
        """Removes the remains of a former run of this process, where no other process could have left them."""
        if self._owners.alone:
            try:
                await self.sweep()
            except StoreError as error:
                log.warning("the check of shared subscriptions failed and is repeated later", error=str(error))

    async def join(
        self, conn: SharedMember, request: JoinShared, permissions: Permissions = OPEN
    ) -> Sequence[str | Refusal]:
        """See `JoinShared`; `permissions` are the member's. Raises `Refusal` (FORBIDDEN) without a session."""
        session = self._session_of(conn)
        if not conn.gone:
            self._joined[session] = conn.id
            self._here.setdefault(conn.id, _JoinedConnection(session))
        answers = await asyncio.gather(*(self._join(conn, session, shared, permissions) for shared in request.names))
        if conn.gone and not await self.is_there(session):  # it has ended meanwhile, without this membership
            await self.ended(session)
        return answers

    async def _join(
        self, conn: SharedMember, session: str, shared: SharedName, permissions: Permissions
    ) -> str | Refusal:
        name = shared.queue
        self._joining[name] += 1
        try:
            # Or it would take messages that it may not read from other members.
            permissions.check_all("subscribe", shared.pattern)
            for _ in range(TRIES_COUNT_MAX):
                queue = await self._registry.share(shared, groups_max=self._groups_max)
                try:
                    if await self._store.keys.get(_keys(name, session)[0]) is None:  # else the queue cannot go
                        await self._store.keys.transact(self._registry.guard(queue), self._joined_as(name, session))
                except RevisionConflict:
                    await self._registry.look_again(name)
                else:
                    if (here := self._here.get(conn.id)) is not None:
                        queue.members.add(conn.id)
                        here.queues[queue] = None
                    return name
            return Refusal(Cause.OVERLOAD, "the shared subscription comes and goes too often", retry_after_ms=1_000)
        except Refusal as refusal:
            return refusal
        except TopicLimit as error:
            return Refusal(Cause.QUOTA, str(error))
        except StoreError as error:
            return Refusal(Cause.UNAVAILABLE, refusal_of(error).detail, retry_after_ms=1_000)
        except ControllerError as error:
            return Refusal(Cause.UNAVAILABLE, str(error), retry_after_ms=1_000)
        finally:
            self._joining[name] -= 1
            if not self._joining[name]:
                del self._joining[name]

    def _joined_as(self, name: str, session: str) -> list[Put | Delete]:
        record = _encode(SharedMemberRecord(name, session))
        operations: list[Put | Delete] = [Put(key, record) for key in _keys(name, session)]
        if not self._owners.alone:
            operations.append(Put(_joins_key(name), b""))
        return operations

    async def leave(self, conn: SharedMember, request: LeaveShared) -> None:
        """See `LeaveShared`. Raises `StoreError`."""
        session = self._session_of(conn)
        names = [shared.queue for shared in request.names]
        for name in names:
            if (queue := self._registry.queues.get(name)) is not None:
                queue.members.discard(conn.id)
        await self._forget([SharedMemberRecord(name, session) for name in names])

    async def ended(self, session: str, owned: Owned | None = None, *, lasting: bool = True) -> None:
        """Ends the memberships of a session that is gone. Raises `StoreError`, `OwnershipLost`.

        `owned` is the name by which its owner writes; None where it is known to have no owner. One that does not last
        beyond its connection has joined here if at all.
        """
        if not lasting and session not in self._joined:
            return
        prefix = f"{OF}/{hash64(session):016x}"
        found = [_decode(entry.value) async for entry in stored_entries(self._store, prefix)]
        await self._forget([record for record in found if record.session == session], owned)
        self._joined.pop(session, None)

    def left(self, conn: SharedMember) -> None:
        """Takes the use of its queues from a connection that has ended."""
        here = self._here.pop(conn.id, None)
        if here is not None:
            for queue in here.queues:
                queue.members.discard(conn.id)
            if self._joined.get(here.session) == conn.id:
                del self._joined[here.session]

    async def sweep(self) -> None:
        """Finds members whose sessions are gone, and queues without members. Raises `StoreError`."""
        there: dict[str, bool] = {}
        gone: list[SharedMemberRecord] = []
        async for entry in stored_entries(self._store, MEMBERS):
            record = _decode(entry.value)
            if record.session not in there:
                there[record.session] = await self.is_there(record.session)
            if not there[record.session]:
                gone.append(record)
        if self._owners.alone:
            await self._forget(gone)
        else:
            await self._forget_unowned(gone)
        for queue in self._registry.shared:
            await self._drop_empty(queue.definition.name)

    # ---- inside

    def _session_of(self, conn: SharedMember) -> str:
        session = self._sessions.key_of(conn)
        if session is None:
            raise Refusal(Cause.FORBIDDEN, "only a session can share a subscription")
        return session

    async def is_there(self, session: str) -> bool:
        """Returns whether a session exists, at this proxy or at another one."""
        if self._sessions.holds(session) or await self._store.keys.get(session) is not None:
            return True
        return not self._owners.alone and await self._store.keys.get(owner_key(session)) is not None

    async def _forget(self, records: Sequence[SharedMemberRecord], owned: Owned | None = None) -> None:
        """Ends memberships, and looks whether their queues have others."""
        for first in range(0, len(records), FORGET_COUNT_MAX):
            some = records[first : first + FORGET_COUNT_MAX]
            gone = dict.fromkeys(key for record in some for key in _keys(record.queue, record.session))
            if owned is not None:
                await owned.write([Delete(key) for key in gone])
            else:
                await self._store.keys.transact({}, [Delete(key) for key in gone])
        for name in dict.fromkeys(record.queue for record in records):
            self._spawn(self._drop_empty(name))

    async def _forget_unowned(self, records: Sequence[SharedMemberRecord]) -> None:
        """Ends memberships of sessions that are gone, each unless it has begun again meanwhile."""
        by_session: dict[str, list[SharedMemberRecord]] = {}
        for record in records:
            by_session.setdefault(record.session, []).append(record)
        for session, theirs in by_session.items():
            keys = dict.fromkeys(key for record in theirs for key in _keys(record.queue, session))
            try:
                await self._store.keys.transact({session: 0, owner_key(session): 0}, [Delete(key) for key in keys])
            except RevisionConflict:
                log.debug("a session has come back before its membership was removed", session=session)
        for name in dict.fromkeys(record.queue for record in records):
            self._spawn(self._drop_empty(name))

    async def _drop_empty(self, name: str) -> None:
        """Removes a queue unless it has members. `sweep` tries again after a failure."""
        try:
            if await self._registry.unshare(name, lambda: self._unless(name)) and not self._owners.alone:
                await self._forget_joins(name)
        except (StoreError, ControllerError, Refusal) as error:
            log.warning("a shared subscription without members could not be deleted yet", queue=name, error=str(error))

    async def _unless(self, name: str) -> Mapping[str, int] | None:
        """See `gateway.queues.shared.registry.Unless`."""
        if self._joining[name]:
            return None
        entry = None if self._owners.alone else await self._store.keys.get(_joins_key(name))
        prefix = f"{MEMBERS}/{hash64(name):016x}/"
        if await self._store.keys.prefix(prefix, limit=1):
            return None
        return {} if self._owners.alone else {_joins_key(name): 0 if entry is None else entry.revision}

    async def _forget_joins(self, name: str) -> None:
        entry = await self._store.keys.get(_joins_key(name))
        if entry is not None and name not in self._registry.queues:
            try:
                await self._store.keys.delete(entry.key, expected_revision=entry.revision)
            except RevisionConflict:
                log.debug("a shared subscription has got members before it was deleted", queue=name)


def _keys(queue: str, session: str) -> tuple[str, str]:
    queue_hash, session_hash = f"{hash64(queue):016x}", f"{hash64(session):016x}"
    return f"{MEMBERS}/{queue_hash}/{session_hash}", f"{OF}/{session_hash}/{queue_hash}"


def _joins_key(queue: str) -> str:
    return f"{JOINS}/{hash64(queue):016x}"
