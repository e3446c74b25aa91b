"""A job that is asked to stop: before Spark is there, and while Spark ends by the same signal."""

import logging
import os
import signal
from types import SimpleNamespace

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from spark.errors import SparkError
from spark.job import TelemetryOptions, query
from spark.job.stopping import Interrupted, Signals, quiet

EARLY = "ended: asked to stop before Spark had started; no batch was begun"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("java_says", ["nothing", "it has ended"])
def test_a_signal_while_spark_starts_ends_the_job_with_a_sentence(tmp_path, monkeypatch, number, java_says):
    def start(*_words, **_options):
        try:
            os.kill(os.getpid(), number)
            pytest.fail("the start goes on")
        except Interrupted:
            if java_says == "nothing":
                raise
            raise SparkError("Spark does not start") from None

    before, said = signal.getsignal(number), []
    monkeypatch.setattr(query, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(query, "build_session", start)
    query.run_telemetry(TelemetryOptions(output=tmp_path / "out"), said.append)
    assert said[1:] == [EARLY]
    assert signal.getsignal(number) is before


def test_another_number_of_buckets_at_a_later_start_is_told(tmp_path, monkeypatch):
    def start(*_words, **_options):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the start goes on")

    monkeypatch.setattr(query, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(query, "build_session", start)
    said = []
    for buckets in (3, 8, 3):
        said.append([])
        query.run_telemetry(TelemetryOptions(output=tmp_path / "out", buckets=buckets), said[-1].append)
    told = ["the state has 3 buckets, as when it was begun; 8 are for another output"]
    assert [lines[1:] for lines in said] == [[EARLY], [*told, EARLY], [EARLY]]


def test_a_spark_that_does_not_start_by_itself_is_an_error(tmp_path, monkeypatch):
    def start(*_words, **_options):
        raise SparkError("Spark does not start")

    monkeypatch.setattr(query, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(query, "build_session", start)
    with pytest.raises(SparkError, match="Spark does not start"):
        query.run_telemetry(TelemetryOptions(output=tmp_path / "out"), None)


def test_a_signal_is_noted_where_it_interrupts_nothing():
    with Signals() as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert (asked.stop.is_set(), asked.now) == (True, False)
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.now


def test_py4j_is_quiet_once_the_job_was_asked_to_stop(caplog):
    printed, asked = [], Signals()
    server = SimpleNamespace(handle_error=lambda *request: printed.append(request))
    session = SimpleNamespace(sparkContext=SimpleNamespace(_accumulatorServer=server))

    def log(path):
        for name in (None, "py4j.clientserver"):
            logger = logging.getLogger(name)
            logger.handle(logger.makeRecord(logger.name, logging.ERROR, path, 1, path, (), None))

    with quiet(asked, session):
        log("/lib/py4j/clientserver.py")
        server.handle_error("before")
        asked.stop.set()
        log("/lib/py4j/java_gateway.py")
        log("/lib/spark/job/query.py")
        server.handle_error("after")
    log("/lib/py4j/later.py")
    assert printed == [("before",)]
    kept = ["/lib/py4j/clientserver.py", "/lib/spark/job/query.py", "/lib/py4j/later.py"]
    assert [record.getMessage() for record in caplog.records] == [path for path in kept for _ in range(2)]
