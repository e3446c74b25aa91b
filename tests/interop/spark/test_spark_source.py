"""The data source and the telemetry query in a real Spark, against the real gRPC service."""

import json
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pandas")
pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.errors import PySparkException, StreamingQueryException

from store.api.message import Message
from tests.support.process.waiting import wait_until
from tests.support.spark.queries import count_once, run_query, started_query
from tests.support.store.fake_store import Serving, serving

pytestmark = pytest.mark.spark

T0 = 1_700_000_040_000  # the start of a minute
QUERY_S = 300  # until a query has read what it should


@pytest.fixture
def session(spark_session):
    return spark_session


@pytest.fixture
def served():
    with serving({"telemetry": (16, 17), "alarms": (18,)}) as running:
        yield running


def fill(served: Serving, count: int, *, start: int = 0, queues: tuple[int, ...] = (16, 17)) -> None:
    """Stores messages in frames of 25, one message a millisecond, spread over the queues."""
    for at in range(start, start + count, 25):
        batch = [
            (
                queues[n % len(queues)],
                Message(
                    address=f"telemetry/d{n % 5}",
                    body=json.dumps({"temperature": n, "humidity": n % 7}).encode(),
                    time_ms=T0 + n,
                    protocol=("mqtt", "coap", "http")[n % 3],
                    device=f"d{n % 5}",
                    properties=(("n", str(n)),),
                ),
            )
            for n in range(at, min(at + 25, start + count))
        ]
        served.store.log.append(batch, stored_at_ms=T0 + at)


def read(session, served: Serving, **options):
    return session.read.format("headgate").options(target=served.target, retrySeconds="5", **options).load()


def test_batch_reads_everything_with_every_column(session, served):
    fill(served, 1_000)
    frame = read(session, served, maxOffsetsPerPartition="130")
    assert frame.rdd.getNumPartitions() == 8
    rows = frame.orderBy("queue", "offset").collect()
    assert [(r.queue, r.offset) for r in rows] == [(q, n) for q in (16, 17) for n in range(500)]
    assert sorted(int(r.properties[0].value) for r in rows) == list(range(1_000))
    row = rows[3]
    assert (row.topic, row.address, row.protocol, row.device, row.position) == (
        *("telemetry", "telemetry/d1", "mqtt", "d1", "0.6"),
    )
    assert json.loads(bytes(row.body)) == {"temperature": 6, "humidity": 6}
    assert row.time.timestamp() * 1000 == T0 + 6


def test_batch_options(session, served):
    fill(served, 100)
    fill(served, 10, queues=(18,))
    assert read(session, served, columns="offset").count() == 110
    assert read(session, served, topic="alarms", columns="offset").count() == 10
    ends = {"startingOffsets": '{"16": 40}', "endingOffsets": '{"16": 45, "17": 0}'}
    some = read(session, served, topic="telemetry", columns="queue,offset", **ends).collect()
    assert sorted(map(tuple, some)) == [(16, n) for n in range(40, 45)]
    late = read(session, served, topic="telemetry", startingTimestamp=str(T0 + 50), columns="stored_at")
    assert late.count() == 50
    assert read(session, served, startingOffsets="latest", columns="offset").collect() == []
    given = session.read.format("headgate").schema("body binary, queue int").option("target", served.target)
    assert given.load().columns == ["body", "queue"]
    for wrong in ({"topic": "nope"}, {"topc": "telemetry"}, {"columns": "nope"}, {"filter": "a/#/b"}):
        with pytest.raises(PySparkException, match="option"):
            read(session, served, **wrong).count()


