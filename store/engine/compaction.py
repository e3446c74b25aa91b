"""Compaction: the newest record of each key outlives its segment, by being stored again at the end of the log.

A record stored again must not come behind a newer one of its key, or readers would end up with the older value. The
views know the newest of the records that they have applied; later records are watched as they are placed, in the commit
thread; and the frame of the copies is made there too, when its place in the log is certain.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

import numpy as np

from store.base.errors import CorruptFrame
from store.format.frame import (
    HEADER,
    ROW,
    ROW_COPY,
    ROW_OLD,
    ROW_TOMBSTONE,
    ROWS_DTYPE,
    Buffer,
    Frame,
    LogOffset,
    Position,
    QueueNumber,
    QueueOffset,
    UnplacedFrame,
)
from store.format.records import QUEUES_QUEUE
from store.log.log import CommitLog
from store.views import Views
from store.views.compact import CompactKey, Live

logger = logging.getLogger(__name__)

COPY_BYTES = 1 << 20  # of records stored again in one frame
LIVE_SHARE_MAX = 0.5  # of deleted records that are stored again: else the log would be written over and over
_OVERHEAD = ROW.size


class RowWatch:
    """The keys that get a record during a watch. The commit thread reports rows and asks; another thread watches."""

    def __init__(self) -> None:
        self._queues: list[int] | None = None
        self._keys: set[CompactKey] = set()
        self._addresses: set[int] = set()
        self.spoiled = False  # rows may have changed since; the notes do not say which

    @contextmanager
    def of(self, queues: Collection[int]) -> Iterator[None]:
        """Watches some queues."""
        self._keys, self._addresses = set(), set()
        self.spoiled = False
        self._queues = sorted(queues)
        try:
            yield
        finally:
            self._queues = None
            self.spoiled = False

    def saw(self, packed: Buffer) -> None:
        """Notes rows that were placed. Costs a comparison while there is no watch."""
        if self._queues is None:
            return
        rows = np.frombuffer(packed, ROWS_DTYPE)
        if (rows["queue"] == QUEUES_QUEUE).any():  # one may be deleted, and its records are not to come back
            self.spoiled = True
        for row in rows[np.isin(rows["queue"], self._queues)]:
            self._keys.add(CompactKey(int(row["queue"]), int(row["key_hash"]), int(row["address_hash"])))
            self._addresses.add(int(row["address_hash"]))

    def took_back(self) -> None:
        """Spoils the notes: rows that were seen are not in the log after all."""
        self.spoiled = self._queues is not None

    def newer(self, key: CompactKey) -> bool:
        """Returns whether a key has got a record since."""
        return key in self._keys

    def newer_at(self, address_hash: int) -> bool:
        """Returns whether an address has got a record since."""
        return address_hash in self._addresses


class RecordCopy(NamedTuple):
    """A record to be stored again."""

    key: CompactKey
    row: tuple[int, ...]  # as unpacked
    record: bytes
    newest_of_address: bool


class Compaction:
    """The part of the log's oldest segments that compacted queues need, as the views know it."""

    def __init__(
        self,
        log: CommitLog,
        views: Views,
        compacted: Mapping[int, LogOffset],
        *,
        lost: Callable[[LogOffset], bool] = lambda _at: True,
    ) -> None:
        self._lost = lost
        self._log = log
        self._views = views
        self._compacted = compacted
        self._live: list[Live] = []

    def choose(self, ends: Sequence[LogOffset]) -> LogOffset:
        """Returns the last of some segments' ends up to which deleting is worth while; else where the log begins."""
        with self._views.reading() as txn:
            live = list(self._views.compact.live(txn, ends[-1]))
            for queue, since in self._compacted.items():
                live += [one for one in self._unindexed(txn, QueueNumber(queue), since) if one.at.frame < ends[-1]]
        self._live = sorted(live, key=lambda one: one.at)
        first = self._log.first
        sizes = np.cumsum([0, *(one.size + _OVERHEAD for one in self._live)])
        frames = np.array([one.at.frame for one in self._live], np.int64)
        for end in reversed(ends):
            if sizes[int(np.searchsorted(frames, end))] <= LIVE_SHARE_MAX * (end - first):
                return end
        return first

    def _unindexed(self, txn: object, queue: QueueNumber, until: LogOffset) -> list[Live]:
        """Returns a queue's newest records up to the frame that made it compacted, of keys that had none since.

        Reads all records that the queue had then, until they have been trimmed off.
        """
        found: dict[CompactKey, Live] = {}
        for chunk in self._views.queues.chunks(txn, queue, QueueOffset(0)):
            if chunk.frame > until:
                break
            frame = self._frame(chunk.frame)
            if frame is None:
                continue
            for i in np.flatnonzero(frame.rows["queue"] == queue).tolist():
                row = frame.rows[i]
                key = CompactKey(queue, int(row["key_hash"]), int(row["address_hash"]))
                if row["flags"] & ROW_TOMBSTONE:
                    found.pop(key, None)
                else:
                    found[key] = Live(key, Position(chunk.frame, i), int(row["len"]))
        return [one for key, one in found.items() if self._views.compact.newest(txn, key) is None]

    def batches(self, end: LogOffset) -> Iterator[list[RecordCopy]]:
        """Yields the records in front of a log offset that must be stored again, some at a time."""
        batch: list[RecordCopy] = []
        size = 0
        live = (one for one in self._live if one.at.frame < end)
        for at, records in groupby(live, key=lambda one: one.at.frame):
            frame = self._frame(at)
            if frame is None:
                continue
            for one in records:
                copy = self._copy(frame, one)
                if batch and size + len(copy.record) > COPY_BYTES:
                    yield batch
                    batch, size = [], 0
                batch.append(copy)
                size += len(copy.record)
        if batch:
            yield batch

    def _copy(self, frame: Frame, one: Live) -> RecordCopy:
        with self._views.reading() as txn:
            newest = self._views.last.get(txn, one.key.address_hash) == one.at
        row = ROW.unpack_from(frame.data, HEADER.size + ROW.size * one.at.row)
        return RecordCopy(one.key, row, frame.record(one.at.row), newest)

    def _frame(self, at: LogOffset) -> Frame | None:
        """Returns a frame that the index names. Raises `CorruptFrame` for one damaged here, and not lost for good."""
        try:
            found = self._log.read(at)
            if found is None:
                raise CorruptFrame(at, "the index refers to a frame that the log does not have")
        except CorruptFrame:
            if not self._lost(at):
                raise
            logger.exception("records of a compacted queue are damaged and are not kept")
            return None
        return found


def copies_frame(copies: Sequence[RecordCopy], watch: RowWatch) -> UnplacedFrame:
    """Returns the frame of copies whose key has no newer record; of none if that is unknown. For the commit thread."""
    rows, records, pos = [], [], 0
    if watch.spoiled:
        copies = ()
    for key, (queue, _, size, flags, key_hash, address_hash, id_hash, time_ms), record, newest in copies:
        if watch.newer(key):
            continue
        marks = ROW_COPY if newest and not watch.newer_at(address_hash) else ROW_COPY | ROW_OLD
        rows.append(ROW.pack(queue, pos, size, flags & ~ROW_OLD | marks, key_hash, address_hash, id_hash, time_ms))
        records.append(record)
        pos += size
    return UnplacedFrame.build(b"".join(rows), b"".join(records))
