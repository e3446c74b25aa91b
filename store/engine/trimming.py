"""Trimming: segments that no queue's limits keep any more are deleted, at the front of the log only.

The master decides and records it in the log: `LogTrimmed` carries where the log begins from then on. Views remove their
entries of the earlier part when they apply the record, on every replica and in every rebuild alike, and only then are
files deleted. A crash between the two is made up for at the next start.

Compacted queues do not keep segments: before one is deleted, the records in it that are still the newest of their keys
are stored again at the end of the log (docs/decisions/0008).
"""

import logging
from collections.abc import Callable
from functools import partial
from threading import Event
from time import sleep
from typing import Protocol

from store.api.log import Appended, OnAppended
from store.base.errors import CorruptFrame, StoreError
from store.engine.commit import Late
from store.engine.compaction import Compaction, RowWatch, copies_frame
from store.format.body_parts import PARTS_KEPT_MS
from store.format.chunks import Chunk
from store.format.frame import FIRST_QUEUE, ROW, LogOffset, QueueNumber, QueueOffset, UnplacedFrame
from store.format.records import PARTS_QUEUE, LogTrimmed, encode, queue_of
from store.log.log import CommitLog
from store.log.retention import ReadableRange, RetentionLimits, limits_of
from store.views import Views

logger = logging.getLogger(__name__)

RETENTION_INTERVAL_S = 30.0
_POLL_S = 0.01


class _ApplyViews(Protocol):
    def __call__(self, until: LogOffset) -> None: ...


class _Abandoned(Exception):
    """The store is being closed, has failed, or has no room."""


