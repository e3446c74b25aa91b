"""AMQP queues that come and go: memory of the gateway, and how many a second. Prints JSON.

python -m tests.bench.gateway.declares [--queues 40000] [--rounds 3]

A gateway in a process of its own has durable queues declared, each bound to an exchange, by one connection with up to
100 requests under way. Then all are deleted. Memory is that of the process (RssAnon, proc(5)): before, with all queues
there, and when they are gone, round after round.
"""

import argparse
import json
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.gateway.push_sinks import processor_s
from tests.bench.load.amqp.amqp_wire import (
    BIND,
    BIND_OK,
    DECLARE,
    DECLARE_OK,
    DELETE,
    DELETE_OK,
    Session,
    method,
    short,
)
from tests.bench.procfs import memory_mb
from tests.support.process.gateways import GatewayProcess

UNDER_WAY = 100
EXCHANGE = "amq.direct"
NO_ARGUMENTS = struct.pack("!I", 0)
DURABLE = b"\x02"


def declare(name: str) -> bytes:
    """Returns the request for a durable queue."""
    return method(DECLARE, b"\0\0" + short(name) + DURABLE + NO_ARGUMENTS)


def bind(name: str) -> bytes:
    """Returns the request that binds a queue by its own name."""
    return method(BIND, b"\0\0" + short(name) + short(EXCHANGE) + short(name) + b"\0" + NO_ARGUMENTS)


def delete(name: str) -> bytes:
    """Returns the request to delete a queue."""
    return method(DELETE, b"\0\0" + short(name) + b"\0")


def ask(session: Session, requests: Sequence[bytes], answer: tuple[int, int]) -> float:
    """Sends all requests, `UNDER_WAY` at a time at most, and returns how many were answered a second."""
    began_s, sent, answered = time.perf_counter(), 0, 0
    while answered < len(requests):
        upto = min(answered + UNDER_WAY, len(requests))
        session.socket.sendall(b"".join(requests[sent:upto]))
        sent = upto
        answered += sum(name == answer for name, _ in session.methods())
    return len(requests) / (time.perf_counter() - began_s)


def measure(gateway: GatewayProcess, queues: int, rounds: int) -> dict[str, object]:
    """Returns rates of the last round, and the memory behind each step of every round."""

    def memory() -> float:
        return round(memory_mb("RssAnon", gateway.process.pid), 1)

    names = [f"soak-{number}" for number in range(queues)]
    found: dict[str, object] = {"queues": queues, "before_mb": memory()}
    there, gone = [], []
    session = Session("127.0.0.1", gateway.port("amqp"))
    for _ in range(rounds):
        used_s = processor_s(gateway)
        found["declared_per_s"] = round(ask(session, [declare(name) for name in names], DECLARE_OK))
        found["bound_per_s"] = round(ask(session, [bind(name) for name in names], BIND_OK))
        there.append(memory())
        found["deleted_per_s"] = round(ask(session, [delete(name) for name in names], DELETE_OK))
        gone.append(memory())
        found["processor_us_each"] = round((processor_s(gateway) - used_s) * 1e6 / queues)
    session.close()
    return {**found, "there_mb": there, "gone_mb": gone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queues", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        gateway = GatewayProcess(Path(directory) / "data").start()
        try:
            json.dump(measure(gateway, arguments.queues, arguments.rounds), sys.stdout, indent=2)
            print()
        finally:
            gateway.close()


if __name__ == "__main__":
    main()
