"""Reads a store it has filled itself, by gRPC: without Spark, then as a Spark batch. Prints JSON, records a second.

python -m tests.bench.spark.spark_read [--records 1000000] [--queues 4] [--frame 100] [--cores 2] [--rounds 3]
    [--dir DIR]

`fetch`: frames received and checked. `decode`: and made into record batches, all columns, by one process. `count`:
Spark counts the column `offset`, so no record is decoded. `telemetry`: Spark counts device, time and samples. `full`:
Spark takes every default column of every record into its engine. The first Spark read, which starts everything, is
left out. `filter`: Spark takes one device of a thousand. `parquet_*` and `json_*`: Spark reads the same columns of the
same rows from files of that format that it has written itself, compressed as it does by default.

`records_per_s` is what a clock shows, `records_per_core_s` what a second of processor time brings, of Spark and its
Pythons without the store: the figure to compare where others use the machine.
"""

import argparse
import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from spark.job.session import build_session
from spark.source.columns import RecordColumns, schema_of
from store.api.log import Appended
from store.api.message import Message, encode
from store.base.errors import StoreError
from store.format.frame import ROW, UnplacedFrame
from store.local.local import LocalStore
from store.remoting.reader import RemoteReader
from store.serving.rpc import StoreService
from tests.bench.options import at_least, made_directory, scratch
from tests.bench.procfs import descendants_cpu_s

ROUNDS = 3
T0 = 1_700_000_000_000


class Server:
    """A store in a thread of its own, filled and served."""

    def __init__(self, where: Path, options: argparse.Namespace) -> None:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.port = self.run(self.start(where, options))

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def start(self, where: Path, options: argparse.Namespace) -> int:
        self.store = await LocalStore.open(where / "store")
        self.controller = LocalController.open(where / "controller", now_ms=lambda: T0)
        topic = await self.controller.do(CreateTopic(name="telemetry", queues=options.queues))
        await self.fill(topic.queues, options.records, options.frame)
        self.service = await StoreService.start(self.store, self.controller, "127.0.0.1:0")
        return self.service.port

    async def fill(self, queues: tuple[int, ...], records: int, size: int) -> None:
        """Stores frames as a connection's reads make them: one device, one queue."""
        window = asyncio.Semaphore(64)

        def done(outcome: Appended | StoreError) -> None:
            assert isinstance(outcome, Appended), outcome
            window.release()

        for at in range(0, records, size):
            device = at // size % 1000
            rows, payload = b"", b""
            for n in range(at, min(at + size, records)):
                message = Message(
                    address=f"telemetry/site1/d{device}",
                    body=b'{"temperature":%d.5,"humidity":%d}' % (n % 40, n % 100),
                    time_ms=T0 + n,
                    protocol="mqtt",
                    device=f"d{device}",
                )
                record = encode(message)
                rows += ROW.pack(queues[device % len(queues)], len(payload), len(record), 0, 1, 1, 0, message.time_ms)
                payload += record
            await window.acquire()
            self.store.log.append(UnplacedFrame.build(rows, payload), done)
        for _ in range(64):
            await window.acquire()

    def stop(self) -> None:
        async def stop() -> None:
            await self.service.stop(0)
            await self.store.close()
            await self.controller.close()

        self.run(stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class Rates:
    """The best of some rounds of each read: records a second, and records a second of processor time."""

    def __init__(self, records: int, rounds: int) -> None:
        self.records, self.rounds = records, rounds
        self.by_clock: dict[str, int] = {}
        self.by_core: dict[str, int] = {}

    def add(self, name: str, read: Callable[[], int]) -> None:
        """Takes a read, of which this process has no part but the store's, unless Spark has none."""
        times, spent = [], []
        for _ in range(self.rounds):
            began, cpu_s = time.perf_counter(), descendants_cpu_s(os.getpid())
            assert read() == self.records
            times.append(time.perf_counter() - began)
            if (used_s := descendants_cpu_s(os.getpid()) - cpu_s) > 0:  # less: a process that counted has ended
                spent.append(used_s)
        self.by_clock[name] = round(self.records / min(times))
        if spent:
            self.by_core[name] = round(self.records / min(spent))


def measure(target: str, options: argparse.Namespace, where: Path) -> Rates:
    def fetch() -> int:
        with RemoteReader(target) as reader:
            return sum(c.next - c.offset for q in reader.topics()["telemetry"] for c in reader.fetch_chunks(q, 0))

    def decode() -> int:
        columns, count = RecordColumns(schema_of(())), 0
        with RemoteReader(target) as reader:
            for queue in reader.topics()["telemetry"]:
                for chunk in reader.fetch_chunks(queue, 0):
                    count += columns.batch(chunk, queue=queue, topic="telemetry").num_rows
        return count

    found = Rates(options.records, options.rounds)
    found.add("fetch", fetch)
    found.add("decode", decode)
    session = build_session("bench", cores=options.cores, local_dir=where / "spark", driver_memory="2g")

    def read(columns: str, *counted: str) -> int:
        frame = session.read.format("headgate").options(target=target, columns=columns).load()
        return max(frame.selectExpr(*(f"count(`{name}`)" for name in counted or frame.columns)).first())

    read("offset", "offset")
    found.add("count", lambda: read("offset", "offset"))
    found.add("telemetry", lambda: read("device,time,samples", "device", "time", "samples"))
    found.add("full", lambda: read(""))
    device = {"target": target, "filter": "telemetry/+/d7/#", "columns": "device,time,samples"}
    chosen = session.read.format("headgate").options(**device).load()
    share = chosen.count()
    found.add("filter", lambda: options.records if chosen.count() == share else 0)
    files(session, target, where, found)
    session.stop()
    return found


def files(session, target: str, where: Path, found: Rates) -> None:
    """Reads the same rows from files."""
    for name, columns in (("telemetry", "device,time,samples"), ("full", "")):
        frame = session.read.format("headgate").options(target=target, columns=columns).load()
        for form in ("parquet", "json"):
            path = str(where / f"{name}.{form}")
            frame.write.format(form).save(path)
            again = session.read.schema(frame.schema).format(form).load(path)
            counts = [f"count(`{column}`)" for column in again.columns]

            def read(again=again, counts=counts) -> int:
                return max(again.selectExpr(*counts).first())

            found.add(f"{form}_{name}", read)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=at_least(1), default=1_000_000)
    parser.add_argument("--queues", type=at_least(1), default=4)
    parser.add_argument("--frame", type=at_least(1), default=100, help="records in a frame")
    parser.add_argument("--cores", type=at_least(1), default=2)
    parser.add_argument("--rounds", type=at_least(1), default=ROUNDS)
    parser.add_argument("--dir", type=made_directory, default=None)
    options = parser.parse_args()
    with scratch(options.dir) as where:
        server = Server(where, options)
        try:
            found = measure(f"127.0.0.1:{server.port}", options, where)
        finally:
            server.stop()
    shape = {name: getattr(options, name) for name in ("records", "queues", "frame", "cores")}
    figures = {"records_per_s": found.by_clock, "records_per_core_s": found.by_core}
    print(json.dumps({"shape": shape, **figures}, indent=2))


if __name__ == "__main__":
    main()
