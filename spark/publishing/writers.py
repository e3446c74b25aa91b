"""The writer of the data source: a task publishes its partition's rows, each request under a key of its own.

**Once.** A key names the write, the partition and the request's first row. The gateway's log remembers keys
(`Idempotency-Key`, for `adapters.http.idempotency_window_s`), in the frame of their messages: a task that Spark
repeats, at whichever proxy and whatever has died, publishes the missing messages and none twice.

- A streaming write is named by its query and micro-batch: both survive a restart with the same checkpoint.
- A batch write is named by chance, so that only the tasks of one job know each other; or by the option `batch`, and
  then a job that is run again goes on where it broke off.
- The repetition has to give the same rows in the same order. Behind a shuffle that takes `sortWithinPartitions`. Other
  rows under a key that was used are refused (status 422): then the task fails, and nothing is published twice.

Rows are published as tasks come to them: a job that fails has published some, and nothing takes them back.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark.errors import BadOption, PublishRefused
from spark.publishing.client import GatewayClient
from spark.publishing.events import RowEvents, requests, rows_of
from spark.publishing.options import WriterOptions

_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # as Spark names them for its tasks
_REPEATED_OTHERWISE = 422

WriterT = TypeVar("WriterT", bound="_Writer")


@dataclass
class Published(WriterCommitMessage):
    """The work of one task."""

    rows: int
    requests: int


class _Writer:
    """The common part of batch and streaming. Pickled to the executors."""

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._name = options.batch or uuid.uuid4().hex

    @classmethod
    def of(cls: type[WriterT], options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> WriterT:
        """Returns the writer of rows of a schema. Raises `BadOption`."""
        if overwrite:
            raise BadOption("mode", "cannot be overwrite: messages are only appended to the log")
        parsed = WriterOptions.parse(options)
        RowEvents(parsed, schema)  # refuses here, in the driver, a row that cannot be written
        return cls(parsed, schema)

    def _publish(self, batches: Iterator[pa.RecordBatch], name: str, partition: int) -> Published:
        """Publishes a partition's rows. Raises `BadRow`, `PublishRefused`, `GatewayUnreachable`."""
        options = self._options
        scope, events = f"spark-{name}-{partition}", RowEvents(options, self._schema)
        path = f"/events?qos={options.qos}" + ("&retain=true" if options.retain else "")
        rows = sent = 0
        with GatewayClient(
            options.gateway,
            user=options.user,
            password=options.password,
            token=options.token,
            authority=options.gatewayCaFile,
            retry_s=options.retrySeconds,
        ) as client:
            for request in requests(events, rows_of(batches), options, scope):
                key = f'"{scope}-{request.first}"'
                headers = {"content-type": "application/cloudevents-batch+json", "idempotency-key": key}
                try:
                    client.ask("POST", path, content=request.body, headers=headers)
                except PublishRefused as error:
                    raise _explained(error, request.first) from error
                rows, sent = rows + request.rows, sent + 1
        return Published(rows, sent)


def _explained(error: PublishRefused, first: int) -> PublishRefused:
    if error.status == _REPEATED_OTHERWISE:
        return PublishRefused(
            error.status,
            "this part of the write was published before with other rows; after a shuffle sort them "
            "(sortWithinPartitions), or name the write anew (option batch)",
        )
    return PublishRefused(error.status, f"{error.detail} (rows of the partition from {first} on)")


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return int(context.partitionId())


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes the rows of a DataFrame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publishes the rows of one partition."""
        return self._publish(iterator, self._name, _partition())


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes the rows of a streaming query, micro-batch by micro-batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publishes the rows of one partition of a micro-batch."""
        context = TaskContext.get()
        assert context is not None, "rows are written by tasks"
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query, "Spark names the query to its tasks"
        assert batch, "Spark names the micro-batch to its tasks"
        return self._publish(iterator, f"{self._options.batch or query}-{batch}", _partition())
