"""A real sensor, replayed with its own time stamps: the water flow of a pipeline, hour by hour, of the package river.

Its description knows of three times of low flow, by losses or maintenance, in 1,268 hours of the year 2022.
"""

import csv
import importlib.util
from datetime import UTC, datetime
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown  # noqa: E402

SETTINGS = CommitSettings(watermark_ms=120_000, late_ms=3_600_000, buckets=1)
LOW = [
    ("2022-03-24T08", "2022-03-24T23"),
    ("2022-03-29T07", "2022-03-29T17"),
    ("2022-04-27T13", "2022-04-28T02"),
]  # UTC


def water_flow() -> list[Record]:
    """Returns the hours as records, stored when they were measured; reads the file alone, and runs no code of the
    package.
    """
    spec = importlib.util.find_spec("river")
    if spec is None or spec.origin is None:
        pytest.skip("the package river is not installed; it holds the data")
    path = Path(spec.origin).parent / "datasets" / "water-flow.csv"
    with path.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    times = [round(datetime.fromisoformat(time).timestamp() * 1000) for time, _ in rows]
    return [
        Record("pipeline", at, n, {"flow": float(row[1])}) for n, (at, row) in enumerate(zip(times, rows, strict=True))
    ]


@pytest.mark.slow
def test_the_losses_of_a_real_pipeline_are_found_and_little_else(tmp_path):
    records = water_flow()
    commits = Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", SETTINGS)
    for batch, at in enumerate(range(0, len(records), 200)):
        do_batch(commits, batch, records[at : at + 200])
    do_tick(commits, records[-1].time_ms + 60 * MINUTE_MS)
    commits.close()
    tables = Tables(tmp_path / "out")
    assert shown(tables.windows()) == naive(records)
    assert len(records) == 1_268
    found = [row for row in tables.table("anomalies").to_pylist() if row["metric"] == "flow"]
    low = [tuple(datetime.fromisoformat(f"{one}:00+00:00").astimezone(UTC) for one in pair) for pair in LOW]
    hits = [any(start <= row["time"] <= end for start, end in low) for row in found]
    assert all(any(start <= row["time"] <= end for row in found) for start, end in low)
    assert hits.count(False) <= 1  # of some six
    (device,) = tables.table("devices").to_pylist()
    assert device["interval_s"] == pytest.approx(3_600, rel=0.1)
