"""Keys and values: each key has a namespace, a value, a revision, and perhaps a time at which it expires."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

EXISTS: Final = -1  # as an expected revision: any, but the key must be there
HOLD_MS: Final = 60_000  # a state that is held, and not read for so long, is released


class Entry(NamedTuple):
    """One key of the KV. `revision` is that of its newest change, greater than those of all changes before."""

    key: str
    value: bytes
    revision: int
    create_revision: int  # the revision at which the key came to be; it may have been deleted before
    version: int  # how often it was put since then, that one included
    expires_at_ms: int | None = None  # ms since 1970; None: never
    namespace: str = ""


class Page(NamedTuple):
    """Entries by key, all as they were at `revision`. `more`: others follow behind the last one."""

    entries: Sequence[Entry]
    revision: int
    more: bool


class Change(NamedTuple):
    """One change of the KV: `kind` is "put", "delete", or "expire" for a key whose time was over."""

    kind: str
    key: str
    value: bytes
    revision: int
    expires_at_ms: int | None = None


class Changes(NamedTuple):
    """Changes in their order, all those of a revision or none; a watch that begins at `next` goes on behind them."""

    changes: Sequence[Change]
    next: int


class Put(NamedTuple):
    """A transaction's operation: store a value. It expires after `ttl_ms` (over 0) or at `expires_at_ms`, or never."""

    key: str
    value: bytes
    expires_at_ms: int | None = None
    ttl_ms: int | None = None


class Delete(NamedTuple):
    """A transaction's operation: remove a key; one that is not there is no conflict."""

    key: str


class Transacted(NamedTuple):
    """A transaction that was done: its revision, and of each operation whether the key had been there."""

    revision: int
    existed: Sequence[bool]


class Namespace(NamedTuple):
    """A namespace of the KV: its size and its limits (0: none). Expired keys count until they are swept."""

    name: str
    keys: int
    size_bytes: int
    keys_max: int
    size_bytes_max: int


class KeyCalls(Protocol):
    """Keys and values; of a cluster those of its home group.

    Keys live in namespaces and never meet across them. A namespace is there once something was put in it; "" is the
    gateway's own. A range of keys is [start, end), `end` None: to the last key. Expired keys are invisible to all
    calls, and are removed, for watchers to see, soon after. Every call that takes a key or a namespace raises
    `KeyTooLong`.
    """

    async def get(self, key: str, *, namespace: str = "") -> Entry | None:
        """Returns the entry of a key."""

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
        """Stores a value and return its revision. It expires after `ttl_ms` (over 0) or at `expires_at_ms`, or never.

        With `expected_revision` only if that is the key's (0: the key is not there; `EXISTS`: it is), else
        raises `RevisionConflict`. Raises `NamespaceFull`.
        """

    async def delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """Removes a key, with `expected_revision` as in `put`, and returns whether it was there."""

    async def transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """Does all operations, as one change with one revision, if every key compared is at the revision expected.

        Expected revisions are as in `put`; the first that does not hold is named by `RevisionConflict`, and then
        nothing is done. No two operations name the same key. Raises `NamespaceFull`, `TransactionTooLarge`.
        """

    async def prefix(self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = "") -> Sequence[Entry]:
        """Lists the entries whose key begins with `prefix` and is greater than `after`; fewer than `limit`: all."""

    async def range(
        self,
        start: str = "",
        end: str | None = None,
        *,
        namespace: str = "",
        after: str | None = None,
        limit: int = 1000,
        at_revision: int | None = None,
    ) -> Page:
        """Returns a page of the entries in a range whose key is greater than `after`.

        It ends at `limit` entries or some MiB, whichever is first, but not before the first entry. A page is the state
        at one revision, the newest by default; so are several pages with the `at_revision` that `hold` returned.
        Otherwise each page is newer than the one before, and a watch that begins behind the first page's revision has
        the changes made meanwhile. Raises `RevisionCompacted` for a state that is not held.
        """

    async def count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """Returns how many entries a range has. Looks at each of them."""

    async def hold(self) -> int:
        """Keeps the state as it is now for `range`, until released or not read for `HOLD_MS`; returns its revision.

        Raises `TooManyHolds`.
        """

    def release(self, revision: int) -> None:
        """Lets go of the state that a `hold` returned, once for each; also where it was not read for long."""

    def watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """Yields every change in a range from a revision on (None: from now on), each once, in order, forever.

        Past changes are read from the log, and so are those that a slow reader has missed: nothing is queued for it.
        Raises `RevisionCompacted`, at once where retention has taken the first revision, and when it was faster than
        the reader, or where the log is damaged; `StoreClosed`. Close it (`aclose`).
        """

    async def namespaces(self) -> Sequence[Namespace]:
        """Lists all namespaces that hold something or have limits, by name."""

    async def limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """Limits a namespace's keys and bytes from now on; 0: no limit. Entries that it has already stay."""
