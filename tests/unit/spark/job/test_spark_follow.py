"""The telemetry job's main thread while Spark ends: by a signal to all of its processes, or by itself."""

import contextlib
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from spark.errors import DiskFull, SparkError
from spark.job import TelemetryOptions, query, stopping
from spark.job.stopping import Signals
from spark.tables.manifest import Manifest

GONE = Py4JNetworkError("Answer from Java side is empty")
CRASHED = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times: Python worker exited unexpectedly"
WAITS = "import signal; signal.pause()"
LEFT = "ended: Spark was stopped by the same signal; a batch that it interrupted is done again at the next start"


class GoneQuery:
    """A query whose Java process ends: before a question, or while the query is stopped."""

    def __init__(self, asked, *, signalled, alive):
        self._asked, self._signalled, self._alive = asked, signalled, alive

    @property
    def isActive(self):  # noqa: N802  # Spark's name
        if self._signalled:
            self._asked.stop.set()
        if self._alive:
            return True
        raise GONE

    def stop(self):
        raise GONE


class FailedQuery:
    """A query that has failed as Spark stopped, with a signal."""

    isActive = False  # noqa: N815

    def __init__(self, asked, why):
        self._asked, self._why = asked, why

    def exception(self):
        self._asked.stop.set()
        return Exception(self._why)


class StoppedQuery:
    """A query that is asked to stop while a batch is in progress, which fails."""

    def __init__(self, asked, job):
        self._asked, self._job = asked, job

    @property
    def isActive(self):  # noqa: N802
        with contextlib.suppress(OSError, SparkError, PySparkException):
            self._job.batch(None, 0)
        self._asked.stop.set()
        return True

    def stop(self):
        """Stops at once."""


@pytest.fixture
def java():
    """Returns how to make a process that stands for Spark's Java, ended by a signal or, with None, alive."""
    made = []

    def make(number):
        made.append(subprocess.Popen([sys.executable, "-c", WAITS]))
        if number is not None:
            made[-1].send_signal(number)
            made[-1].wait()
        return made[-1]

    yield make
    for one in made:
        one.kill()
        one.wait()


@pytest.fixture
def follow(tmp_path, monkeypatch, java):
    """Returns how to follow a query with a Java that a signal has ended, or that lives; it returns the lines said."""

    def run(make, *job, ended_by=signal.SIGTERM, pending=None, tick_s=1e6):
        asked, said = Signals(), []
        commits = SimpleNamespace(
            manifest=Manifest(job="j", buckets=1, pending_tick=pending),
            clock_ms=0,
            restless=False,
            begin=lambda _batch: "a plan",
            begin_tick=lambda _clock_ms: "a plan",
            commit=lambda *_, **__: None,
        )
        monkeypatch.setattr(query, "_started", lambda *given: make(asked, *([given[2]] if job else [])))
        if ended_by is None:
            monkeypatch.setattr(stopping, "JAVA_ENDS_S", 0.05)
        session = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=java(ended_by))))
        options = TelemetryOptions(output=tmp_path, target="127.0.0.1:9", progress_s=0.0, tick_s=tick_s)
        query.follow(session, options, commits, asked, said.append)
        return said

    return run


def spread_fails(monkeypatch, failure):
    """Makes the work on buckets fail, in a batch or a tick."""

    def fails(*_):
        raise failure

    monkeypatch.setattr(query._Job, "_spread", fails)


@pytest.mark.parametrize("alive", [True, False])
def test_a_signal_that_ends_spark_too_ends_the_job_in_order(follow, alive):
    assert follow(lambda asked: GoneQuery(asked, signalled=True, alive=alive)) == [LEFT]
    assert follow(lambda asked: FailedQuery(asked, "Job aborted: SparkContext was shut down")) == [LEFT]
    assert follow(lambda asked: FailedQuery(asked, CRASHED)) == [LEFT]


def test_a_spark_that_ends_by_itself_is_a_sentence(follow):
    with pytest.raises(SparkError, match="Java process has ended: start the job again"):
        follow(lambda asked: GoneQuery(asked, signalled=False, alive=False))
    with pytest.raises(SparkError, match="the telemetry query failed: no space"):
        follow(lambda asked: FailedQuery(asked, "no space"))


