"""Kills with real processes under the telemetry job: in the end every table equals a plain recount of the log.

The driver is killed before every step of a commit, one after another: before each transaction, each sync, each removal
of a file. A gateway and Python workers of Spark are killed on the way. On a Spark cluster and a Headgate cluster,
drivers, executors, proxies and the master of the store are.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pandas")
pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from gateway.process.local_cluster import ClusterPlan
from spark.errors import MissingJdk
from spark.job.session import find_java_home
from spark.tables.reader import Tables
from tests.support.cluster.local_clusters import on_free_ports, started, until_ready
from tests.support.cluster.masters import masters
from tests.support.process.gateways import restart
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until
from tests.support.spark.log_recount import Telemetry, assert_recounted
from tests.support.spark.spark_processes import prepare, workers_of
from tests.support.spark.standalone import Standalone, standalone

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(7_200)]

PARTS = 4
KILLS_MIN = 5  # of a part
KILLS = int(os.environ.get("HEADGATE_SPARK_KILLS", "1000"))  # of a part, where not every step is to be tried
STEPS_MAX = 80  # more than a commit has
AWHILE_S = 900.0
VICTIMS = ("driver", "executor", "proxy", "master") * 3
EVENTS = 600  # for each start of the driver: several batches
# Ends itself before a step of the second commit of its life, or of a later one that has as many steps: the first one
# finishes what the life before has left.
JOB = """
import os, signal, sys
from spark.job import run
from spark.job.options import TelemetryOptions
from spark.tables import files
from spark.tables.commits import Commits
from spark.tables.files import Location

output, target, findings, wanted = sys.argv[1:]
wanted, commits, step = int(wanted), 0, 0

