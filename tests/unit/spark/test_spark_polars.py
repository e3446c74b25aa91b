"""Polars reads the tables by its own reader of Delta Lake: each table, a part by filters, an older version."""

import datetime

import pytest

pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")
pl = pytest.importorskip("polars")

from spark.tables.schemas import SPECS  # noqa: E402
from tests.support.spark.job_kit import naive, shown  # noqa: E402
from tests.support.spark.job_tables import three_days, windows_expected  # noqa: E402


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return three_days(tmp_path_factory.mktemp("polars"))


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
    assert {key: row for key, row in shown(windows).items() if key[1] == "a"} == naive(windows_expected())


def test_polars_filters_by_day_and_reads_an_older_version(place):
    samples = pl.scan_delta(place.child("samples"))
    second = pl.col("day") == datetime.date(2026, 1, 2)
    assert samples.filter(second, pl.col("metric") == "a", pl.col("device") == "d1").collect().height == 100
    latest = deltalake.DeltaTable(place.child("samples")).version()
    counts = [pl.read_delta(place.child("samples"), version=version).height for version in range(latest + 1)]
    assert counts == sorted(counts)
    assert {600, 1_200, 1_800} <= set(counts)
