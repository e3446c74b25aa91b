"""The tables over time: samples kept, days expired, columns added, disks that fill up."""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

from typer.testing import CliRunner  # noqa: E402

from gateway.cli.spark import SparkFailed, app  # noqa: E402
from spark.errors import BadOption, OutputMismatch, SparkError  # noqa: E402
from spark.job import bucket, maintenance  # noqa: E402
from spark.tables import commits as commits_module  # noqa: E402
from spark.tables import opening  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location, now_ms  # noqa: E402
from spark.tables.manifest import MANIFEST, Manifest  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from spark.tables.schemas import SPECS  # noqa: E402
from spark.tables.state import save_state  # noqa: E402
from tests.support.spark.crashes import Crash, crashing  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown  # noqa: E402

DAY_MS = 86_400_000
T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2, samples=True)


@pytest.fixture
def places(tmp_path):
    return Location.of(tmp_path / "out"), tmp_path / "checkpoint"


def plain(place: Location, name: str) -> "pa.Table":
    return deltalake.DeltaTable(place.child(name)).to_pyarrow_table()


def test_each_sample_is_a_row_when_they_are_kept(places):
    commits = Commits.open(*places, SETTINGS)
    ahead = Record("d", T0 + DAY_MS, 2, {"a": 9.0}, stored_ms=T0 + 3)
    do_batch(commits, 0, [Record("d", T0, 0, {"a": 1.0, "b": "on"}), Record("e", T0 + 1, 1, {"a": 2.0}), ahead])
    do_batch(commits, 1, [Record("d", T0 + 5, 3, {"a": 3.0})])
    commits.close()
    rows = plain(places[0], "samples").sort_by([("offset", "ascending"), ("metric", "ascending")]).to_pylist()
    assert [(r["device"], r["metric"], r["value"], r["text"], r["offset"], r["quality"]) for r in rows] == [
        ("d", "a", 1.0, None, 0, "ok"),
        ("d", "b", None, "on", 0, "ok"),
        ("e", "a", 2.0, None, 1, "ok"),
        ("d", "a", 9.0, None, 2, "ahead"),
        ("d", "a", 3.0, None, 3, "ok"),
    ]
    assert {str(r["day"]) for r in rows} == {"2026-01-01"}  # by the store's clock, whatever a device says
    without = Commits.open(*places, CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2))
    do_batch(without, 2, [Record("d", T0 + 6, 4, {"a": 3.0})])
    without.close()
    assert plain(places[0], "samples").num_rows == 5


def test_days_expire_and_readers_of_the_manifest_see_it(places, monkeypatch):
    commits = Commits.open(*places, SETTINGS)
    for day in range(3):
        do_batch(commits, day, [Record("d", T0 + day * DAY_MS, day, {"a": float(day)})])
    do_tick(commits, T0 + 2 * DAY_MS + 20 * MINUTE_MS)
    commits.close()
    monkeypatch.setattr(maintenance, "now_ms", lambda: T0 + 2 * DAY_MS + 5)
    assert maintenance.expire(places[0], days=1) == 5  # windows of both widths, samples, sessions, traffic: of one day
    kept = naive([Record("d", T0 + day * DAY_MS, day, {"a": float(day)}) for day in (1, 2)])
    assert shown(Tables(places[0].url).windows()) == shown(plain(places[0], "windows_1m")) == kept
    assert plain(places[0], "samples").num_rows == 2
    assert maintenance.expire(places[0], days=1) == 0
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, 3, [Record("d", T0 + 2 * DAY_MS + 60_000, 3, {"a": 5.0})])
    commits.close()
    assert plain(places[0], "samples").num_rows == 3


def test_days_whose_windows_are_still_corrected_do_not_expire(places, monkeypatch):
    """A late record opened an expired window again, and was all that it had."""
    settings = replace(SETTINGS, late_ms=7 * DAY_MS)
    commits = Commits.open(*places, settings)
    before = [Record("d", T0 + n * 1_000, n, {"a": 1.0}) for n in range(10)]
    do_batch(commits, 0, before)
    do_tick(commits, T0 + 2 * DAY_MS)
    commits.close()
    at_ms = T0 + 7 * DAY_MS
    monkeypatch.setattr(maintenance, "now_ms", lambda: at_ms)
    with pytest.raises(BadOption, match="option days must be 7 at least: so long the job corrects windows"):
        maintenance.expire(places[0], days=6)
    assert maintenance.expire(places[0], days=7) == 0
    late = Record("d", T0 + 20_000, 20, {"a": 9.0}, stored_ms=at_ms)
    commits = Commits.open(*places, settings)
    do_batch(commits, 1, [late])
    commits.close()
    assert shown(plain(places[0], "windows_1m")) == naive([*before, late])


