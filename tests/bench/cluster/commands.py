"""Counts what controllers take a second; `tests.bench.cluster.controllers` runs it in a process of its own."""

import asyncio
import json
import sys
from pathlib import Path

from tests.bench.store.studies import Rows


async def measure_case(directory: Path, *, seconds: float, rounds: int, tasks: list[int]) -> Rows:
    """Measures the case."""
    options = ("--seconds", str(seconds), "--rounds", str(rounds), "--dir", str(directory))
    command = ("-m", "tests.bench.cluster.controllers", *options, "--tasks", *[str(task) for task in tasks])
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}")
    rows: list[tuple[str, dict[str, float]]] = []
    for name, found in json.loads(out).items():
        for one in found.get("commands", ()):
            row = f"{name}, {one['at a time']} at a time"
            rows.append((row, {"per_s": one["a second"], "p50_ms": one["p50 ms"], "p99_ms": one["p99 ms"]}))
        died = {how: found.get(f"failover after {how} s") for how in ("SIGKILL", "SIGSTOP")}
        rows += [
            (f"{name}, {how} of the leader", {"failover_s": took["median"], "worst_s": took["most"]})
            for how, took in died.items()
            if took
        ]
    return rows
