"""Polars reads the tables by its own reader of Delta Lake: each table, a part by filters, an older version."""

import datetime

import pytest

pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
pl = pytest.importorskip("polars")

from spark.job import maintenance  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.schemas import SPECS  # noqa: E402
from tests.support.spark.job_kit import MINUTE_MS, Record, do_batch, do_tick, naive, shown  # noqa: E402

DAY_MS = 86_400_000
T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=2, samples=True, findings=True)
RECORDS = [
    [Record(f"d{n % 3}", T0 + day * DAY_MS + n * 1_000, day * 300 + n, {"a": n / 8, "state": "on"}) for n in range(300)]
    for day in range(3)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Tables of three days, of which a batch and a tick each have replaced files and left removed ones."""
    where = tmp_path_factory.mktemp("polars")
    place = Location.of(where / "out")
    commits = Commits.open(place, where / "checkpoint", SETTINGS)
    for batch, records in enumerate(RECORDS):
        do_batch(commits, batch, records)
        do_tick(commits, records[-1].stored_at_ms + 3 * MINUTE_MS)
    do_batch(commits, 3, [Record("odd", T0, 900, quality="bad_body", rejected=b"\xff{")])
    commits.close()
    maintenance.compact(place)
    return place


def test_every_table_has_the_same_rows_for_polars(place):
    empty = set()
    for name in SPECS:
        expected = deltalake.DeltaTable(place.child(name)).to_pyarrow_table()
        read = pl.read_delta(place.child(name))
        assert set(read.columns) == set(expected.column_names), name
        rows = sorted(read.select(expected.column_names).to_arrow().to_pylist(), key=str)
        assert rows == sorted(expected.to_pylist(), key=str), name
        if not rows:
            empty.add(name)
    assert empty <= {"anomalies"}, "a table without a row shows nothing"
    windows = pl.read_delta(place.child("windows_1m")).to_arrow()
    everything = [
        Record(record.device, record.time_ms, record.offset, {"a": record.values["a"]})
        for records in RECORDS
        for record in records
    ]
    assert {key: row for key, row in shown(windows).items() if key[1] == "a"} == naive(everything)


def test_polars_filters_by_day_and_reads_an_older_version(place):
    samples = pl.scan_delta(place.child("samples"))
    second = pl.col("day") == datetime.date(2026, 1, 2)
    assert samples.filter(second, pl.col("metric") == "a", pl.col("device") == "d1").collect().height == 100
    latest = deltalake.DeltaTable(place.child("samples")).version()
    counts = [pl.read_delta(place.child("samples"), version=version).height for version in range(latest + 1)]
    assert counts == sorted(counts)
    assert {600, 1_200, 1_800} <= set(counts)
