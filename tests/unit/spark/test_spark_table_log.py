"""The Delta log of the tables: what the manifest names, and the history promises, stays in it; older versions go."""

import os
import time
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

from msgspec.structs import replace as replace_struct  # noqa: E402

from spark.job import maintenance  # noqa: E402
from spark.tables import commits as commits_module  # noqa: E402
from spark.tables import files, opening, table_log  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location, now_ms  # noqa: E402
from spark.tables.manifest import Manifest  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from tests.support.spark.crashes import Crash  # noqa: E402
from tests.support.spark.job_kit import Record, do_batch, naive, shown, worked  # noqa: E402

pytestmark = pytest.mark.slow

T0 = 1_767_225_600_000
INTERVAL = 5  # versions from one checkpoint of a log to the next
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=7 * 86_400_000, buckets=1)


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setitem(opening._CONFIGURATION, "delta.checkpointInterval", str(INTERVAL))
    return Location.of(tmp_path / "out"), tmp_path / "checkpoint"


def of_batch(batch: int) -> list[Record]:
    return [Record("d", T0 + n * 20_000, n, {"a": 1.0}) for n in range(3 * batch, 3 * batch + 3)]


def of_batches(count: int) -> list[Record]:
    return [record for batch in range(count) for record in of_batch(batch)]


def log_of(place: Location, name: str = "windows_1m") -> Path:
    return place.local / name / "_delta_log"


def age(place: Location, hours: float) -> None:
    """Lets everything in the logs have been written so many hours ago."""
    then = time.time() - hours * 3_600
    for file in place.local.rglob("_delta_log/*"):
        os.utime(file, (then, then))


def cleaned_by_itself(place: Location) -> None:
    """Gives the tables the property that those of older versions have."""
    for name in commits_module.SPECS:
        table = deltalake.DeltaTable(place.child(name))
        table.alter.set_table_properties({"delta.enableExpiredLogCleanup": "true"})


def before_a_checkpoint(places, *, older: bool) -> int:
    """Makes an output whose next commit of `windows_1m` makes a checkpoint, 8 hours ago; returns its batches."""
    Commits.open(*places, SETTINGS).close()
    if older:
        cleaned_by_itself(places[0])
    commits, batch = Commits.open(*places, SETTINGS), 0
    while batch < 2 or (commits._tables["windows_1m"].version() + 2) % INTERVAL:
        do_batch(commits, batch, of_batch(batch))
        batch += 1
    commits.close()
    age(places[0], 8)
    return batch


def assert_readable(place: Location, records: list[Record]) -> None:
    assert shown(Tables(place.url).windows()) == naive(records)


@pytest.mark.parametrize("older", [False, True])
def test_a_batch_killed_behind_the_commit_that_makes_a_checkpoint_is_repeated(places, monkeypatch, older):
    """The commit deleted the version that the manifest names, where the job had rested longer than the history."""
    batch = before_a_checkpoint(places, older=older)
    late = Record("d", T0 + 1_000, 10_000, {"a": 99.0}, stored_ms=T0 + 3 * batch * 20_000)
    records = [*of_batch(batch), late]
    commits = Commits.open(*places, SETTINGS)
    plan = commits.begin(batch)
    reports = worked(plan, 1, records)
    with monkeypatch.context() as patch:
        patch.setattr(Commits, "_save", crash)
        with pytest.raises(Crash):
            commits.commit(plan, reports, batch=batch, began_ms=0)
    commits.close()
    assert list(log_of(places[0]).glob("*.checkpoint.parquet"))
    assert_readable(places[0], of_batches(batch))
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, batch, records)
    commits.close()
    assert_readable(places[0], [*of_batches(batch), *records])


def crash(*_args: object, **_more: object) -> None:
    raise Crash


@pytest.mark.parametrize("older", [False, True])
def test_another_history_leaves_the_version_of_the_manifest(places, older):
    batch = before_a_checkpoint(places, older=older)
    Commits.open(*places, replace_struct(SETTINGS, history_h=7)).close()
    assert_readable(places[0], of_batches(batch))
    kept = deltalake.DeltaTable(places[0].child("latest")).metadata().configuration
    assert kept["delta.enableExpiredLogCleanup"] == "false"


@pytest.mark.parametrize("command", ["compact", "expire", "vacuum"])
def test_maintenance_leaves_the_version_of_the_manifest(places, monkeypatch, command):
    """Its commits cleaned the log of an output of an older version before the manifest named them."""
    commits = Commits.open(*places, SETTINGS)
    for batch in range(6):
        do_batch(commits, batch, of_batch(batch))
    commits.close()
    cleaned_by_itself(places[0])
    table = deltalake.DeltaTable(places[0].child("windows_1m"))
    while (table.version() + 2) % INTERVAL:
        table.alter.set_table_properties({"delta.enableExpiredLogCleanup": "true"})
        table.update_incremental()
    age(places[0], 8)
    seen: list[int] = []

    def read_after(real):
        def call(*args, **kwargs):
            found = real(*args, **kwargs)
            seen.append(Tables(places[0].url).windows().num_rows)
            return found

        return call

    monkeypatch.setattr(Commits, "_write", read_after(Commits._write))
    monkeypatch.setattr(deltalake.DeltaTable, "vacuum", read_after(deltalake.DeltaTable.vacuum))
    if command == "compact":
        maintenance.compact(places[0])
    elif command == "expire":
        maintenance.expire(places[0], days=7)
    else:
        maintenance.vacuum(places[0], history_h=0)
    assert list(log_of(places[0]).glob("*.checkpoint.parquet"))
    assert seen
    assert set(seen) == {6}


