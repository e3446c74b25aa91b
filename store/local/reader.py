"""Reading frames and queues: from memory where it can, else from the views and the log, which may block."""

import heapq
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from operator import attrgetter
from threading import Lock
from time import perf_counter, sleep
from typing import Any, NamedTuple, cast

import numpy as np

from store.api.queues import Bounds, Fetched
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.chunks import Chunk
from store.format.frame import Frame, LogOffset, QueueNumber, QueueOffset
from store.format.ranges import Range
from store.local.cache import FrameCache
from store.log.log import CommitLog
from store.log.places import damage_at, frame_at
from store.log.retention import ALL, ReadableRange
from store.log.segment import SCAN_BYTES
from store.views import Views

logger = logging.getLogger(__name__)
NONE_GONE: Mapping[QueueNumber, ReadableRange] = {}
WORK_S, PAUSE_S = 100e-6, 100e-6  # of reading from disk while writes wait
IDLE_S = 10e-3  # a thread that has not read for so long has rested
_LEN = 2  # of the fields of a row
OFFSET_MAX = 1 << 63
READ_BYTES_MIN = 64 << 10  # of the log at once, however little is asked for
_frame, _next = attrgetter("frame"), attrgetter("next")


class NotInMemory(Exception):
    """Raised when a read needs the disk; ask again from a thread that may wait."""


class Located(NamedTuple):
    """The places of a queue's records, (offset, frame, row), ascending; and offsets whose frame is damaged or gone."""

    records: Sequence[tuple[QueueOffset, Frame, int]]
    unreadable: Sequence[Range]


def _rows(frame: Frame, queue: QueueNumber) -> list[int]:
    """Returns the rows of a frame that belong to a queue."""
    if frame.header.row_count == 1:
        return [0]
    few = frame.few_rows()
    if few is not None:
        return [n for n, row in enumerate(few) if row[0] == queue]
    found: list[int] = np.flatnonzero(frame.rows["queue"] == queue).tolist()
    return found


def _fitting(frame: Frame, rows: Sequence[int], size_max: int) -> tuple[int, int]:
    """Returns how many of some rows' records, the first ones, have at most `size_max` bytes, and the bytes of all."""
    few = frame.few_rows()
    if few is not None:
        ends = list(accumulate([few[row][_LEN] for row in rows]))
        return bisect_right(ends, size_max), ends[-1]
    sums = np.cumsum(frame.rows["len"][rows], dtype=np.int64)
    return int(np.searchsorted(sums, size_max, side="right")), int(sums[-1])


