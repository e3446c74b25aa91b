"""The messages behind a part of a device's chart: where the tables say they are, and what the gateway has there."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")
pytest.importorskip("duckdb")
pytest.importorskip("dash_mantine_components")

import pyarrow.compute as pc  # noqa: E402
from deltalake import DeltaTable, write_deltalake  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from spark.dashboard.clients.admin import AdminApi  # noqa: E402
from spark.dashboard.clients.gateway import GatewayApi  # noqa: E402
from spark.dashboard.layout.links import PageAddress, Place, Zoom, device_link  # noqa: E402
from spark.dashboard.pages import device, raw_messages  # noqa: E402
from spark.dashboard.pages.raw_messages import PAGE_ROWS, MessageSearch, message_of, of_samples, preview  # noqa: E402
from spark.dashboard.pages.sources import Sources  # noqa: E402
from spark.dashboard.queries import places  # noqa: E402
from spark.dashboard.queries.reading import TelemetryTables  # noqa: E402
from spark.dashboard.queries.time_ranges import RANGES, range_since  # noqa: E402
from spark.decode.rules import DecodeRules  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.manifest import Manifest  # noqa: E402
from spark.tables.schemas import SPECS, presented  # noqa: E402
from spark.telemetry.windows import SAMPLES, partials_of  # noqa: E402
from store.api.decoding import DecodeRule  # noqa: E402
from store.api.devices import DeviceRule, Devices  # noqa: E402
from tests.support.spark.message_log import MessageLog  # noqa: E402
from tests.support.spark.sample_tables import MINUTE_MS, make_tables, samples  # noqa: E402

NOW_MS = 1_767_312_000_000 - 7_000  # just before midnight
DEVICES, MINUTES = 4, 90
OLD = Zoom(NOW_MS - 70 * MINUTE_MS, NOW_MS - 65 * MINUTE_MS - 500)  # of which no samples are kept
RECENT = Zoom(NOW_MS - 12 * MINUTE_MS, NOW_MS - 2 * MINUTE_MS)


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    where = tmp_path_factory.mktemp("tables")
    make_tables(where, NOW_MS, devices=DEVICES, minutes=MINUTES)
    return where


@pytest.fixture
def log():
    return MessageLog(samples(NOW_MS, DEVICES, MINUTES))


@pytest.fixture
def sources(where, log):
    gateway = GatewayApi("http://gateway:8080", transport=httpx.MockTransport(log))
    return Sources(TelemetryTables(where), AdminApi("http://127.0.0.1:9"), lambda: NOW_MS / 1000, gateway)


def told(log, name, zoom):
    """Returns the offsets of a device's samples with times in a part."""
    ends = [datetime.fromtimestamp(ms / 1000, UTC) for ms in zoom]
    return [n for n, row in log.rows.items() if row["device"] == name and ends[0] <= row["time"] < ends[1]]


def offsets(rows):
    return [row.place.offset for row in rows]


def search(sources, name, zoom, found, begin=None):
    return MessageSearch(sources, name, zoom, found).page(sources.gateway, None, begin)


def all_pages(sources, name, zoom):
    with sources.tables.read() as reading:
        found = places.of_windows(reading, name, *zoom)
    pages, begin = [], None
    while not pages or begin is not None:
        page = search(sources, name, zoom, found, begin)
        begin = page.following
        pages.append(page.rows)
    return pages


@pytest.mark.parametrize("zoom", [OLD, RECENT, Zoom(0, NOW_MS)], ids=["old", "recent", "all"])
def test_windows_say_where_all_messages_of_a_part_are(sources, log, zoom):
    with sources.tables.read() as reading:
        found = places.of_windows(reading, "sensor-001", *zoom)
        assert places.of_windows(reading, "nobody", *zoom) is None
    wanted = [log.rows[n] for n in told(log, "sensor-001", zoom)]
    assert set(found.addresses) == {row["address"] for row in wanted}
    assert min(row["offset"] for row in wanted) - 30 < found.first[16] <= min(row["offset"] for row in wanted)
    assert found.stored_until_ms > max(row["stored_at"].timestamp() * 1000 for row in wanted)
    assert not found.shared


def test_a_part_of_which_nothing_was_counted_has_no_places(sources):
    with sources.tables.read() as reading:
        assert places.of_windows(reading, "sensor-001", NOW_MS + 5 * MINUTE_MS, NOW_MS + 6 * MINUTE_MS) is None
        assert places.of_windows(reading, "sensor-001", 1, 2) is None


