"""Figures without a server: programs that measure a part of Headgate in their own process, run as they are."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from tests.bench.load.base import Count, Load, LoadError, Measured

PROGRAMS = Path(__file__).parents[1]
PROGRAM_S = 600.0


class StoreAppend(Load, frozen=True, kw_only=True, tag="store-append"):
    """Records a second appended to the store, each frame synced; also what a lone record takes at 1,000 a second."""

    seconds_each: Annotated[float, Meta(gt=0, description="for throughput, then for latency")] = 3.0
    records: Annotated[int, Meta(ge=1, description="in a frame")] = 100
    queues: Count = 8

    def run(self) -> Measured:
        """See `Load.run`."""
        options = {"seconds": self.seconds_each, "records": self.records, "queues": self.queues}
        found, elapsed_s = _output("store/store_append.py", options)
        rate, latency = found["throughput"], found["latency"]
        also = {name: rate[name] for name in ("frames_per_s", "mb_per_s")}
        also |= {name: latency[name] for name in ("mean_us", "p99_us", "max_us")}
        done = round(rate["records_per_s"] * self.seconds_each)
        return Measured(value=rate["records_per_s"], elapsed_s=elapsed_s, done=done, also=also)


class SparkRead(Load, frozen=True, kw_only=True, tag="spark-read"):
    """Records a second that a Spark batch takes over gRPC, every default column of them; also lesser reads."""

    records: Count = 1_000_000
    cores: Count = 2

    def run(self) -> Measured:
        """See `Load.run`."""
        found, elapsed_s = _output("spark/spark_read.py", {"records": self.records, "cores": self.cores})
        rates = {f"{name}_per_s": float(rate) for name, rate in found["records_per_s"].items()}
        return Measured(value=rates.pop("full_per_s"), elapsed_s=elapsed_s, done=self.records, also=rates)


def _output(program: str, options: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Returns what a program prints, and how long it took."""
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, str(PROGRAMS / program), *flags],
            capture_output=True,
            text=True,
            timeout=PROGRAM_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadError(f"{program} is not done in {PROGRAM_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise LoadError(lines[-1] if lines else f"{program} ended with {done.returncode}")
    return json.loads(done.stdout), time.perf_counter() - started
