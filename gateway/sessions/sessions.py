"""Durable sessions: a record in the KV, a cursor in the log, and one connection that holds them.

The record holds the adapter's saved state, opaque here, beside the session's expiry; the part that changes with every
message has a record of its own, so that a large session does not make small messages large. The cursor is where
deliveries go on, in each log; it is committed every `COMMIT_INTERVAL_MS` while it moves and when the connection ends,
so a crash repeats at most the messages acknowledged since. A log that the cursor does not name has joined since it was
committed, and the session gets its messages from its beginning on.

A session is served by the process that owns it (`gateway.ownership.owners`), from before its connection is let in until
its last record is written. A connection elsewhere takes it over by asking its owner; when an owner is gone, another
process does the work of its connections' ends.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.base.turns import Turns
from gateway.delivery.fanout import Fanout
from gateway.domain.cursor import Cursor, cursor_of_offsets, later, offsets_of
from gateway.domain.session_user import NotItsUser, SessionUser, check_user
from gateway.ownership.owners import LocalOwners, Operations, Owned, Owners, OwnershipLost, Taken
from gateway.ownership.stored_entries import stored_entries
from gateway.port.sessions import OpenedSession, OpenSession, SaveSession
from gateway.publishing.session_marks import forget_marks, open_marks
from gateway.sessions.orphans import end_all_orphans
from gateway.sessions.record import (
    SESSIONS,
    Ended,
    LiveSession,
    SessionHolder,
    SessionRecord,
    exchanges_key,
    expired,
    ignore_end,
    load_record,
    put_record,
    record_in,
    session_key,
)
from gateway.sessions.wills import Wills
from store.api.client import StoreClient
from store.api.keys import Delete, Entry, Put
from store.base import logs
from store.base.clock import present

COMMIT_INTERVAL_MS = 1_000
SWEEP_INTERVAL_MS = 60_000
IDLE_COMMIT_BYTES = 16 << 20  # an idle session's cursor is moved once it is this far behind the log's end
IDLE_COUNT_MAX = 1_000  # idle sessions looked at in one interval: 10 us each

log = logs.get(__name__)


class Sessions:
    """All sessions that connections of this process hold. It belongs to the event loop."""

    def __init__(
        self,
        store: StoreClient,
        fanout: Fanout,
        wills: Wills,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
        owners: Owners | None = None,
    ) -> None:
        self._store, self._fanout, self._wills = store, fanout, wills
        self._now_ms = now_ms
        self._owners = owners or LocalOwners(store)
        self.held: dict[str, LiveSession] = {}
        self.by_holder: dict[SessionHolder, LiveSession] = {}
        self.unclosed: dict[str, LiveSession] = {}  # no connection, and the store refused the last state
        self._turns = Turns()  # by key: one change at a time
        self._started_ms = present(now_ms, steady_ms)
        self._rounds = 0  # of `commit`
        self.ended: Ended = ignore_end  # told of a session before it is forgotten
        self._owners.serve(f"{SESSIONS}/", self)

    async def load(self) -> list[str]:
        """Returns, before the first connection, the sessions for `end_orphans`. Raises `StoreError`."""
        return list(await self._wills.load()) if self._owners.alone else []

    async def end_orphans(self, orphans: list[str]) -> None:
        """Publishes the wills of connections that ended with a former run of this process."""
        await end_all_orphans(orphans, lambda key: self.on_owner_lost(key, lambda: self._owners.take(key)))

    def key_of(self, holder: SessionHolder) -> str | None:
        """Returns the session that a connection holds, by its key."""
        return None if (held := self.by_holder.get(holder)) is None else held.key

    def holds(self, key: str) -> bool:
        """Returns whether a connection of this process has a session, or the session's last record is not written."""
        return key in self.held or key in self.unclosed

    # ---- requests of connections

    async def open(self, holder: SessionHolder, request: OpenSession, user: SessionUser | None = None) -> OpenedSession:
        """Gives a connection its session, taking it from its holder.

        Raises `NotItsUser`, with everything left as it is, when it is another user's; None takes every session.
        """
        key = session_key(holder.protocol, request.session_id)
        async with self._turns.at(key):
            return await self._open(key, holder, request, user)

    async def _open(
        self, key: str, holder: SessionHolder, request: OpenSession, user: SessionUser | None
    ) -> OpenedSession:
        if holder.gone:
            return OpenedSession(present=False)  # it has gone while it waited: the session's holder may have come since
        owned, record = await self._take(key, user)
        if holder.gone:
            await owned.release()
            return OpenedSession(present=False)  # its connection has gone
        held = LiveSession(key, request.session_id, holder, owned, user)
        self.held[key] = self.by_holder[holder] = held
        held.expiry_s = request.expiry_s
        try:
            return await self._begin(held, request, record)
        except OwnershipLost:
            self._lose(held)
            raise
        except NotItsUser:
            self._release(held)
            await owned.release()
            raise

    async def _take(self, key: str, user: SessionUser | None) -> tuple[Owned, SessionRecord | UnsetType | None]:
        """Owns a session without a holder, after its last holder's last record; returns its record, too, if known."""
        before = self.held.get(key) or self.unclosed.get(key)
        if before is None:
            entry = await self._store.keys.get(key)
            record = record_in(entry)
            self._check_user(key, record, user)
            seen = {key: 0 if entry is None else entry.revision}
            owned = await self._owners.take(key, user=user, seen=seen)
            return owned, record if owned.as_seen else UNSET
        before.check_user(user)
        if key in self.held:
            before.holder.supersede()
            await self._close(before, keep=True)
        else:
            await self._close_late(key, keep=True)
        return before.owned, UNSET

    def _check_user(self, key: str, record: SessionRecord | None, user: SessionUser | None) -> None:
        if record is not None and not self._expired(record):
            check_user(key, record.user, user)

    async def _begin(
        self, held: LiveSession, request: OpenSession, record: SessionRecord | UnsetType | None
    ) -> OpenedSession:
        """Makes the session durable or not, and records its connection."""
        key, owned = held.key, held.owned
        if isinstance(record, UnsetType):
            record = await load_record(self._store, key)
            self._check_user(key, record, held.user)
            await owned.belong(held.user)
        new = record is None or request.clean or self._expired(record)
        if record is not None and new:
            await self._forget(key, owned)
        else:
            await self._wills.settle(owned, key, ended=new)
        operations: list[Put | Delete] = []
        if request.will is not None and not held.withdrawn:
            held.armed = True
            held.will, put = self._wills.arm(key, request.will)  # may be dropped before it is stored
            operations.append(put)
        if new and request.expiry_s != 0:
            held.committed = held.settled = held.passed = self._fanout.now()
            operations.append(put_record(held, left_ms=None))
            await owned.write(operations, cursor=offsets_of(held.committed))
        elif record is not None and not new:
            held.state, held.durable, held.marked = record.state, True, record.marked
            held.committed = held.settled = held.passed = cursor_of_offsets(await owned.cursor())
            operations.append(put_record(held, left_ms=None))
            await owned.write(operations)
        elif operations:
            await owned.write(operations)
        if new and request.expiry_s == 0:  # a session that ends with its connection has no marks
            return OpenedSession(present=False)
        if new:
            return OpenedSession(present=False, marks=await open_marks(self._store, key, owned, used=False))
        marks = await open_marks(self._store, key, owned, used=held.marked)
        entry = await self._store.keys.get(exchanges_key(key))
        exchanges = entry.value if entry is not None else b""
        return OpenedSession(present=True, state=held.state, exchanges=exchanges, cursor=held.committed, marks=marks)

    async def save(self, holder: SessionHolder, request: SaveSession) -> None:
        """Stores the state of a connection's session."""
        held = self.by_holder.get(holder)
        if held is None:
            return
        whole = request.state is not None or request.expiry_s != held.expiry_s or not held.durable
        held.marked = held.marked or request.marked  # comes with a state
        if request.state is not None:
            held.state = request.state
        if request.exchanges is not None:
            held.exchanges = request.exchanges
        held.expiry_s, held.taken = request.expiry_s, True
        if held.durable or request.expiry_s != 0:
            async with self._turns.at(held.key):
                if self.by_holder.get(holder) is held:
                    await self._save(held, whole=whole)

    async def _save(self, held: LiveSession, *, whole: bool) -> None:
        exchanges = held.exchanges
        operations: list[Put | Delete] = []
        if exchanges is not None:
            operations.append(Put(exchanges_key(held.key), exchanges))
        if whole:
            operations.append(put_record(held, left_ms=None))
        try:
            await held.owned.write(operations)
        except OwnershipLost:
            self._lose(held)
            raise
        if held.exchanges is exchanges:
            held.exchanges = None

    def drop_will(self, holder: SessionHolder) -> None:
        """Forgets a connection's will, which is not to be published."""
        if (held := self.by_holder.get(holder)) is not None:
            held.will, held.withdrawn = None, True

    async def end(self, holder: SessionHolder) -> None:
        """Forgets a connection's session now."""
        held = self.by_holder.get(holder)
        if held is not None:
            async with self._turns.at(held.key):
                if self.by_holder.get(holder) is held:
                    held.expiry_s = 0
                    await self._close(held)

    def settled(self, holder: SessionHolder, oldest: Cursor) -> None:
        """Notes that a connection's deliveries before `oldest` are acknowledged; of a log that it leaves out, all."""
        held = self.by_holder.get(holder)
        if held is not None:
            held.oldest = oldest
            held.taken = True
            held.settle(self._fanout)

    async def close(self, holder: SessionHolder) -> None:
        """Lets the session of an ended connection wait, or forgets one that does not outlive connections."""
        held = self.by_holder.get(holder)
        if held is not None:
            async with self._turns.at(held.key):
                await self._close(held)

    async def _close(self, held: LiveSession, *, keep: bool = False) -> None:
        """Ends the connection of a session; with `keep` its next one is here."""
        if not self._release(held):
            return
        held.left_ms = self._now_ms()
        held.settle(self._fanout)
        self.unclosed[held.key] = held
        await self._close_late(held.key, keep=keep)

    async def _close_late(self, key: str, *, keep: bool = False) -> None:
        """Writes the last word of a session whose connection has ended; while the store refuses it, it is kept."""
        held = self.unclosed.get(key)
        if held is None:
            return
        try:
            await self._last_word(held, keep=keep)
        except OwnershipLost:
            log.warning("a session was taken over before its last state was stored", session=key)
            self.unclosed.pop(key, None)
            if keep:
                raise
            return
        self.unclosed.pop(key, None)  # it is not there when this process was fenced meanwhile

    async def _last_word(self, held: LiveSession, *, keep: bool) -> None:
        key, owned, ends = held.key, held.owned, held.expiry_s == 0
        if held.marked:  # a message in flight would be marked after the next connection has read the marks
            await held.holder.answered()
        operations: list[Put | Delete] = []
        over = False  # there is no will any more
        if held.armed:
            will = await self._wills.find(key) if held.will is not None else None
            over = will is None or not await self._wills.leave(owned, key, will, expiry_s=held.expiry_s)
            operations += [self._wills.disarm(key)] if over else []
        cursor = None
        if ends and held.durable:
            await self._delete(key, owned, operations)
            operations = []
        elif ends:
            await self.ended(key, owned, lasting=False)
        elif held.durable:
            if held.exchanges is not None:
                operations.append(Put(exchanges_key(key), held.exchanges))
            operations.append(put_record(held, left_ms=held.left_ms))
            cursor = offsets_of(held.settled) if held.settled != held.committed else None
        await (owned.write if keep else owned.release)(operations, cursor=cursor)
        if over:
            self._wills.forgotten(key)

    def _lose(self, held: LiveSession) -> None:
        """Ends the connection here of a session that has gone on elsewhere."""
        if self._release(held):
            held.holder.supersede()

    # ---- requests and remains of other proxies

    async def on_release_requested(self, name: str, user: SessionUser | None) -> None:
        """See `owners.OwnershipListener`."""
        async with self._turns.at(name):
            held = self.held.get(name)
            if held is not None:
                held.check_user(user)
                held.holder.supersede()
                await self._close(held)
            elif name in self.unclosed:
                await self._close_late(name)
            else:  # handed to us when no connection here waited for it any more
                await (await self._owners.take(name, wait=False)).release()

    async def on_owner_lost(self, name: str, take: Callable[[], Coroutine[Any, Any, Owned]]) -> None:
        """See `owners.OwnershipListener`: the connection has ended without a last word."""
        async with self._turns.at(name):
            if name in self.held or name in self.unclosed:
                return
            owned = await take()
            record = await load_record(self._store, name)
            will = await self._wills.find(name)
            operations: list[Put | Delete] = []
            expiry_s = 0 if record is None else record.expiry_s
            over = will is not None and not await self._wills.leave(owned, name, will, expiry_s=expiry_s)
            if record is None:
                await self.ended(name, owned)
            operations += [self._wills.disarm(name)] if over else []
            if record is not None and expiry_s == 0:
                await self._delete(name, owned, operations)
                operations = []
            elif record is not None and record.left_ms is None:
                left = msgspec.structs.replace(record, left_ms=self._now_ms())
                operations.append(Put(name, msgspec.msgpack.encode(left)))
            await owned.release(operations)
            if over:
                self._wills.forgotten(name)

    async def on_fenced(self) -> None:
        """See `owners.OwnershipListener`."""
        self.unclosed.clear()
        for held in list(self.held.values()):
            if self._release(held):
                held.holder.shut_down()

    # ---- periodic work

    async def commit(self) -> None:
        """Commits the cursors that have moved. Call it every `COMMIT_INTERVAL_MS`."""
        self._rounds += 1
        turns = 1 + len(self.held) // IDLE_COUNT_MAX
        work = [
            self._commit(held)
            for number, held in enumerate(self.held.values())
            if held.durable
            and (held.settled != held.committed or (number + self._rounds) % turns == 0)
            and held.moves(self._fanout, IDLE_COMMIT_BYTES)
        ]
        work += [self._close_again(key) for key in self.unclosed]
        # All at once, so that the store can put them in one frame.
        for error in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(error, BaseException):
                log.warning("a session's cursor was not committed", error=repr(error))

    async def _commit(self, held: LiveSession) -> None:
        if self.held.get(held.key) is not held:
            return
        cursor = held.settled
        try:
            await held.owned.write(cursor=offsets_of(cursor))
        except OwnershipLost:
            self._lose(held)
            return
        held.committed = later(held.committed, cursor)

    async def _close_again(self, key: str) -> None:
        async with self._turns.at(key):
            await self._close_late(key)

    async def sweep(self) -> int:
        """Forgets expired sessions; returns how many that were. Call it every `SWEEP_INTERVAL_MS`."""
        forgotten = 0
        async for entry in stored_entries(self._store, SESSIONS):
            if self._is_over(entry):
                forgotten += await self._sweep(entry.key)
        return forgotten

    async def _sweep(self, key: str) -> bool:
        """Forgets one session unless it has come back to life; returns whether it was forgotten."""
        async with self._turns.at(key):
            entry = await self._store.keys.get(key)
            if entry is None or not self._is_over(entry):
                return False
            try:
                owned = await self._owners.take(key, wait=False)
            except Taken:
                return False
            entry = None if self._owners.alone else await self._store.keys.get(key)
            over = self._owners.alone or (entry is not None and self._is_over(entry))
            if over:
                await self._forget(key, owned)
            await owned.release()
            return over

    def _is_over(self, entry: Entry) -> bool:
        if self.holds(entry.key):
            return False
        try:
            return self._expired(msgspec.msgpack.decode(entry.value, type=SessionRecord))
        except msgspec.MsgspecError:
            log.exception("a session's record is invalid", key=entry.key)
            return False

    # ---- inside

    def _release(self, held: LiveSession) -> bool:
        """Takes a session from its holder; returns False when that has happened already."""
        if self.by_holder.get(held.holder) is not held:
            return False
        del self.by_holder[held.holder]
        if self.held.get(held.key) is held:
            del self.held[held.key]
        return True

    def _expired(self, record: SessionRecord) -> bool:
        # One that was connected when the gateway died is counted from the gateway's start. Of several, the one
        # that takes over a dead gateway's sessions names the time of its death.
        return expired(record, self._now_ms(), or_left_ms=self._started_ms() if self._owners.alone else None)

    async def _forget(self, key: str, owned: Owned) -> None:
        """Forgets a session that has ended, and the wait of its will."""
        await self._wills.settle(owned, key, ended=True)
        await self._delete(key, owned)

    async def _delete(self, key: str, owned: Owned, operations: Operations = ()) -> None:
        await self.ended(key, owned)
        if (record := await load_record(self._store, key)) is not None and record.marked:
            await forget_marks(self._store, key, owned, now_ms=self._now_ms())
        gone: list[Put | Delete] = [*operations, Delete(key)]
        if await self._store.keys.get(exchanges_key(key)) is not None:
            gone.append(Delete(exchanges_key(key)))
        await owned.forget(gone)
