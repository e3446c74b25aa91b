"""The readers of the data source: which records a batch or a micro-batch holds, and reading one range of them.

**Resuming.** A position is the next offset of every queue, `{"16": 120, "17": 0}`, and nothing else: which records a
micro-batch holds follows from its two positions alone, so a batch that Spark repeats after a crash holds the same
records again. Spark keeps positions in its checkpoint; starting options count only while there is none.

- A queue in the checkpoint goes on at its offset, whatever the store's bounds are by now.
- A queue that appears later, because a topic was created, grew or is read now, too, begins at its first record.
- A queue whose records from the checkpoint on are gone, by retention, fails the query with `DataLoss`, unless
  `failOnDataLoss` is false: then it goes on at the first record there is. So does one whose records are damaged in the
  store, with `CorruptFrame`, and goes on behind the damage. A warning names the offsets that were not read.
- A queue that ends before the checkpoint was begun anew in another store. That too is `DataLoss`; else it is
  read from 0.
- A queue that is gone with its topic keeps its place in the position and is not read.
- While the store is away the query waits for `retrySeconds`, then fails; started again, it goes on where it was.

Only confirmed records are ever read, so no failover can take back records that a query has seen.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark.errors import BadOption, DataLoss
from spark.source import offsets
from spark.source.columns import RecordColumns
from spark.source.options import EARLIEST, LATEST, At, Location, SourceOptions
from spark.source.parts import parts
from spark.source.pushdown import PushedBounds
from spark.source.record_sizes import ends_within
from spark.source.selection import DEVICE, Selection
from store.api.queues import Bounds
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.remoting.reader import RemoteReader
from store.rpc.credentials import CredentialFiles

if TYPE_CHECKING:
    from spark.source.progress import GroupProgress

BEHIND_S: Final = 2.0  # that a node may be behind another one that has told of records
BEHIND_POLL_S: Final = 0.05

log = logging.getLogger(__name__)


@dataclass
class QueueRange(InputPartition):
    """The records that one task reads; pickled to where the task runs."""

    queue: int
    start: int
    end: int
    topic: str
    number: int = 0  # of the partition
    new: bool = False  # the query has read nothing of the queue so far


class _Reader:
    """The common part of batch and streaming: options, and reading one range.

    Pickled to the executors, without connections.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._pushed = PushedBounds(selection=_selection(options))
        self._columns()  # a wrong column is refused here, in the driver
        self._client: RemoteReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def _columns(self) -> RecordColumns:
        options = self._options
        return RecordColumns(self._schema, options.rules, format_=options.format, selection=self._pushed.selection)

    def _connect(self, first: int = 0) -> RemoteReader:
        options = self._options
        return RemoteReader(
            options.target,
            retry_s=options.retrySeconds,
            chunk_bytes=options.maxBytesPerFetch,
            credentials=credentials_of(options),
            first=first,
        )

    @property
    def _store(self) -> RemoteReader:
        """The driver's connection, made when it is first needed."""
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _queues(self, *, must_exist: bool) -> dict[int, str]:
        """Returns the queues that may hold wanted records, and their topics."""
        chosen = offsets.chosen_queues(self._store.topics(), self._options.topic, must_exist=must_exist)
        topics, queues = self._pushed.topics, self._pushed.queues
        named = self._pushed.selection.first_levels()
        if named is not None and not self._options.topic and self._store.health().by_first_level:
            topics = named if topics is None else topics & named
        return {
            queue: topic
            for queue, topic in chosen.items()
            if (topics is None or topic in topics) and (queues is None or queue in queues)
        }

    def _placed(
        self, where: Location, time_ms: int | None, bounds: Mapping[int, Bounds], default: str
    ) -> dict[int, int]:
        place = where if time_ms is None else At(time_ms)
        return offsets.place(place, bounds, default=default, at_time=self._store.offset_at_time)

    def _starting(self, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """Returns where a query without a checkpoint begins."""
        return self._placed(self._options.startingOffsets, self._options.startingTimestamp, bounds, EARLIEST)

    def _partitions(
        self, start: Mapping[int, int], end: Mapping[int, int], topics: Mapping[int, str]
    ) -> list[QueueRange]:
        options = self._options
        found = offsets.ranges(start, end, records_max=options.maxOffsetsPerPartition, pieces_min=options.minPartitions)
        return [
            QueueRange(r.queue, r.start, r.end, topics.get(r.queue, ""), n, new=r.queue not in start)
            for n, r in enumerate(found)
        ]

    def _read(self, partition: QueueRange) -> Iterator[pa.RecordBatch]:
        """Yields the records of a range, a part of a chunk at a time."""
        columns = self._columns()
        queue, at, end = partition.queue, partition.start, partition.end
        where = queue, partition.topic
        behind_s: float | None = None
        unread = partition.new  # this is the first part of the queue to be read
        with self._connect(partition.number) as store:
            while at < end:
                try:
                    for part in chain.from_iterable(map(parts, store.fetch_chunks(queue, at, end))):
                        yield columns.batch(part, queue=queue, topic=partition.topic)
                        at, unread = int(part.next), False
                except OffsetOutOfRange as error:
                    if error.next < end and at >= error.first:  # another node knows of more: this one will learn of it
                        behind_s = time.monotonic() if behind_s is None else behind_s
                        if time.monotonic() - behind_s < BEHIND_S:
                            time.sleep(BEHIND_POLL_S)
                            continue
                    if not self._options.failOnDataLoss:
                        until = min(end, error.next)
                    elif unread and at < error.first:
                        until = end
                    else:
                        raise DataLoss(queue, at, error.first, error.next) from error
                    there = error.first, error.next
                    log.warning("queue %d of %s, offsets %d to %d: only %d to %d are there", *where, at, end, *there)
                    at, end = max(at, error.first), until
                except CorruptFrame as error:
                    if self._options.failOnDataLoss or error.next is None:
                        raise
                    log.warning("queue %d of %s, offsets %d to %d: not read, %s", *where, at, error.next, error)
                    at = max(at, error.next)


def _selection(options: SourceOptions) -> Selection:
    equal = {DEVICE: frozenset(options.device), "type": frozenset(options.type)}
    return Selection(filters=options.filter, equal={name: texts for name, texts in equal.items() if texts})


def credentials_of(options: SourceOptions) -> Any:
    """Returns the credentials of the cluster's TLS; None where there is none. Raises `BadOption`."""
    if options.caFile is None:
        return None
    assert options.certFile is not None
    assert options.keyFile is not None
    try:
        return CredentialFiles(options.certFile, options.keyFile, options.caFile).channel()
    except OSError as error:
        raise BadOption("caFile, certFile and keyFile", f"cannot be used: {error}") from error


class BatchReader(_Reader, DataSourceReader):
    """Reads the records that were there when the query was planned."""

    def partitions(self) -> list[InputPartition]:
        """Returns one partition a queue, long ones in several."""
        try:
            pushed = self._pushed
            queues = self._queues(must_exist=True)
            bounds = self._store.bounds(list(queues))
            start = self._starting(bounds)
            end = self._placed(self._options.endingOffsets, self._options.endingTimestamp, bounds, LATEST)
            if pushed.from_ms is not None:
                start = _pairwise(max, start, self._placed(At(pushed.from_ms), None, bounds, EARLIEST))
            if pushed.until_ms is not None:
                end = _pairwise(min, end, self._placed(At(pushed.until_ms), None, bounds, LATEST))
            start = {queue: max(offset, pushed.first) for queue, offset in start.items()}
            end = {queue: max(min(offset, pushed.end), start[queue]) for queue, offset in end.items()}
            # Spark asks a source without partitions to read None, so an empty log is one empty range.
            return [*self._partitions(start, end, queues)] or [QueueRange(0, 0, 0, "")]
        finally:
            self._close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Returns the records of one partition, as Arrow record batches."""
        assert isinstance(partition, QueueRange)
        return self._read(partition)


def _pairwise(choose: Callable[[int, int], int], some: Mapping[int, int], others: Mapping[int, int]) -> dict[int, int]:
    return {queue: choose(offset, others[queue]) for queue, offset in some.items()}


class PushingReader(BatchReader):
    """The same, bounded by a query's filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Uses the filters that it can, and gives all back: Spark looks at every row again."""
        self._pushed.take(filters)
        return filters


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver and reads them in tasks; the module's docstring says how it resumes."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: dict[int, Bounds] | None = None  # set once: the ends that `availableNow` reads up to
        self._newest: dict[int, int] = {}
        self._progress: GroupProgress | None = None

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_progress": None}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Returns where a query begins that has no checkpoint."""
        return offsets.encode(self._starting(self._bounds()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Returns the limit of `maxRecordsPerTrigger`, else that of `maxBytesPerTrigger`, when one is set."""
        options = self._options
        if options.maxRecordsPerTrigger is not None:
            return ReadMaxRows(options.maxRecordsPerTrigger)
        return ReadAllAvailable() if options.maxBytesPerTrigger is None else ReadMaxBytes(options.maxBytesPerTrigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remembers the current ends: this query reads so far and ends."""
        self._target = self._bounds()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Returns where the micro-batch that begins at `start` ends."""
        begin = offsets.decode(start)
        bounds = self._bounds_from(begin)
        if self._options.failOnDataLoss:
            for queue, (first, next_) in bounds.items():
                if not first <= begin.get(queue, first) <= next_:
                    raise DataLoss(queue, begin[queue], first, next_)
        self._newest = {queue: int(b.next) for queue, b in bounds.items()}
        self._report(begin, all_read=all(begin.get(queue, 0) >= at for queue, at in self._newest.items()))
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        size = None if isinstance(limit, ReadAllAvailable) else self._options.maxBytesPerTrigger
        fitting = None if size is None else partial(ends_within, self._store, limit_bytes=size)
        return offsets.encode(offsets.advance(begin, bounds, count, fitting=fitting))

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Returns the end of every queue when it was last looked at, to measure the query's progress against."""
        return offsets.encode(self._newest)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Returns one partition a queue with records to read, long ones in several."""
        begin, until = offsets.decode(start), offsets.decode(end)
        return [*self._partitions(begin, until, self._queues(must_exist=False))] if begin != until else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Returns the records of one partition, as Arrow record batches."""
        assert isinstance(partition, QueueRange)
        return self._read(partition)

    def _report(self, begin: Mapping[int, int], *, all_read: bool) -> None:
        """Tells the group of the query that everything before `begin` is done.

        Spark asks for a micro-batch's end when the one before it is done; its `commit` comes one batch later.
        """
        options = self._options
        if not options.group:
            return
        if self._progress is None:
            from spark.source.progress import GroupProgress  # noqa: PLC0415  # httpx: 0.15 s of every worker

            self._progress = GroupProgress.of(options)
        self._progress.reached(begin, flush=all_read)

    def stop(self) -> None:
        """Closes the driver's connections."""
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self._close()

    def _bounds(self) -> dict[int, Bounds]:
        return self._store.bounds(list(self._queues(must_exist=False)))

    def _bounds_from(self, begin: Mapping[int, int]) -> dict[int, Bounds]:
        """Returns the bounds; a node that does not know the offsets read before is asked again, for a moment."""
        if self._target is not None:
            return self._target
        until_s = time.monotonic() + BEHIND_S
        while True:
            bounds = self._bounds()
            ends = [begin.get(queue, 0) <= b.next for queue, b in bounds.items()]
            if all(ends) or len(self._options.targets) == 1 or time.monotonic() > until_s:
                return bounds
            time.sleep(BEHIND_POLL_S)
