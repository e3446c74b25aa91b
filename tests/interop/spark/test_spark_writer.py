"""Rows as messages at a real gateway: through kills and repetitions each is stored once, and comes back as it was."""

import contextlib
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pandas")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812

from spark.errors import PublishRefused
from spark.publishing.options import WriterOptions
from spark.publishing.writers import StreamWriter
from store.api.message import decode
from store.remoting.reader import RemoteReader
from tests.support.spark.queries import run_query

pytestmark = pytest.mark.slow

SCHEMA = T.StructType([T.StructField("device", T.StringType()), T.StructField("n", T.LongType())])
TASKS, ROWS, KILLS = 6, 1_000, 3


def stored(gateway, topic):
    """Returns the messages of a topic, in the log's order of each queue."""
    with RemoteReader(f"127.0.0.1:{gateway.port('rpc')}") as reader:
        queues = reader.topics().get(topic, ())
        return [
            decode(frame.record(row)) for q in queues for frame, rows, _ in reader.fetch(q, 0) for row in rows.tolist()
        ]


def publish(gateway, name, partition, *, rows=ROWS, start=0):
    """Does the work of one task of a streaming write."""
    options = WriterOptions(gateway=gateway.url, address="analytics/{device}", rowsPerRequest=20, retrySeconds=200)
    table = pa.table({"device": [f"p{partition}"] * rows, "n": list(range(start, start + rows))})
    return StreamWriter(options, SCHEMA)._publish(iter(table.to_batches(max_chunksize=77)), name, partition)


def test_rows_are_stored_once_through_kills_and_tasks_that_are_repeated(new_gateway):
    gateway, chance = new_gateway().start(), random.Random(7)
    tasks = [*range(TASKS), *chance.choices(range(TASKS), k=TASKS)]  # half of them twice, some at the same time
    chance.shuffle(tasks)
    with ThreadPoolExecutor(4) as executors:
        running = [executors.submit(publish, gateway, "query-0", task) for task in tasks]
        for kill in range(KILLS):
            while len(stored(gateway, "analytics")) < (kill + 1) * TASKS * ROWS // (KILLS + 2):
                threading.Event().wait(0.01)
            gateway.kill()
            gateway.start()
        assert [one.result().rows for one in running] == [ROWS] * len(tasks)
    found = stored(gateway, "analytics")
    assert Counter(one.address for one in found) == {f"analytics/p{task}": ROWS for task in range(TASKS)}
    for task in range(TASKS):
        bodies = [one.body for one in found if one.address == f"analytics/p{task}"]
        assert bodies == [b'{"device":"p%d","n":%d}' % (task, n) for n in range(ROWS)]  # in order, too


def test_other_rows_under_a_name_that_was_used_are_refused(shared_gateway):
    publish(shared_gateway, "other", 0, rows=5)
    with pytest.raises(PublishRefused, match="published before with other rows; after a shuffle sort them"):
        publish(shared_gateway, "other", 0, rows=5, start=1)


@pytest.mark.spark
def test_a_frame_goes_into_the_log_and_comes_back(spark_session, new_gateway):
    gateway = new_gateway().start()
    at = {"gateway": gateway.url}
    rows = spark_session.createDataFrame(
        [(f"results/{n % 3}", bytes([n]), f"k{n % 3}", {"site": "north"}) for n in range(40)],
        "address string, body binary, key string, headers map<string, string>",
    ).repartition(3)
    for _ in range(2):  # the job is run again, as after a crash of its driver
        write = rows.sortWithinPartitions("body").write.format("headgate").mode("append")
        write.options(**at, batch="results of today", qos="2").save()
    log = spark_session.read.format("headgate").option("target", f"127.0.0.1:{gateway.port('rpc')}")
    found = log.option("filter", "results/+").load().collect()
    assert sorted(bytes(row.body)[0] for row in found) == list(range(40))
    assert {(row.address, row.key) for row in found} == {(f"results/{n}", f"k{n}") for n in range(3)}
    assert {(row.protocol, row.qos, row.headers["site"]) for row in found} == {("http", 2, "north")}
    for wrong, message in (({"qos": "7"}, "0, 1 or 2"), ({"address": "x/{nope}"}, "names nope")):
        with pytest.raises(PySparkException, match=message):
            rows.write.format("headgate").mode("append").options(**at, **wrong).save()
    with pytest.raises(PySparkException, match="only appended"):
        rows.write.format("headgate").mode("overwrite").options(**at).save()


@pytest.mark.spark
def test_a_streaming_write_is_stored_once_when_its_batch_is_repeated(spark_session, new_gateway, tmp_path):
    gateway = new_gateway().start()
    target = f"127.0.0.1:{gateway.port('rpc')}"
    with httpx.Client() as client:
        for n in range(30):
            client.post(f"{gateway.url}/topics/telemetry/d{n % 3}", json={"n": n}).raise_for_status()

    def run():
        log = spark_session.readStream.format("headgate").options(target=target, topic="telemetry", group="copy")
        stream = log.options(gateway=gateway.url, columns="device,address,body").load()
        copied = stream.selectExpr("concat('copies/', address) as address", "body", "address as key")
        write = copied.writeStream.format("headgate").option("gateway", gateway.url)
        run_query(write.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True))

    run()
    assert len(stored(gateway, "copies")) == 30
    for commit in (tmp_path / "commits").glob("*"):  # a crash between the rows and the note that they are there
        with contextlib.suppress(OSError):
            commit.unlink()
    run()
    assert len(stored(gateway, "copies")) == 30
    group = httpx.get(f"{gateway.url}/groups/copy").json()
    assert (group["topic"], group["lag"], group["members"]) == ("telemetry", 0, [])
    assert sum(queue["offset"] for queue in group["queues"]) == 30
