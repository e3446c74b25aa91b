"""Runs the telemetry job over fleets of several sizes: the time of a batch, and the memory of its driver. Prints JSON.

python -m tests.bench.spark.spark_telemetry [--devices 1000,20000] [--batches 6] [--cores 2] [--buckets 4]

Each device reports five metrics in one record a batch. `batch_ms` is from the beginning of a batch to its commit, the
median without the first two, in which Spark warms up. `driver_mib` is the most memory that the driver's Python had,
`jvm_mib` that of the JVM, which on one machine is driver and executor in one. A store in memory is read, over gRPC.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spark.tables.reader import Tables
from store.api.message import Message
from tests.support.store.fake_store import Serving, serving

METRICS = ("temperature", "humidity", "pressure", "voltage", "current")
RECORDS_MAX = 1_000_000
JOB = """
import sys
from spark.job.options import TelemetryOptions; from spark.job import run
run(TelemetryOptions(output=sys.argv[1], target=sys.argv[2], trigger_s=0.1, records_max=int(sys.argv[3]),
                     cores=int(sys.argv[4]), buckets=int(sys.argv[5])))
"""


def feed(served: Serving, devices: int, batch: int, chance: random.Random) -> None:
    """One record of each device, stored now, frame by frame."""
    now_ms = round(time.time() * 1000)
    for at in range(0, devices, 100):
        rows = []
        for n in range(at, min(at + 100, devices)):
            body = json.dumps({name: round(chance.gauss(20, 1), 3) for name in METRICS}).encode()
            message = Message(address=f"t/d{n}", body=body, device=f"d{n}", time_ms=now_ms, protocol="mqtt")
            rows.append((16 + n % 4, message))
        served.store.append(rows, stored_at_ms=now_ms)


def peak_mib(pid: int) -> float:
    """The most memory that a process ever had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def jvm_of(job: subprocess.Popen) -> int:
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    return next(int(pid) for pid in children if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes())


def measure(devices: int, options: argparse.Namespace) -> dict[str, float]:
    with serving({"t": (16, 17, 18, 19)}) as served, tempfile.TemporaryDirectory() as where:
        output, log, chance = Path(where) / "out", Path(where) / "log", random.Random(1)
        numbers = (str(RECORDS_MAX), str(options.cores), str(options.buckets))
        with log.open("wb") as out:
            command = [sys.executable, "-c", JOB, str(output), served.target, *numbers]
            job = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        try:
            tables, times, fed = Tables(output), [], 0
            for batch in range(options.batches):
                feed(served, devices, batch, chance)
                fed += devices
                while tables.progress().records < fed:
                    assert job.poll() is None, log.read_text()[-2000:]
                    time.sleep(0.05)
                times.append(tables.progress().batch_ms)
            found = {"devices": devices, "batch_ms": statistics.median(times[2:]), "first_ms": times[0]}
            found |= {"driver_mib": round(peak_mib(job.pid)), "jvm_mib": round(peak_mib(jvm_of(job)))}
            assert tables.table("latest").num_rows == devices * len(METRICS)
            job.send_signal(signal.SIGTERM)
            job.wait(120)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="1000,20000")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=4)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found = [measure(int(devices), options) for devices in options.devices.split(",")]
    print(json.dumps({"load": [load, os.getloadavg()[0]], "fleets": found}))


if __name__ == "__main__":
    main()
