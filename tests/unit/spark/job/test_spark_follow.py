"""The telemetry job's main thread while Spark ends: by a signal to all of its processes, or by itself."""

import contextlib
from types import SimpleNamespace

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from py4j.protocol import Py4JNetworkError

from spark.errors import SparkError
from spark.job import TelemetryOptions, query
from spark.job.stopping import Signals
from spark.tables.manifest import Manifest

GONE = Py4JNetworkError("Answer from Java side is empty")


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
        with contextlib.suppress(OSError):
            self._job.batch(None, 0)
        self._asked.stop.set()
        return True

    def stop(self):
        """Stops at once."""


@pytest.fixture
def follow(tmp_path, monkeypatch):
    def run(make, *job):
        asked = Signals()
        commits = SimpleNamespace(
            manifest=Manifest(job="j", buckets=1), clock_ms=0, restless=False, begin=lambda _batch: "a plan"
        )
        monkeypatch.setattr(query, "_started", lambda *given: make(asked, *([given[2]] if job else [])))
        options = TelemetryOptions(output=tmp_path, target="127.0.0.1:9", progress_s=0.0, tick_s=1e6)
        query.follow(None, options, commits, asked)

    return run


@pytest.mark.parametrize("alive", [True, False])
def test_a_signal_that_ends_spark_too_ends_the_job_in_order(follow, alive):
    follow(lambda asked: GoneQuery(asked, signalled=True, alive=alive))
    follow(lambda asked: FailedQuery(asked, "Job aborted: SparkContext was shut down"))


def test_a_spark_that_ends_by_itself_is_a_sentence(follow):
    with pytest.raises(SparkError, match="Java process has ended: start the job again"):
        follow(lambda asked: GoneQuery(asked, signalled=False, alive=False))
    with pytest.raises(SparkError, match="the telemetry query failed: no space"):
        follow(lambda asked: FailedQuery(asked, "no space"))


def test_a_batch_that_fails_while_the_job_is_stopped_is_told(follow, monkeypatch):
    def fails(*_):
        raise OSError("no space is left")

    monkeypatch.setattr(query._Job, "_spread", fails)
    with pytest.raises(SparkError, match="the telemetry query failed: no space is left"):
        follow(StoppedQuery, "job")
