"""The `headgate` data source: the log as a DataFrame, batch and streaming.

    spark.dataSource.register(HeadgateDataSource)
    spark.read.format("headgate").option("topic", "telemetry").load()
    spark.readStream.format("headgate").option("startingOffsets", "latest").load()

Options are the fields of `spark.source.options.SourceOptions`. Spark's Python data sources are not told which columns a
query uses, so name them, by the option `columns` or by `.schema(...)`: without a column that comes from the message
itself no record is decoded, and `count` over `columns=offset` is several times faster. Two columns exist only on
request: `samples`, the numbers of a JSON telemetry body, and `quality`, what is to be said of that body
(`spark.decode.samples`). Filters are not pushed down (Spark 4.3 refuses sources that do unless a setting is changed);
use `topic`, `startingTimestamp` and the offsets.

**Resuming.** A position is the next offset of every queue, `{"16": 120, "17": 0}`, and nothing else: which records a
micro-batch holds follows from its two positions alone, so a batch that Spark repeats after a crash holds the same
records again. Spark keeps positions in its checkpoint; starting options count only while there is none.

- A queue in the checkpoint goes on at its offset, whatever the store's bounds are by now.
- A queue that appears later, because a topic was created or grew, begins at 0.
- A queue whose records from the checkpoint on are gone, by retention, fails the query with `DataLoss`, unless
  `failOnDataLoss` is false: then it goes on at the first record there is. So does one whose records are damaged in the
  store, with `CorruptFrame`, and goes on behind the damage.
- A queue that ends before the checkpoint was begun anew in another store. That too is `DataLoss`; else it is
  read from 0.
- A queue that is gone with its topic keeps its place in the position and is not read.
- While the store is away the query waits for `retrySeconds`, then fails; started again, it goes on where it was.

Only what the store has confirmed is ever read, so no failover can take back what a query has seen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark.errors import DataLoss
from spark.source import offsets
from spark.source.columns import Columns, schema_of
from spark.source.options import EARLIEST, LATEST, SourceOptions
from store.api.queues import Bounds
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.remoting.reader import RemoteReader

__all__ = ["HeadgateDataSource"]


class HeadgateDataSource(DataSource):
    """The data source, to be registered with `spark.dataSource.register`."""

    @classmethod
    def name(cls) -> str:
        """Returns the name that `format` takes."""
        return "headgate"

    def schema(self) -> StructType:
        """The columns of the option `columns`, or all that are not derived."""
        return schema_of(SourceOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> "BatchReader":
        """A batch reader of these columns."""
        return BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802  # Spark's name
        """A streaming reader of these columns."""
        return StreamReader(SourceOptions.parse(self.options), schema)


@dataclass
class QueueRange(InputPartition):
    """The records that one task reads; pickled to where the task runs."""

    queue: int
    start: int
    end: int
    topic: str


class _Reader:
    """The common part of batch and streaming: options, and reading one range.

    Pickled to the executors, without connections.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        Columns(schema)  # a wrong column is refused here, in the driver
        self._client: RemoteReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_client": None}

    def _connect(self) -> RemoteReader:
        options = self._options
        return RemoteReader(options.target, retry_s=options.retrySeconds, chunk_bytes=options.maxBytesPerFetch)

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
        return offsets.chosen_queues(self._store.topics(), self._options.topic, must_exist=must_exist)

    def _starting(self, bounds: Mapping[int, Bounds]) -> dict[int, int]:
        """Returns where a query without a checkpoint begins."""
        if (time_ms := self._options.startingTimestamp) is not None:
            return {queue: self._store.offset_at_time(queue, time_ms) for queue in bounds}
        return offsets.place(self._options.startingOffsets, bounds, default=EARLIEST)

    def _partitions(
        self, start: Mapping[int, int], end: Mapping[int, int], topics: Mapping[int, str]
    ) -> list[QueueRange]:
        found = offsets.ranges(start, end, records_max=self._options.maxOffsetsPerPartition)
        return [QueueRange(r.queue, r.start, r.end, topics.get(r.queue, "")) for r in found]

    def _read(self, partition: QueueRange) -> Iterator[pa.RecordBatch]:
        """The records of a range, a chunk at a time."""
        columns = Columns(self._schema, self._options.rules)
        queue, at, end = partition.queue, partition.start, partition.end
        with self._connect() as store:
            while at < end:
                try:
                    for chunk in store.fetch_chunks(queue, at, end):
                        yield columns.batch(chunk, queue=queue, topic=partition.topic)
                        at = int(chunk.next)
                except OffsetOutOfRange as error:
                    if self._options.failOnDataLoss:
                        raise DataLoss(queue, at, error.first, error.next) from error
                    at, end = max(at, error.first), min(end, error.next)
                except CorruptFrame as error:
                    if self._options.failOnDataLoss or error.next is None:
                        raise
                    at = max(at, error.next)


class BatchReader(_Reader, DataSourceReader):
    """Reads what there was when the query was planned."""

    def partitions(self) -> list[InputPartition]:
        """One a queue, long ones in several."""
        try:
            queues = self._queues(must_exist=True)
            bounds = self._store.bounds(list(queues))
            start = self._starting(bounds)
            end = offsets.place(self._options.endingOffsets, bounds, default=LATEST)
            end = {queue: max(offset, start[queue]) for queue, offset in end.items()}
            # Spark asks a source without partitions to read None, so an empty log is one empty range.
            return [*self._partitions(start, end, queues)] or [QueueRange(0, 0, 0, "")]
        finally:
            self._close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one partition, as Arrow record batches."""
        assert isinstance(partition, QueueRange)
        return self._read(partition)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver and reads them in tasks; the module's docstring says how it resumes."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: dict[int, Bounds] | None = None  # set once: what `availableNow` is to read up to
        self._newest: dict[int, int] = {}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Returns where a query begins that has no checkpoint."""
        return offsets.encode(self._starting(self._bounds()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """At most `maxOffsetsPerTrigger` records in a micro-batch, when that is set."""
        limit = self._options.maxOffsetsPerTrigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Remembers what there is now: this query reads so far and ends."""
        self._target = self._bounds()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Returns where the micro-batch that begins at `start` ends."""
        bounds = self._bounds() if self._target is None else self._target
        begin = offsets.decode(start)
        if self._options.failOnDataLoss:
            for queue, (first, next_) in bounds.items():
                if not first <= begin.get(queue, 0) <= next_:
                    raise DataLoss(queue, begin.get(queue, 0), first, next_)
        self._newest = {queue: int(b.next) for queue, b in bounds.items()}
        count = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return offsets.encode(offsets.advance(begin, bounds, count))

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """The end of every queue when it was last looked at: what the query's progress is measured against."""
        return offsets.encode(self._newest)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One a queue with something to read, long ones in several."""
        begin, until = offsets.decode(start), offsets.decode(end)
        return [*self._partitions(begin, until, self._queues(must_exist=False))] if begin != until else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one partition, as Arrow record batches."""
        assert isinstance(partition, QueueRange)
        return self._read(partition)

    def stop(self) -> None:
        """Closes the driver's connection."""
        self._close()

    def _bounds(self) -> dict[int, Bounds]:
        return self._store.bounds(list(self._queues(must_exist=False)))
