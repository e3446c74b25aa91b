"""The work of one of Spark's tasks, pickled to executors: a bucket's part of a pass, or the publishing of a file."""

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from spark.findings.publishing import Publishing, publish_file
from spark.job.bucket import work
from spark.tables.files import Location
from spark.tables.reports import PassPlan


class PublishTask:
    """The publishing of the file that has the task's number; pickled to the executors."""

    def __init__(self, place: Location, paths: list[str], publishing: Publishing) -> None:
        self._place, self._paths, self._publishing = place, paths, publishing

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs the batch, and yields the outcome."""
        context = TaskContext.get()
        assert context is not None
        for _ in batches:
            pass
        outcome = publish_file(self._place, self._paths[context.partitionId()], self._publishing)
        yield pa.record_batch([pa.array([msgspec.msgpack.encode(outcome)], pa.binary())], names=["report"])


class BucketTask:
    """The work on the bucket of the task that calls it; pickled to the executors."""

    def __init__(self, plan: PassPlan, *, timed: bool) -> None:
        self._plan, self._timed = plan, timed

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs the batch, and yields the report."""
        context = TaskContext.get()
        assert context is not None
        came = list(batches)
        records = pa.Table.from_batches(came) if came and not self._timed else None
        report = work(self._plan, context.partitionId(), records)
        yield pa.record_batch([pa.array([report.encode()], pa.binary())], names=["report"])