def test_late_records_of_expired_days_are_too_old(places, monkeypatch):
    """Those that waited in the log while the job was stopped, or that a longer --late lets in."""
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, 0, [Record("d", T0 + n * 1_000, n, {"a": 1.0}) for n in range(10)])
    do_batch(commits, 1, [Record("d", T0 + DAY_MS + n * 1_000, 10 + n, {"a": 1.0}) for n in range(2)])
    do_tick(commits, T0 + DAY_MS + 2 * MINUTE_MS)
    commits.close()
    monkeypatch.setattr(maintenance, "now_ms", lambda: T0 + 9 * DAY_MS)
    assert maintenance.expire(places[0], days=5) > 0
    commits = Commits.open(*places, replace(SETTINGS, late_ms=7 * DAY_MS))
    stored = T0 + DAY_MS + 20 * MINUTE_MS
    late = Record("d", T0 + 20_000, 20, {"a": 9.0}, stored)
    in_order = Record(
        "d", T0 + DAY_MS + 19 * MINUTE_MS, 21, {"a": 3.0}, stored
    )  # of a day that expires when it is settled
    do_batch(commits, 2, [late, in_order])
    commits.close()
    assert shown(plain(places[0], "windows_1m")) == naive([in_order])
    assert Tables(places[0].url).quality() == {"ok": 13, "too_old": 1}


def test_findings_that_expire_are_published_no_more(places, monkeypatch):
    """Their files were still named in the manifest: once vacuum had deleted them, the job did not start."""
    settings = replace(SETTINGS, findings=True)
    commits = Commits.open(*places, settings)
    values = [20.0 + n % 7 / 10 for n in range(60)] + [500.0]
    do_batch(commits, 0, [Record("d", T0 + n * 1_000, n, {"a": value}) for n, value in enumerate(values)])
    (old,) = commits.manifest.unpublished
    commits.close()
    monkeypatch.setattr(maintenance, "now_ms", lambda: T0 + DAY_MS)
    assert maintenance.expire(places[0], days=1) == 0
    assert Manifest.load(places[0]).unpublished == [old]
    monkeypatch.setattr(maintenance, "now_ms", lambda: T0 + 2 * DAY_MS)
    assert maintenance.expire(places[0], days=1) > 0
    (places[0].local / "anomalies" / old).unlink()  # vacuum does so, after the history
    commits = Commits.open(*places, settings)
    assert commits.manifest.unpublished == []
    commits.close()


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("survive", range(9))
def test_expire_that_is_killed_at_any_step_leaves_no_half_of_a_window(places, monkeypatch, survive, repeated):
    """Rows were gone before the manifest said so: a late record was all of its window, or the job did not start."""
    settings = replace(SETTINGS, findings=True)
    commits = Commits.open(*places, settings)
    values = [20.0 + n % 7 / 8 for n in range(60)] + [500.0]
    before = [Record("d", T0 + n * 1_000, n, {"a": value}) for n, value in enumerate(values)]
    do_batch(commits, 0, before)
    do_tick(commits, T0 + DAY_MS + MINUTE_MS)
    assert commits.manifest.unpublished
    commits.close()
    monkeypatch.setattr(maintenance, "now_ms", lambda: T0 + 5 * DAY_MS)
    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        crashing(patch, survive, commit="_write")
        maintenance.expire(places[0], days=1)
    if repeated:
        maintenance.expire(places[0], days=1)
        maintenance.vacuum(places[0], history_h=0)
    commits = Commits.open(*places, settings)
    named = commits.manifest.unpublished
    assert bool(named) == (survive == 0 and not repeated)
    assert all(places[0].exists(f"anomalies/{path}") for path in named)
    late = Record("d", T0 + 20_000, 99, {"a": 9.0}, T0 + 30 * MINUTE_MS)  # it waited in the log
    do_batch(commits, 1, [late])
    commits.close()
    rows = shown(plain(places[0], "windows_1m"))
    assert rows in ([{}] if repeated else [{}, naive(before), naive([*before, late])])


