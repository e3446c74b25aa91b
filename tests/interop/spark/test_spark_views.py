"""The log and the telemetry tables as views of one session, and SQL over both."""

import json
import time

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pandas")
pytest.importorskip("pyspark")

from spark.errors import SparkError
from spark.shell import refresh, statements
from spark.shell.views import add_log
from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location
from spark.tables.reader import Tables
from store.api.message import Message
from tests.support.spark.job_kit import Record, do_batch
from tests.support.spark.object_store import bucket
from tests.support.spark.sample_tables import make_tables
from tests.support.store.fake_store import serving

pytestmark = pytest.mark.spark


def rows(session, statement):
    return [json.loads(line) for line in statements.text_of(session, statement, "json", 1_000)]


def test_sql_reads_the_log_and_the_tables(spark_session, tmp_path):
    make_tables(tmp_path, time.time_ns() // 1_000_000, devices=3, minutes=60)
    names = refresh(spark_session, tmp_path)
    tables = Tables(tmp_path)
    assert {"latest", "traffic", "windows_1m"} <= set(names)
    counts = " union all ".join(f"select '{name}' as name, count(*) as n from {name}" for name in names)
    assert {row["name"]: row["n"] for row in rows(spark_session, counts)} == {
        name: tables.table(name).num_rows for name in names
    }
    day = rows(spark_session, "select typeof(day) as t, typeof(start) as s from windows_1m limit 1")
    assert day == [{"t": "date", "s": "timestamp"}]
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


def test_sql_reads_tables_in_an_object_store(spark_session, tmp_path):
    pytest.importorskip("moto.server")
    with bucket("fleet", tmp_path / "log") as store:
        place = Location.of("s3://fleet/one", store)
        commits = Commits.open(
            place, tmp_path / "checkpoint", CommitSettings(watermark_ms=30_000, late_ms=0, buckets=1)
        )
        assert rows(spark_session, f"select count(*) as n from {refresh(spark_session, place)[0]}") == [{"n": 0}]
        do_batch(commits, 0, [Record(f"d{n % 3}", T0 + 20_000 * n, n, {"a": float(n)}) for n in range(30)])
        commits.close()
        assert {"latest", "traffic", "windows_1m"} <= set(refresh(spark_session, place))
        found = rows(
            spark_session, "select device, sum(count) as n, max(max) as m from windows_1m group by 1 order by 1"
        )
        assert found == [{"device": f"d{n}", "n": 10, "m": 27.0 + n} for n in range(3)]
        one = "select distinct device from windows_1m where device = 'd1' and day > date'2025-01-01' and max > 3"
        assert rows(spark_session, one) == [{"device": "d1"}]


T0 = 1_767_225_600_000
RULES = json.dumps({"devices": [{"source": "level", "level": 1}]})
