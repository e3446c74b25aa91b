"""Reads a store it has filled itself, by gRPC: without Spark, then as a Spark batch. Prints JSON, records a second.

python tests/bench/spark_read.py [--records 1000000] [--queues 4] [--frame 100] [--cores 2] [--dir DIR]

`fetch`: frames received and checked. `decode`: and made into record batches, all columns, by one process. `count`:
Spark counts the column `offset`, so no record is decoded. `telemetry`: Spark counts device, time and samples. `full`:
Spark takes every default column of every record into its engine. The first Spark read, which starts everything, is
left out.
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from spark.job.session import build_session
from spark.source.columns import Columns, schema_of
from store.api.log import Appended
from store.api.message import Message, encode
from store.base.errors import StoreError
from store.format.frame import ROW, UnplacedFrame
from store.local.local import LocalStore
from store.remoting.reader import RemoteReader
from store.serving.rpc import StoreService

ROUNDS = 3
T0 = 1_700_000_000_000


class Server:
    """A store in a thread of its own, filled and served."""

    def __init__(self, where: Path, options: argparse.Namespace) -> None:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
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
        """Frames as a connection's reads make them: one device, one queue."""
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


def rate(records: int, read: Callable[[], int]) -> int:
    """The best of some rounds, records a second."""
    best = 0.0
    for _ in range(ROUNDS):
        began = time.perf_counter()
        assert read() == records
        best = max(best, records / (time.perf_counter() - began))
    return round(best)


def measure(target: str, options: argparse.Namespace, where: Path) -> dict[str, int]:
    def fetch() -> int:
        with RemoteReader(target) as reader:
            return sum(c.next - c.offset for q in reader.topics()["telemetry"] for c in reader.fetch_chunks(q, 0))

    def decode() -> int:
        columns, count = Columns(schema_of(())), 0
        with RemoteReader(target) as reader:
            for queue in reader.topics()["telemetry"]:
                for chunk in reader.fetch_chunks(queue, 0):
                    count += columns.batch(chunk, queue=queue, topic="telemetry").num_rows
        return count

    found = {"fetch": rate(options.records, fetch), "decode": rate(options.records, decode)}
    session = build_session("bench", cores=options.cores, local_dir=where / "spark", driver_memory="2g")

    def read(columns: str, *counted: str) -> int:
        frame = session.read.format("headgate").options(target=target, columns=columns).load()
        return max(frame.selectExpr(*(f"count(`{name}`)" for name in counted or frame.columns)).first())

    read("offset", "offset")
    found["count"] = rate(options.records, lambda: read("offset", "offset"))
    found["telemetry"] = rate(options.records, lambda: read("device,time,samples", "device", "time", "samples"))
    found["full"] = rate(options.records, lambda: read(""))
    session.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--frame", type=int, default=100, help="records in a frame")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=None)
    options = parser.parse_args()
    where = Path(tempfile.mkdtemp(dir=options.dir))
    try:
        server = Server(where, options)
        try:
            found = measure(f"127.0.0.1:{server.port}", options, where)
        finally:
            server.stop()
    finally:
        shutil.rmtree(where)
    shape = {name: getattr(options, name) for name in ("records", "queues", "frame", "cores")}
    print(json.dumps({"shape": shape, "records_per_s": found}, indent=2))


if __name__ == "__main__":
    main()
