"""`headgate spark` as processes beside a gateway: exit codes and last sentences, and no Java is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pandas")
pytest.importorskip("pyspark")

from spark.errors import MissingJdk
from spark.job.session import find_java_home
from spark.tables.reader import Tables
from tests.support.process.gateways import GatewayProcess
from tests.support.process.waiting import wait_until
from tests.support.spark.queries import OVERLOADED
from tests.support.spark.spark_processes import is_java, processes_of

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]

PATIENCE_S = 600
STARTS_MAX = 4  # of a command that Spark gives no worker
NOISE = re.compile(r"Traceback|Exception|ERROR")
JAVA_SAYS = "WARNING: Using incubator modules: jdk.incubator.vector"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    try:
        find_java_home()
    except MissingJdk as error:
        pytest.skip(str(error))
    running = GatewayProcess(tmp_path_factory.mktemp("gateway") / "data").start()
    yield running
    running.close()


def publish(gateway, numbers):
    for n in numbers:
        told = urllib.request.Request(
            f"{gateway.url}/topics/telemetry/site1/d{n}/temp", b'{"value":21.5}', {"content-type": "application/json"}
        )
        with urllib.request.urlopen(told, timeout=60) as answer:
            assert answer.status == 201


def place(gateway, output, findings="none"):
    return "--target", f"127.0.0.1:{gateway.port('rpc')}", "--output", str(output), "--findings", findings


@contextmanager
def mqtt_client(gateway):
    """Connects a client whose id the gateway makes, so that the address says the device."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="", protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", gateway.port("mqtt"))
    client.loop_start()
    try:
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def hear(client, pattern):
    """Subscribes; returns the list to which each message is added, as its address and its body."""
    heard, ready = [], threading.Event()
    client.on_message = lambda _client, _data, message: heard.append((message.topic, json.loads(message.payload)))
    client.on_subscribe = lambda *_: ready.set()
    client.subscribe(pattern, qos=1)
    assert ready.wait(PATIENCE_S)
    return heard


def publish_a_spike(client, device, value):
    """Publishes readings of a device, the last but one of which is strange."""
    usual = [20.0 + n % 3 for n in range(60)]
    for reading in (*usual, value, usual[0]):
        client.publish(f"telemetry/site1/{device}/temp", b'{"value":%.1f}' % reading, qos=1).wait_for_publish(
            PATIENCE_S
        )


class Job:
    """`headgate spark telemetry` as a process that leads a group, as `timeout` makes one."""

    def __init__(self, where: tuple[str, ...], said: Path, *words: str) -> None:
        self.log = said
        command = [sys.executable, "-m", "gateway.cli", "spark", "telemetry", *where, *words]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def said(self) -> str:
        return self.log.read_text()

    def wait_until(self, condition) -> None:
        def met():
            assert self.process.poll() is None, self.said()
            return condition()

        wait_until(met, self.log.name, PATIENCE_S)

    def wait_for_java(self) -> None:
        self.wait_until(lambda: any(map(is_java, processes_of(self.process))))

    def is_gone(self) -> None:
        """Waits until none of the job's processes is left."""
        wait_until(lambda: processes_of(self.process) == [], f"{self.log.name}: a process is left", PATIENCE_S)

    def close(self) -> None:
        for pid in processes_of(self.process):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start(gateway, tmp_path):
    jobs = []

    def run(name, *words, findings="none"):
        jobs.append(Job(place(gateway, tmp_path / name, findings), tmp_path / f"{name}.log", *words))
        return jobs[-1]

    yield run
    for job in jobs:
        job.close()


def test_a_signal_before_spark_has_started_ends_the_job_and_java(start):
    job = start("early")
    job.wait_for_java()
    os.killpg(job.process.pid, signal.SIGTERM)
    assert job.process.wait(PATIENCE_S) == 0, job.said()
    job.is_gone()
    assert job.said().replace(f"{JAVA_SAYS}\n", "").splitlines()[1:] == [
        "ended: asked to stop before Spark had started; no batch was begun"
    ]


def test_java_ends_when_the_job_is_killed(start):
    job = start("killed")
    job.wait_for_java()
    job.process.kill()
    job.is_gone()


