"""Trino reads the tables by its own connector of Delta Lake: each table, its columns and values: `make interop`.

The server comes from Maven's repository, 0.8 GB, so this test runs only where HEADGATE_TRINO=1 asks for it.
"""

import base64
import os
from datetime import UTC, date, datetime

import pytest

pytest.importorskip("pyarrow")
deltalake = pytest.importorskip("deltalake")

from spark.tables.schemas import SPECS  # noqa: E402
from tests.support.process.packages import MAVEN  # noqa: E402
from tests.support.spark.job_kit import naive  # noqa: E402
from tests.support.spark.job_tables import DAY_MS, T0, three_days, windows_expected  # noqa: E402
from tests.support.spark.trino import trino  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3_000),
    pytest.mark.skipif(MAVEN is None, reason="mvn is not installed"),
    pytest.mark.skipif(not os.environ.get("HEADGATE_TRINO"), reason="needs Maven's repository: make interop"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return three_days(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def server(place, tmp_path_factory):
    with trino(tmp_path_factory.mktemp("trino")) as running:
        running.rows("CREATE SCHEMA delta.job")
        for name in SPECS:
            running.rows(f"CALL delta.system.register_table('job', '{name}', 'local://{place.child(name)}')")
        yield running


def plain(value):
    """Returns a value of Arrow as Trino's JSON has it, times by the millisecond."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03} UTC"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [plain(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", SPECS)
def test_a_table_has_the_same_rows_for_trino(server, place, name):
    expected = deltalake.DeltaTable(place.child(name)).to_pyarrow_table()
    rows = [{column: plain(row[column]) for column in sorted(row)} for row in expected.to_pylist()]
    found = [dict(sorted(row.items())) for row in server.rows(f"SELECT * FROM delta.job.{name}")]
    assert sorted(found, key=str) == sorted(rows, key=str)
    assert rows or name == "anomalies", "a table without a row shows nothing"


def test_windows_by_day_and_device_are_those_of_the_records(server):
    day = datetime.fromtimestamp((T0 + DAY_MS) / 1000, UTC).date()
    rows = server.rows(
        'SELECT to_unixtime("start") * 1000 AS ms, count, min, max, mean, first, last FROM delta.job.windows_1m '
        f"WHERE day = DATE '{day}' AND device = 'd1' AND metric = 'a'"
    )
    found = {("d1", "a", round(row.pop("ms"))): tuple(row.values()) for row in rows}
    wanted = {key: row for key, row in naive(windows_expected()).items() if key[0] == "d1" and day_of(key[2]) == day}
    assert found == wanted
    assert len(found) == 5


def day_of(ms):
    return datetime.fromtimestamp(ms / 1000, UTC).date()


def test_trino_reads_an_older_version(server, place):
    older = deltalake.DeltaTable(place.child("latest"), version=1).to_pyarrow_table()
    (row,) = server.rows("SELECT count(*) AS n FROM delta.job.latest FOR VERSION AS OF 1")
    assert row["n"] == older.num_rows
