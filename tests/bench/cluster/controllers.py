"""Controllers: commands a second, how long one takes, and how long there is no leader when the leader dies. JSON.

python -m tests.bench.cluster.controllers [--seconds 3] [--rounds 5] [--tasks 1 16 256] [--dir DIR]

Three real processes, and one alone, on loopback and one disk, with the client in another process; then the metadata of
a single node in process (`in process`). A command is synced by a majority before it is answered. `failover` is from
the kill -9, or the SIGSTOP, of the leader to the next command that is answered, each round after the last one's
controller is back.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from controller.api.client import ControllerClient
from controller.api.commands import ClusterLimits, CreateTopic
from controller.node.local import LocalController
from controller.remote.remote import RemoteController
from tests.bench.machine import describe
from tests.bench.options import made_directory

START_S = 30.0
LIMITS = ClusterLimits(topics_max=1_000_000, default_queues=1)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Processes:
    """`headgate controller`, several of them."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.ports = {id_: free_port() for id_ in range(1, count + 1)}
        self.admin = {id_: free_port() for id_ in self.ports}
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.config = directory / f"{count}.toml"
        listed = ", ".join(f'{id_} = "127.0.0.1:{port}"' for id_, port in self.ports.items())
        self.config.write_text(f"[cluster]\ncontrollers = {{ {listed} }}\n[topics]\ntopics_max = 1000000\n")

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports.values()]

    def start(self, id_: int) -> None:
        ports = {"HEADGATE__CONTROLLER__PORT": self.ports[id_], "HEADGATE__ADMIN__PORT": self.admin[id_]}
        directory = self.directory / f"{len(self.ports)}-{id_}"
        self.running[id_] = subprocess.Popen(
            [
                *(sys.executable, "-m", "gateway.cli", "controller", "-c", str(self.config)),
                *("--id", str(id_), "--data-dir", str(directory)),
            ],
            env={**os.environ, **{key: str(port) for key, port in ports.items()}},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self, id_: int) -> None:
        deadline = time.monotonic() + START_S
        while self.page(id_, "/readyz") is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"controller {id_} is not ready")
            time.sleep(0.02)

    def page(self, id_: int, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin[id_]}{path}", timeout=2) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def leader(self) -> int:
        """Returns the leader that all controllers name; one that was stopped may not know yet that it does not lead
        any more.
        """
        while True:
            said = {json.loads(self.page(id_, "/status") or "{}").get("leader") for id_ in self.running}
            if len(said) == 1 and None not in said:
                return int(said.pop())
            time.sleep(0.02)

    def stop(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()


async def commands(client: ControllerClient, prefix: str, tasks: int, seconds: float) -> dict[str, Any]:
    """Creates topics from this many tasks at a time, and returns the figures."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def work(task: int) -> None:
        count = 0
        while (began := time.perf_counter()) < until:
            await client.do(CreateTopic(name=f"{prefix}.{task}.{count}"))
            took.append(time.perf_counter() - began)
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(task) for task in range(tasks)))
    took.sort()
    return {
        "at a time": tasks,
        "a second": round(len(took) / (time.perf_counter() - began)),
        "p50 ms": round(took[len(took) // 2] * 1000, 2),
        "p99 ms": round(took[len(took) * 99 // 100] * 1000, 2),
    }


async def failover(processes: Processes, client: ControllerClient, number: int, how: signal.Signals) -> float:
    """Returns the seconds from the leader's end to the next command's answer."""
    leader = await asyncio.to_thread(processes.leader)
    await client.do(CreateTopic(name=f"{how.name}.before.{number}"))
    began = time.perf_counter()
    processes.running[leader].send_signal(how)
    await client.do(CreateTopic(name=f"{how.name}.{number}"))
    took = time.perf_counter() - began
    if how is signal.SIGKILL:
        processes.running[leader].wait()
        processes.start(leader)
    else:
        processes.running[leader].send_signal(signal.SIGCONT)
    await asyncio.to_thread(processes.wait, leader)
    return took


async def cluster(directory: Path, count: int, options: argparse.Namespace) -> dict[str, Any]:
    processes = Processes(directory, count)
    try:
        for id_ in processes.ports:
            processes.start(id_)
        for id_ in processes.ports:
            await asyncio.to_thread(processes.wait, id_)
        client = RemoteController(processes.addresses, now_ms=now_ms, limits=LIMITS)
        await client.ready()
        found: dict[str, Any] = {"commands": await several(client, options)}
        if count > 1:
            for how in (signal.SIGKILL, signal.SIGSTOP):
                took = [await failover(processes, client, n, how) for n in range(options.rounds)]
                found[f"failover after {how.name} s"] = {
                    "median": round(statistics.median(took), 2),
                    "least": round(min(took), 2),
                    "most": round(max(took), 2),
                }
        await client.close()
        return found
    finally:
        processes.stop()


async def several(client: ControllerClient, options: argparse.Namespace) -> Sequence[dict[str, Any]]:
    await commands(client, "warm", 16, 0.5)
    return [await commands(client, f"c{tasks}", tasks, options.seconds) for tasks in options.tasks]


async def in_process(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    client = LocalController.open(directory / "local", limits=LIMITS, now_ms=now_ms)
    try:
        return {"commands": await several(client, options)}
    finally:
        await client.close()


async def main(options: argparse.Namespace) -> None:
    cases: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
        "three controllers": lambda directory: cluster(directory, 3, options),
        "one controller": lambda directory: cluster(directory, 1, options),
        "in process": lambda directory: in_process(directory, options),
    }
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        found["machine"] = msgspec.to_builtins(describe(Path(directory)))
        for name, case in cases.items():
            found[name] = await case(Path(directory))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--dir", type=made_directory, help="where to write; a temporary directory if not given")
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(parser.parse_args()))
