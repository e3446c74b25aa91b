"""Records that retention or damage has taken before a stream has read them, without Spark."""

import logging

import pytest
from typer.testing import CliRunner

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from gateway.cli.spark import app
from spark import job
from spark.errors import DataLoss
from spark.job import query
from spark.source.columns import schema_of
from spark.source.options import SourceOptions
from spark.source.readers import StreamReader
from store.api.message import Message
from tests.support.store.fake_store import serving

T0 = 1_767_225_600_000


@pytest.fixture
def served():
    """Returns a store with ten records in each of two queues."""
    with serving({"telemetry": (16,), "alarms": (17,)}) as served:
        for n in range(20):
            message = Message(address="telemetry/d", body=b"1", device="d", time_ms=T0)
            served.store.append([(16 + n % 2, message)])
        yield served


@pytest.fixture
def reads(served, monkeypatch, tmp_path):
    """Returns a function that reads a micro-batch of the telemetry job from a position on, a few records a task."""
    asked = []
    monkeypatch.setattr(job, "run", lambda options, say: asked.append(options))

    def reads(start, *words):
        ran = CliRunner().invoke(app, ["telemetry", "--target", served.target, "--output", str(tmp_path), *words])
        assert ran.exit_code == 0, ran.output
        options = SourceOptions.parse({**query._source_options(asked.pop()), "maxOffsetsPerPartition": "4"})
        reader = StreamReader(options, schema_of(("queue", "offset"), options.format))
        try:
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        finally:
            reader.stop()
        found = {}
        for row in (row for batch in batches for row in batch.to_pylist()):
            found.setdefault(row["queue"], []).append(row["offset"])
        return found, end

    return reads


def test_a_queue_that_was_not_read_before_begins_at_its_first_record(served, reads, caplog):
    """Its topic was made while the job was stopped, or is among those it reads only now, and retention is short."""
    served.store.first[17] = 6
    with caplog.at_level(logging.WARNING):
        assert reads({"16": 8}) == ({16: [8, 9], 17: [6, 7, 8, 9]}, {"16": 10, "17": 10})
    assert "queue 17 of alarms, offsets 0 to 4: only 6 to 10 are there" in caplog.messages
    served.store.first[17] = 10
    assert reads({"16": 8}) == ({16: [8, 9]}, {"16": 10, "17": 10})


def test_lost_records_end_the_job(served, reads):
    served.store.first[16] = 5
    with pytest.raises(DataLoss, match="queue 16 was to be read from offset 2 on, "):
        reads({"16": 2, "17": 10})
