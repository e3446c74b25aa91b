"""Findings as events: their addresses and ids, each published once, and what a gateway refuses."""

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("deltalake")

import paho.mqtt.client as mqtt  # noqa: E402
from cloudevents.core.formats.json import JSONFormat  # noqa: E402

from spark.errors import BadOption, SparkError  # noqa: E402
from spark.findings import publishing as publishing_module  # noqa: E402
from spark.findings.events import events_of_rows, level  # noqa: E402
from spark.findings.publishing import FileOutcome, Publishing, publish_file  # noqa: E402
from spark.job import maintenance  # noqa: E402
from spark.job.options import TelemetryOptions  # noqa: E402
from spark.tables.commits import Commits, CommitSettings  # noqa: E402
from spark.tables.files import Location  # noqa: E402
from spark.tables.manifest import MANIFEST, Manifest  # noqa: E402
from spark.tables.reader import Tables  # noqa: E402
from spark.telemetry.events import EVENTS  # noqa: E402
from tests.support.spark.job_kit import Record, do_batch, do_tick, naive, shown  # noqa: E402
from tests.support.spark.log_recount import doubled  # noqa: E402

T0 = 1_767_225_600_000
SETTINGS = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=1, findings=True)


def rows(*changes: dict) -> "pa.Table":
    plain = {
        "time": datetime(2026, 1, 1, tzinfo=UTC),
        "device": "d",
        "address": "t/d",
        "metric": "a",
        "kind": "spike",
        "value": 5.0,
        "expected": 1.0,
        "score": 9.0,
        "sentence": "5 is 9.0 sigmas from its level of 1",
    }
    return pa.Table.from_pylist([plain | change for change in changes], schema=EVENTS)


def strange(count: int = 80, first: int = 0) -> list[Record]:
    """Returns a series with one spike, at its 60th sample."""
    found = [Record("d", T0 + n * 1_000, n, {"a": float(n % 3)}) for n in range(first, first + count)]
    found[60].values["a"] = 500.0
    return found


def test_addresses_kinds_and_ids():
    table = rows({}, {"kind": "silent", "metric": None}, {"device": "a/b#c%"}, {"device": ""})
    events = [json.loads(event.body) for event in events_of_rows(table)]
    subjects = ["analytics/anomaly/d", "analytics/liveness/d", "analytics/anomaly/a%2Fb%23c%25", "analytics/anomaly/%"]
    assert [event["subject"] for event in events] == subjects
    assert [event["type"] for event in events[:2]] == ["headgate.anomaly.v1", "headgate.liveness.v1"]
    assert len({event["id"] for event in events}) == 4
    again = rows({"score": 8.0}, {"time": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)})
    same, other = (event.id for event in events_of_rows(again))
    assert same == events[0]["id"]  # the same for every finder
    assert other != same
    assert "metric" not in events[1]["data"]
    assert len(level("ä" * 2_000)) == 64  # no level of an address is without end


def test_an_event_is_one_for_the_cloudevents_sdk():
    (event,) = events_of_rows(rows({}))
    found = JSONFormat().read(None, event.body)
    assert found.get_source() == "/headgate/telemetry"
    assert found.get_data()["sentence"].startswith("5 is 9.0 sigmas")
    assert found.get_time() == datetime(2026, 1, 1, tzinfo=UTC)


def write_findings(place: Location, table: "pa.Table") -> str:
    import pyarrow.parquet as pq

    with place.writing("anomalies/one.parquet") as file:
        pq.write_table(table, file)
    return "one.parquet"


def heard_by(gateway, pattern: str):
    """Returns an MQTT subscriber, and the list to which it adds each message that it receives."""
    heard, ready = [], threading.Event()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.on_message = lambda _c, _d, message: heard.append((message.topic, json.loads(message.payload)))
    client.on_subscribe = lambda *_: ready.set()
    client.connect("127.0.0.1", gateway.port("mqtt"))
    client.loop_start()
    client.subscribe(pattern, qos=1)
    assert ready.wait(30)
    return client, heard


@pytest.mark.slow
def test_mqtt_hears_each_finding_once_however_often_it_is_published(shared_gateway, tmp_path):
    place = Location.of(tmp_path)
    some = [
        {"device": f"once{n % 5}", "time": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=n)} for n in range(40)
    ]
    path = write_findings(place, rows(*some))
    client, heard = heard_by(shared_gateway, "analytics/anomaly/+")
    publishing = Publishing(url=shared_gateway.url, retry_s=20, since_ms=0)
    try:
        for _ in range(3):
            assert publish_file(place, path, publishing) == FileOutcome(published=40)
        marker = rows({"device": "end"})
        publish_file(place, write_findings(place, marker), publishing)
        for _ in range(300):
            if any(topic.endswith("/end") for topic, _ in heard):
                break
            threading.Event().wait(0.1)
    finally:
        client.disconnect()
        client.loop_stop()
    mine = [(topic, data["time"]) for topic, data in heard if "/once" in topic]
    assert len(mine) == len(set(mine)) == 40
    for n in range(5):  # the events of a device keep their order
        times = [time for topic, time in mine if topic.endswith(f"/once{n}")]
        assert times == sorted(times)


