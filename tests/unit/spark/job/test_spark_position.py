"""The position in the log behind each batch: a checkpoint that was set back is refused, and loses no record."""

import json

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

from spark.errors import OutputMismatch
from spark.job import position
from spark.job.options import TelemetryOptions
from spark.job.query import _Job
from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location
from spark.tables.manifest import JobProgress
from tests.support.spark.job_kit import Record, do_tick, worked

T0 = 1_767_225_600_000
LOG = [Record("d", T0 + n * 1_000, n, {"a": 1.0}) for n in range(40)]


class Driver:
    """The job with a checkpoint that is written as Spark writes it, over the records of one queue."""

    def __init__(self, tmp_path) -> None:
        self.checkpoint = tmp_path / "checkpoint"
        place = Location.of(tmp_path / "out")
        settings = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=1)
        self.commits = Commits.open(place, self.checkpoint, settings)
        options = TelemetryOptions(output=tmp_path / "out", checkpoint=self.checkpoint)
        self._job = _Job(None, self.commits, options, None)
        self._job._spread = worked_alone
        (self.checkpoint / "offsets").mkdir()

    def batch(self, number: int, start: int, end: int) -> None:
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'16': end})}")
        self._job.batch(LOG[start:end], number)

    @property
    def counted(self) -> int:
        return self.commits.manifest.progress.records


def worked_alone(plan, records):
    return worked(plan, 1, records)


@pytest.fixture
def driver(tmp_path):
    made = Driver(tmp_path)
    yield made
    made.commits.close()


def test_a_batch_that_is_planned_anew_is_refused(driver):
    """The checkpoint has lost the last batch: Spark plans it up to the log's present end."""
    driver.batch(0, 0, 10)
    driver.batch(1, 10, 20)
    do_tick(driver.commits, T0 + 25_000)
    with pytest.raises(OutputMismatch, match=r"its batch 1 ends at other records .* as it was after batch 1"):
        driver.batch(1, 10, 30)
    with pytest.raises(OutputMismatch, match="its batch 1 ends at other records"):
        driver.batch(2, 30, 40)
    driver.batch(1, 10, 20)  # as it was
    driver.batch(2, 20, 40)
    assert driver.counted == 40


def test_a_batch_of_a_checkpoint_that_is_older_by_several_is_refused(driver):
    for number in range(3):
        driver.batch(number, number * 10, number * 10 + 10)
    driver.batch(1, 10, 20)  # a batch that is repeated as it was
    driver.batch(1, 10, 25)  # the tables have these records
    with pytest.raises(OutputMismatch, match="its batch 1 ends at other records"):
        driver.batch(1, 10, 31)
    assert driver.counted == 30


@pytest.mark.parametrize("counted", [None, {16: 20, 17: 0}])
def test_positions_that_are_not_known_are_not_compared(tmp_path, counted):
    """An older version has noted none, and tables may be older than the batches that Spark keeps."""
    progress = JobProgress(batch=1, position=counted)
    position.check_position(tmp_path, 2, progress)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "1").write_text('v1\n{}\n{"16": 20, "17": 0}')
    position.check_position(tmp_path, 2, progress)


def test_a_queue_that_the_tables_do_not_know_has_nothing_that_they_have(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"16": 20, "17": 1}')
    with pytest.raises(OutputMismatch):
        position.check_position(tmp_path, 0, JobProgress(batch=1, position={16: 20}))


def test_the_position_is_durable_before_the_tables_have_the_batch(driver, monkeypatch):
    steps = []
    monkeypatch.setattr(position, "sync", lambda path: steps.append(path.name))
    commit = driver.commits.commit
    monkeypatch.setattr(driver.commits, "commit", lambda *a, **k: (steps.append("commit"), commit(*a, **k)))
    driver.batch(0, 0, 10)
    assert steps == ["0", "offsets", "checkpoint", "commit"]
