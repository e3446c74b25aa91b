"""The confirmed changes that may not be in LMDB yet. Belongs to one thread, the event loop's.

A read asks here first and then the views. Entries are let go only after the transaction that holds them, so whatever
is missing here is there.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from store.api.keys import Transacted
from store.base.errors import StoreError
from store.format.chunks import Chunk, Chunks
from store.format.frame import LogOffset, Position, QueueNumber, QueueOffset
from store.format.queue_config import QueueConfig
from store.format.records import (
    AddressesSeen,
    DeadLettered,
    GroupDeleted,
    GroupOffsets,
    KvDelete,
    KvExpired,
    KvLimits,
    KvPut,
    KvTransaction,
    LeasePolicySet,
    LogTrimmed,
    QueueDeleted,
    Record,
    Settled,
    TimerCancelled,
    TimerSet,
    TimersFired,
)
from store.leases.table import LeaseTable
from store.log.retention import LimitsTable
from store.log.run import FrameRun
from store.recent.kv_recent import KvRecent, StoredKeys
from store.recent.pending import Pending
from store.timers.timers import TimerOverlay
from store.views.addresses import listable

START = LogOffset(0)
_frame = attrgetter("frame")

# The outcome of a record: a revision, a count, whether it existed, or the error for which it had no effect.
Outcome: TypeAlias = int | bool | Transacted | StoreError | None


class GroupChange(NamedTuple):
    """The change of a group: with `cleared`, `offsets` replace all earlier ones."""

    cleared: bool
    offsets: Mapping[QueueNumber, int]


class Recent:
    """The newest part of every view, up to `confirmed`."""

    def __init__(self, confirmed: LogOffset, first: LogOffset = START, limits: LimitsTable | None = None) -> None:
        self.confirmed = confirmed
        self.first = first  # where the log begins; first <= confirmed
        self.limits = LimitsTable() if limits is None else limits
        self.leases = LeaseTable()
        self.kv = KvRecent()
        self.timers = TimerOverlay()
        self._runs: deque[FrameRun] = deque()  # not dispatched, oldest first
        self._not_indexed: deque[Chunks] = deque()  # those of the newest runs, not in _chunks yet
        self._chunks: dict[QueueNumber, list[Chunk]] = {}  # not dispatched, ascending
        self._next: dict[QueueNumber, QueueOffset] = {}  # one entry a queue that was asked for or written to
        self._groups: Pending[str, GroupChange] = Pending()
        self._deleted: Pending[QueueNumber, LogOffset] = Pending()
        self._addresses: Pending[str, None] = Pending()

    # ---- following the log

    def add(self, run: FrameRun, stored: StoredKeys) -> dict[Position, Outcome]:
        """Takes in the next run, and returns its records' outcomes; `stored` is the state of the key-value view."""
        deleted = deque((at, record) for at, record in run.records if isinstance(record, QueueDeleted))
        if not deleted:
            self.follow(run)
        else:
            self._index()
            for queue, chunk in run.chunks.each():
                while deleted and deleted[0][0].frame < chunk.frame:
                    self._delete_queue(*deleted.popleft())
                self._chunks.setdefault(queue, []).append(chunk)
                self._next[queue] = chunk.next
            while deleted:
                self._delete_queue(*deleted.popleft())
            self._keep(run)
        return {at: self._apply(at, record, run, stored) for at, record in run.records}

    def follow(self, run: FrameRun) -> None:
        """Takes in the next run, as far as its messages go; its records, if it has any, are for `add`."""
        self._not_indexed.append(run.chunks)
        self._next.update(run.chunks.nexts())
        self._keep(run)

    def _keep(self, run: FrameRun) -> None:
        self._runs.append(run)
        self.confirmed = run.end

    def trim(self, dispatched: LogOffset) -> None:
        """Frees the entries that the views have now."""
        while self._runs and self._runs[0].end <= dispatched:
            chunks = self._runs.popleft().chunks
            if self._not_indexed and self._not_indexed[0] is chunks:
                self._not_indexed.popleft()
                continue
            for queue in set(chunks.queues()):
                self._forget_chunks(QueueNumber(queue), dispatched)
        self._groups.trim(dispatched)
        self._addresses.trim(dispatched)
        for queue in self._deleted.trim(dispatched):
            if not self._next.get(queue):  # no write since then: the view has the same value
                self._next.pop(queue, None)
        self.leases.forget(dispatched)
        self.kv.trim(dispatched)
        self.timers.trim(dispatched)

    def _index(self) -> None:
        """Makes chunks known by queue: at the first read, and not before."""
        newest = self._chunks
        while self._not_indexed:
            for queue, chunk in self._not_indexed.popleft().each():
                chunks = newest.get(queue)
                if chunks is None:
                    newest[queue] = [chunk]
                else:
                    chunks.append(chunk)

    def _forget_chunks(self, queue: QueueNumber, below: LogOffset) -> None:
        chunks = self._chunks.get(queue)
        if chunks is None:
            return
        if chunks[-1].frame < below:
            del self._chunks[queue]
        else:
            del chunks[: bisect_left(chunks, below, key=_frame)]

    def _apply(self, at: Position, record: Record, run: FrameRun, stored: StoredKeys) -> Outcome:
        match record:
            case KvPut() | KvDelete() | KvTransaction() | KvExpired() | KvLimits():
                return self.kv.add(at, record, stored, run.frame_stored_at_ms(at.frame)).outcome
            case GroupOffsets(group=group, offsets=offsets):
                before = self._groups.get(group) or GroupChange(False, {})
                now = {QueueNumber(queue): offset for queue, offset in offsets.items()}
                self._groups.put(at.frame, group, GroupChange(before.cleared, {**before.offsets, **now}))
            case GroupDeleted(group=group):
                self._groups.put(at.frame, group, GroupChange(True, {}))
                self.leases.follow(record, at.frame)
            case AddressesSeen(addresses=addresses):
                for address in filter(listable, addresses):
                    self._addresses.put(at.frame, address, None)
            case Settled() | DeadLettered() | LeasePolicySet() | QueueDeleted():
                self.leases.follow(record, at.frame)
                if isinstance(record, QueueDeleted):
                    self.limits.forget(QueueNumber(record.queue))
            case QueueConfig():
                self.limits.set(record)
            case LogTrimmed(first=first):
                self.first = max(self.first, min(LogOffset(first), at.frame))
            case TimerSet() | TimerCancelled() | TimersFired():
                return self.timers.follow(at, record)
        return None

    def _delete_queue(self, at: Position, record: QueueDeleted) -> None:
        queue = QueueNumber(record.queue)
        self._chunks.pop(queue, None)
        self._next[queue] = QueueOffset(0)
        self._deleted.put(at.frame, queue, at.frame)

    # ---- reading

    @property
    def start(self) -> LogOffset:
        """The log offset from which on everything is here."""
        return self._runs[0].start if self._runs else self.confirmed

    def chunks(self, queue: QueueNumber) -> Sequence[Chunk]:
        """Returns the chunks of a queue that may not be in the view yet: a copy, safe to hand to a thread."""
        if self._not_indexed:
            self._index()
        return tuple(self._chunks.get(queue, ()))

    def newest_queue(self) -> QueueNumber:
        """Returns the greatest number of a queue with a chunk that may not be in the view yet; 0: there is none."""
        if self._not_indexed:
            self._index()
        return max(self._chunks, default=QueueNumber(0))

    def next_offset(self, queue: QueueNumber) -> QueueOffset | None:
        """Returns the offset the queue's next record will have, None when only the view knows."""
        return self._next.get(queue)

    def learn_next_offset(self, queue: QueueNumber, offset: QueueOffset) -> QueueOffset:
        """Keeps the view's value, unless a newer one was written meanwhile; the newer one."""
        return self._next.setdefault(queue, offset)

    def group(self, group: str) -> GroupChange | None:
        """Returns a group's newest change."""
        return self._groups.get(group)

    def deletion(self, queue: QueueNumber) -> LogOffset | None:
        """Returns where a queue was deleted, while the view may still hold its entries."""
        return self._deleted.get(queue)

    def runs(self) -> Sequence[FrameRun]:
        """Returns the runs that the views may lack, oldest first: a copy, safe to hand to a thread."""
        return tuple(self._runs)

    def unlisted(self, addresses: Sequence[str]) -> list[str]:
        """Returns the listable addresses that are missing here."""
        return [one for one in dict.fromkeys(addresses) if listable(one) and not self._addresses.has(one)]

    def addresses(self, prefix: str, after: str) -> set[str]:
        """Returns addresses that the view may lack, of those that begin with `prefix` and are greater than `after`."""
        return {address for address, _ in self._addresses.items() if address.startswith(prefix) and address > after}

    def last(self, address_hash: int) -> Position | None:
        """Returns the position of the newest record of an address, among those that the view may lack."""
        for run in reversed(self._runs):
            found = run.last(address_hash)
            if found is not None:
                return found
        return None
