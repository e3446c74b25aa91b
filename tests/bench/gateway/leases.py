"""Messages that a group leases over HTTP: memory of each lease, and how many a second. Prints JSON.

python -m tests.bench.gateway.leases [--leases 100000] [--bytes 100]

A gateway in a process of its own is filled with messages, which a consumer group with a cursor reads first, so that
reading them again takes no memory of its own. Then one client leases all of them for an hour, 1,000 in each request,
extends each lease once, and settles them in the order in which they came. Memory is that of the process, before and
behind each step; the client shares the machine.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.bench.gateway.push_sinks import memory_kib, processor_s
from tests.support.process.gateways import GatewayProcess

BATCH = 1_000  # messages, or handles, of a request
LEASE_S = 3_600
PATIENCE_S = 120.0
TOPIC = "bench"


def publish(client: httpx.Client, count: int, size: int) -> None:
    said = {"specversion": "1.0", "source": "/bench", "type": "t", "datacontenttype": "text/plain", "data": "x" * size}
    for at in range(0, count, BATCH):
        numbers = range(at, min(at + BATCH, count))
        events = [{**said, "id": str(number), "subject": f"{TOPIC}/{number % 1_000}"} for number in numbers]
        kind = {"content-type": "application/cloudevents-batch+json"}
        client.post("/events", content=json.dumps(events), headers=kind).raise_for_status()


def ask(client: httpx.Client, method: str, path: str, **body: Any) -> Any:
    answer = client.request(method, path, json=body or None)
    answer.raise_for_status()
    return answer.json()


def read_all(client: httpx.Client, count: int) -> None:
    """Reads everything as a member of a group with a cursor."""
    member = ask(client, "POST", "/groups/reader/members", topic=TOPIC)["member"]
    path, read = f"/groups/reader/members/{member}/messages?max={BATCH}&wait=5", 0
    following = path
    while read < count:
        found = ask(client, "GET", following)
        assert found["messages"], f"{read} of {count} messages were read"
        read += len(found["messages"])
        following = f"{path}&after={found['after']}"


def lease_all(client: httpx.Client, count: int) -> Iterator[list[str]]:
    """Leases everything; the handles of each answer."""
    leased = 0
    while leased < count:
        found = ask(client, "POST", "/groups/readings/receive", max=BATCH, wait=5, lease_s=LEASE_S)["messages"]
        assert found, f"{leased} of {count} messages were leased"
        leased += len(found)
        yield [one["handle"] for one in found]


class Study:
    """Steps one after the other: what each adds to the memory, and how fast it is."""

    def __init__(self, gateway: GatewayProcess, count: int) -> None:
        self._gateway = gateway
        self._count = count
        self.found: dict[str, float] = {"leases": count}

    def step(self, name: str, work: Callable[[], None]) -> None:
        before, used_s, began_s = memory_kib(self._gateway), processor_s(self._gateway), time.perf_counter()
        work()
        took_s, used_s = time.perf_counter() - began_s, processor_s(self._gateway) - used_s
        self.found[f"{name}_bytes_each"] = round(1_024 * (memory_kib(self._gateway) - before) / self._count, 1)
        self.found[f"{name}_per_s"] = round(self._count / took_s)
        self.found[f"{name}_processor_us_each"] = round(used_s * 1e6 / self._count, 1)


def measure(gateway: GatewayProcess, count: int, size: int) -> dict[str, float]:
    study = Study(gateway, count)
    handles: list[list[str]] = []
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client:

        def settle(what: str, **more: Any) -> None:
            for some in handles:
                assert ask(client, "POST", f"/groups/readings/{what}", handles=some, **more)["done"] == len(some)

        publish(client, count, size)
        ask(client, "PUT", "/groups/readings", topic=TOPIC)
        study.step("read", lambda: read_all(client, count))
        study.step("lease", lambda: handles.extend(lease_all(client, count)))
        study.step("extend", lambda: settle("extend", lease_s=LEASE_S))
        study.step("ack", lambda: settle("ack"))
    return study.found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=100, help="of a message's body")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        gateway = GatewayProcess(Path(directory) / "data").start()
        try:
            json.dump(measure(gateway, arguments.leases, arguments.bytes), sys.stdout, indent=2)
            print()
        finally:
            gateway.close()


if __name__ == "__main__":
    main()