@pytest.mark.slow
def test_a_finding_is_a_cloudevent_for_http_readers(shared_gateway, tmp_path):
    path = write_findings(Location.of(tmp_path), rows({"device": "reader"}))
    publish_file(Location.of(tmp_path), path, Publishing(url=shared_gateway.url, retry_s=20, since_ms=0))
    answer = httpx.get(
        f"{shared_gateway.url}/topics/analytics/anomaly/reader",
        headers={"accept": "application/cloudevents+json"},
        trust_env=False,
    )
    found = JSONFormat().read(None, answer.content)
    assert (found.get_type(), found.get_source()) == ("headgate.anomaly.v1", "/headgate/telemetry")


class _Refusing(BaseHTTPRequestHandler):
    statuses: ClassVar[list[int]] = []

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        body = b'{"title": "No", "detail": "because"}'
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def refusing(monkeypatch):
    """Yields a server of HTTP/1.1 that answers with these statuses, one after another."""
    real = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **kw: real(**{**kw, "http1": True, "http2": False}))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def answer(*statuses: int, retry_s: float = 60) -> Publishing:
        _Refusing.statuses = list(statuses)
        return Publishing(url=f"http://u:secret@127.0.0.1:{server.server_port}", retry_s=retry_s, since_ms=0)

    yield answer
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_refusals_are_tried_again_counted_or_fatal(refusing, tmp_path):
    place = Location.of(tmp_path)
    path = write_findings(place, rows({}))
    assert publish_file(place, path, refusing(503, 429, 200)) == FileOutcome(published=1)
    assert publish_file(place, path, refusing(422)) == FileOutcome(published=1)  # another job's finding
    refused = publish_file(place, path, refusing(400))
    assert (refused.published, refused.refused, refused.why) == (0, 1, "answers 400: because")
    with pytest.raises(SparkError, match="right to publish to analytics/#") as forbidden:
        publish_file(place, path, refusing(403))
    assert "secret" not in str(forbidden.value)
    with pytest.raises(SparkError, match=r"answers 503: because, for 0\.5 s"):
        publish_file(place, path, refusing(503, retry_s=0.5))
    with pytest.raises(SparkError, match="does not answer"):
        publish_file(place, path, Publishing(url="http://127.0.0.1:9", retry_s=0, since_ms=0))


@pytest.mark.slow
def test_of_several_gateways_the_next_is_asked_when_one_is_away(refusing, tmp_path):
    place = Location.of(tmp_path)
    path = write_findings(place, rows({"device": "a"}, {"device": "b"}, {"device": "c"}))
    away = "http://127.0.0.1:9/"
    there = refusing(200).url
    publishing = Publishing(url=f"{away},{there}", retry_s=5, since_ms=0)
    assert publish_file(place, path, publishing) == FileOutcome(published=3)
    with pytest.raises(SparkError, match="does not answer"):
        publish_file(place, path, Publishing(url=f"{away},{away}", retry_s=0.3, since_ms=0))
    options = TelemetryOptions(output="x", findings=f"{there},{away}")
    assert options.findings == f"{there},{away}"
    with pytest.raises(BadOption, match=r"cannot be http:.*,b:1: the URL"):
        TelemetryOptions(output="x", findings=f"{there},b:1")


@pytest.mark.slow
def test_old_findings_and_too_many_stay_in_the_table(refusing, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing_module, "FINDINGS_MAX", 2)
    place = Location.of(tmp_path)
    path = write_findings(
        place, rows({"score": 1.0}, {"score": 3.0}, {"score": 2.0}, {"time": datetime(2020, 1, 1, tzinfo=UTC)})
    )
    publishing = refusing(200)
    since_ms = round(datetime(2025, 1, 1, tzinfo=UTC).timestamp() * 1000)
    outcome = publish_file(place, path, Publishing(url=publishing.url, retry_s=1, since_ms=since_ms))
    assert outcome == FileOutcome(published=2, surplus=1, old=1)


