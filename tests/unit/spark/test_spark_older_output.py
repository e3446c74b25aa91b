"""Output of before the tables were those of Delta Lake: all that reads it refuses it with a sentence, and leaves it."""

import json
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("pyspark")

import pyarrow.parquet as pq  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from gateway.cli.spark import SparkFailed, app  # noqa: E402
from spark.dashboard.queries.reading import TelemetryTables  # noqa: E402
from spark.errors import OutputMismatch  # noqa: E402
from spark.job import query  # noqa: E402
from spark.shell import views  # noqa: E402
from spark.tables.manifest import MANIFEST  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from spark.telemetry.windows import INSTANT  # noqa: E402

T0 = 1_767_225_600_000
JOB = "81af1fb47bfd4de9a1a3167e4eeb0215"
SENTENCE = (
    "{} holds Parquet files of an older version, which are no Delta tables: name another output and checkpoint, and "
    "the tables are computed from the log again"
)


def rows(minute: int) -> "pa.Table":
    """Returns a window of that version for each of three devices."""
    count, at = 3, (T0 + minute * 60_000) * 1000
    made = {
        "device": pa.array([f"d{n}" for n in range(count)]),
        "metric": pa.array(["temp"] * count),
        "start": pa.array([at] * count, INSTANT),
        "count": pa.array([1] * count),
        **{name: pa.array([21.5] * count) for name in ("min", "max", "mean", "last")},
        "last_time": pa.array([at + 5] * count, INSTANT),
        "last_offset": pa.array(range(count)),
        "last_queue": pa.array([16] * count, pa.int32()),
        "last_position": pa.array([f"{n:x}.0" for n in range(count)]),
    }
    return pa.table(made)


@pytest.fixture
def older(tmp_path):
    """Returns a directory as three batches of that version have left it."""
    output = tmp_path / "out"
    for minute in range(3):
        state = output / "state" / f"{minute:010d}"
        state.mkdir(parents=True)
        for name in ("open.parquet", "latest.parquet"):
            pq.write_table(rows(minute), state / name, compression="zstd")
            pq.write_table(rows(minute), output / name, compression="zstd")
    day = output / "windows" / "date=2026-01-01"
    day.mkdir(parents=True)
    for minute in (1, 2):
        pq.write_table(rows(minute - 1), day / f"batch-{minute:010d}.parquet", compression="zstd")
    progress = {"batch": 2, "records": 9, "offsets": {"16": 9}, "watermark_ms": T0 + 120_000, "stored_at_ms": T0}
    progress |= {"committed_at_ms": T0 + 1, "batch_records": 3, "batch_ms": 0}
    manifest = {"job": JOB, "progress": progress, "counts": {"mqtt": {"ok": 9}}}
    (output / MANIFEST).write_text(json.dumps(manifest))
    (output / ".lock").touch()
    (output / "checkpoint").mkdir()
    (output / "checkpoint" / "headgate-job").write_text(JOB)
    return output


def content(directory: Path) -> dict:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("with_manifest", [True, False])
def test_the_job_refuses_it_and_changes_nothing(older, monkeypatch, with_manifest):
    monkeypatch.setattr(query, "find_java_home", lambda: older)
    monkeypatch.setattr(query, "build_session", lambda *_, **__: pytest.fail("Spark is started"))
    if not with_manifest:  # as where only the files of data were copied
        (older / MANIFEST).unlink()
        (older / "checkpoint" / "headgate-job").unlink()
    before = content(older)
    for more in ((), ("--checkpoint", str(older.parent / "another"))):
        ran = CliRunner().invoke(app, ["telemetry", "--once", "--output", str(older), *more])
        assert isinstance(ran.exception, SparkFailed), ran.output
        assert str(ran.exception) == SENTENCE.format(older)
        assert content(older) == before
    assert content(older.parent / "another") == {}


@pytest.mark.parametrize("command", [["describe"], ["compact"], ["vacuum"], ["expire", "--days", "3"]])
def test_the_commands_of_tables_refuse_it(older, command):
    before = content(older)
    ran = CliRunner().invoke(app, ["tables", *command, "--output", str(older)])
    assert isinstance(ran.exception, SparkFailed)
    assert str(ran.exception) == SENTENCE.format(older)
    assert content(older) == before


def test_readers_refuse_it(older):
    def dashboard():
        with TelemetryTables(older).read() as reading:
            return reading.names

    for read in (Tables(older).latest, Tables(older).progress, dashboard, lambda: views.refresh(None, older)):
        with pytest.raises(OutputMismatch) as refused:
            read()
        assert str(refused.value) == SENTENCE.format(older)