def counted(real):
    def call(*args, **keywords):
        global step
        if commits >= 2:
            if step == wanted:
                print(f"killed before step {step}: {real.__qualname__} {args[1:2]}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            step += 1
        return real(*args, **keywords)
    return call

def committing(real):
    def call(*args, **keywords):
        global commits, step
        commits, step = commits + 1, 0
        return real(*args, **keywords)
    return call

Commits._write = counted(Commits._write)
Commits.commit = committing(Commits.commit)
Location.remove = counted(Location.remove)
files.sync = counted(files.sync)
run(TelemetryOptions(output=output, target=target, findings=findings, topics=("telemetry",), trigger_s=0.2, tick_s=1.0,
                     records_max=150, buckets=2, watermark_s=2.0, session_s=5.0, samples=True, progress_s=0.0))
"""


@pytest.fixture(autouse=True)
def _jdk():
    try:
        find_java_home()
    except MissingJdk as error:
        pytest.skip(str(error))


@pytest.fixture
def seed():
    """Returns the seed of all chance, and prints it, so that a failure can be repeated."""
    found = int(os.environ.get("HEADGATE_TEST_SEED", "0")) or random.randrange(1 << 32)
    print(f"HEADGATE_TEST_SEED={found}")
    return found


class Job:
    """The job's processes, one after another, over one output."""

    def __init__(self, directory: Path, command: list[str]) -> None:
        self.tables, self._log, self._command = Tables(directory / "tables"), directory / "job.log", command
        self.process: subprocess.Popen | None = None

    def start(self, *arguments: str) -> None:
        """Starts the next one."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._command, *arguments], stdout=log, stderr=log, start_new_session=True
            )

    @property
    def ended(self) -> bool:
        """Returns whether the driver is gone."""
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """Ends the driver, as kill -9 does; its JVM is left to itself."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """Asks it to end; returns its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(AWHILE_S)

    def log(self) -> str:
        """Returns the end of what they have said."""
        return self._log.read_text(errors="replace")[-6_000:]

    def said(self, text: str) -> int:
        """Returns how often they have said something."""
        return self._log.read_text(errors="replace").count(text)

    def close(self) -> None:
        """Ends whatever is left of it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def await_records(self, count: int, *, or_end: bool = False) -> bool:
        """Waits until so many records are counted; returns whether they are."""
        until = time.monotonic() + AWHILE_S
        while self.tables.progress().records < count:
            if self.ended:
                if or_end:
                    return False
                raise AssertionError(self.log())
            assert time.monotonic() < until, self.log()
            time.sleep(0.05)
        return True


@pytest.mark.parametrize("part", range(PARTS))
def test_a_driver_that_is_killed_before_any_step_of_a_commit_neither_loses_nor_doubles(
    new_gateway, tmp_path, seed, part
):
    """Each part is a history of its own, in which every fourth step has its kill."""
    gateway = new_gateway().start()
    target = f"127.0.0.1:{gateway.port('rpc')}"
    job = Job(tmp_path, ["-c", JOB, str(tmp_path / "tables"), target, gateway.url])
    telemetry, chance = Telemetry(gateway.url, seed), random.Random(seed)
    drivers = others = survived = 0
    try:
        for nth, step in enumerate(range(part, STEPS_MAX, PARTS)):
            telemetry.feed(EVENTS)
            at = job.tables.progress().records
            job.start(str(step))
            if nth % 3 == 2 and job.await_records(at + 1, or_end=True):
                time.sleep(chance.random())
                if chance.random() < 0.5:
                    gateway.kill()
                    restart(gateway)
                    others += 1
                elif those := workers_of(job.process):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(chance.choice(those), signal.SIGKILL)
                    others += 1
            if job.await_records(telemetry.published, or_end=True):
                survived += 1
                job.kill()  # at rest, or in a tick
            drivers += 1
            print(f"step {step}: {job.tables.progress().records} of {telemetry.published} records", flush=True)
            job.close()
            if survived > 1 or job.said("killed before step") >= KILLS:  # no commit has so many steps, or it is enough
                break
        told = job.said("killed before step")
        print(f"{drivers} drivers killed, {told} of them before a step; {others} gateways and workers", flush=True)
        assert told >= KILLS_MIN, job.log()
        telemetry.feed(EVENTS)
        job.start(str(STEPS_MAX))
        job.await_records(telemetry.published)
        assert job.stop() == 0, job.log()
        assert_recounted(job.tables, target)
    finally:
        job.close()
        telemetry.close()


def executors_of(spark: Standalone) -> list[int]:
    """Returns the JVMs that Spark's workers have started for the job."""
    groups, found = {process.pid for process in spark.processes.values()}, []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes():
                pid = int(process.name)
                if os.getpgid(pid) in groups:
                    found.append(pid)
    return found


def test_kills_of_drivers_executors_proxies_and_masters_neither_lose_nor_double(tmp_path, seed):
    chance = random.Random(seed)
    plan = ClusterPlan(tmp_path / "headgate", controllers=1, groups=1, replicas=3, min_in_sync=2, proxies=2)
    with started(on_free_ports(plan), prepare) as cluster, standalone(tmp_path, find_java_home()) as spark:
        proxies = [node.port - PORTS["mqtt"] for node in cluster.nodes if node.role == "proxy"]
        urls = ",".join(f"http://127.0.0.1:{offset + PORTS['http']}" for offset in proxies)
        targets = ",".join(f"127.0.0.1:{offset + PORTS['rpc']}" for offset in proxies)
        options = ("--target", targets, "--findings", urls, "--master", spark.url, "--topic", "telemetry", "--samples")
        limits = ("--watermark", "2", "--session-gap", "5", "--buckets", "2", "--trigger", "0.2", "--progress", "5")
        command = ["-m", "gateway.cli", "spark", "telemetry", "--output", str(tmp_path / "tables"), *options, *limits]
        job, telemetry, stop = Job(tmp_path, command), Telemetry(urls, seed), threading.Event()
        ends: list[int] = []

        def feed():
            while not stop.wait(0.1):
                telemetry.feed(100)

        def await_more():
            """Goes on until something that was published from now on is counted."""
            wanted = telemetry.published + 200
            until = time.monotonic() + AWHILE_S
            while job.tables.progress().records < wanted:
                assert time.monotonic() < until, job.log()
                if job.ended:  # it was killed, or lost too much at once and said so
                    ends.append(job.process.returncode)
                    assert len(ends) < 2 * len(VICTIMS), job.log()
                    job.close()
                    job.start()
                time.sleep(0.05)

        sender = threading.Thread(target=feed, daemon=True)
        try:
            sender.start()
            job.start()
            for victim in VICTIMS:
                await_more()
                time.sleep(chance.random())
                print(f"{victim}: {job.tables.progress().records} records counted", flush=True)
                if victim == "driver":
                    job.kill()
                elif victim == "executor":
                    those = wait_until(lambda: executors_of(spark), "no executor", AWHILE_S)
                    with contextlib.suppress(ProcessLookupError):  # it belonged to a driver that is gone
                        os.kill(chance.choice(those), signal.SIGKILL)
                else:
                    name = masters(cluster)[0] if victim == "master" else chance.choice(cluster.of_role("proxy"))
                    cluster.stop(name, kill=True)
                    time.sleep(3 * chance.random())
                    cluster.start(name)
                    until_ready(cluster, [name], timeout_s=AWHILE_S)
            await_more()
            stop.set()
            sender.join(AWHILE_S)
            assert not sender.is_alive()
            job.await_records(telemetry.published)
            assert job.stop() == 0, job.log()
            print(f"{len(VICTIMS)} kills; the driver ended with {ends}", flush=True)
            assert_recounted(job.tables, targets)
        finally:
            stop.set()
            job.close()
            telemetry.close()