class StoreReader:
    """The read side of a store. Any thread may call; with `in_memory` a call raises `NotInMemory` instead of waiting.

    `recent` are chunks that the view may lack (`Recent.chunks`), taken before the call; `kept` says which chunks of the
    queue can still be read.
    """

    def __init__(
        self,
        log: CommitLog,
        views: Views,
        cache: FrameCache,
        *,
        busy: Callable[[], bool] = lambda: False,
        lost: Callable[[LogOffset], bool] = lambda _at: True,
    ) -> None:
        """Begins a reader. While a write is awaited (`busy`), one thread at a time reads from disk, with pauses.

        `lost` says whether no replica has the data that is damaged at a log offset.
        """
        self._lost = lost
        self.lost_count = 0  # messages that `locate` has skipped, for good
        self._busy = busy
        self.turn = Lock()
        self._rested = 0.0  # when who had the turn last rested
        self.log = log
        self._views = views
        self._cache = cache

    def frame(self, at: LogOffset, size: int = 0, *, in_memory: bool = False) -> Frame | None:
        """Returns the frame at a log offset; None when nothing is there. Raises `CorruptFrame`."""
        found = self._cache.get(at)
        if found is None:
            if in_memory:
                raise NotInMemory
            if self._busy():
                with self.turn:
                    self._rest()
                    found = self.log.read(at, size)
            else:
                found = self.log.read(at, size)
            if found is not None:
                self._cache.put(found)
        return found

    def _rest(self) -> None:
        """Leaves processor and interpreter to the write path for a moment, after having worked for one.

        Beside four readers at full speed appends take 1 ms so, 3.5 ms otherwise (tests/bench/store/cold_reads.py).
        """
        now = perf_counter()
        if now - self._rested > WORK_S:
            if now - self._rested < IDLE_S:
                sleep(PAUSE_S)
            self._rested = perf_counter()

    def _chunk_frame(self, chunk: Chunk, queue: QueueNumber, *, in_memory: bool) -> tuple[Frame, list[int]]:
        """Returns a chunk's frame and rows. Raises `CorruptFrame` unless both match the index."""
        frame = self.frame(chunk.frame, chunk.frame_size_bytes, in_memory=in_memory)
        if frame is None:
            raise CorruptFrame(chunk.frame, "the index refers to a frame that the log does not have")
        rows = _rows(frame, queue)
        if len(rows) != chunk.row_count:
            raise CorruptFrame(chunk.frame, f"{len(rows)} rows of queue {queue} where the index has {chunk.row_count}")
        return frame, rows

    def _chunks(
        self, queue: QueueNumber, offset: QueueOffset, recent: Sequence[Chunk], *, in_memory: bool
    ) -> Iterator[Chunk]:
        """Yields the chunks of a queue from the one that holds an offset on."""
        if not recent or offset < recent[0].first:
            if in_memory:
                raise NotInMemory
            limit = recent[0].first if recent else None
            with self._views.reading() as txn:
                for chunk in self._views.queues.chunks(txn, queue, offset):
                    if limit is not None and chunk.first >= limit:
                        break
                    yield chunk
        yield from recent[bisect_right(recent, offset, key=_next) :]

    def _readable(
        self, txn: Any, queue: QueueNumber, recent: Sequence[Chunk], kept: ReadableRange
    ) -> Callable[[Chunk], bool]:
        """Returns a test of whether a chunk of a queue can be read.

        A transaction is needed only where a size counts and not `recent`.
        """
        frame = max(kept.frame, self.log.first)
        end = 0
        if kept.size_bytes >= 0:
            end = recent[-1].bytes_end if recent else self._views.queues.end(txn, queue).size_bytes
        return kept._replace(frame=frame).test(end)

    def fetch(
        self,
        queue: QueueNumber,
        offset: QueueOffset,
        recent: Sequence[Chunk],
        *,
        max_bytes: int,
        max_rows: int,
        kept: ReadableRange = ALL,
        in_memory: bool = False,
    ) -> Fetched:
        """See `QueueCalls.fetch`."""
        if recent and offset == recent[-1].next:
            return Fetched((), (), offset, offset)
        wanted: list[Chunk] = []
        size = rows = 0
        for chunk in self._chunks(queue, offset, recent, in_memory=in_memory):
            size += chunk.frame_size_bytes
            if wanted and size > max_bytes:
                break
            wanted.append(chunk)
            rows += chunk.next - max(offset, chunk.first)
            if rows >= max_rows:
                break
        if not wanted or wanted[0].first > offset or self._gone(queue, wanted[0], recent, kept):
            bounds = self.bounds(queue, recent, kept=kept, in_memory=in_memory)
            arrived = not wanted and bounds.first <= offset  # since the chunks were looked up: the next fetch has it
            if offset == bounds.next or (arrived and offset < bounds.next):
                return Fetched((), (), offset, offset)
            raise OffsetOutOfRange(offset, bounds.first, bounds.next)
        try:
            return self._fetched(queue, offset, wanted, max_rows, in_memory=in_memory)
        except CorruptFrame:
            if wanted[0].frame >= self.log.first:
                raise
        bounds = self.bounds(queue, recent, kept=kept, in_memory=in_memory)  # deleted meanwhile
        raise OffsetOutOfRange(offset, bounds.first, bounds.next)

    def _gone(self, queue: QueueNumber, chunk: Chunk, recent: Sequence[Chunk], kept: ReadableRange) -> bool:
        """Returns whether a chunk cannot be read any more."""
        if kept.size_bytes < 0 or recent:
            return not self._readable(None, queue, recent, kept)(chunk)
        with self._views.reading() as txn:
            return not self._readable(txn, queue, recent, kept)(chunk)

    def _fetched(
        self, queue: QueueNumber, offset: QueueOffset, chunks: Sequence[Chunk], max_rows: int, *, in_memory: bool
    ) -> Fetched:
        frames: list[Frame] = []
        rows: list[Sequence[int]] = []
        at: int = offset
        for chunk in chunks:
            try:
                frame, found = self._chunk_frame(chunk, queue, in_memory=in_memory)
            except CorruptFrame as error:
                if frames:  # the sound frames come first; the next fetch meets the damage
                    break
                end = chunk.frame + chunk.frame_size_bytes
                why = f"{error.why}: offsets {offset} to {chunk.next - 1} of queue {queue} cannot be read"
                raise CorruptFrame(error.log_offset, why, chunk.next, end) from error
            picked = found[at - chunk.first :][: max_rows - (at - offset)]
            frames.append(frame)
            rows.append(picked)
            at += len(picked)
        return Fetched(frames, rows, offset, QueueOffset(at))

    def bounds(
        self, queue: QueueNumber, recent: Sequence[Chunk], *, kept: ReadableRange = ALL, in_memory: bool = False
    ) -> Bounds:
        """See `QueueCalls.bounds`."""
        if in_memory:
            raise NotInMemory
        with self._views.reading() as txn:
            following = recent[-1].next if recent else self._views.queues.next_offset(txn, queue)
            first = self._first(txn, queue, recent, self._readable(txn, queue, recent, kept))
        return Bounds(first, following)

    def _first(
        self, txn: Any, queue: QueueNumber, recent: Sequence[Chunk], reached: Callable[[Chunk], bool]
    ) -> QueueOffset:
        """Returns the first offset of the first chunk from which something holds; else the next offset."""
        queues = self._views.queues
        if recent and not reached(recent[0]):
            i = bisect_left(recent, True, key=reached)
            return recent[i].first if i < len(recent) else recent[-1].next
        oldest = next(queues.chunks(txn, queue, QueueOffset(0)), None)
        if oldest is None or (recent and oldest.first >= recent[0].first):
            return recent[0].first if recent else queues.next_offset(txn, queue)
        if reached(oldest):  # as it mostly is
            return oldest.first
        found = queues.search(txn, queue, reached)
        return min(found, recent[0].first) if recent else found

    def offset_at_time(
        self, queue: QueueNumber, time_ms: int, recent: Sequence[Chunk], *, kept: ReadableRange = ALL
    ) -> QueueOffset:
        """See `QueueCalls.offset_at_time`."""
        with self._views.reading() as txn:
            readable = self._readable(txn, queue, recent, kept)
            return self._first(txn, queue, recent, lambda chunk: chunk.stored_at_ms >= time_ms and readable(chunk))

    def locate(
        self,
        queue: QueueNumber,
        ranges: Iterable[Range],
        recent: Sequence[Chunk],
        *,
        max_bytes: int,
        in_memory: bool = False,
        ahead: int = OFFSET_MAX,
    ) -> Located:
        """Returns the records at some offsets, in order, up to `max_bytes`; at least one when there is one.

        Damaged ones that are lost for good are skipped, loudly; where another replica may have them and nothing is
        in front of them it raises `CorruptFrame`. From the offset `ahead` on it says nothing of unreadable ones: it
        ends in front of them.
        """
        records: list[tuple[QueueOffset, Frame, int]] = []
        unreadable: list[Range] = []
        left = max_bytes
        for start, end in ranges:
            at = start
            for chunk in self._chunks(queue, QueueOffset(start), recent, in_memory=in_memory):
                low, high = max(start, chunk.first), min(end, chunk.next)
                if at < min(low, end):  # trimmed off the log
                    if at >= ahead:
                        return Located(records, unreadable)
                    unreadable.append((at, min(low, end, ahead)))
                if low >= high:
                    break
                at = high
                try:
                    frame, rows = self._chunk_frame(chunk, queue, in_memory=in_memory)
                except CorruptFrame as error:
                    if low >= ahead:
                        return Located(records, unreadable)
                    high = min(high, ahead)
                    if not self._is_skipped(queue, chunk, (low, high), error):
                        if records:
                            return Located(records, unreadable)
                        raise
                    unreadable.append((low, high))
                    continue
                picked = rows[low - chunk.first : high - chunk.first]
                fit, size = _fitting(frame, picked, left)
                fit = max(fit, 0 if records else 1)
                offsets = cast(Iterable[QueueOffset], range(low, low + fit))
                records += zip(offsets, repeat(frame), picked, strict=False)  # as many as there are offsets
                if fit < len(picked):
                    return Located(records, unreadable)
                left -= size
            else:
                if at < min(end, ahead):
                    unreadable.append((at, min(end, ahead)))
        return Located(records, unreadable)

    def _is_skipped(self, queue: QueueNumber, chunk: Chunk, gone: Range, error: CorruptFrame) -> bool:
        """Returns whether a chunk's messages were trimmed off the log, or are lost for good, which is told."""
        if chunk.frame < self.log.first:
            return True
        if not self._lost(chunk.frame):
            return False
        low, high = gone
        logger.error(
            "messages are lost and skipped: the log is damaged",
            extra={"queue": queue, "first": low, "next": high, "error": str(error)},
        )
        self.lost_count += high - low
        return True

    # ---- log order

    def scan(
        self, start: LogOffset, end: LogOffset, *, max_bytes: int, looked: bool = False, in_memory: bool = False
    ) -> tuple[list[Frame], LogOffset]:
        """Returns frames from `start` on, where one begins or somebody has `looked`. Raises `CorruptFrame` there."""
        frames: list[Frame] = []
        at, size = max(start, self.log.first), 0
        while at < end and (found := self._cache.get(at)) is not None:
            size += found.end - found.start
            if frames and size > max_bytes:
                return frames, at
            frames.append(found)
            at = found.end
        if at >= end:
            return frames, max(at, start)
        if in_memory:
            raise NotInMemory
        if not (frames or looked):
            frames.append(frame_at(self.log, at))
            at, size = frames[0].end, frames[0].end - at
        for item in self.log.scan(at, end, read_bytes=min(max(max_bytes, READ_BYTES_MIN), SCAN_BYTES)):
            if not isinstance(item, Frame):
                if frames:
                    break
                if item.end <= self.log.first:  # deleted meanwhile
                    at = item.end
                    continue
                raise damage_at(self.log, item)
            size += item.end - item.start
            if frames and size > max_bytes:
                break
            frames.append(item)
            at = item.end
            if self._busy():
                with self.turn:
                    self._rest()
        return frames, at

    def scan_queues(
        self,
        start: LogOffset,
        end: LogOffset,
        recent: Mapping[QueueNumber, Sequence[Chunk]],
        recent_start: LogOffset,
        *,
        max_bytes: int,
        kept: Mapping[QueueNumber, ReadableRange] = NONE_GONE,
        in_memory: bool = False,
    ) -> tuple[list[Frame], LogOffset]:
        """Returns the frames that hold a row of one of the queues, in log order, by merging the queues' chunks.

        From `recent_start` on, `recent` has all there is. A frame comes with all its rows, also those that are past
        their queue's limits when others are not. Raises `CorruptFrame` where the first one is damaged.
        """
        if start >= end:
            return [], start
        wanted: list[Chunk] = []
        size, looked = 0, end
        for chunk in self._merged(start, recent, recent_start, kept, in_memory=in_memory):
            if chunk.frame >= end:
                break
            if wanted and wanted[-1].frame == chunk.frame:
                continue
            size += chunk.frame_size_bytes
            if wanted and size > max_bytes:
                looked = chunk.frame
                break
            wanted.append(chunk)
        frames: list[Frame] = []
        for chunk in wanted:
            try:
                frame = self.frame(chunk.frame, chunk.frame_size_bytes, in_memory=in_memory)
                if frame is None:
                    raise CorruptFrame(chunk.frame, "the index refers to a frame that the log does not have")
            except CorruptFrame as error:
                if chunk.frame < self.log.first:  # deleted meanwhile
                    continue
                if frames:
                    return frames, chunk.frame
                raise CorruptFrame(chunk.frame, error.why, end=chunk.frame + chunk.frame_size_bytes) from error
            frames.append(frame)
        return frames, looked

    def _merged(
        self,
        start: LogOffset,
        recent: Mapping[QueueNumber, Sequence[Chunk]],
        recent_start: LogOffset,
        kept: Mapping[QueueNumber, ReadableRange],
        *,
        in_memory: bool,
    ) -> Iterator[Chunk]:
        """Yields the chunks of several queues from a log offset on, in log order."""
        tails = [chunks[bisect_left(chunks, start, key=_frame) :] for chunks in recent.values()]
        for i, queue in enumerate(recent):
            if tails[i] and kept.get(queue, ALL) != ALL:
                tails[i] = list(filter(self._readable(None, queue, tails[i], kept[queue]), tails[i]))
        if start >= recent_start:
            yield from heapq.merge(*tails, key=_frame)
            return
        if in_memory:
            raise NotInMemory
        queues = self._views.queues
        with self._views.reading() as txn:

            def stored(queue: QueueNumber, chunks: Sequence[Chunk]) -> Iterator[Chunk]:
                if chunks and chunks[0].frame <= start:
                    return
                readable = self._readable(txn, queue, chunks, kept.get(queue, ALL))
                first = queues.search(txn, queue, lambda chunk: chunk.frame >= start and readable(chunk))
                for chunk in queues.chunks(txn, queue, first):
                    if chunks and chunk.first >= chunks[0].first:
                        break
                    yield chunk

            yield from heapq.merge(*(stored(queue, chunks) for queue, chunks in recent.items()), *tails, key=_frame)
