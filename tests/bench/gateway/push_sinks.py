"""Subscriptions with sinks of their own: memory of each while idle, and deliveries a second to all. Prints JSON.

python -m tests.bench.gateway.push_sinks [--sinks 1000] [--events 20]

A gateway in a process of its own delivers to one server that answers 204 to all: sink n is the path /n, whose
subscription hears the address `sinks/n`. Every sink gets `--events` events, published in batches of 100; what counts is
the time until the last delivery, and the gateway's processor time, publishing included. The server shares the machine.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httptools
import httpx

from tests.support.process.gateways import GatewayProcess

BATCH = 100
PATIENCE_S = 600.0
CONFIG = '[subscriptions]\nprivate_sinks = ["127.0.0.1"]\nvalidation = "off"\nsubscriptions_max = 100000\n'
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


class Sink(asyncio.Protocol):
    """Answers each request, and counts it."""

    came = 0
    all_came = asyncio.Event()
    wanted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.transport.write(NO_CONTENT)
        Sink.came += 1
        if Sink.came == Sink.wanted:
            Sink.all_came.set()


def memory_kib(gateway: GatewayProcess) -> int:
    """Returns the resident memory of the gateway."""
    assert gateway.process is not None
    lines = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def processor_s(gateway: GatewayProcess) -> float:
    """Returns the processor time that the gateway has used."""
    assert gateway.process is not None
    fields = Path(f"/proc/{gateway.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def event(sink: int, number: int) -> dict[str, Any]:
    said = {
        "specversion": "1.0",
        "source": "/bench",
        "type": "t",
        "subject": f"sinks/{sink}",
        "partitionkey": f"{number % 8}",
    }
    return {**said, "id": f"{sink}-{number}", "data": {"value": number}}


async def measure(gateway: GatewayProcess, sinks: int, events: int) -> dict[str, float]:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client:
        await client.get("/topics")
        before = memory_kib(gateway)
        for sink in range(sinks):
            body = {"sink": f"http://127.0.0.1:{port}/{sink}", "protocol": "HTTP"}
            answer = await client.post("/subscriptions", json={**body, "config": {"addresses": [f"sinks/{sink}"]}})
            answer.raise_for_status()
        await _active(gateway, sinks)
        idle = memory_kib(gateway)
        all_of_them = [event(sink, number) for number in range(events) for sink in range(sinks)]
        Sink.wanted = len(all_of_them)
        began, used_s = time.perf_counter(), processor_s(gateway)
        for at in range(0, len(all_of_them), BATCH):
            batch = json.dumps(all_of_them[at : at + BATCH])
            answer = await client.post(
                "/events", content=batch, headers={"content-type": "application/cloudevents-batch+json"}
            )
            answer.raise_for_status()
        async with asyncio.timeout(PATIENCE_S):
            await Sink.all_came.wait()
        took, used_s = time.perf_counter() - began, processor_s(gateway) - used_s
    server.close()
    return {
        "sinks": sinks,
        "idle_kib_each": (idle - before) / sinks,
        "busy_kib_each": (memory_kib(gateway) - before) / sinks,
        "deliveries_per_s": len(all_of_them) / took,
        "processor_ms_each": used_s * 1_000 / len(all_of_them),
    }


async def _active(gateway: GatewayProcess, sinks: int) -> None:
    """Waits until the gateway runs all subscriptions."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            lines = (await asyncio.to_thread(gateway.admin, "/metrics")).splitlines()
            active = [line for line in lines if line.startswith('headgate_push_subscriptions{state="active"}')]
            if active and float(active[0].split()[-1]) >= sinks:
                return
            await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sinks", type=int, default=1_000)
    parser.add_argument("--events", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "sinks.toml"
        config.write_text(CONFIG)
        gateway = GatewayProcess(Path(directory) / "data", "--config", str(config)).start()
        try:
            json.dump(asyncio.run(measure(gateway, arguments.sinks, arguments.events)), sys.stdout, indent=2)
            print()
        finally:
            gateway.close()


if __name__ == "__main__":
    main()
