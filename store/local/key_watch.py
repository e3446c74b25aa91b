"""Watching: past changes come from the log, new ones from a feed, and none between them is left out.

A revision is a place in the log, so the history is the reserved queue of the key-value store, read from there on. The
records alone do not say which compare-and-set held; the view's list of exceptions does (`KvView.voids`).
"""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping, Sequence
from contextlib import aclosing
from operator import attrgetter
from typing import NamedTuple, Protocol

from store.api.keys import Change, Changes
from store.api.kv_rules import KV_RECORDS, changes_of, revision
from store.api.queues import Bounds, Fetched
from store.base.errors import CorruptFrame, OffsetOutOfRange, RevisionCompacted, StoreClosed
from store.format.chunks import Chunk
from store.format.frame import LogOffset, Position, QueueNumber, QueueOffset, group_of, origin_of
from store.format.records import KV_QUEUE, decode
from store.recent.kv_feed import Feeds
from store.views import Views

HISTORY_BYTES = 512 << 10  # of the log, read at a time
BATCH_COUNT_MAX = 1_000  # changes given at a time, but all those of one revision
BATCH_BYTES = 1 << 20  # likewise, of their values
_frame = attrgetter("frame")


class Keys(NamedTuple):
    """A range of keys, `end` exclusive."""

    namespace: str
    start: str
    end: str | None

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, str)
        return key >= self.start and (self.end is None or key < self.end)


class LogSource(Protocol):
    """The source from which the history is read."""

    @property
    def confirmed(self) -> LogOffset:
        """The confirmed end: above every revision."""

    @property
    def first(self) -> LogOffset:
        """Returns where the log begins: earlier frames are gone for readers, if not from the disk."""

    def fetch(self, queue: QueueNumber, offset: QueueOffset, *, max_bytes: int) -> Awaitable[Fetched]:
        """See `QueueCalls.fetch`."""

    def bounds(self, queue: QueueNumber) -> Awaitable[Bounds]:
        """See `QueueCalls.bounds`."""

    def offset_before(self, log_offset: LogOffset) -> Awaitable[QueueOffset]:
        """Returns the offset in `KV_QUEUE` of the newest frame's first record that begins at or before a log offset."""

    def voids(self, first: int, end: int) -> Mapping[int, bytes]:
        """Returns `KvView.voids`, and those that the view lacks."""


class Watching:
    """Makes watches. Belongs to the thread of the event loop."""

    def __init__(self, source: LogSource, feeds: Feeds) -> None:
        self._source = source
        self._feeds = feeds

    async def watch(self, keys: Keys, at: int) -> AsyncGenerator[Changes, None]:
        """See `KeyCalls.watch`; the first change is that of revision `at` or later."""
        with self._feeds.follow(keys.namespace, self._source.confirmed + 1) as feed:
            while True:
                if feed.closed:
                    raise StoreClosed("the store is shut down")
                if at < feed.complete_from:
                    async with aclosing(self._history(keys, at, feed.complete_from)) as history:
                        async for changes in history:
                            at = changes.next
                            if changes.changes:
                                yield changes
                elif found := feed.since(at):
                    for changes in _batches(keys, found):
                        at = changes.next
                        if changes.changes:
                            yield changes
                else:
                    await feed.changed()

    async def _history(self, keys: Keys, at: int, until: int) -> AsyncGenerator[Changes, None]:
        """Yields the log's changes from revision `at` up to `until`. The last batch's `next` is `until`."""
        source = self._source
        self.check_kept(at)
        offset = await source.offset_before(LogOffset(max(at - 1, 0)))
        while at < until:
            try:
                fetched = await source.fetch(KV_QUEUE, offset, max_bytes=HISTORY_BYTES)
            except OffsetOutOfRange:
                self.check_kept(at)
                first = (await source.bounds(KV_QUEUE)).first
                if first <= offset:
                    raise
                offset = first  # older revisions were not asked for
                continue
            except CorruptFrame as error:
                if error.next is None or error.end is None:
                    raise
                if at <= error.end:
                    raise RevisionCompacted(at, error.end + 1) from error
                offset = QueueOffset(error.next)  # likewise
                continue
            if fetched.next == offset:
                break
            found = [change for change in self._decoded(keys.namespace, fetched) if at <= change.revision < until]
            behind = fetched.frames[-1].end + 1
            self.check_kept(at)  # retention may have come meanwhile, for the exceptions if not for the records
            for changes in _batches(keys, found):
                yield changes
            at, offset = max(at, min(behind, until)), fetched.next
        yield Changes((), until)

    def check_kept(self, at: int) -> None:
        """Raises `RevisionCompacted` where changes at or behind a revision may be gone."""
        first = self._source.first
        if at <= first and first > origin_of(group_of(first)):
            raise RevisionCompacted(at, first + 1)

    def _decoded(self, namespace: str, fetched: Fetched) -> Iterator[Change]:
        first, end = fetched.frames[0].start, fetched.frames[-1].end
        voids = self._source.voids(first, end + 1)
        for frame, rows in zip(fetched.frames, fetched.rows, strict=True):
            for row in rows:
                record = decode(frame.record(row))
                if not isinstance(record, KV_RECORDS):
                    continue
                number = revision(Position(frame.start, row))
                for name, change in changes_of(number, record, voids.get(number)):
                    if name == namespace:
                        yield change


def _batches(keys: Keys, found: Sequence[Change]) -> Iterator[Changes]:
    """Yields the wanted changes, a bounded number at a time, no revision divided; each says where the next begins."""
    batch: list[Change] = []
    size = last = 0
    for change in found:
        if change.revision != last:
            if len(batch) >= BATCH_COUNT_MAX or size >= BATCH_BYTES:
                yield Changes(batch, last + 1)
                batch, size = [], 0
            last = change.revision
        if change.key in keys:
            batch.append(change)
            size += len(change.value)
    if last:
        yield Changes(batch, last + 1)


def offset_before(views: Views, log_offset: LogOffset, recent: Sequence[Chunk]) -> QueueOffset:
    """See `LogSource.offset_before`; may wait for a disk. `recent` are the chunks that the view may lack."""
    if recent and recent[0].frame <= log_offset:
        return recent[bisect_right(recent, log_offset, key=_frame) - 1].first
    queues = views.queues
    with views.reading() as txn:
        behind = queues.search(txn, KV_QUEUE, lambda chunk: chunk.frame > log_offset)
        for chunk in queues.chunks(txn, KV_QUEUE, QueueOffset(max(behind - 1, 0))):
            return chunk.first
    return recent[0].first if recent else QueueOffset(0)
