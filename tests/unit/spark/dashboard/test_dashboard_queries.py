"""Queries of the dashboard over tables of the job's schemas, and what the Explorer refuses."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("duckdb")

from spark.dashboard.queries import device, explorer, fleet, overview, quality  # noqa: E402
from spark.dashboard.queries.csv_export import to_csv  # noqa: E402
from spark.dashboard.queries.reading import QueryStopped, TelemetryTables  # noqa: E402
from spark.dashboard.queries.time_ranges import RANGES, range_named  # noqa: E402
from spark.errors import SparkError  # noqa: E402
from tests.support.spark.sample_tables import make_tables, samples  # noqa: E402

pytestmark = pytest.mark.slow

NOW_MS = 1_767_312_000_000 - 7_000  # just before midnight: ranges reach over no day, or over one


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    where = tmp_path_factory.mktemp("tables")
    make_tables(where, NOW_MS, devices=30, minutes=120)
    return TelemetryTables(where)


@pytest.fixture
def reading(tables):
    with tables.read() as found:
        yield found


def test_before_the_first_commit_every_answer_is_empty(tmp_path):
    with TelemetryTables(tmp_path / "none").read() as found:
        hour = RANGES["1h"]
        assert found.empty
        assert overview.lag(found, NOW_MS) == (None, None)
        assert overview.fleet(found, NOW_MS) == (0, 0, 0)
        assert overview.anomalies(found, NOW_MS) == (0, 0)
        assert overview.topic_rates(found, NOW_MS) == {}
        assert overview.traffic(found, "protocol", hour, NOW_MS) == []
        assert fleet.devices(found) == ([], 0)
        assert fleet.sparklines(found, [("a", "b")], NOW_MS) == {}
        assert device.latest(found, "a") == device.sessions(found, "a", hour, NOW_MS) == []
        assert device.series(found, "a", "b", hour, NOW_MS).num_rows == 0
        assert quality.totals(found) == {}
        assert quality.topics(found, hour, NOW_MS) == []
        assert (quality.devices(found), quality.of_device(found, "a")) == ([], None)
        assert quality.reasons(found, hour, NOW_MS) == quality.examples(found, hour, NOW_MS) == []
        assert explorer.columns_of(found) == {}


def test_junk_in_the_manifests_place_is_a_sentence(tmp_path):
    (tmp_path / "manifest.json").write_text("junk")
    with pytest.raises(SparkError, match="is no manifest"), TelemetryTables(tmp_path).read():
        pass


def test_a_table_that_is_gone_is_a_sentence(tmp_path):
    make_tables(tmp_path, NOW_MS, devices=2, minutes=3)
    (tmp_path / "latest").rename(tmp_path / "elsewhere")
    with pytest.raises(SparkError, match="cannot be read"), TelemetryTables(tmp_path).read():
        pass


def test_the_overview_counts_devices_and_tells_the_lag(reading):
    assert overview.fleet(reading, NOW_MS) == (30, 29, 90)
    assert overview.lag(reading, NOW_MS) == (1_200, 800)
    assert overview.anomalies(reading, NOW_MS) == (0, 0), "they are ten minutes old, and twenty"
    assert overview.anomalies(reading, NOW_MS - 10 * 60_000) == (1, 1)
    rows = overview.traffic(reading, "protocol", RANGES["15m"], NOW_MS)
    assert {row["name"] for row in rows} == {"mqtt", "http", "coap"}
    assert [row["start_ms"] for row in rows] == sorted(row["start_ms"] for row in rows)
    assert len({row["start_ms"] for row in rows}) in {15, 16}


@pytest.mark.parametrize("sort", fleet.SORTS)
@pytest.mark.parametrize("descending", [False, True])
def test_pages_of_devices_are_all_devices_once_in_order(reading, sort, descending):
    first = fleet.devices(reading, sort=sort, descending=descending)
    second = fleet.devices(reading, sort=sort, descending=descending, page=2)
    assert (first.total, first.pages, len(first.rows), len(second.rows)) == (30, 2, 25, 5)
    rows = [*first.rows, *second.rows]
    assert len({row["device"] for row in rows}) == 30
    keys = [row[fleet.SORTS[sort]] for row in rows]
    assert keys == sorted(keys, reverse=descending)


def test_a_search_finds_names_and_addresses_and_takes_no_patterns(reading):
    assert fleet.devices(reading, search="SENSOR-007").total == 1
    assert fleet.devices(reading, search="site1/sensor-01").total == 10
    assert fleet.devices(reading, search="%").total == 0
    assert fleet.devices(reading, search="'; DROP TABLE latest; --").total == 0


def test_a_page_behind_the_last_is_the_first(reading):
    assert fleet.devices(reading, search="sensor-007", page=9).rows[0]["device"] == "sensor-007"


def test_sparklines_are_the_hours_means_of_one_metric(reading):
    found = fleet.sparklines(reading, [("sensor-001", "humidity"), ("sensor-029", "humidity")], NOW_MS)
    assert set(found) == {"sensor-001"}  # the other has been silent for an hour
    assert 59 <= len(found["sensor-001"]) <= 61
    assert all(25 < value < 65 for value in found["sensor-001"])


@pytest.mark.parametrize("name", ["1h", "7d", "30d"])
def test_a_series_is_the_windows_of_the_range_at_its_width(reading, name):
    chosen = RANGES[name]
    found = device.series(reading, "sensor-003", "temperature", chosen, NOW_MS).to_pylist()
    values: dict[int, list[float]] = {}
    for row in samples(NOW_MS, 30, 120).to_pylist():
        start_ms = int(row["time"].timestamp() * 1000) // chosen.width_ms * chosen.width_ms
        if (row["device"], row["metric"]) == ("sensor-003", "temperature") and start_ms >= chosen.since_ms(NOW_MS):
            values.setdefault(start_ms, []).append(row["value"])
    assert [row["start_ms"] for row in found] == sorted(values)
    for row in found:
        of = sorted(values[row["start_ms"]])
        assert (row["count"], row["min"], row["max"]) == (len(of), of[0], of[-1])
        assert row["mean"] == pytest.approx(sum(of) / len(of))
        assert of[0] <= row["p50"] <= row["p95"] <= of[-1]


def test_latest_values_are_those_of_one_device(reading):
    rows = device.latest(reading, "sensor-003")
    assert [row["metric"] for row in rows] == ["battery", "humidity", "temperature"]
    assert [row["unit"] for row in rows] == ["V", "%RH", "Cel"]
    assert device.latest(reading, "nobody") == []


def test_sessions_are_those_that_reach_into_the_range(reading):
    going_on, ended = device.sessions(reading, "sensor-000", RANGES["6h"], NOW_MS)
    assert (going_on["records"], going_on["lasted_ms"], going_on["settled"]) == (40, 20 * 60_000, False)
    assert (ended["records"], ended["lasted_ms"], ended["settled"]) == (60, 30 * 60_000, True)
    assert device.sessions(reading, "sensor-000", RANGES["15m"], NOW_MS) == [going_on]
    assert device.sessions(reading, "sensor-001", RANGES["6h"], NOW_MS) == []


@given(st.lists(st.integers(1, 20), max_size=40), st.sampled_from([60_000, 900_000]))
def test_gaps_break_lines_and_no_value_is_lost(steps, width_ms):
    starts = [width_ms * sum(steps[: n + 1]) for n in range(len(steps))]
    values = [float(n) for n in range(len(steps))]
    found = pa.table([starts, *[values] * 6], names=list(device.COLUMNS))
    columns = device.with_gaps(found, width_ms)
    assert [v for v in columns["mean"] if v is not None] == values
    assert [s for s, v in zip(columns["start_ms"], columns["mean"], strict=True) if v is not None] == starts
    assert columns["mean"].count(None) == sum(step > device.GAP_POINTS for step in steps[1:])
    assert columns["start_ms"] == sorted(columns["start_ms"])


def test_quality_tells_totals_topics_and_examples(reading):
    hour = RANGES["1h"]
    assert quality.totals(reading) == {"bad_json": 7, "late": 20, "ok": 1200}
    (topic,) = quality.topics(reading, hour, NOW_MS)
    assert topic["topic"] == "telemetry"
    assert 0 < topic["share"] < 0.1
    assert {row["reason"] for row in quality.reasons(reading, hour, NOW_MS)} == {"is no JSON", "has no number"}
    bodies = {row["body"] for row in quality.examples(reading, hour, NOW_MS)}
    assert bodies == {'{"temperature": 21,', "\\xff\\xfe\ufffd"}


def test_quality_tells_devices_that_are_not_in_order(reading):
    (worst,) = quality.devices(reading)
    assert (worst["device"], worst["duplicates"], worst["duplicates_rate"]) == ("sensor-000", 12, 0.1)
    assert worst["skew_s"] == 60.0
    assert quality.of_device(reading, "sensor-000") == worst
    assert quality.of_device(reading, "sensor-001")["skew_s"] == 0.04
    assert quality.of_device(reading, "nobody") is None


@pytest.mark.parametrize("sql", explorer.EXAMPLES.values(), ids=explorer.EXAMPLES)
def test_the_examples_of_the_explorer_run(reading, sql):
    assert explorer.explore(reading, sql).rows.num_columns > 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM read_parquet('http://127.0.0.1:9/x')",
        "SELECT * FROM glob('/*')",
        "COPY latest TO 'out.csv'",
        "CREATE TABLE t AS SELECT 1",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '100GB'",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "",
        "SELECT * FROM manifest",  # a variable of the process is no table
        "SELEC 1",
        "SELECT '" + "x" * explorer.SQL_CHARS_MAX + "'",
    ],
)
def test_the_explorer_refuses_all_but_one_statement_that_reads_the_tables(reading, sql):
    with pytest.raises(SparkError):
        explorer.explore(reading, sql)


def test_pivot_reads_where_its_values_are_named(reading):
    """Without them DuckDB makes several statements of it, the first of which creates a type."""
    named = "PIVOT latest ON metric IN ('battery', 'humidity') USING first(value) GROUP BY device"
    found = explorer.explore(reading, named).rows
    assert (found.column_names, found.num_rows) == (["device", "battery", "humidity"], 30)
    with pytest.raises(explorer.NotReading, match="and PIVOT with its values: "):
        explorer.explore(reading, "PIVOT latest ON metric USING first(value) GROUP BY device")


def test_the_explorer_stops_at_its_rows(reading):
    found = explorer.explore(reading, "SELECT * FROM range(100000000)", rows_max=10)
    assert (found.rows.num_rows, found.more) == (10, True)
    found = explorer.explore(reading, "SELECT * FROM range(10)", rows_max=10)
    assert (found.rows.num_rows, found.more) == (10, False)


def test_a_query_that_takes_too_long_is_stopped(reading):
    with pytest.raises(QueryStopped, match=r"longer than 0\.2 s"):
        reading.table(
            "SELECT count(*) FROM range(100000000000) a, range(1000) b WHERE a.range = -b.range", seconds_max=0.2
        )


def test_a_result_that_is_too_large_is_refused(reading):
    with pytest.raises(SparkError, match="larger than 64 MiB"):
        explorer.explore(reading, "SELECT repeat('x', 1000000) FROM range(100)")


def test_columns_are_listed_by_table(reading):
    found = explorer.columns_of(reading)
    names = ["anomalies", "devices", "latest", "quality", "quarantine", "samples", "sessions", "traffic", "windows_15m"]
    assert sorted(found) == [*names, "windows_1m"]
    assert "device VARCHAR" in found["latest"]


def test_no_cell_of_a_csv_is_a_formula():
    rows = pa.table({"device": ["=1+1", "plain", None], "value": [-1.5, 2.0, None], "body": [b"\xff", b"", None]})
    text = to_csv(rows).decode()
    assert list(csv.reader(io.StringIO(text))) == [
        ["device", "value", "body"],
        ["'=1+1", "-1.5", "ff"],
        ["plain", "2.0", ""],
        ["", "", ""],
    ]


def test_a_name_that_is_no_range_is_the_usual_one():
    assert range_named("9y") == range_named(None) == RANGES["1h"]
    assert all(one.ms / one.width_ms <= 1_500 for one in RANGES.values())


@pytest.mark.parametrize("odd", ["date '5877642-06-25 (BC)'", "'infinity'::timestamp", "'infinity'::timestamptz"])
def test_a_time_that_python_has_none_for_is_a_text(reading, odd):
    rows = explorer.explore(reading, f"SELECT {odd} AS at UNION ALL SELECT NULL").rows
    assert explorer.cells(rows) == [["(out of range)"], [""]]
    assert to_csv(rows).decode().splitlines() == ["at", "(out of range)", '""']