def test_findings_are_unpublished_until_they_are_noted_whatever_happens(tmp_path):
    place, checkpoint = Location.of(tmp_path / "out"), tmp_path / "checkpoint"
    commits = Commits.open(place, checkpoint, SETTINGS)
    do_batch(commits, 0, strange())
    (unpublished,) = commits.manifest.unpublished
    assert unpublished.startswith("day=2026-01-01/settled-0000-0-")
    assert json.loads(place.read(MANIFEST))["owed"] == [unpublished], "the name that is stored"
    commits.merge_all()
    commits.close()
    commits = Commits.open(place, checkpoint, SETTINGS)  # killed before it was published
    assert commits.manifest.unpublished == [unpublished]
    commits.findings_published()
    assert Manifest.load(place).unpublished == []
    do_tick(commits, T0 + 600_000)  # silence
    assert len(commits.manifest.unpublished) == 1
    assert commits.manifest.unpublished != [unpublished]
    commits.close()


def test_compacting_keeps_the_findings_that_are_to_be_published(tmp_path):
    place = Location.of(tmp_path / "out")
    commits = Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    do_batch(commits, 0, strange())
    commits.close()  # killed before they were published
    (unpublished,) = Manifest.load(place).unpublished
    maintenance.compact(place)
    assert unpublished in Manifest.load(place).unpublished


def test_a_job_that_publishes_nothing_owes_nothing(tmp_path):
    plain = CommitSettings(watermark_ms=30_000, late_ms=3_600_000, buckets=1)
    commits = Commits.open(Location.of(tmp_path / "out"), tmp_path / "checkpoint", plain)
    do_batch(commits, 0, strange())
    assert commits.manifest.unpublished == []
    commits.close()


def test_the_recount_shows_the_findings_that_are_doubled():
    assert doubled(rows({}, {"device": "e"})) == ""
    lines = doubled(rows({}, {"device": "e"}, {"sentence": "other"})).splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "2026-01-01T00:00:00+00:00 d a spike: 5 is 9.0 sigmas from its level of 1",
        "2026-01-01T00:00:00+00:00 d a spike: other",
    ]


def ids_and_kinds(place: Location) -> tuple[list[str], list[str]]:
    found = Tables(place.url).table("anomalies").select(EVENTS.names).sort_by("time")
    return [event.id for event in events_of_rows(found)], found["kind"].to_pylist()


def test_a_spike_that_a_device_sends_again_is_in_the_table_once(tmp_path):
    """A device that resends its buffer, and two spikes within one millisecond: one id each, and one row."""
    place = Location.of(tmp_path / "out")
    commits = Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    first = strange()
    do_batch(commits, 0, first)
    do_tick(commits)
    again = [replace(r, offset=80 + n, stored_ms=T0 + 80_000) for n, r in enumerate(first[55:])]
    do_batch(commits, 1, again)
    twice = [Record("d", T0 + 85_000, 105 + n, {"a": value}) for n, value in enumerate([900.0, 1.0, 900.0])]
    do_batch(commits, 2, twice)
    commits.close()
    ids, kinds = ids_and_kinds(place)
    assert kinds == ["spike", "spike"]
    assert len(set(ids)) == 2


def test_a_device_read_behind_the_clock_is_silent_once(tmp_path):
    """The store's clock was set back: what comes was stored before the time up to which every queue has been read."""
    place = Location.of(tmp_path / "out")
    commits = Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    do_batch(commits, 0, [Record("d", T0 + n * 1_000, n, {"a": 1.0}) for n in range(20)])
    do_tick(commits, T0 + 100_000)
    do_tick(commits, T0 + 100_000)
    for n in range(3):
        do_batch(commits, 1 + n, [Record("d", T0 + 30_000, 20 + n, {"a": 1.0})])
    commits.close()
    ids, kinds = ids_and_kinds(place)
    assert sorted(kinds) == ["back", "silent"]
    assert len(set(ids)) == 2


def test_its_own_findings_are_counted_in_the_traffic_alone(tmp_path):
    """A job that reads all topics would else find anomalies in its anomalies, for ever."""
    place = Location.of(tmp_path / "out")
    commits = Commits.open(place, tmp_path / "checkpoint", SETTINGS)
    mine = Record("analytics", T0, 0, {"score": 3.0}, address="analytics/anomaly/d")
    do_batch(commits, 0, [mine, Record("e", T0, 1, {"a": 1.0}), Record("e", T0, 2, address="analytics/other")])
    commits.close()
    tables = Tables(place.url)
    assert tables.quality() == {"finding": 1, "ok": 2}
    assert [row["device"] for row in tables.table("devices").to_pylist()] == ["e"]
    assert shown(tables.windows()) == naive([Record("e", T0, 1, {"a": 1.0})])
    assert tables.progress().offsets == {16: 3}
