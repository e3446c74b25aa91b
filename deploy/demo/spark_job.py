"""The telemetry job in a process of its own, and what its tables say."""

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from deploy.demo.children import launch, stop
from deploy.demo.findings_heard import Finding
from deploy.demo.plan import METRICS, TOPIC, Target
from deploy.demo.view import AGGREGATES_SHOWN, Aggregate
from gateway.process.child import Child
from spark.errors import MissingJdk, SparkError
from spark.tables.manifest import JobProgress

if TYPE_CHECKING:
    from spark.tables.reader import Tables

TRIGGER_S = 2.0


class SparkJob:
    """`headgate spark telemetry`, and its progress as of the last `look`."""

    def __init__(self, child: Child, tables: "Tables") -> None:
        self.child = child
        self.counts: Mapping[str, int] = {}  # fleet -> records counted
        self.words = "starting"
        self.aggregates: Sequence[Aggregate] = ()
        self._tables = tables
        self._batch = -1
        self._since_ms = round(time.time() * 1000)
        self._before = self._committed()

    @classmethod
    async def start(cls, target: Target, output: Path, logs: Path) -> "SparkJob":
        """Starts it. Raises `MissingJdk`, whose text says what to install."""
        await asyncio.to_thread(_require_java)
        from spark.tables.reader import Tables  # noqa: PLC0415 - of an extra, which is there now

        where = ("--port-offset", str(target.port_offset), "--host", target.host, "--output", str(output))
        job = ("gateway.cli", "spark", "telemetry", "--topic", TOPIC, "--trigger", str(TRIGGER_S))
        return cls(launch("spark", *job, *where, logs=logs), Tables(output))

    def look(self) -> None:
        """Reads its tables, if there is anything new. Blocking."""
        try:
            progress = self._tables.progress()
            if progress.batch == self._batch:
                return
            counts = self._tables.counts()
            windows = self._tables.windows(since_ms=self._since_ms)
            if self._tables.progress().batch != progress.batch:
                return  # of two batches; the next look gets it whole
        except (SparkError, OSError) as error:
            self.words = f"its tables cannot be read: {error}"
            return
        self._batch = progress.batch
        self.words = _words(progress)
        events = _of_metrics(windows, METRICS["cloudevents"])
        self.counts = {**counts, "http": counts.get("http", 0) - events, "cloudevents": events}
        self.aggregates = [
            Aggregate(row["device"] or "(unnamed)", row["metric"], row["count"], row["mean"], row["last"])
            for row in windows.slice(0, AGGREGATES_SHOWN).to_pylist()
        ]

    def has_committed(self) -> bool:
        """Returns whether the job has committed a batch since its start. Blocking."""
        return self._committed() > self._before

    def _committed(self) -> int:
        try:
            return self._tables.progress().batch
        except (SparkError, OSError):
            return -1

    def findings(self) -> Mapping[Finding, int]:
        """Returns the findings in the table `anomalies`, each with its rows. Blocking; raises `SparkError`."""
        found: Counter[Finding] = Counter()
        for row in self._tables.table("anomalies").to_pylist():
            time_text = row["time"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
            found[Finding(row["device"] or "", row["metric"] or "", row["kind"], time_text)] += 1
        return found

    def recount(self, logged: int) -> list[str]:
        """Returns which tables do not hold so many messages, each of one sample. Blocking; raises `SparkError`."""
        held = {
            name: sum(self._tables.table(name)[column].to_pylist())
            for name, column in (("windows_1m", "count"), ("windows_15m", "count"), ("traffic", "records"))
        }
        for name in ("devices", "sessions"):
            held[name] = sum(self._tables.table(name)["records"].to_pylist())
        faults = [f"the table {name} holds {n} of {logged} messages" for name, n in held.items() if n != logged]
        if rejected := self._tables.table("quarantine").num_rows:
            faults.append(f"the table quarantine holds {rejected} messages, and all can be decoded")
        return faults

    async def stop(self) -> None:
        """Ends the job after the batch in progress."""
        await stop(self.child)


def _require_java() -> None:
    try:
        import deltalake  # noqa: F401, PLC0415 - an extra, as all that follows
        import pandas  # noqa: F401, PLC0415 - which Spark needs to hand Arrow to Python

        from spark.job.session import find_java_home  # noqa: PLC0415 - loads pyspark
    except ImportError as error:
        raise MissingJdk(f"Spark is not installed ({error.name})") from error
    find_java_home()


def _of_metrics(windows: pa.Table, metrics: Collection[str]) -> int:
    """Returns the samples of some metrics, over all windows: each message of the fleets is one sample."""
    return sum(row["count"] for row in windows.select(["metric", "count"]).to_pylist() if row["metric"] in metrics)


def _words(progress: JobProgress) -> str:
    lag_s = (progress.publish_ms or 0) / 1000
    return f"batch {progress.batch}, {progress.records:,} records counted, {lag_s:.1f} s behind when it was committed"
