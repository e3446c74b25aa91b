"""The settled files that late records make a pass read."""

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from spark.tables import data_files
from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location
from spark.tables.reader import Tables
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown

T0 = 1_767_225_600_000  # the start of a day
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=86_400_000, buckets=1)
STEP_MS = 30 * MINUTE_MS


@pytest.fixture
def opened(tmp_path):
    commits = Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", SETTINGS)
    yield commits
    commits.close()


@pytest.mark.parametrize(
    ("late", "read"),
    [
        ([("m", 0), ("m", 3)], {0, 3}),  # the files between them hold the device, too
        ([("m", 1), ("m", 2)], {1, 2}),
        ([("a", 3), ("z", 1)], {3, 1}),  # each at its own time
        ([("m", 2), ("m", 2)], {2}),
    ],
)
def test_late_records_read_the_files_of_their_own_windows(opened, tmp_path, monkeypatch, late, read):
    records = []
    for step in range(6):
        at = T0 + step * STEP_MS
        some = [Record(name, at, len(records) + n, {"x": float(step)}) for n, name in enumerate("amz")]
        records += some
        do_batch(opened, step, some)
    now_ms = T0 + 6 * STEP_MS
    do_tick(opened, now_ms)
    opened_files, real = [], data_files.pq.read_table

    def counted(file, **how):
        table = real(file, **how)
        opened_files.append(table["start"][0].as_py().timestamp() * 1000)
        return table

    monkeypatch.setattr(data_files.pq, "read_table", counted)
    more = [
        Record(name, T0 + step * STEP_MS + 1_000 + n, len(records) + n, {"x": 9.0}, now_ms)
        for n, (name, step) in enumerate(late)
    ]
    do_batch(opened, 6, more)
    assert sorted(opened_files) == sorted(T0 + step * STEP_MS for step in [*read, *read])  # of both widths
    monkeypatch.undo()
    tables = Tables(str(tmp_path / "out"))
    assert shown(tables.table("windows_1m")) == naive([*records, *more])
    assert shown(tables.table("windows_15m")) == naive([*records, *more], 15 * MINUTE_MS)
