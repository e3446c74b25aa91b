"""The queues of a store: reading their records, and how long those are kept."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from store.api.lost import LOST_RANGES_COUNT_MAX, LostMessages
from store.format.frame import Frame, QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig


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


QueuesListener: TypeAlias = Callable[[Sequence[QueueNumber]], None]


class QueueCalls(Protocol):
    """The queues. Of a cluster each call goes to the group that its queue lies in."""

    async def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        *,
        max_bytes: int,
        max_rows: int = 1 << 30,
        max_wait_ms: int = 0,
    ) -> Fetched:
        """Reads the records of a queue from an offset on; none at the end. Raises `OffsetOutOfRange`.

        Where the first of them is damaged it raises `CorruptFrame`, which says where to go on. At the end it waits up
        to `max_wait_ms`, at most a minute, for the next one.
        """

    async def bounds(self, queue: QueueNumber) -> Bounds:
        """Returns a queue's readable offsets, which its limits may cut short; (0, 0) if it was never written."""

    async def offset_at_time(self, queue: QueueNumber, time_ms: int) -> QueueOffset:
        """Returns the first offset of a queue stored at or after a time; `next` when there is none."""

    async def configure(self, configs: Sequence[QueueConfig]) -> None:
        """Says how long the records of some queues are kept; each replaces its queue's former configuration."""

    def config(self, queue: QueueNumber) -> QueueConfig | None:
        """Returns the configuration of a queue, None when it has none and the store's defaults hold."""

    async def lost(self, limit: int = LOST_RANGES_COUNT_MAX) -> LostMessages:
        """Returns the messages of queues that damage of the log has taken, and no replica has: at most `limit` ranges.

        A look that reads; its result stays until other damages are lost, or the queues have changed around them.
        """

    def watch(self, listener: QueuesListener) -> Callable[[], None]:
        """Calls `listener` with queues whose messages became available without a call. Returns a function to stop it.

        That is: a timer has fired, a lease has expired or a delay has ended, a message was given up into a queue.
        """

    async def delete(self, queue: QueueNumber) -> None:
        """Forgets a queue: index, leases and settlements. Its records stay in the log until retention takes them."""
