"""Commits of the telemetry job: windows, latest values and counts, all or nothing, whatever was cut off where."""

import contextlib
import random
import shutil
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from spark.windows import LATEST, PARTIALS, WINDOW_MS, WINDOWS, absorb, latest_of, settled_before  # noqa: E402

from spark import ledger as ledgers  # noqa: E402
from spark.errors import OutputBusy, OutputMismatch, SparkError  # noqa: E402
from spark.ledger import STATES_KEPT, Ledger  # noqa: E402
from spark.tables import MANIFEST, Manifest, Progress, Tables, state_dir, windows_files  # noqa: E402


@dataclass
class Sample:
    device: str
    metric: str
    value: float
    time_ms: int
    offset: int
    queue: int = 16


def partials(samples: list[Sample]) -> pa.Table:
    """Each sample as a row of its own: merging does the rest."""
    columns = defaultdict(list)
    for s in samples:
        row = {
            "device": s.device,
            "metric": s.metric,
            "start": s.time_ms // WINDOW_MS * WINDOW_MS * 1000,
            "count": 1,
            **dict.fromkeys(("min", "max", "sum", "last"), s.value),
            "last_time": s.time_ms * 1000,
            "last_offset": s.offset,
            "last_queue": s.queue,
            "last_position": f"{s.offset:x}.0",
        }
        for name, value in row.items():
            columns[name].append(value)
    return pa.table({n: columns[n] for n in PARTIALS.names}, schema=PARTIALS) if samples else PARTIALS.empty_table()