class Trimmer:
    """Decides where the log should begin, and brings it there. `run` is for one thread; it may take long.

    `append` stores a frame that is made when its place is certain, `watch` sees rows as they are placed,
    `apply_views` makes the views follow at once, `gone` says that waiting makes no sense any more, `lost` that no
    replica has the data that is damaged at a log offset.
    """

    def __init__(
        self,
        log: CommitLog,
        views: Views,
        watch: RowWatch,
        *,
        default: RetentionLimits,
        now_ms: Callable[[], int],
        append: Callable[[Late, OnAppended], None],
        apply_views: _ApplyViews,
        gone: Callable[[], bool],
        lost: Callable[[LogOffset], bool],
    ) -> None:
        self._log = log
        self._views = views
        self._watch = watch
        self._default = default
        self._now_ms = now_ms
        self._append = append
        self._apply_views = apply_views
        self._gone = gone
        self._lost = lost
        self._tried = LogOffset(0), LogOffset(0)  # the ends of log and segments when compaction was not worth while

    def run(self) -> None:
        """Deletes the segments that are past all limits, if any."""
        self.delete()
        try:
            ends = self._trimmable()
            if not ends:
                return
            with self._views.reading() as txn:
                compacted = dict(self._views.compact.queues(txn))
            first = self._compact(ends, compacted) if compacted else ends[-1]
            if first > self._log.first:
                self._trim(first)
        except _Abandoned:
            logger.info("trimming the log is postponed")
        except CorruptFrame as error:
            logger.warning("trimming the log waits for its repair: %s", error)

    def delete(self) -> None:
        """Deletes the files that were trimmed off, as far as the views know of it."""
        if self._views.first > self._log.first:
            self._log.trim(self._views.first)
            logger.info("segments were deleted", extra={"log_first": self._log.first})

    # ---- deciding

    def _trimmable(self) -> list[LogOffset]:
        """Returns the ends of the segments, oldest first, that no queue's limits keep."""
        dispatched = self._views.dispatched
        ends = [end for end in self._log.sealed_ends() if end <= dispatched]
        if not ends:
            return []
        floor = ends[-1]
        queues, now_ms = self._views.queues, self._now_ms()
        with self._views.reading() as txn:
            configs = {config.queue: config for config in self._views.configs.all(txn)}
            for queue in queues.queues(txn):
                oldest = next(queues.chunks(txn, queue, QueueOffset(0)), None)
                if queue < FIRST_QUEUE or oldest is None or oldest.frame >= floor:
                    continue  # the store's own records are in the views
                limits = limits_of(configs.get(queue), self._default)
                floor = min(floor, self._needed(txn, queue, limits, now_ms, oldest.frame))
                if floor < ends[0]:
                    return []
            floor = min(floor, self._first_part(txn, floor, now_ms))
        return [end for end in ends if end <= floor]

    def _first_part(self, txn: object, floor: LogOffset, now_ms: int) -> LogOffset:
        """Returns the frame of a body's oldest part whose message may lie behind a log offset, or be still to come.

        Parts lie in front of their message. Raises `CorruptFrame` where the frame at the log offset is damaged, and not
        lost.
        """
        queues = self._views.queues
        if queues.last_chunk(txn, PARTS_QUEUE) is None:
            return floor
        try:
            frame = self._log.read(floor)
            stored_at_ms = now_ms if frame is None else frame.header.stored_at_ms
        except CorruptFrame:
            if not self._lost(floor):
                raise
            behind = queues.search(txn, PARTS_QUEUE, lambda chunk: chunk.frame >= floor)
            before = next(queues.chunks(txn, PARTS_QUEUE, QueueOffset(max(behind - 1, 0))))
            stored_at_ms = before.stored_at_ms  # no later than the frame was
        since_ms = stored_at_ms - PARTS_KEPT_MS
        at = queues.search(txn, PARTS_QUEUE, lambda chunk: chunk.stored_at_ms >= since_ms)
        found = next(queues.chunks(txn, PARTS_QUEUE, at), None)
        return floor if found is None else found.frame

    def _needed(
        self, txn: object, queue: QueueNumber, limits: RetentionLimits, now_ms: int, oldest: LogOffset
    ) -> LogOffset:
        """Returns the frame that the oldest record of a queue is in which is within its limits."""
        queues = self._views.queues
        if limits.until_settled:
            oldest = self._first_unsettled(txn, queue)
        if limits.age_ms < 0 and limits.size_bytes < 0:
            return oldest
        since_ms = 0 if limits.age_ms < 0 else max(now_ms - limits.age_ms, 0)
        kept = ReadableRange(LogOffset(0), since_ms, limits.size_bytes).test(queues.end(txn, queue).size_bytes)
        found = next(queues.chunks(txn, queue, queues.search(txn, queue, kept)), None)
        return self._log.end if found is None else max(found.frame, oldest)

    def _first_unsettled(self, txn: object, queue: QueueNumber) -> LogOffset:
        """Returns the frame of a queue's oldest message that is not settled; of lost ones none ever is."""
        queues, settled = self._views.queues, self._views.settled
        at = queues.first_offset(txn, queue)
        while True:
            at = settled.first_unsettled(txn, queue, at)
            chunk = next(queues.chunks(txn, queue, at), None)
            if chunk is None or chunk.next <= at:
                return self._log.end
            if not self._is_lost(chunk):
                return chunk.frame
            at = chunk.next

    def _is_lost(self, chunk: Chunk) -> bool:
        """Returns whether the messages of a chunk can be read neither here nor on another replica."""
        end = LogOffset(chunk.frame + chunk.frame_size_bytes)
        if not self._log.damages.overlapping(chunk.frame, end) or not self._lost(chunk.frame):
            return False
        try:
            self._log.read(chunk.frame, chunk.frame_size_bytes)
        except CorruptFrame:
            return True
        return False

    # ---- doing

    def _compact(self, ends: list[LogOffset], compacted: dict[int, LogOffset]) -> LogOffset:
        """Stores again the records that compacted queues need of the segments; returns where the log may begin then."""
        log = self._log
        log_end, segments_end = self._tried
        if ends[-1] == segments_end and log.end < log_end + log.segment_size_bytes:
            return log.first
        with self._watch.of(compacted):
            self._until(log.end)  # from here on all that the views lack is watched
            compaction = Compaction(log, self._views, compacted, lost=self._lost)
            first = compaction.choose(ends)
            if first == log.first:
                self._tried = log.end, ends[-1]
                return first
            for batch in compaction.batches(first):
                self._store(partial(copies_frame, batch, self._watch))
            self._trim(first)
        return log.first

    def _trim(self, first: LogOffset) -> None:
        """Lets the log begin at the end of a segment."""
        self._store(lambda: _frame(LogTrimmed(first, self._now_ms())))
        logger.info("the log is trimmed", extra={"from": self._log.first, "to": first})
        self._until(self._log.flushed)
        self.delete()

    def _store(self, make: Late) -> None:
        """Appends a frame of the store's own and waits until it is durable."""
        done = Event()
        outcome: list[Appended | StoreError] = []

        def stored(result: Appended | StoreError) -> None:
            outcome.append(result)
            done.set()

        self._append(make, stored)
        while not done.wait(_POLL_S):
            if self._gone():
                raise _Abandoned
        if isinstance(outcome[0], StoreError):
            raise _Abandoned from outcome[0]
        if self._watch.spoiled:
            raise _Abandoned

    def _until(self, end: LogOffset) -> None:
        """Waits until the views hold the records before a log offset."""
        while self._views.dispatched < min(end, self._log.end):  # which goes back when a write is taken back
            self._apply_views(end)
            sleep(_POLL_S)
            if self._gone():
                raise _Abandoned


def _frame(record: LogTrimmed) -> UnplacedFrame:
    data = encode(record)
    return UnplacedFrame.build(ROW.pack(queue_of(record), 0, len(data), 0, 0, 0, 0, record.time_ms), data)
