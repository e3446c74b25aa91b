"""The telemetry job as a process: killed with -9 anywhere, it neither loses nor doubles; SIGTERM ends it in order."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pandas")
pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from spark.errors import MissingJdk
from spark.job.session import find_java_home
from spark.tables.reader import Tables
from store.api.message import Message
from tests.support.spark.spark_processes import workers_of
from tests.support.store.fake_store import Serving, serving

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_800)]

T0 = 1_700_000_040_000
MINUTE_MS = 60_000
WITHOUT_USE = ("log4j profile", "log level", "NativeCodeLoader")  # lines of Spark's start that nobody can act on
JOB = """
import sys
from pathlib import Path
from spark.job.options import TelemetryOptions; from spark.job import run
run(TelemetryOptions(output=Path(sys.argv[1]), target=sys.argv[2], trigger_s=0.2, records_max=int(sys.argv[3]),
                     buckets=2, retry_s=20))
"""


@pytest.fixture(autouse=True)
def _jdk():
    try:
        find_java_home()
    except MissingJdk as error:
        pytest.skip(str(error))


class Naive:
    """The expected content of the tables, counted by the book."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.windows: dict[tuple[str, str, int], list[tuple[int, int, float]]] = defaultdict(list)
        self.stored = 0

    def feed(self, served: Serving, count: int, chance: random.Random) -> None:
        for _ in range(0, count, 50):
            now_ms = T0 + self.stored * 20  # 50 records a second: a minute is 3,000
            batch = []
            for _ in range(50):
                device, value = f"d{chance.randrange(8)}", chance.randrange(1_000)
                time_ms = now_ms - chance.randrange(30_000)
                protocol = chance.choice(("mqtt", "coap", "http", "amqp"))
                body = json.dumps({"temperature": value}).encode() if chance.random() > 0.05 else b"junk"
                queue = 16 + int(device[1:]) % 2
                offset = len(served.store.index.get(queue, ())) + sum(q == queue for q, _ in batch)
                batch.append(
                    (
                        queue,
                        Message(address=f"t/{device}", body=body, device=device, time_ms=time_ms, protocol=protocol),
                    )
                )
                self.counts[protocol] += 1
                if body != b"junk":
                    start = time_ms // MINUTE_MS * MINUTE_MS
                    self.windows[device, "temperature", start].append((time_ms, offset, float(value)))
            served.store.log.append(batch, stored_at_ms=now_ms)
            self.stored += 50

    def expected(self) -> dict:
        return {
            key: (len(v), min(x[2] for x in v), max(x[2] for x in v), sum(x[2] for x in v) / len(v), max(v)[2])
            for key, v in self.windows.items()
        }


def shown(tables: Tables) -> dict:
    rows = tables.windows().to_pylist()
    found = {
        (r["device"], r["metric"], round(r["start"].timestamp() * 1000)): tuple(
            r[name] for name in ("count", "min", "max", "mean", "last")
        )
        for r in rows
    }
    assert len(found) == len(rows), "a window is there twice"
    return found


def start(served: Serving, output: Path, records_max: int) -> subprocess.Popen:
    log = (output.parent / "job.log").open("wb")
    command = [sys.executable, "-c", JOB, str(output), served.target, str(records_max)]
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def await_true(condition, job: subprocess.Popen) -> None:
    until = time.monotonic() + 1_000
    while not condition():
        assert job.poll() is None, (Path(job.args[3]).parent / "job.log").read_text()[-4_000:]
        assert time.monotonic() < until
        time.sleep(0.02)


def kill_a_worker(job: subprocess.Popen, chance: random.Random) -> None:
    """Kills an executor's Python process, as a system short of memory does. The job goes on, or ends in order."""
    if those := workers_of(job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(those), signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.wait(5)


def drop_the_store(served: Serving, chance: random.Random) -> None:
    """Stops the gateway for a while, in the middle of a read."""
    served.stop()
    time.sleep(chance.random())
    served.start()


def test_kill_minus_nine_neither_loses_nor_doubles(tmp_path):
    """The driver is killed once; see the next one for all who can be."""
    kill_many(tmp_path, ["driver"])


@pytest.mark.nightly
@pytest.mark.timeout(7_200)
def test_twenty_kills_of_drivers_workers_and_the_store(tmp_path):
    kill_many(tmp_path, ["driver", "worker", "store"] * 7)


def kill_many(tmp_path: Path, victims: list[str]) -> None:
    seed = int(os.environ.get("HEADGATE_TEST_SEED", "0")) or random.randrange(1 << 32)
    print(f"HEADGATE_TEST_SEED={seed}")
    chance, naive, output = random.Random(seed), Naive(), tmp_path / "out"
    tables = Tables(output)
    with serving({"t": (16, 17)}) as served:
        for nth, victim in enumerate(victims, 1):
            print(f"{nth}: {victim}", flush=True)
            naive.feed(served, 9_000, chance)
            job, at = start(served, output, 1_500), tables.progress().batch
            try:
                await_true(lambda: tables.progress().batch >= at + 2, job)  # noqa: B023  # not used after this round
                time.sleep(chance.random() * 0.5)  # anywhere in a batch, or between two
                if victim == "worker":
                    kill_a_worker(job, chance)
                elif victim == "store":
                    drop_the_store(served, chance)
            finally:
                job.kill()
                job.wait()
            assert tables.progress().records == sum(tables.counts().values())
            assert tables.progress().batch >= at + 2
        naive.feed(served, 3_000, chance)
        job = start(served, output, 5_000)
        try:
            await_true(lambda: tables.progress().records == naive.stored, job)
            job.send_signal(signal.SIGTERM)
            ended = job.wait(300)
            said = (tmp_path / "job.log").read_text()
            assert ended == 0, said
            assert [words for words in WITHOUT_USE if words in said] == []
        finally:
            job.kill()
            job.wait()
        assert tables.counts() == naive.counts
        assert shown(tables) == naive.expected()
        assert tables.windows(settled_only=True).num_rows > 0
        assert tables.progress().offsets == {q: len(places) for q, places in served.store.index.items()}
