"""The log of a store group: appending to it, its confirmed end, and finding records in it."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias

from store.base.errors import StoreError
from store.format.frame import Frame, LogOffset, Position, QueueNumber, UnplacedFrame


class Appended(NamedTuple):
    """The log offset of an appended frame.

    `duplicate`: this producer and sequence had been stored before, so nothing was stored now. `failed` are the rows of
    guards (`store.guards`) that have failed: the frames that they cover were not stored.
    """

    frame: LogOffset
    duplicate: bool = False
    failed: Sequence[int] = ()


class IndexKind(IntEnum):
    """The kinds of hash by which records are found: of a key, an address or an id in their rows."""

    KEY = 1  # rows with ROW_INDEX_KEY
    ADDRESS = 2  # rows with ROW_INDEX_ADDRESS
    ID = 3  # every row that has an id


OnAppended: TypeAlias = Callable[[Appended | StoreError], None]
TailListener: TypeAlias = Callable[[Sequence[Frame]], None]


class LogCalls(Protocol):
    """The log of one store group.

    Of a cluster `append` goes to the log of the frame's queues, `scan` and `read` to that of their position, `tail`
    follows all logs, `find` and `last` look in all of them; `confirmed` and the addresses are those of the home group.
    """

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """Appends a frame; `done` is called on the event loop when it is durable or has failed.

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

        While a group cannot be reached it is the last known offset.
        """

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """Calls `listener` on the event loop with every newly confirmed frame, in order. Returns a function to stop it.

        From `confirmed` on, or, while that is unknown, from its value when the group is reached. After an
        unclean election they go on further back, where the new master's log does: with frames of a later epoch.
        """

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """Reads frames in log order, from the one at `start.frame` on, that hold a row of the queues (None: of any).

        At least one frame unless there is none; at most about `max_bytes`. The log offset returned is how far was
        looked: where the next scan begins. A start below the log's first frame is raised to it.
        """

    async def read(self, position: Position) -> bytes | None:
        """Reads the record at a position, None when there is none."""

    async def last(self, address_hash: int, queues: Sequence[QueueNumber] | None = None) -> Position | None:
        """Finds the newest record of an address (rows without ROW_EXTRA, queue numbers from FIRST_QUEUE on).

        Retention may have removed it: then nothing is read there. Of a cluster only the groups of these queues (None:
        all groups) are asked, and all of them have to answer.
        """

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
        queues: Sequence[QueueNumber] | None = None,
    ) -> Sequence[Position]:
        """Finds the records of a key, an address or an id: their positions, newest first, at most `limit` of them.

        Only those stored at `from_ms` or later and before `until_ms`, and, for the next page, in front of `below`.
        `queues` says which groups of a cluster are asked, as for `last`.
        Hashes collide: compare the records themselves.
        """

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """Lists the addresses that were noted, begin with `prefix` and are greater than `after`, ascending."""

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """Lists addresses from now on; those that are listed already cost a look-up and nothing in the log."""
