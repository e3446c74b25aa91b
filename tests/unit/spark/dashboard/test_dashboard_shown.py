"""Pages of tables with devices without values, of few points, and of many kinds of records."""

from datetime import timedelta

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("dash")

import httpx
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from spark.dashboard.clients.admin import AdminApi
from spark.dashboard.layout import charts, formatting
from spark.dashboard.layout.links import PageAddress
from spark.dashboard.pages import device, fleet, overview, quality, topics
from spark.dashboard.pages.sources import Sources
from spark.dashboard.queries import findings
from spark.dashboard.queries import fleet as fleet_queries
from spark.dashboard.queries import overview as overview_queries
from spark.dashboard.queries.reading import TelemetryTables
from spark.tables.files import Location
from spark.tables.schemas import SPECS
from tests.support.spark.sample_tables import MINUTE_MS, instant, make_tables

NOW_MS = 1_767_270_000_000


def sources(where) -> Sources:
    return Sources(TelemetryTables(where), AdminApi("http://127.0.0.1:9"), clock_s=lambda: NOW_MS / 1000)


@pytest.fixture
def silent(tmp_path):
    """Tables of three devices; no record of the last one, sensor-002, has a value that counts."""
    manifest = make_tables(tmp_path, NOW_MS, devices=3, minutes=70)
    latest = DeltaTable(str(tmp_path / "latest"))
    latest.delete("device = 'sensor-002'")
    versions = {**manifest.versions, "latest": latest.version()}
    replace(manifest, versions=versions).save(Location.of(tmp_path))
    return sources(tmp_path)


def test_a_device_without_a_value_is_in_the_fleet(silent):
    with silent.tables.read() as reading:
        assert overview_queries.fleet(reading, NOW_MS) == (3, 2, 6)
        rows = fleet_queries.devices(reading).rows
        assert [(row["device"], row["metrics"], row["state"]) for row in rows] == [
            *(("sensor-000", 3, "alive"), ("sensor-001", 3, "alive"), ("sensor-002", 0, "silent")),
        ]
    shown = str(fleet.body(silent, "", fleet.DEFAULT_SORT, 1, "1h")[0])
    assert "'sensor-002'" in shown
    assert "None: " not in shown


def test_the_page_of_a_device_without_a_value_says_why(silent):
    shown = str(device.body(silent, PageAddress("device", "sensor-002", {})))
    assert "No value yet" in shown
    assert "ahead of the store's clock" in shown
    assert "is not known" not in shown
    assert "is not known" in str(device.body(silent, PageAddress("device", "sensor-00", {})))


def test_the_findings_of_a_device_are_not_crowded_out_by_those_with_longer_names(tmp_path):
    manifest = make_tables(tmp_path, NOW_MS, devices=2, minutes=20)
    at = instant(NOW_MS - MINUTE_MS)
    row = {"device": "sensor-0001", "kind": "spike", "score": 9.0, "sentence": "x", "day": at.date()}
    rows = [{**row, "time": at + timedelta(milliseconds=n)} for n in range(findings.ROWS_SHOWN)]
    write_deltalake(str(tmp_path / "anomalies"), pa.Table.from_pylist(rows, SPECS["anomalies"].schema), mode="append")
    versions = {**manifest.versions, "anomalies": DeltaTable(str(tmp_path / "anomalies")).version()}
    replace(manifest, versions=versions).save(Location.of(tmp_path))
    shown = str(device.body(sources(tmp_path), PageAddress("device", "sensor-000", {})))
    assert "48.25 is 31.4 sigmas from its level of 21" in shown


def test_minutes_without_a_record_are_zero_and_a_single_one_is_seen():
    assert overview.by_name([], MINUTE_MS, 0) == {}
    one = {"start_ms": 10 * MINUTE_MS, "name": "mqtt", "records": 6}
    assert overview.by_name([one], MINUTE_MS, 9 * MINUTE_MS) == {"mqtt": ([9 * MINUTE_MS, 10 * MINUTE_MS], [0.0, 6.0])}
    later = {"start_ms": 13 * MINUTE_MS, "name": "http", "records": 3}
    starts = [n * MINUTE_MS for n in range(9, 14)]
    assert overview.by_name([one, later], MINUTE_MS, 0) == {
        "mqtt": (starts, [0.0, 6.0, 0.0, 0.0, 0.0]),
        "http": (starts, [0.0, 0.0, 0.0, 0.0, 3.0]),
    }


def test_what_was_before_the_range_is_not_shown_as_zero():
    one = {"start_ms": 10 * MINUTE_MS, "name": "mqtt", "records": 6}
    assert overview.by_name([one], MINUTE_MS, 10 * MINUTE_MS) == {"mqtt": ([10 * MINUTE_MS], [6.0])}


@pytest.mark.parametrize(
    ("means", "sizes"),
    [([1.0], [6.0]), ([1.0, None, 2.0, 3.0, None, 4.0], [6.0, 0.0, 0.0, 0.0, 0.0, 6.0]), ([1.0, 2.0], None)],
)
def test_a_value_that_has_none_beside_it_is_a_dot(means, sizes):
    columns = dict.fromkeys(("count", "min", "max", "mean", "p50", "p95"), means)
    columns["start_ms"] = list(range(len(means)))
    graph = charts.band("series", columns, unit="", keep="")
    (line,) = [trace for trace in graph.figure["data"] if trace.get("name") == "mean"]
    assert line.get("marker", {}).get("size") == sizes
    assert ("markers" in line["mode"]) == (sizes is not None)


