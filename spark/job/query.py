"""The telemetry job: the log to tables, each record counted once.

    log -> data source (samples, quality) -> shuffle by device -> `spark.job.bucket` on executors -> `Commits`

One streaming query, with Spark's checkpoint for its position in the log, calls `_Job.batch` for every micro-batch
(`foreachBatch`). The records are spread over buckets by their device's hash; each bucket's task has the state of the
batch before, writes the new state and the files of the tables, and answers with their names. The driver commits them
(`spark.tables.commits`). A batch that Spark repeats after a crash gives the same rows, and tables that have them
committed already are skipped. Why so: `docs/decisions/0039-delta-tables.md`.

**Watermark.** A record counts in the window of its own time (`time`). The watermark is the time up to which every queue
has been read, less `watermark_s`: a window that ends before it is settled. A record that is stored later than that is
`late` (`spark.telemetry.lateness`): its window is opened again and corrected, for as long as `late_s` says.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everywhere in Spark
from pyspark.sql.streaming.query import StreamingQuery

from spark.decode.rules import DecodeRules, load_rules
from spark.errors import SparkError
from spark.findings.publishing import FINDINGS_MAX, FileOutcome, Publishing
from spark.job.bucket import RECORD_COLUMNS
from spark.job.idle import IdleTime, LogEndCheck
from spark.job.options import TelemetryOptions
from spark.job.position import check_position, position_of, sync_position
from spark.job.progress import ProgressLines, progress_line
from spark.job.session import build_session, find_java_home
from spark.job.stopping import FailureJudge, Interrupted, Signals, StoppedBySignal, quiet
from spark.job.tasks import BucketTask, PublishTask
from spark.publishing.client import trusting
from spark.source.options import SourceOptions
from spark.source.readers import credentials_of
from spark.tables.commits import Commits
from spark.tables.files import now_ms
from spark.tables.reports import BucketReport, PassPlan
from spark.tables.settings import CommitSettings

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
CLOCKS_MS = 5_000  # by which the clocks of the store and of `--once` may differ
RESTING_TICK_S = 60.0  # while no window is open and no device sends anything
_BUSY_S = 10.0  # that a batch takes before a line tells of it
_ATTEMPTS = 30
_PAUSE_S_MAX = 10.0  # before the next attempt
_ABANDONED = "ended: Spark was stopped by the same signal; a batch that it interrupted is done again at the next start"
_QUERY_FAILED = "the telemetry query failed"
_OVERLOADED = "Python worker failed to connect back"  # within Spark's 10 s, on a machine that is too busy for that


def run_telemetry(options: TelemetryOptions, say: Callable[[str], None] | None) -> None:
    """Runs the telemetry job, as `spark.job.run` says."""
    find_java_home()  # a missing JDK and wrong options, a file of rules among them, are reported before any write
    credentials_of(SourceOptions.parse(_source_options(options)))
    trusting(options.gateway_ca_file)
    commits = Commits.open(options.place, options.checkpoint_dir, settings_of(options))
    try:
        if say is not None:
            counted = commits.manifest.progress.records
            say(f"tables in {options.place.url}, {counted:,} records counted so far; reads {options.target}")
            if (buckets := commits.manifest.buckets) != options.buckets:
                say(f"the state has {buckets} buckets, as when it was begun; {options.buckets} are for another output")
        local = options.place.local
        scratch = (local if local is not None else options.checkpoint_dir) / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)  # left by a killed job
        with Signals() as asked:
            session = _session(options, scratch, asked)
            if session is None:
                _say(say, "ended: asked to stop before Spark had started; no batch was begun")
                return
            with quiet(asked, session):
                try:
                    follow(session, options, commits, asked, say)
                finally:
                    with suppress(PySparkException, Py4JError, ConnectionError):  # it is gone already
                        session.stop()
    finally:
        commits.close()


def _session(options: TelemetryOptions, scratch: Path, asked: Signals) -> SparkSession | None:
    """Returns the job's session; None where a signal came before it was there. Raises `SparkError`."""
    try:
        with asked.interrupting():
            return build_session(
                "headgate telemetry",
                cores=options.cores,
                shuffle_partitions=options.buckets,
                driver_memory=options.driver_memory,
                local_dir=scratch,
                master=options.master,
                settings={"spark.sql.adaptive.enabled": "false"},  # streams do without, and say so in a warning
                log_level="WARN" if options.master else "FATAL",  # errors here are told by `job_error`
            )
    except Interrupted:
        return None
    except SparkError:
        if asked.stop.is_set():  # the signal has ended Java, too
            return None
        raise


