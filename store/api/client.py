"""The interface of a store group, for proxies, in process (`store.local.local`) or over the network.

Everything that must outlive a master goes through the log: KV operations, group offsets and settled leases are
records of reserved queues, so one mechanism makes all of them durable. A call that changes something returns when
the change is durable and applied; a read sees every change that was acknowledged before it began.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from store.api.handle import Grant
from store.base.errors import StoreError
from store.format.frame import Frame, LogOffset, Position, QueueNumber, QueueOffset, UnplacedFrame
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig

__all__ = [
    "EXISTS",
    "Appended",
    "Bounds",
    "Change",
    "Changes",
    "Delete",
    "Entry",
    "Fetched",
    "IndexKind",
    "Lease",
    "Namespace",
    "OnAppended",
    "Page",
    "Put",
    "QueuesListener",
    "StoreClient",
    "TailListener",
    "Transacted",
]

EXISTS: Final = -1  # as an expected revision: any, but the key must be there


class Appended(NamedTuple):
    """The log offset of an appended frame.

    `duplicate`: this producer and sequence had been stored before, so nothing was stored now. `failed` are the rows of
    guards (`store.guards`) that have failed: what they cover was not stored.
    """

    frame: LogOffset
    duplicate: bool = False
    failed: Sequence[int] = ()


class Bounds(NamedTuple):
    """The offsets of a queue that can be read: `first` (inclusive) to `next` (exclusive)."""

    first: QueueOffset
    next: QueueOffset


class Fetched(NamedTuple):
    """Records of one queue, by frame: `rows[i]` are the row numbers of `frames[i]` that belong to the queue.

    `offset` is the queue offset of the first row; offsets then count up by one a row. `next` is where to go on.
    """

    frames: Sequence[Frame]
    rows: Sequence[Sequence[int]]
    offset: QueueOffset
    next: QueueOffset


class Entry(NamedTuple):
    """One key of the KV. `revision` is that of its newest change, greater than those of all changes before."""

    key: str
    value: bytes
    revision: int
    create_revision: int  # of the change that made it, since it was last not there
    version: int  # how often it was put since then
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
    """A namespace of the KV: what it holds, and its limits (0: none). Expired keys count until they are swept."""

    name: str
    keys: int
    size_bytes: int
    keys_max: int
    size_bytes_max: int


class IndexKind(IntEnum):
    """The kinds of hash by which records are found: of a key, an address or an id in their rows."""

    KEY = 1  # rows with ROW_INDEX_KEY
    ADDRESS = 2  # rows with ROW_INDEX_ADDRESS
    ID = 3  # every row that has an id


class Lease(NamedTuple):
    """A message lent to a consumer: `deliveries` is how often it had been lent before, and counted.

    That is known since the start of the master; what was lent at an earlier one counts as once, or as never.
    """

    offset: QueueOffset
    deliveries: int
    frame: Frame
    row: int
    grant: Grant | None = None  # of a lease that ends by itself

    def handle(self) -> str:
        """The text by which anybody can settle, give back or extend this lease, from any proxy.

        Signed when it is asked for. Raises ValueError for a lease that lasts as long as its owner.
        """
        if self.grant is None:
            raise ValueError("only a lease that was taken for a time has a handle")
        return self.grant.handle(self.offset, self.deliveries)


class TimersHeld(NamedTuple):
    """The number of pending timers, and the bytes that they hold."""

    timers: int
    size_bytes: int


class TimerEntry(NamedTuple):
    """A pending timer. Its `id` is made of when it is due and of the position of its `TimerSet`."""

    id: str
    due_ms: int
    size_bytes: int


OnAppended: TypeAlias = Callable[[Appended | StoreError], None]
TailListener: TypeAlias = Callable[[Sequence[Frame]], None]
QueuesListener: TypeAlias = Callable[[Sequence[QueueNumber]], None]


class StoreClient(Protocol):
    """One store group, or all groups of a cluster behind one. Methods raise `StoreError` and its kind.

    Each group has a log of its own, and `append`, `confirmed`, `tail` and `scan` are of one log: of a cluster they are
    asked of one of its `logs`. Whatever names a queue goes to the group that the queue lies in; keys and values, group
    offsets and addresses are in the home group; what is looked up or counted without a queue, in all of them.
    """

    # ---- the logs

    @property
    def group(self) -> int:
        """The number of the store group; of a cluster, that of its home group."""

    @property
    def logs(self) -> Mapping[int, "StoreClient"]:
        """The groups behind this client, by number, each with its own log. The client of one group has itself there.

        A group that joins the cluster appears here, and one that was removed is gone; a group that cannot be reached
        stays, and its methods raise.
        """

    # ---- the log

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """Append a frame; `done` is called on the event loop when it is durable or has failed.

        Frames of one client are stored, and `done` is called, in the order of the calls. Only a refusal comes at
        once, ahead of frames still being written, and never before this call returns: `StoreOverloaded`, `StoreFull`,
        `StoreClosed`, `StoreFailed`, `FrameTooLarge`. A frame with `FRAME_ASYNC` set is answered when it is written
        and read once it is durable, a moment later.
        """

    @property
    def pending_bytes(self) -> int:
        """The bytes handed to `append` whose `done` has not been called."""

    @property
    def confirmed(self) -> LogOffset:
        """The log offset behind the last frame that readers may see. Raises `StoreError` while nothing is known of it.

        While a group cannot be reached it is what was heard last.
        """

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """Call `listener` on the event loop with every frame confirmed from now on, in order. Returns what stops it.

        From `confirmed` on, or, while nothing is known of that, from what it is when the group is reached. After an
        unclean election they go on further back, where the new master's log does: with frames of a later epoch.
        """

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """Frames in log order, from the one at `start.frame` on, that hold a row of one of the queues (None: all).

        At least one frame unless there is none; at most about `max_bytes`. The log offset returned is how far was
        looked: where the next scan begins. A start below the log's first frame is raised to it.
        """

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """Records of a queue from an offset on; empty at the end. Raises `OffsetOutOfRange`.

        Where the first of them is damaged it raises `CorruptFrame`, which says where to go on. At the end it waits up
        to `max_wait_ms`, at most a minute, for the next one.
        """

    async def read(self, position: Position) -> bytes | None:
        """The record at a position, None when there is none."""

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """Returns what can be read of a queue, which its limits may cut short; (0, 0) if it was never written."""

    async def configure_queues(self, configs: Sequence[QueueConfig]) -> None:
        """Say how long the records of some queues are kept; each replaces what was said of its queue before."""

    def queue_config(self, queue: QueueNumber) -> QueueConfig | None:
        """Returns the configuration of a queue, None when it has none and the store's defaults hold."""

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """The first offset of a queue stored at or after a time; `next` when there is none."""

    async def last(self, address_hash: int) -> Position | None:
        """Finds the newest record of an address (rows without ROW_EXTRA, queue numbers from FIRST_QUEUE on)."""

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
    ) -> Sequence[Position]:
        """Finds the records of a key, an address or an id: their positions, newest first, at most `limit` of them.

        Only those stored at `from_ms` or later and before `until_ms`, and, for the next page, in front of `below`.
        Hashes collide: compare what the records say.
        """

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """Addresses that were noted, begin with `prefix` and are greater than `after`, ascending."""

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """Have addresses listed from now on; those that are already cost a look-up and nothing in the log."""

    # ---- the key-value view
    #
    # Keys live in namespaces and never meet across them. A namespace is there once something was put in it; "" is the
    # gateway's own. A range of keys is [start, end), `end` None: to the last key. Keys whose time is over are not
    # there for any call, and are removed, for watchers to see, soon after. Every call that takes a key or a namespace
    # raises `KeyTooLong`.

    async def kv_get(self, key: str, *, namespace: str = "") -> Entry | None:
        """One entry."""

    async def kv_put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        namespace: str = "",
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> int:
        """Store a value and return its revision. It expires after `ttl_ms` (over 0) or at `expires_at_ms`, or never.

        With `expected_revision` only if that is the key's (0: the key is not there; `EXISTS`: it is), else
        raises `RevisionConflict`. Raises `NamespaceFull`.
        """

    async def kv_delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """Remove a key, with `expected_revision` as in `kv_put`; whether it was there."""

    async def kv_transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """Do all operations, as one change with one revision, if every key compared is at the revision expected.

        Expected revisions are as in `kv_put`; the first that does not hold is named by `RevisionConflict`, and then
        nothing is done. No two operations name the same key. Raises `NamespaceFull`, `TransactionTooLarge`.
        """

    async def kv_prefix(
        self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = ""
    ) -> Sequence[Entry]:
        """Entries whose key begins with `prefix` and is greater than `after`, by key; fewer than `limit`: all."""

    async def kv_range(
        self,
        start: str = "",
        end: str | None = None,
        *,
        namespace: str = "",
        after: str | None = None,
        limit: int = 1000,
        at_revision: int | None = None,
    ) -> Page:
        """A page of the entries in a range whose key is greater than `after`.

        It ends at `limit` entries or some MiB, whichever is first, but not before the first entry. A page is the state
        at one revision, the newest by default; so are several pages with the `at_revision` that `kv_hold` returned.
        Otherwise each page is newer than the one before, and a watch that begins behind the first page's revision has
        what changed meanwhile. Raises `RevisionCompacted` for a state that is not held.
        """

    async def kv_count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """Returns how many entries a range has. Looks at each of them."""

    async def kv_hold(self) -> int:
        """Keep the state as it is now for `kv_range`, until released or not read for a while; its revision.

        Raises `TooManyHolds`.
        """

    def kv_release(self, revision: int) -> None:
        """The state that a `kv_hold` returned is not needed any more."""

    def kv_watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """Every change in a range from a revision on (None: from now on), each once, in order, for ever.

        What is past is read from the log, and so is what a slow reader has missed: nothing is queued for it. Raises
        `RevisionCompacted`, at once where retention has taken the first revision, and when it was faster than the
        reader, or where the log is damaged; `StoreClosed`. Close it (`aclose`).
        """

    async def kv_namespaces(self) -> Sequence[Namespace]:
        """All namespaces that hold something or have limits, by name."""

    async def kv_limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """Limits what a namespace may hold from now on; 0: no limit. What it holds already stays."""

    # ---- groups: cursors

    async def commit_offsets(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """Store where a group is in each queue. Never goes through a compare: the last one counts."""

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """Returns the offsets that a group has committed, by queue."""

    async def delete_group(self, group: str) -> None:
        """Forget a group: where it is, what it has settled, and how it is lent messages."""

    # ---- timers: a `TimerSet` record in a frame (queue TIMERS_QUEUE) sets one

    def admit_timer(self, due_ms: int, size_bytes: int) -> None:
        """Ask before a timer is put in a frame; `size_bytes` are those of its rows and payload.

        Raises `TimersFull`, `TimerTooFar`, `FrameTooLarge`. What is under way is not counted yet.
        """

    @property
    def timers_held(self) -> TimersHeld:
        """Returns how many timers are pending, and the bytes that they hold."""

    async def cancel_timer(self, timer: str) -> bool:
        """Forget a timer by its id; whether it was still pending. Raises `NoSuchTimer` for what is no id."""

    async def timers(self, *, after: str = "", limit: int = 1000) -> Sequence[TimerEntry]:
        """Pending timers as they are due, behind the one with the id `after`."""

    def watch_queues(self, listener: QueuesListener) -> Callable[[], None]:
        """Call `listener` with queues that have got something to lend by themselves. Returns what stops it.

        That is: a timer has fired, a lease has expired or a delay has ended, a message was given up into a queue.
        """

    # ---- leases: message-level consumption of one queue
    #
    # A group has leases of its own for each queue; "" is the group of a named queue's consumers. Leases are known to
    # the master alone, and end with it; what is settled is in the log. See `store.format.policy` for the kinds of
    # groups.

    async def take(
        self,
        queue: QueueNumber,
        owner: int,
        *,
        max_count: int,
        max_bytes: int = 1 << 20,
        group: str = "",
        invisible_ms: int | None = None,
    ) -> Sequence[Lease]:
        """Lend up to `max_count` messages that are not settled and not lent, lowest offset first.

        A lease lasts until it is settled, requeued, or its owner released, and at most `invisible_ms` (None: as the
        policy says, 0: no such limit). After that the message is lent again. In an ordered group at most one message
        of a key is lent at a time, and those behind it wait.
        """

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, group: str = "") -> None:
        """Done with these for good, durably; offsets that `owner` does not hold are passed over.

        `range(first, end)` is a sequence of offsets too.
        """

    async def forward(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        rows: bytes,
        payload: bytes,
        *,
        group: str = "",
    ) -> None:
        """Settle these, and append some rows and the payload they point into, both or neither.

        Raises `LeaseLost` when `owner` does not hold all of them; then nothing is done.
        """

    async def reject(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        reason: str = "rejected",
        group: str = "",
    ) -> None:
        """Give these up: they go where the policy has dead letters go, durably, and are settled; else only settled."""

    def requeue(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Sequence[QueueOffset],
        *,
        delivered: bool = True,
        delay_ms: int | None = None,
        group: str = "",
    ) -> None:
        """Give these back; `delivered` says whether the attempt counts.

        They are lent again after `delay_ms` (None: as the policy says), or given up if the policy says so.
        """

    async def extend(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, invisible_ms: int, group: str = ""
    ) -> Sequence[QueueOffset]:
        """Let the leases of these end `invisible_ms` from now; of which, as far as `owner` holds them."""

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """Give back all that an owner holds; the queues it held something of."""

    async def settle_handles(self, handles: Sequence[str]) -> Sequence[StoreError | None]:
        """Settle by `Lease.handle`; for each handle None, `BadHandle` or `LeaseLost`.

        A lease that has ended can still be settled while the message was lent to nobody else. Raises when the
        settlements could not be stored; some may have been.
        """

    async def requeue_handles(
        self, handles: Sequence[str], *, delay_ms: int | None = None
    ) -> Sequence[StoreError | None]:
        """Give back by handle; for each None, `BadHandle` or `LeaseLost`."""

    async def extend_handles(self, handles: Sequence[str], *, invisible_ms: int) -> Sequence[str | StoreError]:
        """Let leases end `invisible_ms` from now; for each the new handle (the old one stays good) or the error."""

    async def set_lease_policy(self, queue: QueueNumber, policy: LeasePolicy, *, group: str = "") -> None:
        """Sets, durably, how a group's messages of a queue are lent from now on."""

    async def lease_policy(self, queue: QueueNumber, *, group: str = "") -> LeasePolicy:
        """Returns how a group's messages of a queue are lent."""

    async def waiting(self, queue: QueueNumber, *, group: str = "") -> int:
        """Returns how many messages of a queue are neither settled nor lent."""

    async def first_waiting(self, queue: QueueNumber, *, group: str = "") -> QueueOffset | None:
        """The lowest offset that is neither settled nor lent, None where there is none; it is not lent by this."""

    async def purge(self, queue: QueueNumber, *, group: str = "") -> int:
        """Settle all that is not lent; how many that were."""

    async def delete_queue(self, queue: QueueNumber) -> None:
        """Forget a queue: index, leases and settlements. Its records stay in the log until retention takes them."""
