"""A job on a Spark cluster of processes, against a Headgate cluster of processes, through a failover of each kind.

Reads telemetry and publishes a copy of each record, with the package shipped by spark-submit: the store's master and a
proxy are killed under way, a Spark worker too, and in the end every record has been copied once.
"""

import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from gateway.process.local_cluster import ClusterPlan
from spark.errors import MissingJdk
from spark.job.package import write_package
from spark.job.session import find_java_home
from spark.tables.reader import Tables
from store.api.message import decode
from store.remoting.reader import RemoteReader
from tests.support.cluster.local_clusters import on_free_ports, started
from tests.support.cluster.masters import masters
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until
from tests.support.spark.queries import OVERLOADED
from tests.support.spark.spark_processes import prepare
from tests.support.spark.standalone import standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1_800)]

RECORDS = 2_000
AWHILE_S = 900
STARTS_MAX = 6  # of a job that Spark gives no worker
JOB = """
import sys
import time
from pathlib import Path
from pyspark.sql import SparkSession
from spark.source.datasource import HeadgateDataSource

targets, gateways, checkpoint, stop = sys.argv[1:]
session = SparkSession.builder.getOrCreate()
session.dataSource.register(HeadgateDataSource)
limits = {"maxRecordsPerTrigger": "200", "minPartitions": "4", "retrySeconds": "120"}
log = session.readStream.format("headgate").options(target=targets, topic="telemetry", columns="address,body", **limits)
copies = log.load().selectExpr("concat('copies/', address) as address", "body")
write = copies.writeStream.format("headgate").options(gateway=gateways, retrySeconds="120")
query = write.option("checkpointLocation", checkpoint).trigger(processingTime="200 milliseconds").start()
while query.isActive and not Path(stop).exists():
    time.sleep(0.2)
query.stop()
if query.exception():
    raise query.exception()
"""


def copied(target):
    """Returns the bodies of the copied messages."""
    with RemoteReader(target, retry_s=60) as reader:
        queues = reader.topics().get("copies", ())
        return [
            decode(frame.record(row)).body
            for queue in queues
            for frame, rows, _ in reader.fetch(queue, 0)
            for row in rows.tolist()
        ]


def publish(urls, numbers):
    """Publishes records, each once, by whichever proxy is there."""
    with httpx.Client(timeout=30) as client:
        for n in numbers:
            for attempt in range(600):
                url = urls[attempt % len(urls)]
                try:
                    answer = client.post(
                        f"{url}/topics/telemetry/d{n % 7}", content=str(n), headers={"idempotency-key": f"n{n}"}
                    )
                except httpx.TransportError:
                    time.sleep(0.1)
                    continue
                if answer.status_code == 201:
                    break
                time.sleep(0.1)
            else:
                raise AssertionError(f"record {n} was not taken")


def test_a_submitted_job_copies_every_record_once_through_failovers(tmp_path):
    try:
        java_home = find_java_home()
    except MissingJdk as error:
        pytest.skip(str(error))
    package, job, stop = tmp_path / "headgate.zip", tmp_path / "job.py", tmp_path / "stop"
    write_package(package)
    job.write_text(JOB)
    plan = on_free_ports(
        ClusterPlan(tmp_path / "headgate", controllers=1, groups=1, replicas=3, min_in_sync=2, proxies=2)
    )
    with started(plan, prepare) as cluster, standalone(tmp_path, java_home) as spark:
        proxies = [node.port - PORTS["mqtt"] for node in cluster.nodes if node.role == "proxy"]
        urls = [f"http://127.0.0.1:{offset + PORTS['http']}" for offset in proxies]
        targets = [f"127.0.0.1:{offset + PORTS['rpc']}" for offset in proxies]
        sender = threading.Thread(target=publish, args=(urls, range(RECORDS)), daemon=True)
        sender.start()
        where = (",".join(targets), ",".join(urls), str(tmp_path / "at"), str(stop))
        running = spark.submit("job", package, str(job), *where)

        def await_copies(count):
            def arrived():
                assert running.poll() is None, spark.log("job")[-6_000:]
                return len(copied(",".join(targets))) >= count

            wait_until(arrived, "the job copies nothing more", AWHILE_S)

        await_copies(100)
        master = masters(cluster)[0]
        cluster.stop(master, kill=True)
        await_copies(RECORDS // 3)
        cluster.start(master)
        cluster.stop("proxy-1", kill=True)
        await_copies(RECORDS // 2)
        spark.kill("worker-0")
        await_copies(RECORDS)
        sender.join(60)
        stop.touch()
        assert running.wait(120) == 0, spark.log("job")[-6_000:]
        counts = Counter(copied(targets[1]))
        assert counts == {str(n).encode(): 1 for n in range(RECORDS)}
        host, port = targets[1].split(":")
        spark.start_worker("another")
        job = ("-m", "gateway.cli", "spark", "telemetry", "--once", "--master", spark.url, "--topic", "telemetry")
        place = ("--host", host, "--port", port, "--output", str(tmp_path / "tables"), "--findings", "none")
        for _ in range(STARTS_MAX):  # each goes on where the one before has ended
            ran = subprocess.run(
                [sys.executable, *job, *place], capture_output=True, text=True, timeout=AWHILE_S, check=False
            )
            if OVERLOADED not in ran.stderr:
                break
        assert ran.returncode == 0, ran.stderr[-6_000:]
        assert Tables(tmp_path / "tables").progress().records == RECORDS