def test_pages_have_every_message_of_a_part_once(sources, log):
    pages = all_pages(sources, "sensor-001", OLD)
    assert [offset for rows in pages for offset in offsets(rows)] == sorted(told(log, "sensor-001", OLD))
    assert [len(rows) for rows in pages[:-1]] == [PAGE_ROWS] * (len(pages) - 1)
    (row, *_) = pages[0]
    sample = log.rows[row.place.offset]
    assert row.time_ms == round(sample["time"].timestamp() * 1000)
    assert row.stored_ms == row.time_ms + 40
    assert (row.address, row.topic, row.protocol) == (sample["address"], "telemetry", "mqtt")
    assert row.says.startswith(f"{sample['metric']} ")
    assert {tuple(asked["addresses"]) for asked in log.asked} == {tuple(sorted({r.address for p in pages for r in p}))}


def test_messages_that_came_a_day_late_and_in_any_order_are_found(tmp_path, log):
    """A device sends the same minutes the next day, the newest first: their windows say where and until when."""
    make_tables(tmp_path, NOW_MS, devices=2, minutes=60)
    rows = samples(NOW_MS, 2, 60)
    late = rows.filter(pc.equal(rows["device"], "sensor-000")).take(list(range(59, -1, -1)))
    count, day_us = late.num_rows, 86_400_000_000
    made = {
        "device": pa.array(["sensor-late"] * count),
        "stored_at": pa.array([one.value + day_us for one in late["stored_at"]]).cast(SAMPLES.field("time").type),
        "offset": pa.array(range(10_000, 10_000 + count)),
        "address": pa.array([f"telemetry/late/{one}" for one in late["metric"].to_pylist()]),
    }
    late = pa.table([made.get(name, late[name]) for name in SAMPLES.names], schema=SAMPLES)
    windows = presented(partials_of(late), settled=True)
    days = pa.array([one.as_py().date() for one in windows["start"]], pa.date32())
    write_deltalake(
        str(tmp_path / "windows_1m"), windows.append_column("day", days), mode="append", partition_by=["day"]
    )
    tables = TelemetryTables(tmp_path)
    place = Location.of(tmp_path)
    manifest = Manifest.load(place)
    versions = {name: DeltaTable(str(tmp_path / name)).version() for name in manifest.versions}
    replace(manifest, versions=versions).save(place)
    times = sorted(one.value // 1000 for one in late["time"])
    zoom = Zoom(times[0], times[-1] + 1)
    late_log = MessageLog(late)
    gateway = GatewayApi("http://gateway:8080", transport=httpx.MockTransport(late_log))
    late_sources = Sources(tables, AdminApi("http://127.0.0.1:9"), lambda: NOW_MS / 1000, gateway)
    pages = all_pages(late_sources, "sensor-late", zoom)
    assert [offset for rows in pages for offset in offsets(rows)] == list(range(10_000, 10_000 + count))
    assert pages[0][0].stored_ms - pages[0][0].time_ms == 86_400_000 + 40


def test_a_page_asks_so_often_and_says_where_it_goes_on(where, monkeypatch):
    monkeypatch.setattr(raw_messages, "REQUESTS_MAX", 2)
    log = MessageLog(samples(NOW_MS, DEVICES, MINUTES), looked_max=10)
    gateway = GatewayApi("http://gateway:8080", transport=httpx.MockTransport(log))
    sources = Sources(TelemetryTables(where), AdminApi("http://127.0.0.1:9"), lambda: NOW_MS / 1000, gateway)
    zoom = Zoom(NOW_MS - 80 * MINUTE_MS, NOW_MS)
    pages = all_pages(sources, "sensor-001", zoom)
    assert [offset for rows in pages for offset in offsets(rows)] == sorted(told(log, "sensor-001", zoom))
    assert max(map(len, pages)) < PAGE_ROWS
    assert len(log.asked) <= 2 * len(pages)
    where_to = PageAddress.parse(*parted(device_link("sensor-001", zoom=zoom)))
    assert "Look on" in str(raw_messages.of_zoom(sources, where_to, None))


def parted(link):
    path, _, search = link.partition("?")
    return path, f"?{search}"


def test_times_in_bodies_decide_where_a_rule_gives_them(where):
    """The message's own time is an hour off; the body's is the chart's."""
    body = lambda row: {"at": row["time"].isoformat(), row["metric"]: row["value"]}  # noqa: E731
    late = samples(NOW_MS, DEVICES, MINUTES)
    log = MessageLog(late, body_of=body)
    honest = dict(log.rows)
    for n, row in honest.items():
        log.rows[n] = row | {"time": row["time"] + timedelta(hours=1)}
    log._body_of = lambda row: body(honest[row["offset"]])
    gateway = GatewayApi("http://gateway:8080", transport=httpx.MockTransport(log))
    plain = Sources(TelemetryTables(where), AdminApi("http://127.0.0.1:9"), lambda: NOW_MS / 1000, gateway)
    ruled = plain._replace(rules=DecodeRules(decode=(DecodeRule(filter="telemetry/#", time="at"),)))
    assert all_pages(plain, "sensor-001", OLD) == [[]]
    log.rows, theirs = honest, log.rows
    wanted = sorted(told(log, "sensor-001", OLD))
    log.rows = theirs
    pages = all_pages(ruled, "sensor-001", OLD)
    assert [offset for rows in pages for offset in offsets(rows)] == wanted
    assert pages[0][0].says.startswith(honest[wanted[0]]["metric"])


def test_devices_of_one_address_are_told_apart_by_the_jobs_rules(sources, log):
    with sources.tables.read() as reading:
        found = places.of_windows(reading, "sensor-001", *OLD)
    others = sorted({row["address"] for row in log.rows.values() if row["device"] == "sensor-002"})
    shared = found._replace(addresses=(*found.addresses, *others), shared=True)
    page = search(sources, "sensor-001", OLD, shared)
    assert set(offsets(page.rows)) <= set(told(log, "sensor-001", OLD))
    assert len(page.rows) == PAGE_ROWS
    rule = DeviceRule(filter="telemetry/#", source="level", level=1)
    by_site = sources._replace(rules=DecodeRules(devices=(rule,)))
    assert search(by_site, "sensor-001", OLD, shared).rows == []
    assert search(by_site, "sensor-001", OLD, shared._replace(shared=False)).rows != []


def test_an_address_of_two_devices_is_shared(tmp_path):
    manifest = make_tables(tmp_path, NOW_MS, devices=3, minutes=10)
    with TelemetryTables(tmp_path).read() as reading:
        assert not places.of_windows(reading, "sensor-000", NOW_MS - MINUTE_MS * 9, NOW_MS).shared
    latest = str(tmp_path / "latest")
    row = next(one for one in DeltaTable(latest).to_pyarrow_table().to_pylist() if one["device"] == "sensor-000")
    write_deltalake(latest, pa.Table.from_pylist([row | {"device": "other"}], SPECS["latest"].schema), mode="append")
    versions = {**manifest.versions, "latest": DeltaTable(latest).version()}
    replace(manifest, versions=versions).save(Location.of(tmp_path))
    with TelemetryTables(tmp_path).read() as reading:
        assert places.of_windows(reading, "sensor-000", NOW_MS - MINUTE_MS * 9, NOW_MS).shared


def test_samples_are_used_where_they_have_all_of_a_part(sources, log):
    with sources.tables.read() as reading:
        assert of_samples(reading, "sensor-001", OLD, None) is None
        straddling = Zoom(NOW_MS - 40 * MINUTE_MS, NOW_MS - 10 * MINUTE_MS)
        assert of_samples(reading, "sensor-001", straddling, None) is None, "they have a part of it only"
        found, begin = [], None
        while not found or begin is not None:
            page = of_samples(reading, "sensor-001", RECENT, begin)
            found, begin = [*found, *page.rows], page.following
        assert of_samples(reading, "nobody", RECENT, None) is None
    assert offsets(found) == sorted(told(log, "sensor-001", RECENT))
    assert (found[0].topic, found[0].protocol, found[0].stored_ms - found[0].time_ms) == ("telemetry", "mqtt", 40)
    assert found[0].says.startswith(log.rows[found[0].place.offset]["metric"])
    where_to = PageAddress.parse(*parted(device_link("sensor-001", zoom=RECENT)))
    assert "Next page" in str(raw_messages.of_zoom(sources, where_to, None))
    assert log.asked == [], "the gateway is not needed"


def test_a_reader_without_the_right_and_a_gateway_that_is_away_are_sentences(sources, log, where):
    where_to = PageAddress.parse(*parted(device_link("sensor-001", zoom=OLD)))
    log.forbidden = next(row["address"] for row in log.rows.values() if row["device"] == "sensor-001")
    shown = str(raw_messages.of_zoom(sources, where_to, ("bob", "secret")))
    assert f"bob may not do that: subscribe {log.forbidden}: not allowed." in shown
    assert "Queue, offset" not in shown
    away = sources._replace(gateway=GatewayApi("http://127.0.0.1:9"))
    shown = str(raw_messages.of_zoom(away, where_to, None))
    assert "The gateway at http://127.0.0.1:9 does not answer" in shown
    nothing = PageAddress.parse(*parted(device_link("sensor-001", zoom=Zoom(1, 2))))
    assert "No number of this device was counted in that time." in str(raw_messages.of_zoom(sources, nothing, None))
    assert raw_messages.of_zoom(sources, PageAddress("device", "sensor-001", {}), None) is None
    assert "No tables yet" in str(
        raw_messages.of_zoom(sources._replace(tables=TelemetryTables("/nowhere")), where_to, None)
    )


def test_a_message_is_found_by_queue_and_offset(sources, log):
    row = log.rows[700]
    link = device_link(row["device"], zoom=OLD, message=str(Place(16, 700)), at=row["address"])
    shown = str(device.message(sources, PageAddress.parse(*parted(link)), None))
    assert "Message at queue 16, offset 700" in shown
    assert log.asked[-1] == {"queue": "16", "offset": "700", "limit": "1", "address": row["address"]} | {
        "addresses": [row["address"]]
    }
    other = device_link("x", message="16-701", at=row["address"])
    assert "It is not in the log any more." in str(device.message(sources, PageAddress.parse(*parted(other)), None))
    for text in ("", "16", "16-", "a-1", "16-1-2", "1" * 30 + "-1", "²-1"):
        assert Place.parse(text) is None
        assert device.message(sources, PageAddress("device", "x", {"message": text}), None) is None


def test_a_part_of_a_chart_goes_through_its_address():
    link = device_link("a b", metric="m", range_="6h", zoom=OLD, page="16-5")
    address = PageAddress.parse(*parted(link))
    assert (address.zoom, address.query["page"], address.range) == (OLD, "16-5", "6h")
    assert address.shown == PageAddress.parse(*parted(device_link("a b", metric="m", range_="6h"))).shown
    assert address.shown == ["device", "a b", [["metric", "m"], ["range", "6h"]]]  # as it comes back from a browser
    for query in ({}, {"from": "x", "to": "y"}, {"from": "2026-01-01", "to": "2026-01-01"}, {"to": "2026-01-01"}):
        assert PageAddress("device", "a", query).zoom is None


def test_an_older_part_is_shown_in_a_range_that_reaches_back_to_it():
    hour = RANGES["1h"]
    assert range_since(hour, NOW_MS - 10 * MINUTE_MS, NOW_MS) == hour
    assert range_since(hour, NOW_MS - 70 * MINUTE_MS, NOW_MS) == RANGES["6h"]
    assert range_since(hour, 0, NOW_MS) == RANGES["30d"]
    assert range_since(RANGES["7d"], NOW_MS - 1, NOW_MS) == RANGES["7d"]


EVENT = {"id": "1", "source": "//headgate/a", "type": "t", "time": "2026-01-01T00:00:01.500Z", "headgateoffset": "3"}


@pytest.mark.parametrize(
    ("event", "address", "body", "shown"),
    [
        ({"subject": "a/b", "data": {"v": 1}}, "a/b", b'{"v":1}', '{"v":1}'),
        ({"subject": "s", "headgateaddress": "a/b", "datacontenttype": "text/plain", "data": "x"}, "a/b", b"x", "x"),
        ({"data_base64": "//4A"}, "events/t", b"\xff\xfe\x00", "\\xff\\xfe\x00"),
        ({"subject": "elsewhere"}, "a/b", b"", ""),
        ({"datacontenttype": "application/json", "data": "x" * 200}, "events/t", None, '"' + "x" * 119 + "…"),
    ],
)
def test_an_event_is_its_message_again(event, address, body, shown):
    found = message_of(EVENT | event, ["a/b"] if address == "a/b" else ["c", "events/t"])
    assert (found.address, found.time_ms) == (address, 1_767_225_601_500)
    assert body is None or found.body == body
    assert preview(EVENT | event) == shown
    assert found.native is None


def test_a_rule_finds_a_login_in_an_event_as_in_its_message():
    events = [EVENT | {"headgatedevice": "gw"} | more for more in ({}, {"headgateprincipal": ""})]
    messages = [message_of(event, ["a/b/c/d"]) for event in events]
    rules = DeviceRule(source="identity"), DeviceRule(source="level", level=2)
    assert Devices(rules).of(messages) == ["gw", "c"]


def test_a_chart_shows_the_part_and_keeps_it(sources):
    where_to = PageAddress.parse(*parted(device_link("sensor-001", metric="temperature", zoom=OLD)))
    shown = str(device.body(sources, where_to))
    assert f"'range': [{OLD.from_ms}, {OLD.until_ms}]" in shown
    assert "Drag over" not in shown
    assert "Drag over" in str(device.body(sources, PageAddress("device", "sensor-001", {})))
