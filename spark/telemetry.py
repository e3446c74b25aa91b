"""The telemetry job: JSON telemetry in the log to one-minute windows and latest values, each record counted once.

    log -> data source (samples, quality) -> one grouping in Spark per micro-batch -> `Ledger`

One streaming query, with Spark's checkpoint for its position in the log, calls `_Job.batch` for every micro-batch
(`foreachBatch`). One grouping gives everything that the batch adds: partial windows, candidates for the latest
values, and the number of records by protocol and quality. The ledger merges that into what was there and commits it by
one rename; a batch that Spark repeats after a crash is either not there yet and is the same again, or is there and is
passed over. So windows, latest values and counts are always those of the same batch, and every record is
in them exactly once. Why not Spark's own state and file sink: `docs/decisions/0003-telemetry-commits.md`.

**Watermark.** A record counts in the window of its own time (`time`) when it was stored at most `watermark_s` after
that window's end. Whether it is late follows from the record alone, by the store's clock and not by the greatest
device time seen so far, so it does not depend on how the log was cut into batches, and no device with a wrong clock
makes the others late. The watermark is the time up to which every queue has been read, less `watermark_s`: a window
that ends before it can get nothing more, is settled, and is written for good.

**Quality** of a record: `ok`; `no_metrics`, `bad_json`, `encoded`, `too_many_metrics` (`spark.samples`); `late`:
stored after its window was settled, in the latest values still; `ahead`: its time is more than `watermark_s` after it
was stored, in no window and no latest value, because a clock that is ahead would pin the one and fill the other.
"""

import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everywhere in Spark

from spark import samples
from spark.errors import SparkError
from spark.job_options import TelemetryOptions
from spark.ledger import Ledger
from spark.session import build_session, find_java_home
from spark.tables import Progress
from spark.windows import PARTIALS, WINDOW_MS

__all__ = ["AHEAD", "LATE", "Signals", "follow", "grouped", "run_telemetry"]

LATE, AHEAD = "late", "ahead"
_COLUMNS = "queue,offset,position,time,stored_at,protocol,device,samples,quality"
_IN_WINDOWS = (samples.OK, samples.TOO_MANY)
_IN_LATEST = (*_IN_WINDOWS, LATE)
_POLL_S = 0.2
_ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*: .")


def run_telemetry(options: TelemetryOptions) -> None:
    """Runs the telemetry job, as `spark.job.run` says."""
    find_java_home()  # a missing JDK is said before anything is written
    ledger = Ledger.open(options.output, options.checkpoint_dir)
    try:
        scratch = options.output / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed job left
        session = build_session(
            "headgate telemetry",
            cores=options.cores,
            shuffle_partitions=options.shuffle_partitions,
            driver_memory=options.driver_memory,
            local_dir=scratch,
            settings={"spark.sql.adaptive.enabled": "false"},  # streams do without, and say so in a warning
        )
        try:
            with Signals() as asked:
                follow(session, options, ledger, asked)
        finally:
            session.stop()
    finally:
        ledger.close()


def follow(session: SparkSession, options: TelemetryOptions, ledger: Ledger, asked: "Signals") -> None:
    """Counts the log into the ledger until there is no more (`once`) or `asked` to stop. Raises `SparkError`."""
    job = _Job(ledger, watermark_ms=round(options.watermark_s * 1000))
    log = session.readStream.format("headgate").options(**_source_options(options)).load()
    writer = log.writeStream.queryName("telemetry").foreachBatch(job.batch)
    writer = writer.option("checkpointLocation", str(options.checkpoint_dir))
    trigger: dict[str, Any] = (
        {"availableNow": True}
        if options.once
        else {"processingTime": f"{round(options.trigger_s * 1000)} milliseconds"}
    )
    query = writer.trigger(**trigger).start()
    while query.isActive and not asked.stop.wait(_POLL_S):
        pass
    if query.isActive:
        with job.ended(asked):
            query.stop()
    elif (failure := query.exception()) is not None:
        raise SparkError(f"the telemetry query failed: {_gist(str(failure))}") from failure


def _gist(failure: str) -> str:
    """The line of Spark's account of a failed query that says why: the last Python error in it, else its first line."""
    lines = failure.partition("=== Streaming Query ===")[0].splitlines()
    errors = [line for line in lines if _ERROR_LINE.match(line)]
    return errors[-1] if errors else lines[0]


def _source_options(options: TelemetryOptions) -> dict[str, str]:
    return {
        "target": options.target,
        "topic": ",".join(options.topics),
        "columns": _COLUMNS,
        "startingOffsets": options.starting_offsets,
        "maxOffsetsPerTrigger": str(options.records_max),
        "retrySeconds": str(options.retry_s),
    }