def _say(say: Callable[[str], None] | None, line: str) -> None:
    if say is not None:
        say(line)


def settings_of(options: TelemetryOptions) -> CommitSettings:
    """Returns the options that commits need."""
    return CommitSettings(
        watermark_ms=round(options.watermark_s * 1000),
        late_ms=round(options.late_s * 1000),
        session_ms=round(options.session_s * 1000),
        buckets=options.buckets,
        history_h=options.history_h,
        devices_max=options.devices_max,
        series_max=options.series_max,
        metrics_max=options.metrics_max,
        forget_ms=round(options.forget_s * 1000),
        samples=options.samples,
        rules=_rules_of(options),
        findings=options.findings is not None,
    )


def follow(
    session: SparkSession,
    options: TelemetryOptions,
    commits: Commits,
    asked: Signals,
    say: Callable[[str], None] | None = None,
) -> None:
    """Counts the log into the tables until there is no more (`once`) or `asked` to stop. Raises `SparkError`.

    A signal to all processes of a service ends Spark, too: the interrupted batch is finished at the next start.
    """
    judge = FailureJudge(session, asked, disks_of(options))
    job = _Job(session, commits, options, judge)
    try:
        try:
            _follow(job, options, commits, asked, say)
        except (PySparkException, Py4JError, ConnectionError) as error:
            raise judge.error_of("the telemetry job failed", job.failure or error) from error
    except StoppedBySignal:
        _say(say, _ABANDONED)


def _follow(
    job: "_Job",
    options: TelemetryOptions,
    commits: Commits,
    asked: Signals,
    say: Callable[[str], None] | None,
) -> None:
    job.finish()
    with _Ticker(job, commits, options) as ticker:
        reporter = _Reporter(job, commits, ticker.log_end, options, say)
        started_ms = now_ms()
        for attempt in range(1, _ATTEMPTS + 1):
            query = _started(job.session, options, job)
            ticker.begin()
            while query.isActive and not asked.stop.wait(_POLL_S):
                reporter.look()
                if not options.once:
                    ticker.look()
            if query.isActive:
                with job.ended(asked):
                    query.stop()
                reporter.end()
                return
            failure = query.exception()
            if failure is None:
                break
            if asked.stop.is_set() or attempt == _ATTEMPTS or _OVERLOADED not in str(failure):
                raise job.judge.error_of(_QUERY_FAILED, failure) from failure
            job.failure = None
            asked.stop.wait(min(attempt, _PAUSE_S_MAX))
        if options.once:
            job.tick(started_ms - CLOCKS_MS)  # all that was stored before is read
        reporter.end()


def disks_of(options: TelemetryOptions) -> str:
    """Returns the places that the job writes to, for people."""
    url, checkpoint = options.place.url, str(options.checkpoint_dir)
    return url if checkpoint.startswith(f"{url}/") else f"{url} or that of its checkpoint {checkpoint}"


def _started(session: SparkSession, options: TelemetryOptions, job: "_Job") -> StreamingQuery:
    """Starts the query; it goes on where its checkpoint says."""
    log = session.readStream.format("headgate").options(**_source_options(options)).load()
    writer = log.writeStream.queryName("telemetry").foreachBatch(job.batch)
    writer = writer.option("checkpointLocation", str(options.checkpoint_dir))
    trigger: dict[str, Any] = (
        {"availableNow": True}
        if options.once
        else {"processingTime": f"{round(options.trigger_s * 1000)} milliseconds"}
    )
    return writer.trigger(**trigger).start()


def _source_options(options: TelemetryOptions) -> dict[str, str]:
    return {
        "target": options.target,
        "topic": ",".join(options.topics),
        "columns": ",".join(RECORD_COLUMNS),
        "startingOffsets": options.starting_offsets,
        "maxRecordsPerTrigger": str(options.records_max),
        "maxBytesPerTrigger": str(options.bytes_max),
        "retrySeconds": str(options.retry_s),
        "rules": _rules_of(options),
        "caFile": str(options.ca_file or ""),
        "certFile": str(options.cert_file or ""),
        "keyFile": str(options.key_file or ""),
    }


