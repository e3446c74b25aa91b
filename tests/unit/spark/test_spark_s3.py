"""Tables in an S3-compatible store: moto's server, over real sockets."""

import datetime
import shutil

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
pytest.importorskip("moto.server")

from spark.errors import OutputBusy, OutputMismatch, SparkError  # noqa: E402
from spark.job import maintenance  # noqa: E402
from spark.tables import commits as commits_module  # noqa: E402
from spark.tables import state  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location, now_ms  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown, worked  # noqa: E402
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
    """With a copy of the checkpoint on another machine, where the lock of the first is not seen."""
    place = Location.of("s3://fleet/two", store)
    first = Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    with pytest.raises(OutputBusy, match="another job is writing to s3://fleet/two"):
        Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    second = Commits.open(place, tmp_path / "copy", SETTINGS)
    do_batch(first, 0, records(10))
    with pytest.raises(OutputBusy, match="another job is writing to s3://fleet/two"):
        do_batch(second, 0, records(10))
    do_batch(first, 1, records(10, 10))
    assert shown(plain(place, "windows_1m")) == naive(records(20))
    with pytest.raises(OutputMismatch, match="another checkpoint"):
        Commits.open(place, tmp_path / "other", SETTINGS)


def test_a_second_start_in_the_bucket_destroys_nothing_of_a_batch_in_progress(store, tmp_path):
    """It removed the states that the executors had written, and "state/... is gone" was the end of every start."""
    place, checkpoint = Location.of("s3://fleet/twice", store), tmp_path / "checkpoint"
    first = Commits.open(place, checkpoint, SETTINGS)
    do_batch(first, 0, records(10))
    plan = first.begin(1)
    reports = worked(plan, SETTINGS.buckets, records(10, 10))
    with pytest.raises(OutputBusy):
        Commits.open(place, checkpoint, SETTINGS)
    shutil.copytree(checkpoint, tmp_path / "copy")
    second = Commits.open(place, tmp_path / "copy", SETTINGS)
    first.commit(plan, reports, batch=1, began_ms=0)
    with pytest.raises(OutputBusy, match="another job is writing to s3://fleet/twice"):
        do_tick(second, T0 + 60 * MINUTE_MS)  # it would have named the states before again
    do_batch(first, 2, records(10, 20))
    first.close()
    second.close()
    again = Commits.open(place, checkpoint, SETTINGS)
    do_batch(again, 3, records(10, 30))
    again.close()
    assert shown(plain(place, "windows_1m")) == shown(Tables(place.url, store).windows()) == naive(records(40))


def test_a_batch_that_is_committed_counts_though_another_job_began_a_tick(store, tmp_path):
    place, checkpoint = Location.of("s3://fleet/tick", store), tmp_path / "checkpoint"
    first = Commits.open(place, checkpoint, SETTINGS)
    do_batch(first, 0, records(10))
    shutil.copytree(checkpoint, tmp_path / "copy")
    second = Commits.open(place, tmp_path / "copy", SETTINGS)
    plan = first.begin(1)
    reports = worked(plan, SETTINGS.buckets, records(10, 10))
    assert second.begin_tick(T0 + 60 * MINUTE_MS) is not None  # noted in the manifest
    first.commit(plan, reports, batch=1, began_ms=0)
    with pytest.raises(OutputBusy, match="another job is writing to s3://fleet/tick"):
        do_tick(second, T0 + 60 * MINUTE_MS)
    first.close()
    again = Commits.open(place, checkpoint, SETTINGS)
    do_batch(again, 2, records(10, 20))
    do_tick(again, T0 + 60 * MINUTE_MS)
    again.close()
    assert shown(plain(place, "windows_1m")) == shown(Tables(place.url, store).windows()) == naive(records(30))