def test_compacting_forgets_no_device_of_a_job_that_remembers_for_long(places):
    """A device that reports once a month was gone from `devices` and `latest`."""
    settings = replace(SETTINGS, forget_ms=365 * DAY_MS)
    commits = Commits.open(*places, settings)
    do_batch(commits, 0, [Record("monthly", T0 + n, n, {"a": 1.0}) for n in range(5)])
    do_batch(commits, 1, [Record("busy", T0 + 40 * DAY_MS + n, 10 + n, {"a": 2.0}) for n in range(4)])
    manifest = commits.manifest
    commits.close()
    maintenance.compact(places[0])
    for name in ("devices", "latest"):
        assert set(plain(places[0], name)["device"].to_pylist()) == {"monthly", "busy"}
    after = Manifest.load(places[0])
    assert replace(after, versions=manifest.versions) == manifest


def test_vacuum_keeps_what_the_job_keeps(places, monkeypatch):
    """Without --history it deleted what is older than 6 hours, whatever the job's own."""
    ran = functools.partial(CliRunner().invoke, app)
    with monkeypatch.context() as patch:
        patch.setattr(commits_module, "now_ms", lambda: now_ms() - 10 * 3_600_000)
        commits = Commits.open(*places, replace(SETTINGS, history_h=48))
        for batch in range(3):
            do_batch(commits, batch, [Record("d", T0 + batch, batch, {"a": 1.0})])
        commits.close()
    arguments = ["tables", "vacuum", "--output", places[0].url]
    assert ran(arguments).output == "0 files deleted\n"
    assert ran([*arguments, "--history", "11"]).output == "0 files deleted\n"
    assert ran([*arguments, "--history", "9"]).output != "0 files deleted\n"


def test_maintenance_that_has_nothing_to_do_replaces_no_manifest(places, monkeypatch):
    """In an object store it may replace one that a running job writes at the same moment."""
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, 0, [Record("d", T0, 0, {"a": 1.0})])
    commits.close()

    def save(*_):
        raise AssertionError("nothing has changed")

    monkeypatch.setattr(Manifest, "save", save)
    assert maintenance.compact(places[0]) == 0
    assert maintenance.vacuum(places[0]) == 0
    assert maintenance.expire(places[0], days=36_500) == 0


def test_another_history_counts_from_the_next_start_on(places):
    """A table kept the one that it was begun with, by which deltalake deletes the log of old versions."""
    for hours in (6, 48, 48):
        Commits.open(*places, replace(SETTINGS, history_h=hours)).close()
        maintenance.vacuum(places[0], history_h=1)  # this one is of the command alone
        table = deltalake.DeltaTable(places[0].child("latest"))
        kept = table.metadata().configuration
        assert kept["delta.logRetentionDuration"] == f"interval {hours} hours"
        assert kept["delta.deletedFileRetentionDuration"] == f"interval {hours + 3} hours"
    assert table.version() == 1


def test_a_table_of_an_older_version_gets_its_new_columns(places, monkeypatch):
    older = SPECS["anomalies"]._replace(columns=pa.schema([f for f in SPECS["anomalies"].columns if f.name != "score"]))
    with monkeypatch.context() as patch:
        patch.setattr(opening, "SPECS", {**SPECS, "anomalies": older})
        place = places[0]
        table = opening.open_table(place, "anomalies", 6)
        row = {
            "time": datetime(2026, 1, 1, tzinfo=UTC),
            "device": "d",
            "kind": "spike",
            "day": datetime(2026, 1, 1, tzinfo=UTC).date(),
        }
        deltalake.write_deltalake(table, pa.Table.from_pylist([row], schema=older.schema), mode="append")
    commits = Commits.open(*places, SETTINGS)
    commits.close()
    assert "score" in plain(places[0], "anomalies").column_names
    assert plain(places[0], "anomalies")["score"].to_pylist() == [None]
    version = deltalake.DeltaTable(places[0].child("anomalies")).version()
    Commits.open(*places, SETTINGS).close()
    assert deltalake.DeltaTable(places[0].child("anomalies")).version() == version


