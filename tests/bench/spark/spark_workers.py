"""Lets the telemetry job count a backlog on Spark clusters of one worker, two, and so on. Prints JSON.

python -m tests.bench workers [--workers 1,2] [--records 1000000] [--devices 1000] [--batch 200000] [--rounds 1]
    [--share 0.4] [--dir DIR]

Each worker has a core. The master, the workers and the driver are processes on the loopback interface, and the store is
in this process: all of them share the machine's cores, and with fewer cores than workers and driver want the ratio is
the machine's. `records_per_s` is from the commit of the first batch to that of the last. `cpu_s` is the processor time
of the whole cluster and its driver, their starts included. `ratio` is the median rate of each number of workers beside
that of the first. The clusters are measured one after the other, `rounds` times.

`--share` holds each worker, its executors and their Pythons to a share of one core, by a control group's quota, so that
the machine is not the limit: it asks whether the work divides, not how fast it is. `throttled` is the share of the time
in which each worker was held back. Where that is near 1, the workers were what the cluster waited for. Root may set it.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from spark.job.session import find_java_home
from tests.bench.options import above_zero, at_least, made_directory, scratch
from tests.bench.spark.spark_backlog import Backlog, count
from tests.support.process.cpu_quota import can_limit
from tests.support.spark.standalone import standalone


def numbers(text: str) -> list[int]:
    """Returns numbers of workers. Raises `ArgumentTypeError`."""
    return [at_least(1)(one) for one in text.split(",")]


def measure(workers: int, where: Path, target: str, options: argparse.Namespace) -> dict[str, Any]:
    """Counts the backlog once with so many workers."""
    where.mkdir()
    with standalone(where, find_java_home(), workers=workers, share=options.share) as cluster:
        options.master = cluster.url
        found = {"workers": workers} | count(target, where, options)
        held = {name: round(quota.throttled(), 2) for name, quota in cluster.quotas.items()}
        return found | ({"throttled": held} if held else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=numbers, default=[1, 2], help="with commas")
    parser.add_argument("--records", type=at_least(1), default=1_000_000)
    parser.add_argument("--devices", type=at_least(1), default=1_000)
    parser.add_argument("--hours", type=above_zero, default=1.0)
    parser.add_argument("--queues", type=at_least(1), default=4)
    parser.add_argument("--batch", type=at_least(1), default=200_000, help="records in one micro-batch, about")
    parser.add_argument("--buckets", type=at_least(1), default=4)
    parser.add_argument("--rounds", type=at_least(1), default=1)
    parser.add_argument("--share", type=above_zero, default=None, help="of a core, that each worker may have at most")
    parser.add_argument("--dir", type=made_directory, default=None)
    options = parser.parse_args()
    if options.share is not None and (why := can_limit()):
        parser.error(f"--share: {why}")
    options.cores = 1
    load = os.getloadavg()[0]
    with scratch(options.dir) as where:
        server = Backlog(where, options)
        try:
            target = f"127.0.0.1:{server.port}"
            found = [
                measure(workers, where / f"{number}-{workers}", target, options)
                for number in range(options.rounds)
                for workers in options.workers
            ]
        finally:
            server.stop()
    rates = {
        workers: [one["records_per_s"] for one in found if one["workers"] == workers and one["records_per_s"]]
        for workers in options.workers
    }
    medians = {workers: statistics.median(each) for workers, each in rates.items() if each}
    first = medians.get(options.workers[0])
    ratio = {workers: round(rate / first, 2) for workers, rate in medians.items()} if first else {}
    names = ("records", "devices", "hours", "batch", "buckets", "rounds", "share")
    shape = {name: getattr(options, name) for name in names}
    print(json.dumps({"shape": shape, "load": [load, os.getloadavg()[0]], "ratio": ratio, "clusters": found}))


if __name__ == "__main__":
    main()
