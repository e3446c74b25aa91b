"""AMQP queues that come and go: memory of the gateway, and how many a second. Prints JSON.

python -m tests.bench.gateway.declares [--queues 40000] [--rounds 3]

A gateway in a process of its own has durable queues declared, each bound to an exchange, by 512 channels of 16
connections. Then all are deleted. Memory is that of the process (RssAnon, proc(5)): before, with all
queues there, and when they are gone, round after round.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.bench.gateway.push_sinks import processor_s
from tests.bench.load.amqp.amqp_crowd import Crowd
from tests.bench.load.amqp.amqp_wire import (
    BIND,
    BIND_OK,
    DECLARE,
    DECLARE_OK,
    DELETE,
    DELETE_OK,
    binding,
    declaration,
    deletion,
)
from tests.bench.procfs import memory_mb
from tests.support.process.gateways import GatewayProcess

EXCHANGE = "amq.direct"


def measure(gateway: GatewayProcess, queues: int, rounds: int) -> dict[str, object]:
    """Returns rates of the last round, and the memory behind each step of every round."""

    def memory() -> float:
        return round(memory_mb("RssAnon", gateway.process.pid), 1)

    names = [f"soak-{number}" for number in range(queues)]
    declares = [declaration(name) for name in names]
    binds = [binding(name, EXCHANGE, name) for name in names]
    deletes = [deletion(name) for name in names]
    found: dict[str, object] = {"queues": queues, "before_mb": memory()}
    there, gone = [], []
    with Crowd([gateway.port("amqp")]) as crowd:
        for _ in range(rounds):
            used_s = processor_s(gateway)
            found["declared_per_s"] = round(queues / crowd.ask(DECLARE, declares, DECLARE_OK))
            found["bound_per_s"] = round(queues / crowd.ask(BIND, binds, BIND_OK))
            there.append(memory())
            found["deleted_per_s"] = round(queues / crowd.ask(DELETE, deletes, DELETE_OK))
            gone.append(memory())
            found["processor_us_each"] = round((processor_s(gateway) - used_s) * 1e6 / queues)
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