def _rules_of(options: TelemetryOptions) -> str:
    rules = DecodeRules() if options.rules is None else load_rules(options.rules)
    return rules.encode()


def publishing_of(options: TelemetryOptions) -> Publishing:
    """Returns the gateway of the findings of now, which the options must name."""
    assert options.findings is not None
    return Publishing(
        url=options.findings,
        retry_s=options.retry_s,
        since_ms=now_ms() - round(options.findings_age_s * 1000),
        authority=options.gateway_ca_file,
    )


class _Ticker:
    """Lets time go on in the tables while nothing comes; each look costs two calls of the store."""

    def __init__(self, job: "_Job", commits: Commits, options: TelemetryOptions) -> None:
        self._job, self._commits, self._tick_s = job, commits, options.tick_s
        credentials = credentials_of(SourceOptions.parse(_source_options(options)))
        self.log_end = LogEndCheck(options.target, options.topics, options.checkpoint_dir, credentials)
        self.begin()

    def begin(self) -> None:
        """Resets the state for a query that has just been started."""
        self._time = IdleTime()
        self._next_s = time.monotonic() + self._tick_s

    def __enter__(self) -> "_Ticker":
        return self

    def __exit__(self, *_: object) -> None:
        self.log_end.close()

    def look(self) -> None:
        """Ticks, if that is due and every queue has been read to its end. Raises `SparkError`."""
        if (now_s := time.monotonic()) < self._next_s:
            return
        idle = self.log_end.reached(self._commits.manifest.progress.batch)
        clock_ms = self._time.look(time.monotonic(), idle=idle, known_ms=self._commits.clock_ms)
        if clock_ms is not None and self._job.tick(clock_ms) and not self._commits.restless:
            self._next_s = now_s + max(self._tick_s, RESTING_TICK_S)
        else:
            self._next_s = now_s + self._tick_s


class _Reporter:
    """Tells how the job goes on; each look costs two calls of the store. Silent without `say`."""

    def __init__(
        self,
        job: "_Job",
        commits: Commits,
        log_end: LogEndCheck,
        options: TelemetryOptions,
        say: Callable[[str], None] | None,
    ) -> None:
        self._job, self._commits, self._log_end = job, commits, log_end
        self._say = say if options.progress_s > 0 else None
        self._lines = ProgressLines(options.progress_s, time.monotonic(), commits.manifest)
        self._began_s, self._began_with = time.monotonic(), commits.manifest.progress.records

    def look(self) -> None:
        """Says a line when that is due and there is something to tell. Raises `SparkError`."""
        now_s = time.monotonic()
        if self._say is None or not self._lines.due(now_s):
            return
        manifest = self._commits.manifest
        line = self._lines.look(now_s, manifest, self._log_end.unread(manifest.progress.batch), self._job.stage(now_s))
        if line is not None:
            self._say(line)

    def end(self) -> None:
        """Reports the final counts, and the rate of the whole run."""
        if self._say is not None:
            manifest = self._commits.manifest
            rate = (manifest.progress.records - self._began_with) / max(time.monotonic() - self._began_s, 1e-3)
            self._say(f"ended: {progress_line(manifest, self._log_end.unread(manifest.progress.batch), rate)}")


