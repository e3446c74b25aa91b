"""Lets the telemetry job count a backlog: a store is filled first, then read from its beginning. Prints JSON.

python -m tests.bench backlog [--records 20000000] [--devices 1000] [--hours 6] [--cores 2] [--buckets 4]
    [--master URL] [--dir DIR]

Each record has two metrics of one device; the store's clock goes over the hours while they are stored, and each record
is of the time when it is. `records_per_s` is from the commit of the first batch to that of the last; it is null where
one batch has counted all of them. `driver_mib` is
the most memory that the driver's Python had after a quarter of the records, half of them, and so on: where it is flat,
nothing grows with what was counted. `jvm_mib` is that of the JVM, driver and executor in one, and `heap_mib` its
objects that live after a collection in the end. `cpu_s` is the processor time of all of Spark, its start included, and
none of the store's. `log_mib` and `tables_mib` are on disk; the directory is removed in the
end.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from spark.tables.reader import Tables
from store.api.log import Appended
from store.api.message import Message, encode
from store.base.errors import StoreError
from store.format.frame import ROW, UnplacedFrame
from store.local.local import LocalStore
from store.serving.rpc import StoreService
from tests.bench.options import above_zero, at_least, made_directory, scratch
from tests.bench.procfs import descendants_cpu_s
from tests.bench.spark.spark_read import Server
from tests.bench.spark.spark_telemetry import jvm_of, live_heap_mib, peak_mib

FRAME_RECORDS = 200
IN_FLIGHT_MAX = 16
CLOCK_MS_MAX = 10_000  # by which the store's clock may be ahead of a record's time: late are those of two minutes
QUARTERS = 4
LOOK_S = 0.2  # between two looks at the tables' progress
JOB = """
import sys
from spark.job.options import TelemetryOptions; from spark.job import run
run(TelemetryOptions(output=sys.argv[1], target=sys.argv[2], trigger_s=0.0, records_max=int(sys.argv[3]),
                     cores=int(sys.argv[4]), buckets=int(sys.argv[5]), master=sys.argv[6] or None))
"""


class Backlog(Server):
    """A store whose clock goes over some hours while it is filled."""

    async def start(self, where: Path, options: argparse.Namespace) -> int:
        self.now_ms = round((time.time() - options.hours * 3_600) * 1_000)
        self.step_ms = options.hours * 3_600_000 / options.records
        self.store = await LocalStore.open(where / "store", now_ms=lambda: self.now_ms)
        self.controller = LocalController.open(where / "controller", now_ms=lambda: self.now_ms)
        topic = await self.controller.do(CreateTopic(name="telemetry", queues=options.queues))
        await self.fill_over(topic.queues, options)
        self.service = await StoreService.start(self.store, self.controller, "127.0.0.1:0")
        return self.service.port

    async def fill_over(self, queues: tuple[int, ...], options: argparse.Namespace) -> None:
        """Stores every record at its time, the devices in turn."""
        frame_ms = max(1.0, FRAME_RECORDS * self.step_ms)
        in_flight = min(IN_FLIGHT_MAX, max(1, round(CLOCK_MS_MAX / frame_ms)))  # frames; their clock goes on meanwhile
        began_ms, window = self.now_ms, asyncio.Semaphore(in_flight)

        def done(outcome: Appended | StoreError) -> None:
            assert isinstance(outcome, Appended), outcome
            window.release()

        for at in range(0, options.records, FRAME_RECORDS):
            await window.acquire()
            self.now_ms = began_ms + round(at * self.step_ms)
            rows, records, length = [], [], 0
            for n in range(at, min(at + FRAME_RECORDS, options.records)):
                device = n % options.devices
                message = Message(
                    address=f"telemetry/site1/d{device}",
                    body=b'{"temperature":%d.5,"humidity":%d}' % ((n * 7) % 40, (n * 3) % 100),
                    time_ms=self.now_ms,
                    protocol="mqtt",
                    device=f"d{device}",
                )
                record = encode(message)
                rows.append(ROW.pack(queues[device % len(queues)], length, len(record), 0, 1, 1, 0, self.now_ms))
                records.append(record)
                length += len(record)
            self.store.log.append(UnplacedFrame.build(b"".join(rows), b"".join(records)), done)
        for _ in range(in_flight):
            await window.acquire()


def size_mib(directory: Path) -> int:
    """Returns the bytes of a directory's files, in MiB."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) >> 20


def count(target: str, where: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the job until it has counted everything."""
    output, log = where / "tables", where / "job.log"
    with log.open("wb") as out:
        numbers = (str(options.batch), str(options.cores), str(options.buckets), options.master or "")
        job = subprocess.Popen(
            [sys.executable, "-c", JOB, str(output), target, *numbers], stdout=out, stderr=out, start_new_session=True
        )
    try:
        tables, memory, batches = Tables(output), [], {}
        began_s, first = time.monotonic(), None
        while (progress := tables.progress()).records < options.records:
            assert job.poll() is None, log.read_text()[-4_000:]
            if progress.batch >= 0:
                first = first or (time.monotonic(), progress.records)
                batches[progress.batch] = progress.batch_ms
            if progress.records >= options.records * (len(memory) + 1) // QUARTERS:
                memory.append((round(peak_mib(job.pid)), round(peak_mib(jvm_of(job)))))
            time.sleep(LOOK_S)
        ended_s = time.monotonic()
        batches[progress.batch] = progress.batch_ms
        memory.append((round(peak_mib(job.pid)), round(peak_mib(jvm_of(job)))))
        rate = None if first is None else round((options.records - first[1]) / (ended_s - first[0]))
        found: dict[str, Any] = {"records_per_s": rate, "batches": progress.batch + 1}
        found |= {"seconds": round(ended_s - began_s, 1)}  # from the start of the job
        found |= {"batch_ms": [f(batches.values()) for f in (min, statistics.median_low, max)]}
        found |= {"driver_mib": [one for one, _ in memory], "jvm_mib": [one for _, one in memory]}
        found |= {"cpu_s": round(descendants_cpu_s(os.getpid())), "heap_mib": live_heap_mib(jvm_of(job))}
        quality = tables.quality()
        assert quality == {"ok": options.records}, quality
        assert sum(tables.table("traffic")["records"].to_pylist()) == options.records
        assert sum(tables.windows()["count"].to_pylist()) == 2 * options.records
        job.send_signal(signal.SIGTERM)
        job.wait(300)
        return found
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=at_least(1), default=20_000_000)
    parser.add_argument("--devices", type=at_least(1), default=1_000)
    parser.add_argument("--hours", type=above_zero, default=6.0)
    parser.add_argument("--queues", type=at_least(1), default=4)
    parser.add_argument("--batch", type=at_least(1), default=500_000, help="records in one micro-batch, about")
    parser.add_argument("--cores", type=at_least(1), default=2)
    parser.add_argument("--buckets", type=at_least(1), default=4)
    parser.add_argument("--master", help="of a Spark cluster, in the place of --cores")
    parser.add_argument("--dir", type=made_directory, default=None)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with scratch(options.dir) as where:
        began_s = time.monotonic()
        server = Backlog(where, options)
        try:
            filled = {"fill_s": round(time.monotonic() - began_s), "log_mib": size_mib(where / "store")}
            found = count(f"127.0.0.1:{server.port}", where, options)
        finally:
            server.stop()
        found |= filled | {"tables_mib": size_mib(where / "tables")}
    shape = {name: getattr(options, name) for name in ("records", "devices", "hours", "batch", "cores", "buckets")}
    print(json.dumps({"shape": shape, "load": [load, os.getloadavg()[0]], **found}))


if __name__ == "__main__":
    main()