class Signals:
    """SIGTERM and SIGINT, noted while this is entered; `stop` is set by the first, `now` by the second."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.now = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.now = self.stop.is_set()
        self.stop.set()


class _Job:
    """The work on one micro-batch."""

    def __init__(self, ledger: Ledger, *, watermark_ms: int) -> None:
        self._ledger = ledger
        self._watermark_ms = watermark_ms
        self._idle = threading.Lock()  # held while a batch is under way
        self._ending = False

    @contextmanager
    def ended(self, asked: "Signals") -> Iterator[None]:
        """No batch is under way inside, and none begins any more; unless a second signal cut the waiting short."""
        while not (held := self._idle.acquire(timeout=_POLL_S)) and not asked.now:
            pass
        self._ending = True
        try:
            yield
        finally:
            if held:
                self._idle.release()

    def batch(self, records: DataFrame, batch: int) -> None:
        """Counts a micro-batch and commits it, unless it was."""
        with self._idle:
            if self._ending:
                raise SparkError(f"batch {batch} is left for the next start")
            if not self._ledger.check(batch):
                return
            began_s = time.monotonic()
            settled_ms = self._ledger.manifest.progress.watermark_ms
            groups = grouped(records, watermark_ms=self._watermark_ms, settled_ms=settled_ms).toArrow()
            progress = _progress(groups, settled_ms, self._watermark_ms)
            self._ledger.commit(
                batch,
                _partials(groups, _IN_WINDOWS),
                _partials(groups, _IN_LATEST),
                _counts(groups),
                Progress(
                    offsets=progress.offsets,
                    watermark_ms=progress.watermark_ms,
                    stored_at_ms=progress.stored_at_ms,
                    batch_records=progress.batch_records,
                    batch_ms=round((time.monotonic() - began_s) * 1000),
                ),
            )


def grouped(records: DataFrame, *, watermark_ms: int, settled_ms: int) -> DataFrame:
    """Records by queue, protocol, quality, device, metric and window: all that a batch adds, in one shuffle.

    A record with several samples is several rows here; the one with `n` 0 (or none) stands for the record.
    """
    late_from = F.greatest(F.unix_millis("stored_at"), F.lit(settled_ms + watermark_ms))
    start_ms = F.unix_millis("time") - F.pmod(F.unix_millis("time"), F.lit(WINDOW_MS))
    ahead = F.unix_millis("time") > F.unix_millis("stored_at") + watermark_ms
    late = start_ms + (WINDOW_MS + watermark_ms) <= late_from
    has_samples = F.col("quality").isin(*_IN_WINDOWS)
    quality: Column = (
        F.when(has_samples & ahead, AHEAD).when(has_samples & late, LATE).otherwise(F.col("quality")).alias("quality")
    )
    kept = ("queue", "offset", "position", "time", "stored_at", "protocol", "device")
    rows = records.select(
        *kept, quality, F.timestamp_millis(start_ms).alias("start"), F.posexplode_outer("samples").alias("n", "sample")
    )
    value = F.col("sample.value")
    newest = F.max_by(F.struct(value.alias("value"), "position"), F.struct("time", "offset", "n"))
    keys = ("queue", "protocol", "quality", "device", F.col("sample.metric").alias("metric"), "start")
    return (
        rows.groupBy(*keys)
        .agg(
            F.sum(F.when(F.coalesce("n", F.lit(0)) == 0, 1).otherwise(0)).alias("records"),
            F.count(value).alias("count"),
            F.min(value).alias("min"),
            F.max(value).alias("max"),
            F.sum(value).alias("sum"),
            newest.alias("newest"),
            F.max(F.struct("time", "offset")).alias("at"),
            F.max("offset").alias("offset"),
            F.max("stored_at").alias("stored_at"),
        )
        .select(
            *("queue", "protocol", "quality", "device", "metric", "start", "records", "count", "min", "max", "sum"),
            F.col("newest.value").alias("last"),
            F.col("at.time").alias("last_time"),
            F.col("at.offset").alias("last_offset"),
            F.col("queue").alias("last_queue"),
            F.col("newest.position").alias("last_position"),
            *("offset", "stored_at"),
        )
    )


def _partials(groups: pa.Table, qualities: tuple[str, ...]) -> pa.Table:
    """The groups that hold samples of these qualities, as rows of `PARTIALS`."""
    wanted = pc.and_(pc.is_in(groups["quality"], pa.array(qualities)), pc.is_valid(groups["metric"]))
    found = groups.filter(wanted)
    return pa.table([found[name] for name in PARTIALS.names], schema=PARTIALS)


def _counts(groups: pa.Table) -> Mapping[str, Mapping[str, int]]:
    """Records by protocol and quality."""
    found: dict[str, dict[str, int]] = {}
    totals = groups.group_by(["protocol", "quality"]).aggregate([("records", "sum")]).to_pylist()
    for row in totals:
        found.setdefault(row["protocol"], {})[row["quality"]] = row["records_sum"]
    return found


def _progress(groups: pa.Table, settled_ms: int, watermark_ms: int) -> Progress:
    """Returns the progress that the batch brings.

    The job has read every queue up to a time: a queue with records in the batch, up to its newest; a queue without had
    none waiting when the batch was planned, and what comes later is stored later. So this time is the least of the
    newest; it never goes back.
    """
    queues = groups.group_by("queue").aggregate([("offset", "max"), ("stored_at", "max"), ("records", "sum")])
    newest_ms = pc.divide(pc.cast(queues["stored_at_max"], pa.int64()), 1000).to_pylist()
    read_to_ms = min(newest_ms, default=0)
    return Progress(
        offsets={row["queue"]: row["offset_max"] + 1 for row in queues.to_pylist()},
        watermark_ms=max(settled_ms, read_to_ms - watermark_ms),
        stored_at_ms=max(newest_ms, default=0),
        batch_records=pc.sum(queues["records_sum"]).as_py() or 0,
    )