def test_mqtt_hears_of_a_spike_over_mqtt_and_a_signal_to_all_of_its_group_lets_the_job_finish_its_batch(
    start, gateway, tmp_path
):
    publish(gateway, range(20))
    job, tables = start("group", "--trigger", "0.2", findings=gateway.url), Tables(tmp_path / "group")
    job.wait_until(lambda: tables.progress().records >= 20)
    with mqtt_client(gateway) as device, mqtt_client(gateway) as subscriber:
        heard = hear(subscriber, "analytics/anomaly/#")
        publish_a_spike(device, "spiky", 500.0)
        job.wait_until(lambda: heard)
    (topic, found), *_ = heard
    assert (topic, found["device"], found["kind"], found["value"]) == ("analytics/anomaly/spiky", "spiky", "spike", 500)
    assert found["address"] == "telemetry/site1/spiky/temp"
    assert "500 is" in found["sentence"]
    publish(gateway, range(20))
    os.killpg(job.process.pid, signal.SIGTERM)
    assert job.process.wait(PATIENCE_S) == 0, job.said()
    job.is_gone()
    assert NOISE.search(job.said()) is None, job.said()
    last = job.said().splitlines()[-1]
    assert last.startswith(f"ended: batch {tables.progress().batch}: {tables.progress().records:,} records"), last


@pytest.mark.nightly
def test_a_signal_to_java_too_is_a_sentence_and_the_next_start_goes_on(start, gateway, tmp_path):
    job, tables = start("all", "--trigger", "0.2"), Tables(tmp_path / "all")
    publish(gateway, range(20))
    job.wait_until(lambda: tables.progress().records >= 20)
    publish(gateway, range(20))
    for pid in processes_of(job.process):
        with suppress(ProcessLookupError):  # a worker of Spark's that has ended since
            os.kill(pid, signal.SIGTERM)
    assert job.process.wait(PATIENCE_S) == 0, job.said()
    job.is_gone()
    assert NOISE.search(job.said()) is None, job.said()
    assert job.said().splitlines()[-1].startswith("ended: "), job.said()
    ran = headgate(tmp_path, "telemetry", "--once", *place(gateway, tmp_path / "all"))
    assert ran.returncode == 0, ran.stderr
    counted = tables.progress().records
    assert sum(tables.counts().values()) == counted
    assert sum(tables.progress().offsets.values()) == counted


def headgate(cwd, *words):
    """Runs `headgate spark`, again where Spark gave up on a worker of a busy machine."""
    command = [sys.executable, "-m", "gateway.cli", "spark", *words]
    environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    for _ in range(STARTS_MAX):
        ran = subprocess.run(
            command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if OVERLOADED not in ran.stderr:
            break
    return ran


@pytest.mark.nightly
def test_once_and_sql_say_by_their_exit_codes_how_they_ended(gateway, tmp_path):
    sql = ("sql", "--format", "csv", "--target", f"127.0.0.1:{gateway.port('rpc')}")
    ran = headgate(tmp_path, *sql, "select count(*) > -1 as known from log; select * from latest")
    assert (ran.returncode, ran.stdout) == (1, "known\ntrue\n"), ran.stderr
    told = "headgate: there is no table latest in headgate-data/telemetry yet: headgate spark telemetry writes it"
    assert ran.stderr.splitlines()[-1].startswith(told)
    publish(gateway, range(3))
    for _ in range(2):  # the second finds nothing new
        ran = headgate(tmp_path, "telemetry", "--once", *place(gateway, "counted"))
        assert ran.returncode == 0, ran.stderr
        counted = Tables(tmp_path / "counted").progress().records
        assert counted >= 3
        assert re.search(rf"ended: batch \d+: {counted:,} records", ran.stdout), ran.stdout
    ran = headgate(tmp_path, *sql, "--tables", "counted", "select count(*) as n from latest where device = 'd2'")
    assert (ran.returncode, ran.stdout) == (0, "n\n1\n"), ran.stderr
    (tmp_path / "file").write_text("")
    ran = headgate(tmp_path, "telemetry", "--once", *place(gateway, "file/below"))
    assert ran.returncode == 1
    assert next(line for line in ran.stderr.splitlines() if line != JAVA_SAYS).startswith("headgate: "), ran.stderr