def test_texts_of_devices_are_no_markup_in_a_chart():
    """Plotly takes tags of its texts for markup: a unit could be a link."""
    columns = {name: [1.0] for name in ("start_ms", "count", "min", "max", "mean", "p50", "p95")}
    text = '<a href="https://evil.example">°C & more</a>'
    graph = charts.band("series", columns, unit=text, keep="", marks=[(1, 1.0, text)])
    plain = '&lt;a href="https://evil.example"&gt;°C &amp; more&lt;/a&gt;'
    assert graph.figure["layout"]["yaxis"]["title"] == {"text": plain}
    assert graph.figure["data"][-1]["text"] == [plain]


def test_every_kind_of_record_that_is_not_in_order_has_its_figure(tmp_path):
    manifest = make_tables(tmp_path, NOW_MS, devices=2, minutes=3)
    kinds = ("ahead", "bad_body", "encoded", "late", "no_metrics", "too_many_devices", "too_many_metrics", "too_old")
    counts = {"mqtt": {"ok": 900, **{kind: n + 101 for n, kind in enumerate(kinds)}}}
    replace(manifest, counts=counts).save(Location.of(tmp_path))
    shown = str(quality.body(sources(tmp_path), "1h"))
    assert [kind for n, kind in enumerate(kinds) if f"'{n + 101}'" not in shown] == []


def test_the_quality_of_each_devices_records_is_shown(tmp_path):
    make_tables(tmp_path, NOW_MS, devices=2, minutes=70)
    for shown in (
        str(quality.body(sources(tmp_path), "1h")),
        str(device.body(sources(tmp_path), PageAddress("device", "sensor-000", {}))),
    ):
        assert "'Out of order'" in shown
        assert "'12 (10.00 %)'" in shown
        assert "'1 min behind'" in shown
    assert "telemetry/site1/sensor-000" in str(quality.body(sources(tmp_path), "1h"))
    shown = str(device.body(sources(tmp_path), PageAddress("device", "sensor-000", {})))
    assert "telemetry/site0/sensor-000/temperature" in shown.partition("Sessions of activity")[2]
    assert "'right'" in str(device.body(sources(tmp_path), PageAddress("device", "sensor-001", {})))
    (tmp_path / "none").mkdir()
    assert "No tables yet" in str(quality.body(sources(tmp_path / "none"), "1h"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.4, "right"), (-0.4, "right"), (60.0, "1 min behind"), (-3_600.0, "1 h ahead")]
)
def test_the_skew_of_a_clock_is_told_in_words(seconds, text):
    assert formatting.skew(seconds) == text


def test_the_rate_of_a_topic_is_that_of_the_tables_or_between_two_answers(tmp_path):
    """The tables are up to date, then lag, then are gone; a topic that no job reads is told by the gateway."""
    manifest = make_tables(tmp_path, NOW_MS, devices=2, minutes=30)
    now_s, records = [100.0], [1_000, 50]

    def answer(request):
        if request.url.path == "/metrics":
            return httpx.Response(200, text="")
        listed = [{"name": name, "records": count} for name, count in zip(("telemetry", "other"), records, strict=True)]
        return httpx.Response(200, json={"topics": listed})

    admin = AdminApi("http://gateway", transport=httpx.MockTransport(answer), clock_s=lambda: now_s[0])
    where = sources(tmp_path)._replace(admin=admin)

    def shown() -> dict[str, str]:
        now_s[0] += 10
        records[:] = records[0] + 420, records[1] + 5
        rows = [row for row in topics.body(where)._traverse() if type(row).__name__ == "TableTr"]
        cells = [[str(cell.children) for cell in row.children] for row in rows]
        at = cells[0].index("Messages/s")
        return {row[0]: row[at] for row in cells[1:]}

    def read_to(ms: int) -> None:
        replace(manifest, progress=replace(manifest.progress, read_to_ms=ms)).save(Location.of(tmp_path))

    read_to(NOW_MS)
    with where.tables.read() as reading:
        rows = reading.rows("SELECT epoch_ms(start) AS ms, sum(records)::BIGINT AS records FROM traffic GROUP BY ALL")
        counts = {row["ms"]: row["records"] for row in rows}
    told = sum(counts[NOW_MS - n * MINUTE_MS] for n in range(1, 6)) / 300
    assert shown() == {"telemetry": formatting.number(told), "other": "-"}
    assert shown() == {"telemetry": formatting.number(told), "other": "0.5"}
    read_to(NOW_MS - 30_000)  # four whole minutes, and as much as is known of the last one
    told = sum(counts[NOW_MS - n * MINUTE_MS] for n in range(1, 6)) / 270
    assert shown()["telemetry"] == formatting.number(told)
    read_to(NOW_MS - 121_000)
    assert shown() == {"telemetry": "42", "other": "0.5"}
    (tmp_path / "manifest.json").write_text("junk")
    assert shown() == {"telemetry": "42", "other": "0.5"}