@pytest.fixture
def without_addresses(monkeypatch):
    """Returns a context in which the job is that of before the tables `quality` and `sessions` had an address."""

    def older(make):
        return lambda *rows, **words: make(*rows, **words).drop_columns(["address"])

    def saved(plan, bucket, state):
        return save_state(plan, bucket, state._replace(sessions=state.sessions.drop_columns(["address"])))

    @contextlib.contextmanager
    def patched():
        with monkeypatch.context() as patch:
            for name in ("quality", "sessions"):
                kept = pa.schema([field for field in SPECS[name].columns if field.name != "address"])
                patch.setitem(SPECS, name, SPECS[name]._replace(columns=kept))
            for name in ("rated", "timed"):
                patch.setattr(bucket, name, older(getattr(bucket, name)))
            patch.setattr(bucket, "save_state", saved)
            yield

    return patched


def test_quality_and_sessions_of_an_older_version_get_the_address(places, without_addresses):
    def record(device, minutes, offset):
        return Record(device, T0 + minutes * MINUTE_MS, offset, {"a": 1.0}, address=f"site/{device}/{minutes}")

    with without_addresses():
        commits = Commits.open(*places, SETTINGS)
        do_batch(commits, 0, [record("gone", 0, 0), record("d", 0, 1), record("quiet", 60, 2)])
        do_tick(commits, T0 + 60 * MINUTE_MS)  # ends the sessions of the first two
        commits.close()
        assert "address" not in {*plain(places[0], "quality").column_names, *plain(places[0], "sessions").column_names}
    tables = Tables(places[0].url)  # of this version, before the job has been started again
    assert {row["address"] for name in ("quality", "sessions") for row in tables.table(name).to_pylist()} == {None}
    assert maintenance.compact(places[0]) >= 0
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, 1, [record("d", 61, 3)])
    commits.close()
    (told,) = [table for table in maintenance.describe(places[0]) if table.name == "quality"]
    assert "address" in told.columns
    for rows in (plain(places[0], "sessions"), tables.table("sessions")):
        found = {(row["device"], row["settled"], row["address"]) for row in rows.to_pylist()}
        assert found == {("gone", True, None), ("d", True, None), ("quiet", False, None), ("d", False, "site/d/61")}
    for name in ("quality", "devices"):
        found = {row["device"]: row["address"] for row in plain(places[0], name).to_pylist()}
        assert found["d"] == "site/d/61", name
    counted = {row["device"]: row["records"] for row in plain(places[0], "quality").to_pylist()}
    assert counted == {"gone": 1, "d": 2, "quiet": 1}
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, 2, [record("quiet", 62, 4)])
    commits.close()
    still = {row["device"]: row["address"] for row in plain(places[0], "sessions").to_pylist() if not row["settled"]}
    assert still == {"d": "site/d/61", "quiet": "site/quiet/62"}


def test_a_column_of_another_type_is_refused_with_a_sentence(places, monkeypatch):
    other = SPECS["devices"]._replace(columns=pa.schema([("device", pa.int64())]))
    with monkeypatch.context() as patch:
        patch.setattr(opening, "SPECS", {**SPECS, "devices": other})
        opening.open_table(places[0], "devices", 6)
    with pytest.raises(OutputMismatch, match=r"the column device of .* is int64, where this version has string"):
        Commits.open(*places, SETTINGS)


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a disk of 2 MiB; only root may have one."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=2m", "headgate-small-disk", str(where))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield where
    subprocess.run(("umount", "-l", str(where)), check=True)


def test_a_full_disk_is_a_sentence_and_loses_nothing(small_disk, tmp_path):
    """Wherever in a commit it is full: the room that is left grows by a page or two at each attempt."""
    place, checkpoint = Location.of(small_disk / "out"), tmp_path / "checkpoint"
    commits = Commits.open(place, checkpoint, SETTINGS)
    records = [Record(f"d{n}", T0 + n, n, {"a": float(n), "b": 1.0}) for n in range(40)]
    do_batch(commits, 0, records[:20])
    commits.close()
    ballast, sentences, attempts = small_disk / "ballast", [], 0
    free = shutil.disk_usage(small_disk).free
    for room in range(0, free, 8_192):
        attempts += 1
        ballast.write_bytes(b"")
        commits = Commits.open(place, checkpoint, SETTINGS)
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - room)))
        try:
            do_batch(commits, 1, records[20:])
        except SparkError as error:
            sentences.append(str(error))
        finally:
            commits.close()
        if commits.manifest.progress.batch == 1:
            break
    ballast.unlink()
    assert attempts > 3
    assert all(re.search("No space left|is full", sentence) for sentence in sentences), sentences
    assert all("\n" not in sentence for sentence in sentences)
    assert shown(plain(place, "windows_1m")) == naive(records)
    assert shown(plain(place, "windows_15m")) == naive(records, 15 * MINUTE_MS)
    assert plain(place, "samples").num_rows == 80
    assert sum(plain(place, "traffic")["records"].to_pylist()) == 40
    assert plain(place, "latest").num_rows == 80


