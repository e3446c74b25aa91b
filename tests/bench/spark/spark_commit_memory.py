"""The memory of the telemetry job's driver over many batches, without Spark. Prints JSON.

python -m tests.bench.spark.spark_commit_memory [--batches 700]

Batches of 400 devices with one record each are worked on in a process of their own, as executors do, and committed by
this one: its RssAnon (proc(5)) is looked at after every 100th.
"""

import argparse
import gc
import json
import multiprocessing
import os
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location, now_ms
from tests.bench.procfs import memory_mb
from tests.support.spark.job_kit import Record, worked

DEVICES = 400
BATCH_MS = 20_000
EVERY = 100
SETTINGS = CommitSettings(watermark_ms=60_000, late_ms=600_000, buckets=4)


def executor(plans: Connection) -> None:
    """Works on the plans that come, until none comes."""
    while (work := plans.recv()) is not None:
        plans.send(worked(*work))


def records(batch: int) -> list[Record]:
    """Returns one record of each device."""
    start_ms = 1_700_000_000_000 + batch * BATCH_MS
    return [Record(f"d{n}", start_ms + n, batch * DEVICES + n, {"temp": float(n)}) for n in range(DEVICES)]


def measure(directory: Path, batches: int) -> list[float]:
    """Returns the memory after the first batch and after every 100th, in MB."""
    context = multiprocessing.get_context("fork")
    plans, far_end = context.Pipe()
    process = context.Process(target=executor, args=(far_end,), daemon=True)
    process.start()
    commits = Commits.open(Location.of(directory / "tables"), directory / "checkpoint", SETTINGS)
    found: list[float] = []
    for batch in range(batches + 1):
        plan = commits.begin(batch)
        assert plan is not None
        plans.send((plan, SETTINGS.buckets, records(batch)))
        commits.commit(plan, plans.recv(), batch=batch, began_ms=now_ms())
        if batch % EVERY == 0:
            gc.collect()
            found.append(round(memory_mb("RssAnon", os.getpid()), 1))
    plans.send(None)
    process.join()
    commits.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=700)
    batches = parser.parse_args().batches
    with tempfile.TemporaryDirectory() as directory:
        json.dump({"batches": batches, "driver_mb": measure(Path(directory), batches)}, sys.stdout, indent=2)
        print()


if __name__ == "__main__":
    main()
