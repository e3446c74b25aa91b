"""The telemetry job's main thread while Spark ends: by a signal to all of its processes, or by itself."""

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


@pytest.fixture
def follow(tmp_path, monkeypatch):
    def run(make):
        asked = Signals()
        commits = SimpleNamespace(manifest=Manifest(job="j", buckets=1), clock_ms=0, restless=False)
        monkeypatch.setattr(query, "_started", lambda *_: make(asked))
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