def test_what_is_wanted_is_chosen_before_rows_are_made(session, served):
    served.service.by_first_level = True  # as a gateway without routes says
    fill(served, 100)
    fill(served, 10, queues=(18,))
    chosen = {"columns": "device,queue,offset", "filter": "telemetry/+", "device": '["d1", "d3"]'}
    frame = read(session, served, minPartitions="6", **chosen)
    assert frame.rdd.getNumPartitions() == 6  # none of the topic alarms
    rows = frame.collect()
    assert Counter(row.device for row in rows) == {"d1": 20, "d3": 20}
    assert read(session, served, filter="telemetry/d1/#").count() == 20
    begins = {"startingOffsets": "2023-11-14T22:14:00.050Z", "endingTimestamp": str(T0 + 75)}
    assert read(session, served, columns="offset", topic="telemetry", **begins).count() == 25
    log = read(session, served)
    fetches = count_fetches(served)
    assert log.where("topic = 'alarms' and device = 'd1' and protocol in ('mqtt', 'http')").count() == 1
    assert fetches() == 1
    stored = f"stored_at >= timestamp_millis({T0 + 75}) and stored_at < timestamp_millis({T0 + 76})"
    assert log.where(f"topic = 'telemetry' and {stored} and offset % 2 = 0").count() == 12
    assert fetches() == 2  # one of each queue, of the last frame alone


def count_fetches(served: Serving):
    """Returns what tells how many fetches the store has answered since it was asked last."""
    seen: list[int] = []
    served.store.before_fetch = lambda: seen.append(1)

    def fetched() -> int:
        count = len(seen)
        seen.clear()
        return count

    return fetched


def test_bodies_become_columns(session, served):
    fill(served, 50)
    typed = session.read.format("headgate").schema("offset long, data struct<temperature: double, humidity: int>")
    rows = typed.options(target=served.target, format="json").load().where("data.temperature = 6").collect()
    assert [(row.offset, row.data.temperature, row.data.humidity) for row in rows] == [(3, 6.0, 6)]
    session.sql(
        "create or replace temporary view climate (device string, data map<string, string>) using headgate "
        f"options (target '{served.target}', format 'json', filter 'telemetry/d1')"
    )
    assert session.sql("select distinct data['humidity'] as h from climate").count() == 7


def test_micro_batches_are_limited_in_bytes(session, served, tmp_path):
    fill(served, 100)
    seen = run_stream(session, served, tmp_path, columns="queue,offset", maxBytesPerTrigger="3000")
    batches = Counter(batch for batch, _ in seen)
    assert sum(batches.values()) == 100
    assert 3 < len(batches) < 25


def run_stream(session, served: Serving, where: Path, **options) -> list:
    """Makes one availableNow run with a checkpoint that outlives it, and returns what it read."""
    seen: list = []
    stream = session.readStream.format("headgate").options(target=served.target, retrySeconds="5", **options).load()
    write = (
        stream.select("queue", "offset")
        .writeStream.foreachBatch(lambda frame, batch: seen.append((batch, frame.collect())))
        .option("checkpointLocation", str(where))
        .trigger(availableNow=True)
    )
    run_query(write)
    return [(batch, (row.queue, row.offset)) for batch, rows in seen for row in rows]


def test_stream_resumes_where_it_was_and_meets_new_queues_at_zero(session, served, tmp_path):
    fill(served, 100)
    columns = {"columns": "queue,offset"}
    first = run_stream(session, served, tmp_path, maxOffsetsPerTrigger="30", **columns)
    assert sorted(at for _, at in first) == [(q, n) for q in (16, 17) for n in range(50)]
    assert max(Counter(batch for batch, _ in first).values()) <= 32
    assert run_stream(session, served, tmp_path, **columns) == []
    served.controller.by_name["new"] = (19,)
    fill(served, 20)
    fill(served, 10, queues=(19,))
    second = run_stream(session, served, tmp_path, startingOffsets="latest", **columns)
    want = [(q, n) for q in (16, 17) for n in range(50, 60)] + [(19, n) for n in range(10)]
    assert sorted(at for _, at in second) == want

    fill(served, 20)
    served.store.first[16] = 65  # retention took 60 to 64
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        run_stream(session, served, tmp_path, **columns)
    third = run_stream(session, served, tmp_path, failOnDataLoss="false", **columns)
    assert sorted(at for _, at in third) == [(16, n) for n in range(65, 70)] + [(17, n) for n in range(60, 70)]


