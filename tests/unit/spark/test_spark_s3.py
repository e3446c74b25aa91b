"""Tables in an S3-compatible store: moto's server, over real sockets."""

import datetime

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("moto.server")

from spark.errors import OutputBusy, OutputMismatch, SparkError  # noqa: E402
from spark.job import maintenance  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown  # noqa: E402
from tests.support.spark.object_store import bucket  # noqa: E402

pytestmark = pytest.mark.slow

EARLY, LATE = datetime.date(2025, 1, 1), datetime.date(2030, 1, 1)
T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=1, samples=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Yields the options of a store with a bucket called `fleet`."""
    with bucket("fleet", tmp_path_factory.mktemp("moto") / "log") as options:
        yield options


def records(count: int, first: int = 0) -> list[Record]:
    return [Record(f"d{n % 3}", T0 + n * 20_000, n, {"a": float(n)}) for n in range(first, first + count)]


def plain(place: Location, name: str) -> "pa.Table":
    return deltalake.DeltaTable(place.child(name), storage_options=dict(place.options)).to_pyarrow_table()


def test_a_job_goes_on_in_a_bucket_after_it_was_stopped(store, tmp_path):
    place, checkpoint = Location.of("s3://fleet/one", store), tmp_path / "checkpoint"
    for batch in range(2):
        commits = Commits.open(place, checkpoint, SETTINGS)
        do_batch(commits, batch, records(30, 30 * batch))
        do_tick(commits)
        commits.close()
    late = [Record("d0", T0 + 1_000, 60, {"a": 500.0}, T0 + 22 * MINUTE_MS)]  # a settled file gives way
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 2, late)
    assert commits.begin(2) is None
    commits.close()
    everything = [*records(60), *late]
    assert shown(plain(place, "windows_1m")) == shown(Tables(place.url, store).windows()) == naive(everything)
    assert plain(place, "samples").num_rows == 61
    assert maintenance.expire(place, days=30) > 0
    assert not any(plain(place, "windows_1m")["settled"].to_pylist())
    assert len(place.files("state")) == SETTINGS.buckets


def test_the_dashboard_and_workers_of_spark_read_the_bucket(store, tmp_path):
    """The source of `headgate spark sql` alone: with Spark it is in `tests/interop/spark`."""
    pytest.importorskip("pyspark")
    from pyspark.sql.datasource import EqualTo, GreaterThan, In

    from spark.dashboard.queries.reading import TelemetryTables
    from spark.shell.table_source import TableReader

    place = Location.of("s3://fleet/shown", store)
    commits = Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    for batch in range(2):
        do_batch(commits, batch, records(30, 30 * batch))
    version = commits.manifest.versions["windows_1m"]
    commits.close()
    with TelemetryTables(place.url, store).read() as reading:
        assert {row["device"] for row in reading.rows("SELECT device FROM latest")} == {"d0", "d1", "d2"}
    whole = plain(place, "windows_1m")
    for filters, devices in (
        ([], {"d0", "d1", "d2"}),
        ([EqualTo(("device",), "d1"), GreaterThan(("count",), 10**9), EqualTo(("start",), None)], {"d1"}),
        ([In(("device",), ("d0", "d2", "x")), GreaterThan(("day",), EARLY)], {"d0", "d2"}),
        ([EqualTo(("device",), "nobody")], set()),
        ([GreaterThan(("day",), LATE)], set()),  # no file may have such a row
    ):
        reader = TableReader(place, "windows_1m", version)
        assert list(reader.pushFilters(filters)) == filters, "Spark looks at every row again"
        assert reader.partitions(), "Spark makes one up where there is none"
        batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
        found = pa.Table.from_batches(batches, whole.schema if not batches else None)
        assert set(found["device"].to_pylist()) == devices
        if not filters:
            assert shown(found) == shown(whole)


def test_a_second_job_in_the_bucket_is_found_by_its_commit(store, tmp_path):
    """An object store has no lock; what the second one tries to commit is there already."""
    place = Location.of("s3://fleet/two", store)
    first, second = (Commits.open(place, tmp_path / "checkpoint", SETTINGS) for _ in range(2))
    do_batch(first, 0, records(10))
    with pytest.raises(OutputBusy, match="another job is writing to s3://fleet/two"):
        do_batch(second, 0, records(10))
    do_batch(first, 1, records(10, 10))
    assert shown(plain(place, "windows_1m")) == naive(records(20))
    with pytest.raises(OutputMismatch, match="another checkpoint"):
        Commits.open(place, tmp_path / "other", SETTINGS)


@pytest.mark.parametrize("wrong", [{"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://nobody/one"])
def test_a_store_that_does_not_answer_is_a_sentence(store, tmp_path, wrong, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    place = Location.of("s3://fleet/three", store | wrong) if isinstance(wrong, dict) else Location.of(wrong, store)
    with pytest.raises(SparkError, match="cannot be") as refused:
        Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    assert "\n" not in str(refused.value)
