"""Keys and values for adapters: the answers to the requests of `gateway.port.kv`."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from gateway.base.reserving import reserved
from gateway.domain.access import OPEN, Permissions
from gateway.domain.address import key_address
from gateway.domain.errors import Cause, Refusal
from gateway.kv.settings import NAMESPACE_PATTERN, KvConfig
from gateway.port.kv import (
    Compacted,
    CountKeys,
    GetKey,
    HoldKeys,
    KeyConflict,
    ListKeys,
    Match,
    NextChanges,
    ReleaseKeys,
    RemoveKey,
    StoreKey,
    TransactKeys,
    UnwatchKeys,
    WatchKeys,
)
from gateway.publishing.publishing import refusal_of
from store.api.client import StoreClient
from store.api.keys import HOLD_MS, Changes, Delete, Entry, Page, Put, Transacted
from store.base import clock, logs
from store.base.errors import (
    FrameTooLarge,
    KeyTooLong,
    NamespaceFull,
    RevisionCompacted,
    RevisionConflict,
    SnapshotLost,
    StoreError,
    TooManyHolds,
    TransactionTooLarge,
)

WATCHES_COUNT_MAX = 64  # of one connection
HOLDS_COUNT_MAX = 4  # likewise
TRIES_COUNT_MAX = 16  # of a condition that names several revisions, while others change the key

LOOKED_AT_ONCE = 256  # entries asked of the store at a time for a list that leaves some out
LISTED_BYTES_MAX = 4 << 20  # values in a page of such a list, and one more value

R = TypeVar("R")
T = TypeVar("T")
Method: TypeAlias = Callable[["KeyValues", "KeyClient", R], Awaitable[T]]

DEFAULTS = KvConfig()
_NAMESPACE = re.compile(NAMESPACE_PATTERN)
_RESERVED = re.compile(r"|[$_].*", re.DOTALL)


log = logs.get(__name__)


class KeyConnection(Protocol):
    """A connection."""

    id: int
    gone: bool


class KeyClient(NamedTuple):
    """A client that asks: its connection, and its rights."""

    connection: KeyConnection
    permissions: Permissions = OPEN


class _Hold:
    """A state that a connection holds, and the time when it last read a page of it."""

    __slots__ = ("read_ms", "revision")

    def __init__(self, revision: int, now_ms: int) -> None:
        self.revision = revision
        self.read_ms = now_ms


class KeyValues:
    """The key-value store as adapters see it: with users' namespaces only, and watches that end with connections."""

    def __init__(
        self, store: StoreClient, config: KvConfig = DEFAULTS, *, now_ms: Callable[[], int] = clock.now_ms
    ) -> None:
        self._store = store
        self._config = config
        self._now_ms = now_ms
        self._named = frozenset(said.name for said in config.namespaces)
        self._watches: dict[int, dict[int, _Watch]] = {}  # by connection and its own number
        self.holds: dict[int, list[_Hold]] = {}  # by connection
        self._holding: Counter[int] = Counter()  # holds that are asked of the store, by connection

    async def start(self) -> None:
        """Tells the store the limits of namespaces that it does not know yet."""
        try:
            known = {one.name: (one.keys_max, one.size_bytes_max) for one in await self._store.keys.namespaces()}
            for said in self._config.namespaces:
                if known.get(said.name, (0, 0)) != (said.keys_max, said.bytes_max):
                    await self._store.keys.limit(said.name, keys_max=said.keys_max, size_bytes_max=said.bytes_max)
        except StoreError as error:  # a full disk; stored keys can still be read
            log.error("limits of namespaces could not be stored: they apply from the next start on", error=str(error))

    async def answer(self, method: Method[R, T], asker: KeyClient, request: R) -> T:
        """Answers a request of `gateway.port.kv` by one of the methods below. Raises `Refusal`, `StoreError`."""
        namespace = getattr(request, "namespace", None)
        if namespace is not None:
            self._check(namespace)
        try:
            return await method(self, asker, request)
        except StoreError as error:
            raise _refusal(error) from error

    def _check(self, namespace: str) -> None:
        """Raises `Refusal` for a namespace that users may not use."""
        if _RESERVED.fullmatch(namespace):
            raise Refusal(Cause.FORBIDDEN, f"the namespace {namespace!r} is the gateway's own")
        if not _NAMESPACE.match(namespace):
            raise Refusal(Cause.MALFORMED, "a namespace is a letter or digit, then up to 27 letters, digits and . _ -")
        if not self._config.open and namespace not in self._named:
            raise Refusal(Cause.FORBIDDEN, f"the namespace {namespace!r} is not one of those that are configured")

    async def leave(self, connection: KeyConnection) -> None:
        """Ends the watches and holds of a connection that has ended."""
        for watch in self._watches.pop(connection.id, {}).values():
            await watch.close()
        for hold in self.holds.pop(connection.id, ()):
            self._store.keys.release(hold.revision)

    # ---- single keys

    async def get(self, _: KeyClient, request: GetKey) -> Entry | None:
        """See `GetKey`."""
        return await self._store.keys.get(request.key, namespace=request.namespace)

    async def put(self, _: KeyClient, request: StoreKey) -> Transacted:
        """See `StoreKey`."""
        operation = Put(request.key, request.value, ttl_ms=request.ttl_ms)
        return await self._change(operation, request.match, request.namespace)

    async def remove(self, _: KeyClient, request: RemoveKey) -> bool:
        """See `RemoveKey`."""
        done = await self._change(Delete(request.key), request.match, request.namespace)
        return done.existed[0]

    async def _change(self, operation: Put | Delete, match: Match, namespace: str) -> Transacted:
        """Makes one change if a condition holds.

        Conditions that one compare cannot express are compared here, and tried again.
        """
        key = operation.key
        if not match.none_of and len(match.any_of) <= 1:
            compares = {key: match.any_of[0]} if match.any_of else {}
            return await self._store.keys.transact(compares, [operation], namespace=namespace)
        for _ in range(TRIES_COUNT_MAX):
            entry = await self._store.keys.get(key, namespace=namespace)
            actual = entry.revision if entry is not None else 0
            if not match.holds(actual):
                raise KeyConflict(key, actual)
            try:
                return await self._store.keys.transact({key: actual}, [operation], namespace=namespace)
            except RevisionConflict:
                continue
        raise Refusal(Cause.OVERLOAD, f"others have changed {key!r} at the same time; try again", retry_after_ms=1_000)

    async def transact(self, _: KeyClient, request: TransactKeys) -> Transacted:
        """See `TransactKeys`."""
        return await self._store.keys.transact(request.compares, request.operations, namespace=request.namespace)

    # ---- ranges

    async def list_keys(self, asker: KeyClient, request: ListKeys) -> Page:
        """Returns a page of readable keys: only these decide whether it is full, and whether others follow."""
        permissions = asker.permissions
        if permissions.access is None:
            return await self._range(asker, request, request.after, request.limit)
        found: list[Entry] = []
        after, size, revision = request.after, 0, 0
        while True:
            page = await self._range(asker, request, after, max(request.limit, LOOKED_AT_ONCE))
            revision = revision or page.revision  # the first one's: later changes are in a watch from there on
            for one in page.entries:
                if not permissions.reads(key_address(request.namespace, one.key)):
                    continue
                if len(found) == request.limit or size >= LISTED_BYTES_MAX:
                    return Page(entries=found, revision=revision, more=True)
                found.append(one)
                size += len(one.value)
            if not page.more:
                return Page(entries=found, revision=revision, more=False)
            after = page.entries[-1].key

    async def _range(self, asker: KeyClient, request: ListKeys, after: str | None, limit: int) -> Page:
        at_revision = request.at_revision
        page = await self._store.keys.range(
            request.start, request.end, namespace=request.namespace, after=after, limit=limit, at_revision=at_revision
        )
        for hold in self.holds.get(asker.connection.id, ()):
            if hold.revision == at_revision:
                hold.read_ms = self._now_ms()
        return page

    async def count(self, _: KeyClient, request: CountKeys) -> int:
        """See `CountKeys`."""
        return await self._store.keys.count(request.start, request.end, namespace=request.namespace)

    async def hold(self, asker: KeyClient, _: HoldKeys) -> int:
        """See `HoldKeys`."""
        connection = asker.connection
        self._release_unread(connection)
        if len(self.holds.get(connection.id, ())) + self._holding[connection.id] >= HOLDS_COUNT_MAX:
            raise Refusal(Cause.QUOTA, f"a connection holds at most {HOLDS_COUNT_MAX} snapshots of keys")
        with reserved(self._holding, connection.id):
            revision = await self._store.keys.hold()
        if connection.gone:
            self._store.keys.release(revision)
            raise Refusal(Cause.UNAVAILABLE, "the connection has ended")
        self.holds.setdefault(connection.id, []).append(_Hold(revision, self._now_ms()))
        return revision

    def _release_unread(self, connection: KeyConnection) -> None:
        """Releases holds that the store has released, or would release but for other readers."""
        now_ms = self._now_ms()
        for hold in list(self.holds.get(connection.id, ())):
            if now_ms - hold.read_ms >= HOLD_MS:
                self._release(connection, hold)

    async def release(self, asker: KeyClient, request: ReleaseKeys) -> None:
        """See `ReleaseKeys`."""
        held = self.holds.get(asker.connection.id, ())
        hold = next((one for one in held if one.revision == request.revision), None)
        if hold is None:
            raise Refusal(Cause.NOT_FOUND, f"this connection does not hold revision {request.revision}")
        self._release(asker.connection, hold)

    def _release(self, connection: KeyConnection, hold: _Hold) -> None:
        held = self.holds[connection.id]
        held.remove(hold)
        if not held:
            del self.holds[connection.id]
        self._store.keys.release(hold.revision)

    # ---- watches

    async def watch(self, asker: KeyClient, request: WatchKeys) -> int:
        """See `WatchKeys`."""
        watches = self._watches.get(asker.connection.id, {})
        if len(watches) >= WATCHES_COUNT_MAX:
            raise Refusal(Cause.QUOTA, f"a connection has at most {WATCHES_COUNT_MAX} watches")
        if request.watch in watches or asker.connection.gone:
            raise Refusal(Cause.CONFLICT, "there is a watch of this number, or no connection any more")
        watch = watches[request.watch] = _Watch(request.namespace, asker.permissions)  # it can be ended from now on
        self._watches[asker.connection.id] = watches
        try:
            nothing = await self._store.keys.range(request.start, request.start, namespace=request.namespace)
            first = nothing.revision + 1
            if request.from_revision is not None:  # one that is not there yet may be of a log that has been replaced
                first = min(request.from_revision, first)
            watch.begin(
                self._store.keys.watch(request.start, request.end, namespace=request.namespace, from_revision=first)
            )
        except BaseException:
            await self.unwatch(asker, UnwatchKeys(watch=request.watch))
            raise
        return max(first - 1, 0)

    async def next_changes(self, asker: KeyClient, request: NextChanges) -> Changes:
        """See `NextChanges`."""
        watch = self._watches.get(asker.connection.id, {}).get(request.watch)
        if watch is None:
            raise Refusal(Cause.NOT_FOUND, "there is no watch of this number")
        return await watch.next()

    async def unwatch(self, asker: KeyClient, request: UnwatchKeys) -> None:
        """See `UnwatchKeys`."""
        watches = self._watches.get(asker.connection.id, {})
        watch = watches.pop(request.watch, None)
        if not watches:
            self._watches.pop(asker.connection.id, None)
        if watch is not None:
            await watch.close()