def test_expire_on_the_command_line(places):
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, 0, [Record("d", T0, 0, {"a": 1.0})])
    do_tick(commits, T0 + timedelta(hours=1) // timedelta(milliseconds=1))
    commits.close()
    ran = CliRunner().invoke(app, ["tables", "expire", "--days", "30", "--output", places[0].url])
    assert ran.exit_code == 0, ran.output
    assert "5 files gave way" in ran.output


@pytest.mark.parametrize(
    ("command", "option", "bad", "most"),
    [("expire", "--days", "3000000", "36500"), ("vacuum", "--history", "99999999999999", "876000")],
)
def test_numbers_beyond_a_calendar_are_refused(places, command, option, bad, most):
    """They were a traceback of Python's dates, or of Rust's."""
    Commits.open(*places, SETTINGS).close()
    ran = CliRunner().invoke(app, ["tables", command, option, bad, "--output", places[0].url])
    assert ran.exit_code == 2
    assert f"{bad} is not in the range" in ran.output
    ran = CliRunner().invoke(app, ["tables", command, option, most, "--output", places[0].url])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize("command", [["describe"], ["compact"], ["vacuum"], ["expire", "--days", "3"]])
def test_a_place_without_tables_is_a_sentence(tmp_path, command):
    (tmp_path / "file").write_text("x")
    for name, why in (("nowhere", "holds no tables of a telemetry job"), ("file", "cannot be read: Not a directory")):
        ran = CliRunner().invoke(app, ["tables", *command, "--output", str(tmp_path / name)])
        assert isinstance(ran.exception, SparkFailed)
        assert why in str(ran.exception)
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture
def bound_by_modes():
    """Ends this user's right to pass over the modes of files; root has it."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root without its rights needs setpriv")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.slow
def test_missing_rights_are_one_sentence_and_nothing_is_lost(places, bound_by_modes):
    """deltalake's own text has a line, a color and an arrow for each of its layers."""
    place, checkpoint = places
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 0, [Record("d1", T0, 0, {"a": 1.0})])
    commits.close()

    def said(mode: int, path: str, *args: str) -> str:
        before = place.local.joinpath(path).stat().st_mode
        place.local.joinpath(path).chmod(mode)
        try:
            command = (*bound_by_modes, sys.executable, "-m", "gateway.cli", "spark", *args)
            ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        finally:
            place.local.joinpath(path).chmod(before)
        assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran.stderr
        assert "\x1b" not in ran.stderr
        return ran.stderr

    tables = ("--output", place.url)
    assert f"the table {place.url}/anomalies cannot be opened: " in said(0, "anomalies", "tables", "describe", *tables)
    assert f"the table {place.url}/anomalies cannot be opened: " in said(0, "anomalies", "tables", "compact", *tables)
    assert "manifest.json cannot be read: Permission denied" in said(0, MANIFEST, "tables", "describe", *tables)
    assert f"{place.url} cannot be written: Permission denied" in said(0o400, ".lock", "tables", "vacuum", *tables)
    log = said(0o500, "samples/_delta_log", "tables", "expire", "--days", "1", *tables)
    assert f"the table {place.url}/samples cannot be committed: " in log
    assert "Permission denied" in log
    assert plain(place, "latest").num_rows == 1


def test_a_file_of_state_that_cannot_be_written_is_one_sentence(places, monkeypatch):
    commits = Commits.open(*places, SETTINGS)

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("spark.tables.files.sync", refused)
    with pytest.raises(SparkError, match=r"cannot be written: Permission denied\. Mend that and start the job again"):
        do_batch(commits, 0, [Record("d1", T0, 0, {"a": 1.0})])
    monkeypatch.undo()
    do_batch(commits, 0, [Record("d1", T0, 0, {"a": 1.0})])
    commits.close()
    assert plain(places[0], "latest").num_rows == 1
