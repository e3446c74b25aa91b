"""Runs the telemetry job over fleets of several sizes: the time of a batch, and the memory of its driver. Prints JSON.

python -m tests.bench telemetry [--devices 1000,20000] [--batches 6] [--cores 2] [--buckets 4] [--dir DIR]

Each device reports five metrics in one record a batch; the job sees a batch when all of it is stored. `batch_ms` is
from the beginning of a batch to its commit, the median without the first two, in which Spark warms up. `driver_mib` is
the most memory that the driver's Python had, `jvm_mib` that of the JVM, which on one machine is driver and executor in
one. `heap_mib` is the JVM's objects that live after a collection at the end (by `jcmd`, which comes with a JDK and not
with a runtime alone). `pythons_mib` is the most that the executors' Pythons had together, at looks half a second apart.
`state_mib`, `checkpoint_mib` and `tables_mib` are on disk in the end; replaced files that are not deleted yet are among
the tables. A store in memory is read, over gRPC.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

from spark.job.session import find_java_home
from spark.tables.reader import Tables
from store.api.message import Message
from store.api.queues import Bounds
from store.format.frame import QueueOffset
from tests.bench.options import at_least, made_directory, scratch
from tests.bench.procfs import descendants_pss_kib
from tests.support.store.fake_store import FakeController, FakeStore, Serving

WARM_UP_BATCHES = 2
LOOK_S = 0.5  # between two looks at the memory of the executors' Pythons
TOPIC, QUEUES = "t", (16, 17, 18, 19)
METRICS = ("temperature", "humidity", "pressure", "voltage", "current")
RECORDS_MAX = 1_000_000
JOB = """
import sys
from spark.job.options import TelemetryOptions; from spark.job import run
run(TelemetryOptions(output=sys.argv[1], target=sys.argv[2], trigger_s=0.1, records_max=int(sys.argv[3]),
                     cores=int(sys.argv[4]), buckets=int(sys.argv[5])))
"""


class BatchStore(FakeStore):
    """A store whose readers see a batch when all of it is there."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[int, int] = {}  # queue -> the offset behind what readers see

    def show(self) -> None:
        """Shows what was appended."""
        self._shown = {queue: len(places) for queue, places in self.index.items()}

    async def bounds(self, queue: int) -> Bounds:
        return Bounds(QueueOffset(0), QueueOffset(self._shown.get(queue, 0)))


def feed(store: BatchStore, devices: int, chance: random.Random) -> None:
    """Stores one record of each device, frame by frame."""
    now_ms = round(time.time() * 1000)
    for at in range(0, devices, 100):
        rows = []
        for n in range(at, min(at + 100, devices)):
            body = json.dumps({name: round(chance.gauss(20, 1), 3) for name in METRICS}).encode()
            message = Message(address=f"{TOPIC}/d{n}", body=body, device=f"d{n}", time_ms=now_ms, protocol="mqtt")
            rows.append((QUEUES[n % len(QUEUES)], message))
        store.append(rows, stored_at_ms=now_ms)
    store.show()


def peak_mib(pid: int) -> float:
    """Returns the most memory that a process ever had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def sizes_mib(output: Path) -> dict[str, float]:
    """Returns the bytes of the state, of Spark's checkpoint and of the tables, in MiB."""
    found = dict.fromkeys(("state", "checkpoint", "tables"), 0)
    for path in output.rglob("*"):
        with suppress(FileNotFoundError):  # the job replaces files
            if path.is_file():
                first = path.relative_to(output).parts[0]
                found[first if first in found else "tables"] += path.stat().st_size
    return {name: round(size / 2**20, 1) for name, size in found.items()}


def jvm_of(job: subprocess.Popen) -> int:
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return next(int(pid) for pid in children if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes())


def live_heap_mib(pid: int) -> int | None:
    """Returns the size of a JVM's objects that are in use, after a collection of the others; None: there is no jcmd."""
    jcmd = find_java_home() / "bin" / "jcmd"
    found = str(jcmd) if jcmd.exists() else shutil.which("jcmd")
    if found is None:
        return None
    ran = subprocess.run(
        [found, str(pid), "GC.class_histogram"], capture_output=True, text=True, timeout=300, check=False
    )
    total = re.search(r"^Total\s+\d+\s+(\d+)", ran.stdout, re.MULTILINE)
    assert total is not None, ran.stdout[-500:] + ran.stderr[-500:]
    return round(int(total[1]) / 2**20)


def measure(devices: int, options: argparse.Namespace) -> dict[str, float | None]:
    store = BatchStore()
    with closing(Serving(store, FakeController({TOPIC: QUEUES}))) as served, scratch(options.dir) as where:
        served.start()
        output, log, chance = where / "out", where / "log", random.Random(1)
        numbers = (str(RECORDS_MAX), str(options.cores), str(options.buckets))
        with log.open("wb") as out:
            command = [sys.executable, "-c", JOB, str(output), served.target, *numbers]
            job = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            tables, times, fed, pythons_mib, looked_s = Tables(output), [], 0, 0.0, 0.0
            for _ in range(options.batches):
                feed(store, devices, chance)
                fed += devices
                while tables.progress().records < fed:
                    assert job.poll() is None, log.read_text()[-2000:]
                    if times and time.monotonic() - looked_s > LOOK_S:
                        pythons_mib = max(pythons_mib, descendants_pss_kib(jvm_of(job)) / 1024)
                        looked_s = time.monotonic()
                    time.sleep(0.05)
                times.append(tables.progress().batch_ms)
            typical_ms = statistics.median(times[WARM_UP_BATCHES:])
            found = {"devices": devices, "batch_ms": typical_ms, "first_ms": times[0]}
            found |= {"driver_mib": round(peak_mib(job.pid)), "jvm_mib": round(peak_mib(jvm_of(job)))}
            found |= {"heap_mib": live_heap_mib(jvm_of(job)), "pythons_mib": round(pythons_mib)}
            found |= {f"{name}_mib": size for name, size in sizes_mib(output).items()}
            assert tables.table("latest").num_rows == devices * len(METRICS)
            job.send_signal(signal.SIGTERM)
            job.wait(120)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        return found


def fleets(text: str) -> list[int]:
    """Returns the sizes of fleets. Raises `ArgumentTypeError`."""
    found = [at_least(1)(one) for one in text.split(",")]
    if max(found) > RECORDS_MAX:
        raise argparse.ArgumentTypeError(f"{max(found)}: a batch has at most {RECORDS_MAX:,} records")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=fleets, default=[1_000, 20_000], help="sizes of fleets, with commas")
    parser.add_argument("--batches", type=at_least(WARM_UP_BATCHES + 1), default=6)
    parser.add_argument("--cores", type=at_least(1), default=2)
    parser.add_argument("--buckets", type=at_least(1), default=4)
    parser.add_argument("--dir", type=made_directory, default=None, help="where the tables are written")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = [measure(devices, options) for devices in options.devices]
    print(json.dumps({"load": [load, os.getloadavg()[0]], "fleets": found}))


if __name__ == "__main__":
    main()