def test_states_of_attempts_that_came_to_nothing_are_removed_from_the_bucket(store, tmp_path, monkeypatch):
    """No start may remove those of the pass that comes next, and a job in a loop of crashes left one at each."""
    place, checkpoint = Location.of("s3://fleet/loop", store), tmp_path / "checkpoint"
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 10**15)
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 0, records(10))
    for _ in range(3):
        worked(commits.begin(1), SETTINGS.buckets, records(10, 10))  # killed before it is committed
        commits.close()
        commits = Commits.open(place, checkpoint, SETTINGS)
    assert len(place.files("state")) == 4
    do_batch(commits, 1, records(10, 10))
    assert len(place.files("state")) == 4
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 0)  # an hour later
    do_batch(commits, 2, records(10, 20))
    assert len(place.files("state")) == 1
    worked(commits.begin(3), SETTINGS.buckets, records(10, 30))
    commits.close()
    monkeypatch.setattr(state, "now_ms", lambda: now_ms() + 7 * 3_600_000)
    commits = Commits.open(place, checkpoint, SETTINGS)
    assert len(place.files("state")) == 1
    do_batch(commits, 3, records(10, 30))
    commits.close()
    assert shown(plain(place, "windows_1m")) == naive(records(40))


def test_a_job_that_lags_removes_no_state_of_another_in_the_bucket(store, tmp_path, monkeypatch):
    place, checkpoint = Location.of("s3://fleet/lags", store), tmp_path / "checkpoint"
    first = Commits.open(place, checkpoint, SETTINGS)
    do_batch(first, 0, records(10))
    shutil.copytree(checkpoint, tmp_path / "copy")
    second = Commits.open(place, tmp_path / "copy", SETTINGS)
    do_batch(first, 1, records(10, 10))
    first.close()
    monkeypatch.setattr(state, "now_ms", lambda: now_ms() + 7 * 3_600_000)
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 0)
    assert second.begin(1) is not None
    second.close()
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 2, records(10, 20))
    commits.close()
    assert shown(plain(place, "windows_1m")) == naive(records(30))


@pytest.mark.parametrize(
    ("what", "settings"), [("compact", {}), ("vacuum", {"history_h": 0}), ("expire", {"days": 30})]
)
def test_maintenance_beside_a_running_job_destroys_nothing(store, tmp_path, what, settings):
    place, checkpoint = Location.of(f"s3://fleet/beside-{what}", store), tmp_path / "checkpoint"
    commits = Commits.open(place, checkpoint, SETTINGS)
    for batch in range(2):
        do_batch(commits, batch, records(10, 10 * batch))
    plan = commits.begin(2)
    reports = worked(plan, SETTINGS.buckets, records(10, 20))
    assert getattr(maintenance, what)(place, **settings) > 0
    with pytest.raises(OutputBusy, match=f"another job is writing to s3://fleet/beside-{what}"):
        commits.commit(plan, reports, batch=2, began_ms=0)
    commits.close()
    commits = Commits.open(place, checkpoint, SETTINGS)
    for batch in (2, 3):
        do_batch(commits, batch, records(10, 10 * batch))
    commits.close()
    assert Tables(place.url, store).progress().records == 40
    if what != "expire":
        assert shown(plain(place, "windows_1m")) == naive(records(40))
    assert plain(place, "latest").num_rows == 3


def test_maintenance_that_began_before_a_batch_was_committed_keeps_its_manifest(store, tmp_path):
    """It named the states before again, which the job had removed."""
    place, checkpoint = Location.of("s3://fleet/before", store), tmp_path / "checkpoint"
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 0, records(10))
    maintaining = Commits.maintaining(place, 6)
    do_batch(commits, 1, records(10, 10))
    with pytest.raises(OutputBusy, match="another job is writing to s3://fleet/before"):
        maintaining.expire(EARLY)
    maintaining.close()
    do_batch(commits, 2, records(10, 20))
    commits.close()
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 3, records(10, 30))
    commits.close()
    assert shown(plain(place, "windows_1m")) == naive(records(40))


@pytest.mark.parametrize("wrong", [{"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://nobody/one"])
def test_a_store_that_does_not_answer_is_a_sentence(store, tmp_path, wrong, monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    place = Location.of("s3://fleet/three", store | wrong) if isinstance(wrong, dict) else Location.of(wrong, store)
    with pytest.raises(SparkError, match="cannot be") as refused:
        Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    assert "\n" not in str(refused.value)