def test_a_log_of_a_long_run_stays_short_and_keeps_the_history(places, monkeypatch):
    """Of versions that were current within the history each can be read, and of those before few are left."""
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 0)
    commits, log = Commits.open(*places, replace_struct(SETTINGS, history_h=2)), log_of(places[0], "latest")
    for batch in range(40):
        do_batch(commits, batch, of_batch(batch))
        for file in log.glob("*"):  # half an hour has gone by since the batch before
            then = file.stat().st_mtime - 1_800
            os.utime(file, (then, then))
    commits.close()
    versions = sorted(int(file.stem) for file in log.glob("*.json"))
    assert versions == list(range(versions[0], versions[-1] + 1))
    assert len(versions) <= 2 * 2 + 2 * INTERVAL + 2
    assert (log / "_last_checkpoint").exists()
    written = {version: (log / f"{version:020d}.json").stat().st_mtime for version in versions}
    began = time.time() - 2 * 3_600
    current = max(version for version in versions if written[version] < began)
    for version in range(current, versions[-1] + 1):
        assert deltalake.DeltaTable(places[0].child("latest"), version=version).to_pyarrow_table().num_rows == 1
    assert_readable(places[0], of_batches(40))


def without_checkpoint(places, monkeypatch):
    """Returns commits whose tables are one checkpoint behind, as none was made with them."""
    monkeypatch.setattr(commits_module, "COMMITTING", table_log.QUIET)
    monkeypatch.setattr(table_log, "CHECKPOINT_INTERVAL", INTERVAL)
    commits = Commits.open(*places, SETTINGS)
    for batch in range(2 * INTERVAL):
        do_batch(commits, batch, of_batch(batch))
    return commits


def test_a_vacuum_makes_the_checkpoint_that_is_overdue(places, monkeypatch):
    """Its own commits may fall on each version that was to have one; then no log was ever cleaned."""
    commits = without_checkpoint(places, monkeypatch)
    assert not list(log_of(places[0]).glob("*.checkpoint*"))
    commits.vacuum()
    commits.close()
    assert list(log_of(places[0]).glob("*.checkpoint*"))
    assert_readable(places[0], of_batches(2 * INTERVAL))


def test_a_checkpoint_that_was_cut_off_is_none(places, monkeypatch):
    """A kill leaves its file under a name of its own, as the table's writer begins it."""
    commits = without_checkpoint(places, monkeypatch)
    log = log_of(places[0])
    (log / f"{commits._tables['windows_1m'].version():020d}.checkpoint.parquet#1").write_bytes(b"PAR1")
    commits.vacuum()
    commits.close()
    assert list(log.glob("*.checkpoint.parquet"))
    assert_readable(places[0], of_batches(2 * INTERVAL))


@pytest.mark.parametrize("left", [None, b"", b"PAR1", bytes(9_000)])
def test_a_checkpoint_that_a_loss_of_power_has_damaged_is_none(places, left):
    """The job could not open its tables any more, though all commits were there."""
    batches = before_a_checkpoint(places, older=False)
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, batches, of_batch(batches))
    commits.close()
    log = log_of(places[0])
    made = max(log.glob("*.checkpoint.parquet"))
    if left is None:
        made.unlink()
    else:
        made.write_bytes(left)
    commits = Commits.open(*places, SETTINGS)
    assert not (log / "_last_checkpoint").exists()
    assert not made.exists() or not left
    do_batch(commits, batches + 1, of_batch(batches + 1))
    commits.close()
    assert_readable(places[0], of_batches(batches + 2))


def test_checkpoints_and_begun_tables_are_durable(places, monkeypatch):
    """Those of the log were not synced, nor the first commit of a table."""
    synced = []
    monkeypatch.setattr(files, "sync", synced.append)
    commits = Commits.open(*places, SETTINGS)
    log = log_of(places[0])
    first = synced.index(log / f"{0:020d}.json")
    assert synced[first + 1 : first + 4] == [log, log.parent, places[0].local]
    for batch in range(INTERVAL):
        do_batch(commits, batch, of_batch(batch))
    commits.close()
    assert list(log.glob("*.checkpoint.parquet"))
    assert set(log.iterdir()) <= set(synced)


def test_a_checkpoint_behind_no_vacuum_forgets_no_file_to_delete(places, monkeypatch):
    """A start whose batch is half committed vacuums behind it; its commits made a checkpoint before."""
    with monkeypatch.context() as patch:
        patch.setattr(commits_module, "now_ms", lambda: now_ms() - 12 * 3_600_000)
        commits = Commits.open(*places, SETTINGS)
        for batch in range(3):
            do_batch(commits, batch, of_batch(batch))
        commits.close()
    commits = Commits.open(*places, SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(commits_module, "VACUUM_EVERY_MS", 10**15)
        for batch in range(3, 3 + INTERVAL):
            do_batch(commits, batch, of_batch(batch))
    do_batch(commits, 3 + INTERVAL, of_batch(3 + INTERVAL))
    commits.close()
    assert len(list((places[0].local / "latest").glob("*.parquet"))) == 4 + INTERVAL - 2


def test_the_version_that_gave_way_within_the_history_stays(places, monkeypatch):
    """It was written long ago, but a reader that lags may have begun with it just now."""
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 0)
    batch = before_a_checkpoint(places, older=False)
    stale = Manifest.load(places[0])
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, batch, of_batch(batch))
    do_batch(commits, batch + 1, of_batch(batch + 1))
    commits.close()
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "load", lambda _: stale)
        assert_readable(places[0], of_batches(batch))
