"""Commits of the telemetry job: every table, all or nothing, whatever was cut off where and tried again."""

import contextlib
import random
import shutil
from dataclasses import replace
from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

from msgspec.structs import replace as replace_struct  # noqa: E402

from spark.errors import OutputBusy, OutputMismatch, SparkError  # noqa: E402
from spark.job import maintenance  # noqa: E402
from spark.tables import commits as commits_module  # noqa: E402
from spark.tables import data_files, live_files, opening  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location, now_ms  # noqa: E402
from spark.tables.manifest import MANIFEST, JobProgress, Manifest  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from spark.tables.schemas import WINDOW_TABLES  # noqa: E402
from tests.support.spark.crashes import Crash, crashing  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown, total, worked  # noqa: E402

pytestmark = pytest.mark.slow

T0 = 1_767_225_600_000  # the start of a day
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2)


def some(count: int, seed: int, *, first: int = 0, minutes: int = 6) -> list[Record]:
    """Records of a few devices, stored in order, up to 20 s after their time."""
    chance = random.Random(seed)
    found = []
    for n in range(first, first + count):
        stored = T0 + n * minutes * MINUTE_MS // 600
        values = {chance.choice("ab"): float(chance.randrange(1000))}
        found.append(Record(f"d{chance.randrange(4)}", stored - chance.randrange(20_000), n, values, stored))
    return found


@pytest.fixture
def places(tmp_path):
    return Location.of(tmp_path / "out"), tmp_path / "checkpoint"