def test_stream_survives_a_server_that_comes_back(session, served, tmp_path):
    fill(served, 50)
    seen: list = []
    stream = session.readStream.format("headgate").options(target=served.target, columns="offset", retrySeconds="30")
    write = (
        stream.load()
        .writeStream.foreachBatch(lambda frame, _: seen.append(frame.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
    )
    query = started_query(write, lambda: sum(seen) == 50)
    try:
        served.stop()
        served.start()
        fill(served, 70)
        wait_until(lambda: sum(seen) == 120, timeout_s=QUERY_S)
        assert query.isActive
    finally:
        query.stop()


def test_telemetry_counts_windows_latest_values_and_quality(session, served, tmp_path):
    def store(stored_at_ms: int, *records: tuple[str, str, int, bytes]) -> None:
        batch = [
            (16, Message(address=f"telemetry/{device}/m", body=body, device=device, time_ms=at, protocol=protocol))
            for protocol, device, at, body in records
        ]
        served.store.log.append(batch, stored_at_ms=stored_at_ms)

    store(
        T0 + 2_000,
        ("mqtt", "d1", T0 + 1_000, b'{"temperature": 20, "state": "on"}'),
        ("coap", "d1", T0 + 500, b'{"temperature": 10.5}'),
        ("coap", "d1", T0 + 500, b'{"temperature": 11.5}'),
        ("http", "d2", T0 + 1_999, b'{"value": 3}'),
        ("amqp", "d2", T0, b"not json"),
        ("amqp", "d2", T0, b'{"state": "off"}'),
        ("mqtt", "d3", T0 + 10**9, b'{"value": 1}'),  # ahead of its time
    )
    store(T0 + 179_999, ("mqtt", "d4", T0 + 1, b'{"temperature": 4}'))  # just in time
    store(T0 + 180_000, ("mqtt", "d1", T0 + 1, b'{"temperature": 99}'))  # at the watermark exactly: late, and corrected
    for _ in range(2):  # the second run finds nothing new and changes nothing
        tables = count_once(session, served.target, tmp_path, records_max=4)
        assert tables.counts() == {"amqp": 2, "coap": 2, "http": 1, "mqtt": 4}
        assert tables.quality() == {"ahead": 1, "bad_body": 1, "late": 1, "ok": 6}
        windows = tables.windows().to_pylist()
        assert [(w["device"], w["metric"], w["count"], w["min"], w["max"], w["mean"], w["last"]) for w in windows] == [
            ("d1", "temperature", 4, 10.5, 99.0, 35.25, 20.0),
            ("d2", "m", 1, 3.0, 3.0, 3.0, 3.0),
            ("d4", "temperature", 1, 4.0, 4.0, 4.0, 4.0),
        ]
        assert {w["start"].timestamp() * 1000 for w in windows} == {T0}
        latest = {(r["device"], r["metric"]): (r["value"], r["position"]) for r in tables.latest().to_pylist()}
        assert latest[("d1", "temperature")] == (20.0, "0.0")
        states = {("d1", "state"), ("d2", "state")}
        assert latest.keys() == {("d1", "temperature"), ("d2", "m"), ("d4", "temperature"), *states}
        assert tables.progress().records == 9
        assert tables.progress().offsets == {16: 9}


def test_tables_are_computed_again_by_another_rule(session, served, tmp_path):
    """Another output has the whole log by a rule that was changed; the addresses and records are the same."""
    messages = [
        Message(address=f"telemetry/site{n % 2}/dev{n % 3}/temp", body=b"%d" % n, device="guest", time_ms=T0 + n)
        for n in range(12)
    ]
    served.store.log.append([(16 + n % 2, message) for n, message in enumerate(messages)], stored_at_ms=T0 + 20)
    rules, found = tmp_path / "rules.toml", {}
    for level in (1, 2):
        rules.write_text(f'[[devices]]\nfilter = "telemetry/#"\nsource = "level"\nlevel = {level}\n')
        tables = count_once(session, served.target, tmp_path / str(level), rules=rules)
        assert tables.progress().records == 12
        found[level] = {(w["device"], w["count"], w["max"]) for w in tables.windows().to_pylist()}
        assert {r["address"].split("/")[level] for r in tables.latest().to_pylist()} == {w[0] for w in found[level]}
    assert found[1] == {("site0", 6, 10.0), ("site1", 6, 11.0)}
    assert found[2] == {("dev0", 4, 9.0), ("dev1", 4, 10.0), ("dev2", 4, 11.0)}
