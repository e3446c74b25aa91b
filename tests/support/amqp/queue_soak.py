"""Durable queues by the ten thousand that are declared, bound and deleted again; the memory and disk that takes."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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

EXCHANGE = "amq.direct"
MIB = 1 << 20


class QueueSoak:
    """Rounds of queues: `memory` in MiB by process, the most behind any step of a round; `disk` in MiB by directory.

    A queue is deleted by another connection than it was declared by, which in a cluster is one to another proxy.
    """

    def __init__(
        self,
        ports: Sequence[int],
        *,
        processes: Mapping[str, int],
        directories: Mapping[str, Path],
        queues: int,
        rest_s: float,
    ) -> None:
        """Takes the AMQP ports, processes and directories by name, and in how many seconds directories come to rest."""
        self._ports = ports
        self._processes, self._directories = processes, directories
        self._rest_s = rest_s
        names = [f"soak-{number}" for number in range(queues)]
        self._steps = {
            "declared": (DECLARE, [declaration(name) for name in names], DECLARE_OK),
            "bound": (BIND, [binding(name, EXCHANGE, name) for name in names], BIND_OK),
            "deleted": (DELETE, [deletion(name) for name in (*names[1:], *names[:1])], DELETE_OK),
        }
        self.memory: list[dict[str, float]] = []
        self.disk: list[dict[str, float]] = []

    def run(self, rounds: int, *, log_mib_max: float) -> None:
        """Does so many rounds; waits behind each for directories to hold no more than that, as far as it goes."""
        with Crowd(self._ports) as crowd:
            for number in range(1, rounds + 1):
                rates, held = {}, []
                for done, (request, asked, answer) in self._steps.items():
                    rates[done] = f"{len(asked) / crowd.ask(request, asked, answer):,.0f}/s"
                    held.append(self._held())
                self._wait(lambda: max(self._sizes().values()) <= log_mib_max)
                self.memory.append({name: max(one[name] for one in held) for name in self._processes})
                self.disk.append(self._sizes())
                most, last, disk = _rounded(self.memory[-1]), _rounded(held[-1]), _rounded(self.disk[-1])
                print(f"round {number}: {rates} MiB: {most}, at the end {last}, on disk {disk}", flush=True)

    def _wait(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + self._rest_s
        while not condition() and time.monotonic() < until_s:
            time.sleep(0.5)

    def _held(self) -> dict[str, float]:
        return {name: memory_mb("RssAnon", pid) * 1e6 / MIB for name, pid in self._processes.items()}

    def _sizes(self) -> dict[str, float]:
        return {name: size_of(directory) / MIB for name, directory in self._directories.items()}


def _rounded(sizes: Mapping[str, float]) -> dict[str, float]:
    """Returns sizes with one digit."""
    return {name: round(mib, 1) for name, mib in sizes.items()}


def size_of(directory: Path) -> int:
    """Returns the bytes that the files of a directory take on the disk."""
    found = 0
    for path in directory.rglob("*"):
        try:
            found += path.stat().st_blocks * 512
        except FileNotFoundError:  # it was removed meanwhile
            continue
    return found