@pytest.fixture
def opened(places):
    commits = Commits.open(*places, SETTINGS)
    yield commits
    commits.close()


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Returns what copies outputs that tests begin with alike: each is made once, by a function of its places."""
    made = {}

    def copy(make, places):
        if make not in made:
            root = tmp_path_factory.mktemp(make.__name__)
            made[make] = root
            make((Location.of(root / "out"), root / "checkpoint"))
        shutil.copytree(made[make] / "out", places[0].local)
        shutil.copytree(made[make] / "checkpoint", places[1])

    return copy


def plain(place: Location, name: str) -> "pa.Table":
    """Returns a table as a reader sees it that knows Delta Lake and nothing of Headgate."""
    return deltalake.DeltaTable(place.child(name)).to_pyarrow_table()


@pytest.mark.parametrize("pieces", [1, 3, 12])
def test_how_the_log_was_cut_does_not_show(opened, places, pieces):
    records = some(400, 1)
    size = -(-len(records) // pieces)
    for batch, at in enumerate(range(0, len(records), size)):
        do_batch(opened, batch, records[at : at + size])
    tables = Tables(places[0].url)
    assert shown(tables.windows()) == shown(plain(places[0], "windows_1m")) == naive(records)
    assert shown(plain(places[0], "windows_15m")) == naive(records, 15 * MINUTE_MS)
    assert tables.counts() == {"mqtt": 400}
    assert total(plain(places[0], "traffic"), "records") == 400
    assert tables.progress().records == 400
    assert tables.progress().offsets == {16: 400}
    newest = {}
    for r in records:
        for metric, value in r.values.items():
            newest[r.device, metric] = max(newest.get((r.device, metric), (0, 0, 0.0)), (r.time_ms, r.offset, value))
    rows = tables.latest().to_pylist()
    assert {(r["device"], r["metric"]): (r["value"], r["offset"]) for r in rows} == {
        key: (value, offset) for key, (_, offset, value) in newest.items()
    }
    assert [r["time"] for r in rows] == sorted((r["time"] for r in rows), reverse=True)
    assert {r["address"] for r in rows if r["device"] == "d1"} == {"telemetry/d1"}
    assert tables.latest(2).num_rows == 2
    assert {r["device"] for r in tables.latest(device="d1").to_pylist()} == {"d1"}


def test_windows_are_settled_behind_the_watermark(opened, places):
    records = some(600, 2)
    for batch, at in enumerate(range(0, 600, 50)):
        do_batch(opened, batch, records[at : at + 50])
    do_tick(opened)
    tables = Tables(places[0].url)
    settled = shown(tables.windows(settled_only=True))
    mark = tables.progress().watermark_ms
    assert settled
    assert all(key[2] + MINUTE_MS <= mark for key in settled)
    assert {key for key in naive(records) if key[2] + MINUTE_MS + SETTINGS.watermark_ms <= mark} <= settled.keys()
    assert shown(tables.windows()) == naive(records)
    assert shown(tables.windows(since_ms=T0 + 3 * MINUTE_MS + 5)) == {
        key: value for key, value in naive(records).items() if key[2] >= T0 + 3 * MINUTE_MS
    }
    assert shown(tables.windows(since_ms=T0 + 3 * MINUTE_MS + 5, table="windows_15m")) == {
        key: value for key, value in naive(records, WINDOW_TABLES["windows_15m"]).items() if key[2] >= T0
    }
    assert {key[:2] for key in shown(tables.windows(device="d1", metric="a"))} == {("d1", "a")}
    assert tables.windows(3).num_rows == 3


def test_late_records_correct_settled_windows(opened, places):
    records = some(300, 3)
    do_batch(opened, 0, records[:150])
    do_batch(opened, 1, records[150:])
    do_tick(opened)
    before = Tables(places[0].url).windows(settled_only=True)
    assert before.num_rows > 4
    first = min(records, key=lambda r: r.time_ms)
    stored = records[-1].stored_at_ms
    late = [
        replace(first, offset=300, values={"a": -5.0, "b": 2000.0}, stored_ms=stored),
        Record("new", first.time_ms, 301, {"a": 7.0}, stored),
        Record("d1", stored - SETTINGS.late_ms - 2 * MINUTE_MS, 302, {"a": 1.0}, stored),  # too old
        Record("d1", stored + SETTINGS.watermark_ms + 1, 303, {"a": 1.0}, stored),  # ahead
    ]
    do_batch(opened, 2, late)
    tables = Tables(places[0].url)
    assert shown(plain(places[0], "windows_1m")) == naive([*records, *late[:2]])
    assert shown(plain(places[0], "windows_15m")) == naive([*records, *late[:2]], 15 * MINUTE_MS)
    assert tables.quality() == {"ahead": 1, "late": 2, "ok": 300, "too_old": 1}
    assert tables.progress().corrected >= 1
    start = first.time_ms // MINUTE_MS * MINUTE_MS
    again = [r for r in tables.windows(device=first.device).to_pylist() if r["start"].timestamp() * 1000 == start]
    assert {(r["revision"], r["settled"]) for r in again if r["min"] == -5.0 or r["max"] == 2000.0} <= {
        (1, False),
        (0, False),
    }
    assert sorted(r["stddev"] > 0 for r in again)  # the spread was carried over
    later = [replace(r, offset=400 + n, stored_ms=stored + 10 * MINUTE_MS, time_ms=stored + 10 * MINUTE_MS)
             for n, r in enumerate(records[:3])]  # fmt: skip
    do_batch(opened, 3, later)
    do_tick(opened)
    assert shown(plain(places[0], "windows_1m")) == naive([*records, *late[:2], *later])
    assert shown(tables.windows(settled_only=True)) == naive([*records, *late[:2]])


def test_days_are_partitions(opened, places):
    midnight = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000)
    records = [Record("d", midnight - 1, 0, {"m": 1.0}), Record("d", midnight, 1, {"m": 2.0})]
    do_batch(opened, 0, records)
    table = deltalake.DeltaTable(places[0].child("windows_1m"))
    assert sorted(p["day"] for p in table.partitions()) == ["2026-01-01", "2026-01-02"]
    assert shown(Tables(places[0].url).windows(since_ms=midnight)) == naive(records[1:])


def test_small_files_are_merged_and_old_ones_deleted(places, monkeypatch):
    records = some(400, 6)
    commits = Commits.open(*places, SETTINGS)
    for batch, at in enumerate(range(0, 400, 25)):
        do_batch(commits, batch, records[at : at + 25])
    commits.close()
    before = {table.name: table for table in maintenance.describe(places[0])}
    assert maintenance.compact(places[0]) > 0
    after = {table.name: table for table in maintenance.describe(places[0])}
    assert {name: table.rows for name, table in after.items()} == {name: table.rows for name, table in before.items()}
    assert after["windows_1m"].files < before["windows_1m"].files
    assert shown(plain(places[0], "windows_1m")) == naive(records)
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 0)
    commits = Commits.open(*places, replace_struct(SETTINGS, history_h=0))
    stored = records[-1].stored_at_ms
    late = [replace(records[0], offset=400, values={"a": -5.0}, stored_ms=stored)]  # corrects a merged file
    do_batch(commits, 16, late)
    with pytest.raises(OutputBusy):
        maintenance.compact(places[0])
    commits.close()
    assert shown(plain(places[0], "windows_1m")) == naive([*records, *late])
    names = set((places[0].local / "windows_1m").rglob("*.parquet"))
    assert len(names) == {table.name: table for table in maintenance.describe(places[0])}["windows_1m"].files
    assert maintenance.vacuum(places[0], history_h=6) == 0
    with pytest.raises(OutputMismatch, match="holds no tables"):
        maintenance.vacuum(Location.of(places[1]))


SCATTERED = some(120, 6, minutes=120)


def in_small_files(places) -> None:
    """Makes tables with many files of one bucket and day."""
    commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
    for batch, at in enumerate(range(0, 120, 10)):
        do_batch(commits, batch, SCATTERED[at : at + 10])
    commits.close()


@pytest.mark.parametrize("survive", range(2, 15, 4))
def test_readers_find_the_files_of_the_manifest_though_compact_was_killed(begun, places, monkeypatch, survive):
    """It had merged tables and named them nowhere: vacuum deleted the files that readers of the manifest read."""
    monkeypatch.setattr(live_files, "_RUN_FILES", 4)  # several rounds
    begun(in_small_files, places)
    with monkeypatch.context() as patch:
        crashing(patch, survive, commit="_write")
        with pytest.raises(Crash):
            maintenance.compact(places[0])
    assert maintenance.vacuum(places[0], history_h=0) > 0
    tables = Tables(places[0].url)
    assert shown(tables.windows()) == naive(SCATTERED)
    assert total(tables.table("traffic"), "records") == 120


def test_compact_names_the_versions_of_each_round(begun, places, monkeypatch):
    monkeypatch.setattr(live_files, "_RUN_FILES", 4)
    begun(in_small_files, places)
    seen, real = [], Commits._plan

    def plan(self, *args):
        there = {table.name: table.version for table in maintenance.describe(places[0])}
        seen.append(Manifest.load(places[0]).versions == there)
        return real(self, *args)

    monkeypatch.setattr(Commits, "_plan", plan)
    maintenance.compact(places[0])
    assert len(seen) > 1
    assert all(seen)


def moved_clock(monkeypatch, hours: int) -> None:
    """Lets commits happen so many hours ago."""
    monkeypatch.setattr(commits_module, "now_ms", lambda: now_ms() - hours * 3_600_000)


def test_a_running_job_deletes_files_that_were_replaced_before_a_checkpoint_of_the_log(places, monkeypatch):
    """The checkpoint forgot what had been replaced, as soon as vacuum might delete it."""
    monkeypatch.setitem(opening._CONFIGURATION, "delta.checkpointInterval", "12")
    commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 10**15)
    moved_clock(monkeypatch, 7)
    for batch in range(15):
        if batch == 10:
            moved_clock(monkeypatch, 0)
            commits._vacuumed_ms = now_ms()  # so commits make checkpoints
        do_batch(commits, batch, [Record("d", T0 + batch * 1_000, batch, {"a": 1.0})])
    folder = places[0].local / "latest"
    assert list(folder.glob("_delta_log/*.checkpoint.parquet"))
    assert len(list(folder.glob("*.parquet"))) == 15
    monkeypatch.setattr(commits_module, "VACUUM_EVERY_MS", 0)
    do_batch(commits, 15, [Record("d", T0 + 60_000, 60, {"a": 1.0})])
    commits.close()
    assert len(list(folder.glob("*.parquet"))) == 16 - 9  # the tenth was replaced now


@pytest.mark.parametrize("tick", [False, True])
def test_a_start_deletes_replaced_files_before_its_first_pass(places, monkeypatch, tick):
    """A job that is started more often than once an hour deleted none."""
    moved_clock(monkeypatch, 10)
    commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
    for batch in range(3):
        do_batch(commits, batch, some(10, 1, first=10 * batch))
    commits.close()
    monkeypatch.undo()
    commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
    assert (commits.begin_tick() if tick else commits.begin(3)) is not None
    commits.close()
    assert len(list((places[0].local / "latest").glob("*.parquet"))) == 1


def settled_long_ago(places) -> None:
    """Makes tables whose windows are settled, ten hours ago."""
    with pytest.MonkeyPatch.context() as patch:
        moved_clock(patch, 10)
        commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
        records = some(100, 4)
        do_batch(commits, 0, records)
        do_tick(commits, records[-1].stored_at_ms + MINUTE_MS)
        commits.close()


@pytest.mark.parametrize("survive", range(9, 24, 2))  # the first commit of a table is the thirteenth step
def test_a_start_deletes_nothing_that_a_half_committed_batch_reads(begun, places, monkeypatch, survive):
    records = some(100, 4)
    stored = records[-1].stored_at_ms + 5 * MINUTE_MS  # behind the watermark, so that the state has the window again
    late = [replace(records[0], offset=100, values={"a": -1.0}, stored_ms=stored)]
    begun(settled_long_ago, places)
    moved_clock(monkeypatch, 10)
    commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        crashing(patch, survive, commit="_commit_table")
        do_batch(commits, 1, late)
    commits.close()
    monkeypatch.undo()
    commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
    do_batch(commits, 1, late)
    assert shown(plain(places[0], "windows_1m")) == shown(Tables(places[0].url).windows()) == naive([*records, *late])
    later = [replace(late[0], offset=101, values={"a": -2.0})]  # it writes the windows of the repeated batch's state
    do_batch(commits, 2, later)
    commits.close()
    for name, width in WINDOW_TABLES.items():
        assert shown(plain(places[0], name)) == naive([*records, *late, *later], width)


def test_a_running_job_merges_many_small_files(places, monkeypatch):
    monkeypatch.setattr(commits_module, "MERGE_FILES", 4)
    commits = Commits.open(*places, SETTINGS)
    records = some(1_200, 7, minutes=12)
    for batch, at in enumerate(range(0, 1_200, 75)):
        do_batch(commits, batch, records[at : at + 75])
    commits.close()
    found = {table.name: table for table in maintenance.describe(places[0])}
    assert found["windows_1m"].files <= 2 * 2 * 5
    assert shown(plain(places[0], "windows_1m")) == naive(records)


def test_files_of_equal_bodies_are_merged_up_to_a_size_in_memory(places, monkeypatch):
    """Parquet stores equal bodies once: the merged file was small and merged again, until no array could hold it."""
    monkeypatch.setattr(commits_module, "MERGE_FILES", 4)
    monkeypatch.setattr(data_files, "_MERGED_BYTES", 5 << 16)  # about as many bodies
    commits = Commits.open(*places, replace_struct(SETTINGS, buckets=1))
    for batch in range(24):
        body = Record("d", T0 + batch, batch, quality="bad_body", rejected=bytes(1 << 16))
        do_batch(commits, batch, [body])

    def rows() -> list[int]:
        files = pa.table(deltalake.DeltaTable(places[0].child("quarantine")).get_add_actions())
        return sorted(files["num_records"].to_pylist())

    assert sum(rows()) == 24
    assert len(rows()) < 12
    commits.merge_all()
    assert sum(rows()) == 24
    assert max(rows()) < 10  # less than two sizes
    assert sum(count < 5 for count in rows()) <= 1
    commits.close()


def test_states_and_aliases_are_latest_values_and_no_windows(opened, places):
    """A Sparkplug BIRTH gives the name, DATA of a later batch the alias alone."""
    do_batch(opened, 0, [Record("press", T0, 0, {"mode": ("auto", 7), "temp": (1.0, 8)})])
    do_batch(opened, 1, [Record("press", T0 + 1, 1, {"alias/7": ("off", 7), "alias/8": (2.0, 8), "alias/9": (3.0, 9)})])
    latest = {r["metric"]: (r["value"], r["text"]) for r in Tables(places[0].url).latest().to_pylist()}
    assert latest == {"mode": (None, "off"), "temp": (2.0, None), "alias/9": (3.0, None)}
    assert {key[1]: row[0] for key, row in shown(plain(places[0], "windows_1m")).items()} == {"temp": 2, "alias/9": 1}


@pytest.mark.parametrize("pieces", [1, 3, 9])
def test_values_keep_the_names_of_the_birth_before_them(opened, places, pieces):
    """A BIRTH names metrics without values, and a later one gives their aliases to others."""
    said = [
        *({"temp": (None, 1), "hum": (None, 2)}, {"alias/1": (1.0, 1)}, {"alias/2": (2.0, 2)}),
        *({"hum": (None, 1), "temp": (None, 2)}, {"alias/1": (4.0, 1)}, {"alias/2": (5.0, 2)}),
    ]
    records = [Record("press", T0 + n, n, values, queue=16 if n % 2 else 17) for n, values in enumerate(said)]
    size = -(-len(records) // pieces)
    for batch, at in enumerate(range(0, len(records), size)):
        do_batch(opened, batch, records[at : at + size])
    windows = plain(places[0], "windows_1m").to_pylist()
    assert {row["metric"]: (row["first"], row["last"]) for row in windows} == {"temp": (1.0, 5.0), "hum": (2.0, 4.0)}
    assert plain(places[0], "latest").num_rows == 2


def test_devices_and_anomalies_are_tables(opened, places):
    chance = random.Random(1)
    records = [Record("d", T0 + n * 1_000, n, {"t": 20 + chance.gauss(0, 1)}) for n in range(100)]
    records[80] = replace(records[80], values={"t": 500.0})
    gone = [Record("gone", T0 + n * 1_000, 100 + n, {"t": 1.0}, queue=17) for n in range(20)]
    do_batch(opened, 0, [*records, *gone])
    later = T0 + 200_000
    do_batch(opened, 1, [Record("d", later, 120, {"t": 20.0}), Record("d", later, 121, {"t": 20.0}, queue=17)])
    do_tick(opened)
    (spike, silent) = sorted(plain(places[0], "anomalies").to_pylist(), key=lambda event: event["kind"], reverse=True)
    assert (spike["kind"], spike["device"], spike["metric"], spike["value"]) == ("spike", "d", "t", 500.0)
    assert (silent["kind"], silent["device"]) == ("silent", "gone")
    states = {row["device"]: row["state"] for row in plain(places[0], "devices").to_pylist()}
    assert states == {"d": "alive", "gone": "silent"}
    quality = {row["device"]: row for row in plain(places[0], "quality").to_pylist()}
    assert quality["d"]["records"] == 102
    assert quality["d"]["duplicates_rate"] == pytest.approx(1 / 102)


def test_what_cannot_be_decoded_is_kept(opened, places):
    records = [Record("d", T0, 0, quality="bad_body", rejected=b"oops"), Record("d", T0, 1, {"a": 1.0})]
    do_batch(opened, 0, records)
    (row,) = plain(places[0], "quarantine").to_pylist()
    assert (row["device"], row["offset"], row["body"], row["reason"], row["quality"]) == (
        *("d", 0, b"oops", "no JSON"),
        "bad_body",
    )
    assert Tables(places[0].url).quality() == {"bad_body": 1, "ok": 1}


def test_bytes_that_cannot_be_decoded_stay_out_of_the_log_of_the_table(opened, places):
    """The extremes of `body`, as base64, made commits larger than the file."""
    bodies = [bytes([n]) * 65_536 for n in (0, 255)]
    do_batch(opened, 0, [Record("d", T0 + n, n, quality="bad_body", rejected=body) for n, body in enumerate(bodies)])
    log = places[0].local / "quarantine" / "_delta_log"
    assert max(file.stat().st_size for file in log.glob("*.json")) < 5_000
    table = deltalake.DeltaTable(places[0].child("quarantine"))
    for body, offset in ((bodies[0], [0]), (bodies[1], [1]), (b"x", [])):
        found = table.to_pyarrow_table(filters=[("body", "=", body)])
        assert found["offset"].to_pylist() == offset


def in_two_batches(places) -> None:
    """Makes tables of 200 records."""
    commits = Commits.open(*places, SETTINGS)
    for batch in range(2):
        do_batch(commits, batch, some(200, 4)[100 * batch : 100 * (batch + 1)])
    commits.close()


@pytest.mark.parametrize("survive", range(0, 36, 3))
def test_a_crash_at_any_step_neither_loses_nor_doubles(begun, places, monkeypatch, survive):
    records = some(300, 4)
    late = [replace(records[0], offset=300, values={"a": -1.0}, stored_ms=records[-1].stored_at_ms)]
    cuts = [records[:100], records[100:200], [*records[200:], *late]]
    begun(in_two_batches, places)
    commits = Commits.open(*places, SETTINGS)
    with monkeypatch.context() as patch:
        crashing(patch, survive, commit="_commit_table")
        try:
            do_batch(commits, 2, cuts[2])
            do_tick(commits)
        except Crash:
            pass
    commits.close()
    seen = shown(Tables(places[0].url).windows())  # a reader sees the one or the other, whole
    assert seen in (naive(records[:200]), naive([*records, *late]))
    commits = Commits.open(*places, SETTINGS)
    if commits.manifest.pending_tick is not None:
        do_tick(commits)
    do_batch(commits, 2, cuts[2])
    do_tick(commits)
    more = some(60, 5, first=301)
    do_batch(commits, 3, more)
    commits.close()
    tables = Tables(places[0].url)
    everything = [*records, *late, *more]
    assert shown(plain(places[0], "windows_1m")) == shown(tables.windows()) == naive(everything)
    assert shown(plain(places[0], "windows_15m")) == naive(everything, 15 * MINUTE_MS)
    assert tables.counts() == {"mqtt": 361}
    assert total(plain(places[0], "traffic"), "records") == 361
    assert len({(r["device"], r["metric"]) for r in plain(places[0], "latest").to_pylist()}) == 8
    assert plain(places[0], "latest").num_rows == 8


def test_a_done_batch_is_passed_over_and_a_gap_refused(opened):
    do_batch(opened, 0, some(10, 4))
    assert opened.begin(0) is None
    assert opened.begin(1) is not None
    with pytest.raises(OutputMismatch, match="batch 2 follows 0"):
        opened.begin(2)


def test_output_and_checkpoint_belong_together(places, tmp_path):
    def opens(out, checkpoint):
        Commits.open(Location.of(out), checkpoint, SETTINGS).close()

    opens(places[0].url, places[1])
    opens(places[0].url, places[1])
    with pytest.raises(OutputMismatch, match="another checkpoint"):
        opens(places[0].url, tmp_path / "other")
    opens(tmp_path / "out2", tmp_path / "checkpoint2")
    with pytest.raises(OutputMismatch, match="another checkpoint"):
        opens(tmp_path / "out2", places[1])
    (places[1] / "commits").mkdir()
    (places[1] / "commits" / "0").touch()
    shutil.rmtree(places[0].url)
    with pytest.raises(OutputMismatch, match="holds none of them"):
        opens(places[0].url, places[1])


def test_a_start_cut_short_can_be_repeated(places):
    Commits.open(*places, SETTINGS).close()
    (places[0].local / MANIFEST).unlink()  # the job id was written, the manifest was not
    Commits.open(*places, SETTINGS).close()


def test_only_one_job_writes(opened, places):
    with pytest.raises(OutputBusy):
        Commits.open(*places, SETTINGS)


def test_a_second_job_without_the_lock_is_found_by_its_commit(places, monkeypatch):
    """An object store has no locks: the second commit of a version is refused."""
    monkeypatch.setattr(commits_module, "_locked", lambda *_: None)
    first, second = (Commits.open(*places, SETTINGS) for _ in range(2))
    do_batch(first, 0, some(10, 1))
    with pytest.raises(OutputBusy):
        do_batch(second, 0, some(10, 1))


def test_a_second_job_without_the_lock_destroys_no_state(places, monkeypatch):
    """Its start removed the states that the first one's executors had just written, and no start came after."""
    monkeypatch.setattr(commits_module, "_locked", lambda *_: None)
    first = Commits.open(*places, SETTINGS)
    do_batch(first, 0, some(10, 1))
    plan = first.begin(1)
    reports = worked(plan, SETTINGS.buckets, some(10, 1, first=10))
    second = Commits.open(*places, SETTINGS)
    first.commit(plan, reports, batch=1, began_ms=0)
    with pytest.raises(OutputBusy):
        do_batch(second, 1, some(10, 2, first=10))
    do_batch(first, 2, some(10, 1, first=20))
    do_batch(Commits.open(*places, SETTINGS), 3, some(10, 1, first=30))
    everything = [record for at in range(0, 40, 10) for record in some(10, 1, first=at)]
    assert shown(plain(places[0], "windows_1m")) == naive(everything)