def test_a_java_that_the_system_kills_behind_a_signal_is_a_sentence(follow):
    with pytest.raises(SparkError, match="Java process has ended: start the job again"):
        follow(lambda asked: GoneQuery(asked, signalled=True, alive=True), ended_by=signal.SIGKILL)


@pytest.mark.parametrize("ended_by", [None, signal.SIGKILL])
def test_a_worker_that_crashes_behind_a_signal_is_told(follow, monkeypatch, ended_by):
    with pytest.raises(SparkError, match=r"the telemetry query failed: .*Python worker exited"):
        follow(lambda asked: FailedQuery(asked, CRASHED), ended_by=ended_by)
    spread_fails(monkeypatch, PySparkException(CRASHED))
    with pytest.raises(SparkError, match=r"the telemetry query failed: .*Python worker exited"):
        follow(StoppedQuery, "job", ended_by=ended_by)


def test_a_worker_that_the_signal_ends_in_the_last_batch_is_no_failure(follow, monkeypatch):
    spread_fails(monkeypatch, PySparkException(CRASHED))
    assert follow(StoppedQuery, "job") == [LEFT]


@pytest.mark.parametrize("ended_by", [None, signal.SIGTERM])
def test_a_batch_that_fails_while_the_job_is_stopped_is_told(follow, monkeypatch, ended_by):
    spread_fails(monkeypatch, OSError("no space is left"))
    with pytest.raises(SparkError, match="the telemetry query failed: no space is left"):
        follow(StoppedQuery, "job", ended_by=ended_by)


def test_a_batch_that_failed_before_java_was_gone_is_told(follow, monkeypatch):
    class Stopped(StoppedQuery):
        def stop(self):
            raise GONE

    spread_fails(monkeypatch, DiskFull("/tables"))
    with pytest.raises(SparkError, match="the disk of /tables is full"):
        follow(Stopped, "job")


@pytest.mark.parametrize(("ended_by", "told"), [(signal.SIGTERM, False), (None, True)])
def test_an_interrupted_pass_that_a_signal_stops_at_the_start(follow, monkeypatch, ended_by, told):
    def fails(job, *_):
        job.judge._asked.stop.set()
        raise PySparkException(CRASHED)

    monkeypatch.setattr(query._Job, "_spread", fails)
    if told:
        with pytest.raises(SparkError, match=r"the telemetry job failed: .*Python worker exited"):
            follow(None, pending=1, ended_by=ended_by)
    else:
        assert follow(None, pending=1, ended_by=ended_by) == [LEFT]


@pytest.mark.parametrize(("ended_by", "told"), [(signal.SIGTERM, False), (None, True)])
def test_a_tick_that_a_signal_stops(follow, monkeypatch, ended_by, told):
    def resting(_asked):
        return SimpleNamespace(isActive=True)  # which has nothing to read

    def fails(job, *_):
        job.judge._asked.stop.set()
        raise PySparkException("Cannot call methods on a stopped SparkContext")

    monkeypatch.setattr(query._Job, "_spread", fails)
    monkeypatch.setattr(query.LogEndCheck, "reached", lambda *_: True)
    monkeypatch.setattr(query.IdleTime, "look", lambda *_, **__: 1_000)
    if told:
        with pytest.raises(SparkError, match="the telemetry job failed: Cannot call methods"):
            follow(resting, ended_by=ended_by, tick_s=0.1)
    else:
        assert follow(resting, ended_by=ended_by, tick_s=0.1) == [LEFT]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_java_that_has_started_the_job_is_asked_for_its_context(monkeypatch, stopped):
    """`spark-submit` has a process that is not this one's child."""
    monkeypatch.setattr(stopping, "JAVA_ENDS_S", 0.05)
    context = SimpleNamespace(isStopped=lambda: stopped)
    spark = SimpleNamespace(_gateway=SimpleNamespace(proc=None), _jsc=SimpleNamespace(sc=lambda: context))
    asked = Signals()
    asked.stop.set()
    judge = stopping.FailureJudge(SimpleNamespace(sparkContext=spark), asked, "/tables")
    found = judge.error_of("the telemetry job failed", PySparkException(CRASHED))
    assert isinstance(found, stopping.StoppedBySignal if stopped else SparkError)