class _Watch:
    """A watch of the store that can be ended while it is read."""

    def __init__(self, namespace: str, permissions: Permissions) -> None:
        self._changes: AsyncGenerator[Changes, None] | None = None  # none before it has begun
        self._namespace = namespace
        self._permissions = permissions  # of the watcher
        self._reading: asyncio.Task[Changes] | None = None
        self._closed = False

    def begin(self, changes: AsyncGenerator[Changes, None]) -> None:
        """Takes what is read. Raises `Refusal` when the watch has ended meanwhile."""
        if self._closed:
            raise Refusal(Cause.UNAVAILABLE, "the watch has ended")
        self._changes = changes

    async def next(self) -> Changes:
        """Returns the next changes. Raises `Refusal` when the watch ends meanwhile."""
        if self._closed or self._reading is not None or self._changes is None:
            raise Refusal(Cause.CONFLICT, "the watch has ended, has not begun, or is being read")
        self._reading = asyncio.ensure_future(self._next(self._changes))
        try:
            return await self._reading
        except asyncio.CancelledError:
            if not self._closed:
                raise
            raise Refusal(Cause.UNAVAILABLE, "the watch has ended") from None
        finally:
            self._reading = None

    async def _next(self, changes: AsyncGenerator[Changes, None]) -> Changes:
        while True:
            found = await anext(changes)
            permissions = self._permissions
            if permissions.access is None:
                return found
            kept = [one for one in found.changes if permissions.reads(key_address(self._namespace, one.key))]
            if kept:
                return found._replace(changes=kept)

    async def close(self) -> None:
        """Ends the watch and its readers."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        if self._changes is not None:
            await self._changes.aclose()


def _refusal(error: StoreError) -> Refusal:
    """Returns the refusal that a client gets for a store's error."""
    match error:
        case RevisionConflict():
            return KeyConflict(error.key, error.actual)
        case RevisionCompacted():
            return Compacted(str(error), error.earliest)
        case SnapshotLost():
            return Compacted(str(error), 0)
        case KeyTooLong():
            return Refusal(Cause.MALFORMED, str(error))
        case NamespaceFull():
            return Refusal(Cause.QUOTA, str(error))
        case TransactionTooLarge():
            return Refusal(Cause.TOO_LARGE, str(error))
        case FrameTooLarge():
            return Refusal(Cause.TOO_LARGE, "the value is too large")
        case TooManyHolds():
            return Refusal(Cause.OVERLOAD, str(error), retry_after_ms=5_000)
        case _:
            return refusal_of(error)
