"""What a proxy can ask of a store group, in process (`store.local`) or over the network.

Everything that must outlive a master goes through the log: KV operations, group offsets and settled leases are
records of reserved queues, so one mechanism makes all of them durable. A call that changes something returns when
the change is durable and applied; a read sees every change that was acknowledged before it began.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from store.errors import StoreError
from store.format import Frame, LogOffset, Position, QueueNumber, QueueOffset, UnplacedFrame

__all__ = ["Appended", "Bounds", "Entry", "Fetched", "IndexKind", "Lease", "OnAppended", "StoreClient", "TailListener"]


class Appended(NamedTuple):
    """Where a frame went. `duplicate`: this producer and sequence had been stored before, so nothing was stored now."""

    frame: LogOffset
    duplicate: bool = False


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
    """One key of the KV. `revision` is greater than that of every earlier change in the group."""

    key: str
    value: bytes
    revision: int


class IndexKind(IntEnum):
    """What records are found by: the hash of a key, an address or an id in their rows."""

    KEY = 1  # rows with ROW_INDEX_KEY
    ADDRESS = 2  # rows with ROW_INDEX_ADDRESS
    ID = 3  # every row that has an id


class Lease(NamedTuple):
    """A message lent to a consumer: `deliveries` is how often it had been lent before."""

    offset: QueueOffset
    deliveries: int
    frame: Frame
    row: int


OnAppended: TypeAlias = Callable[[Appended | StoreError], None]
TailListener: TypeAlias = Callable[[Sequence[Frame]], None]


class StoreClient(Protocol):
    """One store group. Methods raise `StoreError` and its kind."""

    # ---- the log

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """Append a frame; `done` is called on the event loop when it is durable or has failed.

        Frames of one client are stored, and `done` is called, in the order of the calls. Only a refusal comes at
        once, ahead of frames still being written, and never before this call returns: `StoreOverloaded`,
        `StoreClosed`, `StoreFailed`, `FrameTooLarge`.
        """

    @property
    def pending_bytes(self) -> int:
        """The bytes handed to `append` whose `done` has not been called."""

    @property
    def confirmed(self) -> LogOffset:
        """The log offset behind the last frame that readers may see."""

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """Call `listener` on the event loop with every frame confirmed from now on, in order. Returns what stops it."""

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """Frames in log order, from the one at `start.frame` on, that hold a row of one of the queues (None: all).

        At least one frame unless there is none; at most about `max_bytes`. The log offset returned is how far was
        looked: where the next scan begins. A start below the log's first frame is raised to it.
        """

    async def fetch(
        self, queue: QueueNumber, offset: QueueOffset, *, max_bytes: int, max_rows: int = 1 << 30
    ) -> Fetched:
        """Records of a queue from an offset on; empty at the end. Raises `OffsetOutOfRange`."""

    async def read(self, position: Position) -> bytes | None:
        """The record at a position, None when there is none."""

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """What can be read of a queue; (0, 0) for one that was never written."""

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """The first offset of a queue stored at or after a time; `next` when there is none."""

    async def last(self, address_hash: int) -> Position | None:
        """Where the newest record of an address is (rows without ROW_EXTRA, queue numbers from FIRST_QUEUE on)."""

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
        """Where records of a key, an address or an id are, newest first, at most `limit` of them.

        Only those stored at `from_ms` or later and before `until_ms`, and, for the next page, in front of `below`.
        Hashes collide: compare what the records say.
        """

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """Recorded addresses (`AddressesSeen`) that begin with `prefix` and are greater than `after`, ascending."""

    # ---- the key-value view

    async def kv_get(self, key: str) -> Entry | None:
        """One entry."""

    async def kv_put(self, key: str, value: bytes, *, expected_revision: int | None = None) -> int:
        """Store a value and return its revision.

        With `expected_revision` only if that is the key's (0: the key is not there), else raises `RevisionConflict`.
        """

    async def kv_delete(self, key: str, *, expected_revision: int | None = None) -> bool:
        """Remove a key; whether it was there."""

    async def kv_prefix(self, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[Entry]:
        """Entries whose key begins with `prefix` and is greater than `after`, by key."""

    # ---- groups: cursors

    async def commit_offsets(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """Store where a group is in each queue. Never goes through a compare: the last one counts."""

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """Where a group is."""

    async def delete_group(self, group: str) -> None:
        """Forget a group."""

    # ---- leases: message-level consumption of one queue

    async def take(
        self, queue: QueueNumber, owner: int, *, max_count: int, max_bytes: int = 1 << 20
    ) -> Sequence[Lease]:
        """Lend up to `max_count` messages that are not settled and not lent, lowest offset first.

        A lease lasts until it is settled, requeued, or its owner released.
        """

    async def settle(self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset]) -> None:
        """Done with these for good, durably; offsets that `owner` does not hold are passed over."""

    def requeue(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], *, delivered: bool = True
    ) -> None:
        """Give these back; `delivered` says whether the attempt counts."""

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """Give back all that an owner holds; the queues it held something of."""

    async def waiting(self, queue: QueueNumber) -> int:
        """How many messages of a queue are neither settled nor lent."""

    async def purge(self, queue: QueueNumber) -> int:
        """Settle all that is not lent; how many that were."""

    async def delete_queue(self, queue: QueueNumber) -> None:
        """Forget a queue: index, leases and settlements. Its records stay in the log until retention takes them."""
