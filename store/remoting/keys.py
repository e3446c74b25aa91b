"""Keys and values over the network.

A change of keys is not safe to do twice, unless it changes the value that it compares: a key's revision is never given
again, so of two attempts one at most takes effect. So such a change is tried again when its connection breaks. If it is
refused then, because the revision has changed, it is unknown whether this change has done that, and its outcome is
unknown; as is that of all other changes. (A key that is to be made can be made twice, if it was deleted in between.)
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from store.api.keys import Changes, Delete, KeyCalls, Put, Transacted
from store.base.errors import AppendOutcomeUnknown, FrameTooLarge, StoreError
from store.format.frame import FRAME_BYTES_MAX
from store.remoting.caller import SessionLost, nothing
from store.remoting.core import Remote, decoder
from store.remoting.stubs import stubs
from store.rpc import arguments
from store.rpc.table import CALLS

_an_int: Callable[[Any], int] = decoder(int)
_a_bool: Callable[[Any], bool] = decoder(bool)
_some_changes: Callable[[Any], Changes] = decoder(Changes)
_a_transacted: Callable[[Any], Transacted] = decoder(Transacted)


T = TypeVar("T")


@stubs
class RemoteKeys(KeyCalls):
    """`KeyCalls` over the network."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._session = 0  # that holds are counted of
        self._held: Counter[int] = Counter()  # by revision, how often it is held in this session
        self._lost: Counter[int] = Counter()  # likewise in earlier ones, which have ended those holds: not released yet

    async def _change(self, method: str, asked: arguments.Arguments, decode: Callable[[Any], T], *, guarded: bool) -> T:
        """Changes keys; again when the connection breaks, if that takes effect once at most."""
        unknown: AppendOutcomeUnknown | None = None
        give_up_s = self._remote.loop.time() + self._remote.budget_s
        while True:
            try:
                return await self._remote.call(method, asked, decode)
            except AppendOutcomeUnknown as error:
                unknown = unknown or error
                if not guarded or self._remote.loop.time() >= give_up_s:
                    raise unknown from error
            except StoreError as error:
                if unknown is None:
                    raise
                raise unknown from error

    async def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        namespace: str = "",
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> int:
        """See `KeyCalls.put`. Raises `AppendOutcomeUnknown`, as all that is not safe to do twice."""
        _check_size(len(value), "value")
        asked = arguments.PutKey(key, value, expected_revision, namespace, ttl_ms, expires_at_ms)
        return await self._change("kv_put", asked, _an_int, guarded=_guards(expected_revision))

    async def delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """See `KeyCalls.delete`."""
        asked = arguments.DeleteKey(key, expected_revision, namespace)
        return await self._change("kv_delete", asked, _a_bool, guarded=_guards(expected_revision))

    async def transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """See `KeyCalls.transact`. Raises like `put`."""
        _check_size(sum(len(one.value) for one in operations if isinstance(one, Put)), "transaction")
        asked = arguments.KvTransact(dict(compares), arguments.packed_operations(operations), namespace)
        guarded = any(_guards(compares.get(one.key)) for one in operations)
        done = await self._change("kv_transact", asked, _a_transacted, guarded=guarded)
        return done._replace(existed=tuple(done.existed))

    async def hold(self) -> int:
        """See `KeyCalls.hold`."""
        revision = await self._remote.call("kv_hold", arguments.Nothing(), _an_int, orphaned=self._release)
        self._renew_session()
        self._held[revision] += 1
        return revision

    def release(self, revision: int) -> None:
        """See `KeyCalls.release`. Of holds of one revision those that a session has ended with it are the first."""
        self._renew_session()
        counted = self._lost if revision in self._lost else self._held
        counted[revision] -= 1
        if counted[revision] <= 0:
            del counted[revision]
        if counted is self._held:
            self._release(revision)

    def _renew_session(self) -> None:
        """Notes what was held in a session that is over."""
        if self._session != self._remote.connection.sessions:
            self._session = self._remote.connection.sessions
            self._lost += self._held
            self._held.clear()

    def _release(self, revision: int) -> None:
        self._remote.notify("kv_release", arguments.KvRelease(revision))

    def watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """See `KeyCalls.watch`. Refusals are raised when the first changes are asked for."""
        self._remote.check_open()
        if from_revision is None and self._remote.connection.sessions:
            from_revision = self._remote.confirmed + 1
        return self._watch(start, end, namespace, from_revision)

    async def _watch(
        self, start: str, end: str | None, namespace: str, at: int | None
    ) -> AsyncGenerator[Changes, None]:
        connection = self._remote.connection
        if at is None:
            await self._remote.connected()
            at = self._remote.confirmed + 1
        while True:
            begun = arguments.KvWatch(start, end, namespace, at)
            watching = connection.caller.begin("kv_watch", begun, nothing, CALLS["kv_watch"].mode)
            try:
                await watching.future
                sessions = connection.sessions
                asked = arguments.KvWatched(watching.number)
                while connection.sessions == sessions:
                    changes: Changes = await self._remote.call("kv_watched", asked, _some_changes)
                    at = changes.next
                    yield changes
            except SessionLost:
                continue  # on another connection, from where it was
            finally:
                self._remote.notify("kv_unwatch", arguments.KvWatched(watching.number))


def _guards(expected_revision: int | None) -> bool:
    """Returns whether a change that expects this revision takes effect once at most."""
    return expected_revision is not None and expected_revision > 0


def _check_size(size_bytes: int, what: str) -> None:
    """Raises FrameTooLarge where no frame can hold it: the connection would be taken up by it for nothing."""
    if size_bytes >= FRAME_BYTES_MAX:
        raise FrameTooLarge(f"{size_bytes} bytes in one {what}, of which a frame may have {FRAME_BYTES_MAX}")