class _Job:
    """The work on one micro-batch."""

    def __init__(self, session: SparkSession, commits: Commits, options: TelemetryOptions, judge: FailureJudge) -> None:
        self.session, self.judge = session, judge
        self._commits = commits
        self._options = options
        self._idle = threading.Lock()  # held while a batch is in progress
        self._stage: tuple[str, float] | None = None  # of a batch: in words, and since when
        self._ending = False
        self.failure: BaseException | None = None  # of the last batch

    @contextmanager
    def ended(self, asked: Signals) -> Iterator[None]:
        """Ends the batches, unless a second signal cuts the wait short. Raises `SparkError` if the last one failed."""
        while not (held := self._idle.acquire(timeout=_POLL_S)) and not asked.now:
            pass
        self._ending = True
        try:
            yield
        finally:
            if held:
                self._idle.release()
        failed = self.failure
        if failed is not None and not asked.now:
            raise self.judge.error_of(_QUERY_FAILED, failed) from failed

    def batch(self, records: DataFrame, batch: int) -> None:
        """Counts a micro-batch and commits it, unless it was."""
        with self._idle:
            if self._ending:
                raise SparkError(f"batch {batch} is left for the next start")
            self.failure = None
            try:
                self._finish()
                began_ms, checkpoint = now_ms(), self._options.checkpoint_dir
                check_position(checkpoint, batch, self._commits.manifest.progress)
                if (plan := self._commits.begin(batch)) is None:
                    return
                self._stage = (f"the records of batch {batch} are read and counted", time.monotonic())
                reports = self._spread(plan, records)
                self._stage = (f"batch {batch} is committed to the tables", time.monotonic())
                sync_position(checkpoint, batch)
                position = position_of(checkpoint, batch)
                self._commits.commit(plan, reports, batch=batch, began_ms=began_ms, position=position)
                self._stage = (f"the findings of batch {batch} are published", time.monotonic())
                self._publish()
            except BaseException as error:
                self.failure = error
                raise
            finally:
                self._stage = None

    def stage(self, now_s: float) -> str:
        """Returns the step that a batch has been in for long; empty where none has."""
        held = self._stage
        if held is None or now_s - held[1] < _BUSY_S:
            return ""
        return f"{held[0]}, for {now_s - held[1]:.0f} s until now"

    def tick(self, clock_ms: int) -> bool:
        """Settles windows up to a time by the store's clock, and finds silent devices; returns whether it could.

        It cannot while a batch is in progress, or half committed. Raises `SparkError`.
        """
        if not self._idle.acquire(blocking=False):
            return False
        try:
            self._finish()
            return self._tick(clock_ms)
        except PySparkException as error:
            if _OVERLOADED in str(error):
                return False  # it is finished before anything else is done
            raise self.judge.error_of("the telemetry job failed", error) from error
        finally:
            self._idle.release()

    def finish(self) -> None:
        """Finishes an interrupted pass, before any batch. Raises `SparkError`, and what Spark raises."""
        self._finish()

    def _finish(self) -> None:
        if self._commits.manifest.pending_tick is not None:
            self._tick(0)
        self._publish()

    def _tick(self, clock_ms: int) -> bool:
        if (plan := self._commits.begin_tick(clock_ms)) is None:
            return False
        self._commits.commit(plan, self._spread(plan, None), batch=None, began_ms=now_ms())
        self._publish()
        return True

    def _publish(self) -> None:
        """Publishes the findings of the last pass, by the executors, and notes it."""
        unpublished = self._commits.manifest.unpublished
        if not unpublished:
            return
        if self._options.findings is not None:
            task = PublishTask(self._commits.place, unpublished, publishing_of(self._options))
            tasks = self.session.range(0, len(unpublished), 1, len(unpublished))
            rows = tasks.mapInArrow(task, "report binary").toArrow()
            for data in rows["report"].to_pylist():
                _warn_of(msgspec.msgpack.decode(data, type=FileOutcome))
        self._commits.findings_published()

    def _spread(self, plan: PassPlan, records: DataFrame | None) -> list[BucketReport]:
        """Runs the work on every bucket in the executors."""
        buckets = self._commits.manifest.buckets
        if records is None:
            spread = self.session.range(0, buckets, 1, buckets)
        else:
            spread = records.select(*RECORD_COLUMNS).repartition(buckets, F.col("device"))
        work = BucketTask(plan, timed=records is None)
        rows = spread.mapInArrow(work, "report binary").toArrow()
        return [BucketReport.decode(data) for data in rows["report"].to_pylist()]


def _warn_of(outcome: FileOutcome) -> None:
    """Says which findings are in the table alone."""
    if outcome.surplus:
        _LOG.warning("%d findings of a batch are in the table only: more than %d", outcome.surplus, FINDINGS_MAX)
    if outcome.old:
        _LOG.info("%d findings are in the table only: they are older than findings_age_s", outcome.old)
    if outcome.refused:
        _LOG.warning("%d findings are in the table only: the gateway %s", outcome.refused, outcome.why)
