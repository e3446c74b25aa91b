"""The log and the telemetry tables as views of one session, and SQL over both."""

import json
import time
from datetime import UTC, datetime

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pandas")
pytest.importorskip("pyspark")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import replace

from spark.errors import SparkError
from spark.shell import refresh, statements
from spark.shell.views import add_log
from spark.tables.files import Location
from spark.tables.opening import evolve
from spark.tables.reader import Tables
from store.api.message import Message
from tests.support.spark.object_store import bucket
from tests.support.spark.queries import count_once
from tests.support.spark.sample_tables import make_tables
from tests.support.store.fake_store import serving

pytestmark = pytest.mark.spark


def rows(session, statement):
    return [json.loads(line) for line in statements.text_of(session, statement, "json", 1_000)]


def make_older(where, manifest):
    """Makes the table `sessions` one of an older version, whose first file has no addresses."""
    new = Tables(where).table("sessions")
    older = pa.schema([field for field in new.schema if field.name != "address"])
    row = {"device": "older", "records": 1, "settled": True, "first_seen": FIRST, "day": FIRST.date()}
    path = str(where / "sessions")
    words = {"partition_by": ["day"], "schema_mode": "overwrite"}
    write_deltalake(path, pa.Table.from_pylist([row], schema=older), mode="overwrite", **words)
    table = DeltaTable(path)
    assert evolve(Location.of(where), "sessions", table)
    write_deltalake(path, new, mode="append", partition_by=["day"])
    replace(manifest, versions={**manifest.versions, "sessions": DeltaTable(path).version()}).save(Location.of(where))


def test_sql_reads_the_log_and_the_tables(spark_session, tmp_path):
    make_older(tmp_path, make_tables(tmp_path, time.time_ns() // 1_000_000, devices=3, minutes=60))
    names = refresh(spark_session, tmp_path)
    tables = Tables(tmp_path)
    assert {"latest", "traffic", "windows_1m"} <= set(names)
    counts = " union all ".join(f"select '{name}' as name, count(*) as n from {name}" for name in names)
    assert {row["name"]: row["n"] for row in rows(spark_session, counts)} == {
        name: tables.table(name).num_rows for name in names
    }
    day = rows(spark_session, "select typeof(day) as t, typeof(start) as s from windows_1m limit 1")
    assert day == [{"t": "date", "s": "timestamp"}]
    addresses = rows(spark_session, "select address, day from sessions where device = 'older'")
    assert addresses == [{"address": None, "day": "2026-01-01"}]
    with serving({"telemetry": (16,)}) as served:
        served.store.append([(16, Message(address=f"telemetry/sensor-00{n}/x", body=b"1")) for n in range(3)])
        add_log(spark_session, {"target": served.target, "retrySeconds": "0", "rules": RULES})
        joined = "select l.address, w.metric from log l join latest w on l.device = w.device where l.offset = 1"
        assert {(row["address"], row["metric"]) for row in rows(spark_session, joined)} == {
            ("telemetry/sensor-001/x", metric) for metric in ("temperature", "humidity", "battery")
        }
    with pytest.raises(SparkError, match=r"UNAVAILABLE for 0 s") as caught:
        rows(spark_session, "select count(*) from log")
    assert "\n" not in str(caught.value)
    with pytest.raises(SparkError, match="nope"):
        rows(spark_session, "select * from nope")


def test_the_job_writes_to_an_object_store_and_sql_reads_its_tables(spark_session, tmp_path):
    pytest.importorskip("moto.server")
    messages = [
        Message(address=f"telemetry/x/a{n}", body=b"%d" % n, device=f"d{n % 3}", time_ms=T0 + n) for n in range(30)
    ]
    with bucket("fleet", tmp_path / "log") as store, serving({"telemetry": (16,)}) as served:
        place, options = Location.of("s3://fleet/one", store), {"storage_options": store, "buckets": 1}
        served.store.log.append([(16, message) for message in messages], stored_at_ms=T0 + 40)
        for _ in range(2):  # the second run finds nothing new
            tables = count_once(spark_session, served.target, place.url, checkpoint=tmp_path / "checkpoint", **options)
            assert tables.progress().records == 30
        assert {"latest", "traffic", "windows_1m"} <= set(refresh(spark_session, place))
        sums = "select device, sum(count) as n, max(max) as m from windows_1m group by 1 order by 1"
        assert rows(spark_session, sums) == [{"device": f"d{n}", "n": 10, "m": 27.0 + n} for n in range(3)]
        one = "select distinct device from windows_1m where device = 'd1' and day > date'2025-01-01' and max > 3"
        assert rows(spark_session, one) == [{"device": "d1"}]
        assert rows(spark_session, "select count(*) as n from samples") == [{"n": 0}]


T0 = 1_767_225_600_000
FIRST = datetime.fromtimestamp(T0 / 1_000, UTC)
RULES = json.dumps({"devices": [{"source": "level", "level": 1}]})