def naive(samples: list[Sample]) -> dict:
    """The windows, by the book."""
    groups = defaultdict(list)
    for s in samples:
        groups[s.device, s.metric, s.time_ms // WINDOW_MS * WINDOW_MS].append(s)
    found = {}
    for key, group in groups.items():
        values = [s.value for s in group]
        last = max(group, key=lambda s: (s.time_ms, s.offset, s.queue))
        found[key] = (len(values), min(values), max(values), sum(values) / len(values), last.value)
    return found


def shown(windows: pa.Table) -> dict:
    rows = windows.to_pylist()
    found = {
        (r["device"], r["metric"], round(r["start"].timestamp() * 1000)): tuple(
            r[name] for name in ("count", "min", "max", "mean", "last")
        )
        for r in rows
    }
    assert len(found) == len(rows), "a window is there twice"
    return found


def some(count: int, seed: int, *, minutes: int = 6) -> list[Sample]:
    chance = random.Random(seed)
    return [
        Sample(
            f"d{chance.randrange(4)}",
            chance.choice("ab"),
            float(chance.randrange(1000)),
            chance.randrange(minutes * WINDOW_MS // 1000) * 1000,
            n,
        )
        for n in range(count)
    ]


@pytest.fixture
def places(tmp_path):
    return tmp_path / "out", tmp_path / "checkpoint"


@pytest.fixture
def opened(places):
    ledger = Ledger.open(*places)
    yield ledger
    ledger.close()


def commit(ledger: Ledger, samples: list[Sample], watermark_ms: int = 0) -> None:
    table = partials(samples)
    progress = Progress(
        offsets={16: max((s.offset for s in samples), default=-1) + 1},
        watermark_ms=watermark_ms,
        batch_records=len(samples),
    )
    ledger.commit(ledger.batch + 1, table, table, {"mqtt": {"ok": len(samples)}}, progress)


@pytest.mark.parametrize("pieces", [1, 3, 50])
def test_how_the_log_was_cut_does_not_show(opened, places, pieces):
    samples = some(1_000, 1)
    size = -(-len(samples) // pieces)
    for at in range(0, len(samples), size):
        commit(opened, samples[at : at + size])
    tables = Tables(places[0])
    assert shown(tables.windows()) == naive(samples)
    assert tables.counts() == {"mqtt": 1_000}
    assert tables.progress().records == 1_000
    assert tables.progress().offsets == {16: 1_000}
    newest = {}
    for s in samples:
        newest[s.device, s.metric] = max(
            newest.get((s.device, s.metric), s), s, key=lambda s: (s.time_ms, s.offset, s.queue)
        )
    rows = tables.latest().to_pylist()
    assert {(r["device"], r["metric"]): (r["value"], r["offset"]) for r in rows} == {
        key: (s.value, s.offset) for key, s in newest.items()
    }
    assert [r["time"] for r in rows] == sorted((r["time"] for r in rows), reverse=True)
    assert tables.latest(2).num_rows == 2
    assert {r["device"] for r in tables.latest(device="d1").to_pylist()} == {"d1"}


def test_settled_windows_are_written_once_and_for_good(opened, places):
    samples = sorted(some(600, 2), key=lambda s: s.time_ms)
    for at in range(0, 600, 50):
        piece = samples[at : at + 50]
        commit(opened, piece, watermark_ms=piece[0].time_ms)
    tables = Tables(places[0])
    assert shown(tables.windows()) == naive(samples)
    settled = shown(tables.windows(settled_only=True))
    mark = tables.progress().watermark_ms
    assert settled
    assert settled.keys() == {key for key in naive(samples) if key[2] + WINDOW_MS <= mark}
    everything = pa.concat_tables([pa.parquet.read_table(f, partitioning=None) for f in tables.settled_files()])
    assert shown(everything) == settled
    assert shown(tables.windows(since_ms=3 * WINDOW_MS + 5)) == {
        key: value for key, value in naive(samples).items() if key[2] >= 3 * WINDOW_MS
    }
    assert {key[:2] for key in shown(tables.windows(device="d1", metric="a"))} == {("d1", "a")}
    assert tables.windows(3).num_rows == 3
    assert (places[0] / "latest.parquet").exists()


def test_days_have_directories_of_their_own(opened, places):
    midnight = int(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000)
    samples = [Sample("d", "m", 1.0, midnight - 1, 0), Sample("d", "m", 2.0, midnight, 1)]
    commit(opened, samples, watermark_ms=midnight + 2 * WINDOW_MS)
    assert sorted(p.name for p in (places[0] / "windows").iterdir()) == ["date=2026-01-01", "date=2026-01-02"]
    assert shown(Tables(places[0]).windows(since_ms=midnight)) == naive(samples[1:])


class Crash(Exception):
    """The process ended here."""


@pytest.mark.parametrize("survive", range(12))
def test_a_crash_at_any_write_neither_loses_nor_doubles(places, monkeypatch, survive):
    samples = sorted(some(300, 3), key=lambda s: s.time_ms)
    cuts = [samples[at : at + 100] for at in range(0, 300, 100)]
    ledger = Ledger.open(*places)
    commit(ledger, cuts[0], watermark_ms=cuts[0][0].time_ms)
    left = survive
    real = ledgers._sync

    def sync(path):
        nonlocal left
        if left == 0:
            raise Crash
        left -= 1
        real(path)

    with monkeypatch.context() as patch:
        patch.setattr(ledgers, "_sync", sync)
        with contextlib.suppress(Crash):
            commit(ledger, cuts[1], watermark_ms=cuts[1][0].time_ms)
    ledger.close()
    seen = shown(Tables(places[0]).windows())  # a reader sees the one or the other, whole
    assert seen in (naive(cuts[0]), naive(cuts[0] + cuts[1]))
    ledger = Ledger.open(*places)
    assert ledger.batch in (0, 1)
    for n, cut in list(enumerate(cuts))[1:]:
        if ledger.check(n):
            commit(ledger, cut, watermark_ms=cut[0].time_ms)
    ledger.close()
    tables = Tables(places[0])
    assert shown(tables.windows()) == naive(samples)
    assert tables.counts() == {"mqtt": 300}


def test_a_done_batch_is_passed_over_and_a_gap_refused(opened):
    commit(opened, some(10, 4))
    assert not opened.check(0)
    assert opened.check(1)
    with pytest.raises(OutputMismatch, match="batch 2 follows 0"):
        opened.check(2)


def test_output_and_checkpoint_belong_together(places, tmp_path):
    Ledger.open(*places).close()
    Ledger.open(*places).close()
    with pytest.raises(OutputMismatch, match="another checkpoint"):
        Ledger.open(places[0], tmp_path / "other")
    Ledger.open(tmp_path / "out2", tmp_path / "checkpoint2").close()
    with pytest.raises(OutputMismatch, match="another checkpoint"):
        Ledger.open(tmp_path / "out2", places[1])
    (places[1] / "commits").mkdir()
    (places[1] / "commits" / "0").touch()
    shutil.rmtree(places[0])
    with pytest.raises(OutputMismatch, match="holds none of them"):
        Ledger.open(*places)


def test_a_start_cut_short_can_be_repeated(places):
    Ledger.open(*places).close()
    (places[0] / MANIFEST).unlink()  # the job id was written, the manifest was not
    Ledger.open(*places).close()


def test_only_one_job_writes(opened, places):
    with pytest.raises(OutputBusy):
        Ledger.open(*places)


def test_superseded_states_go_after_a_while(opened, places):
    for n in range(STATES_KEPT + 3):
        commit(opened, some(5, n))
    kept = sorted(int(p.name) for p in (places[0] / "state").iterdir())
    assert kept == list(range(3, STATES_KEPT + 3))


def test_small_files_of_a_day_become_one(opened, places, monkeypatch):
    monkeypatch.setattr(ledgers, "COMPACT_FILES", 5)
    samples = []
    for n in range(12):
        more = [Sample(f"d{i}", "m", float(n), n * WINDOW_MS + i, n * 10 + i) for i in range(3)]
        samples += more
        commit(opened, more, watermark_ms=n * WINDOW_MS)
        assert shown(Tables(places[0]).windows()) == naive(samples)
    day = places[0] / "windows" / "date=1970-01-01"
    assert len(list(day.iterdir())) < 5


def test_a_merged_file_counts_instead_of_its_parts(tmp_path):
    for name in ("batch-0000000001", "batch-0000000002", "batch-0000000001-0000000002", "batch-0000000007"):
        (tmp_path / f"{name}.parquet").touch()
    (tmp_path / ".batch-0000000003.parquet").touch()
    assert [f.path.stem for f in windows_files(tmp_path, up_to=6)] == ["batch-0000000001-0000000002"]
    assert [f.first for f in windows_files(tmp_path, up_to=7)] == [1, 7]


def plain(day):
    """Returns what a reader that knows no manifest sees of a day."""
    return pq.read_table(day, partitioning=None).num_rows


def test_large_files_are_not_merged_again(opened, places, monkeypatch):
    monkeypatch.setattr(ledgers, "COMPACT_FILES", 3)
    monkeypatch.setattr(ledgers, "COMPACT_ROWS", 4)
    for n, size in enumerate([1, 9, 1, 1, 8, 1, 1, 1, 7, 1]):
        commit(opened, [Sample(f"d{i}", "m", 1.0, n * WINDOW_MS, n) for i in range(size)], watermark_ms=n * WINDOW_MS)
    commit(opened, [], watermark_ms=99 * WINDOW_MS)
    day = places[0] / "windows" / "date=1970-01-01"
    assert plain(day) == 31
    found = {(file.first, file.last): pq.read_metadata(file.path).num_rows for file in windows_files(day, up_to=99)}
    assert [rows for rows in found.values() if rows > 4] == [9, 8, 7]
    assert len(found) == 8


@pytest.mark.parametrize("failing", range(8))
def test_merging_interrupted_anywhere_shows_no_row_twice_and_is_finished(places, monkeypatch, failing):
    monkeypatch.setattr(ledgers, "COMPACT_FILES", 4)
    day = places[0] / "windows" / "date=1970-01-01"
    samples = [Sample("d", "m", float(n), n * WINDOW_MS, n) for n in range(6)]
    opened = Ledger.open(*places)
    seen, steps = [], 0

    def interrupted(step):
        def call(*args, **kwargs):
            nonlocal steps
            if day.exists():
                seen.append((plain(day), Tables(places[0]).windows(settled_only=True).num_rows))
            if any(day.glob("*.merged")):
                steps += 1
                if steps > failing:
                    raise OSError("interrupted")
            return step(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(type(day), "unlink", interrupted(type(day).unlink))
        patched.setattr(ledgers, "_link", interrupted(ledgers._link))
        for n, sample in enumerate(samples):
            try:
                commit(opened, [sample], watermark_ms=n * WINDOW_MS)
            except OSError:
                break
    assert seen
    assert all(shown_plainly <= whole for shown_plainly, whole in seen)
    opened.close()
    again = Ledger.open(*places)
    settled = Tables(places[0]).windows(settled_only=True).num_rows
    assert plain(day) == settled >= 4
    files = Tables(places[0]).settled_files()
    assert sum(pq.read_metadata(path).num_rows for path in files) == settled
    again.close()


def test_half_merged_files_are_not_handed_to_other_engines(opened, places, monkeypatch):
    monkeypatch.setattr("spark.tables._MERGING_WAIT_S", 0)
    commit(opened, [Sample("d", "m", 1.0, 0, 0)], watermark_ms=5 * WINDOW_MS)
    day = places[0] / "windows" / "date=1970-01-01"
    (part,) = day.glob("*.parquet")
    part.rename(day / "_batch-0000000000-0000000000.merged")
    tables = Tables(places[0])
    assert tables.windows(settled_only=True).num_rows == 1
    with pytest.raises(SparkError, match="half merged"):
        tables.settled_files()


def test_nothing_committed_reads_as_empty(tmp_path):
    tables = Tables(tmp_path / "none")
    assert tables.progress() == Progress()
    assert tables.counts() == tables.quality() == {}
    assert tables.latest() == LATEST.empty_table()
    assert tables.windows() == WINDOWS.empty_table()
    assert tables.settled_files() == []


def test_a_reader_that_lags_reads_again(opened, places, monkeypatch):
    commit(opened, some(5, 1))
    tables = Tables(places[0])
    stale = Manifest.load(places[0])
    for n in range(STATES_KEPT + 1):
        commit(opened, some(5, n))
    real, calls = Manifest.load, []

    def load(output):
        calls.append(output)
        return stale if len(calls) == 1 else real(output)

    monkeypatch.setattr(Manifest, "load", load)
    assert not state_dir(places[0], stale.progress.batch).exists()
    assert tables.latest().num_rows > 0
    assert len(calls) == 2


def test_junk_is_no_manifest(tmp_path):
    (tmp_path / MANIFEST).write_text("{")
    with pytest.raises(SparkError, match="is not a manifest"):
        Tables(tmp_path).counts()


def test_merging_is_by_time_then_offset_then_queue():
    rows = [
        Sample("d", "m", 1.0, 5, 9, 16),
        Sample("d", "m", 2.0, 7, 1, 16),
        Sample("d", "m", 3.0, 7, 2, 16),
        Sample("d", "m", 4.0, 7, 2, 17),
    ]
    for order in (rows, rows[::-1]):
        merged = absorb(partials(order[:2]), partials(order[2:])).to_pylist()
        assert [(r["last"], r["count"], r["sum"]) for r in merged] == [(4.0, 4, 10.0)]
        assert latest_of(LATEST.empty_table(), partials(order)).to_pylist()[0]["value"] == 4.0
    settled, still = settled_before(partials(rows), WINDOW_MS)
    assert (settled.num_rows, still.num_rows) == (4, 0)
    assert settled_before(partials(rows), WINDOW_MS - 1)[0].num_rows == 0