def test_states_of_attempts_that_came_to_nothing_are_removed_at_the_next_start(places):
    commits = Commits.open(*places, SETTINGS)
    do_batch(commits, 0, some(10, 1))
    worked(commits.begin(1), SETTINGS.buckets, some(10, 1, first=10))
    assert len(places[0].files("state")) == 2 * SETTINGS.buckets
    commits.close()
    Commits.open(*places, SETTINGS).close()
    assert len(places[0].files("state")) == SETTINGS.buckets


def test_superseded_states_are_removed(opened, places):
    for batch in range(4):
        do_batch(opened, batch, some(5, batch, first=5 * batch))
    assert len(places[0].files("state")) == SETTINGS.buckets


def test_nothing_that_grows_with_devices_reaches_the_driver(places):
    """A report's size is that of its files' names and counters."""
    sizes = []
    for fleet in (10, 1_000):
        commits = Commits.open(Location.of(f"{places[0].url}{fleet}"), places[1] / str(fleet), SETTINGS)
        plan = commits.begin(0)
        reports = worked(plan, 2, [Record(f"d{n:04d}", T0 + n, n, {"a": 1.0}) for n in range(fleet)])
        sizes.append(max(len(report.encode()) for report in reports))
        commits.close()
    assert sizes[1] < sizes[0] + 200


def test_nothing_committed_reads_as_empty(tmp_path):
    tables = Tables(tmp_path / "none")
    assert tables.progress() == JobProgress()
    assert tables.counts() == tables.quality() == {}
    assert tables.latest().num_rows == tables.windows().num_rows == 0


def test_a_reader_that_lags_sees_the_pass_it_began_with(opened, places, monkeypatch):
    do_batch(opened, 0, some(50, 1))
    stale, tables = Manifest.load(places[0]), Tables(places[0].url)
    for batch in range(1, 4):
        do_batch(opened, batch, some(50, batch, first=50 * batch))
    monkeypatch.setattr(Manifest, "load", lambda _: stale)
    assert shown(tables.windows()) == naive(some(50, 1))


def test_junk_is_no_manifest(tmp_path):
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(SparkError, match="is no manifest"):
        Tables(tmp_path).counts()
