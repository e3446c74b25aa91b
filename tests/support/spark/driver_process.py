"""The telemetry job without Spark as a process: reads a gateway's log, commits its passes, publishes findings, ends.

python -m tests.support.spark.driver_process OUTPUT CHECKPOINT TARGET GATEWAY STEP

It ends itself by kill -9 before a step of its second pass, or of a later one that has as many steps: before a file is
synced or its name is, before a transaction, before a file is removed. Its first pass finishes what another has left.
Executors are in this process, so their files are among the steps. The end of each batch is on disk before it begins, as
in Spark's checkpoint.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark.findings.publishing import Publishing, publish_file
from spark.tables import files
from spark.tables.commits import Commits, CommitSettings
from spark.tables.files import Location
from tests.support.spark.job_kit import Record, do_batch, do_tick
from tests.support.spark.log_recount import logged

QUEUE_RECORDS = 20  # of each queue in one batch
SETTINGS = CommitSettings(
    watermark_ms=2_000, late_ms=7 * 86_400_000, buckets=2, session_ms=5_000, samples=True, findings=True
)


class Steps:
    """Counts steps of passes, and ends the process before one of them."""

    def __init__(self, wanted: int) -> None:
        self._wanted, self._passes, self._step = wanted, 0, 0

    def passing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps what begins a pass."""

        def call(*args: Any, **keywords: Any) -> Any:
            plan = real(*args, **keywords)
            if plan is not None:
                self._passes, self._step = self._passes + 1, 0
            return plan

        return call

    def counted(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a step."""

        def call(*args: Any, **keywords: Any) -> Any:
            if self._passes >= 2:
                if self._step == self._wanted:
                    os.kill(os.getpid(), signal.SIGKILL)
                self._step += 1
            return real(*args, **keywords)

        return call


def chosen(records: list[Record], checkpoint: Path, batch: int) -> list[Record]:
    """Returns the records of a batch; its end is on disk when this returns. None are left when all was read."""

    def ends(number: int) -> dict[str, int]:
        path = checkpoint / "ends" / str(number)
        return json.loads(path.read_text()) if path.exists() else {}

    start, end = ends(batch - 1), ends(batch)
    if not end:
        bounds: dict[str, int] = {}
        for record in records:
            bounds[str(record.queue)] = max(bounds.get(str(record.queue), 0), record.offset + 1)
        end = {queue: min(bound, start.get(queue, 0) + QUEUE_RECORDS) for queue, bound in bounds.items()}
        if end == start:
            return []
        Location.of(checkpoint / "ends").write(str(batch), json.dumps(end).encode())
    return [r for r in records if start.get(str(r.queue), 0) <= r.offset < end.get(str(r.queue), 0)]


def publish(commits: Commits, gateway: str) -> None:
    """Publishes the findings that the last pass has found."""
    for path in commits.manifest.unpublished:
        publish_file(commits.place, path, Publishing(url=gateway, retry_s=60, since_ms=0))
    commits.findings_published()


def clock_ms(commits: Commits, records: list[Record]) -> int:
    """Returns the time up to which every queue has been read, when all records are counted; 0 while some are not.

    The job ticks ahead of its watermark only then: a queue that lags may hold records of any earlier time.
    """
    counted = commits.manifest.progress.offsets
    if any(record.offset >= counted.get(record.queue, 0) for record in records):
        return 0
    return max(record.stored_at_ms for record in records)


def main() -> None:
    output, checkpoint, target, gateway, step = sys.argv[1:]
    steps = Steps(int(step))
    Commits.begin = steps.passing(Commits.begin)  # type: ignore[method-assign]
    Commits._write = steps.counted(Commits._write)  # type: ignore[method-assign]
    Location.remove = steps.counted(Location.remove)  # type: ignore[method-assign]
    files.sync = steps.counted(files.sync)
    records = logged(target)
    commits = Commits.open(Location.of(output), Path(checkpoint), SETTINGS)
    if commits.manifest.pending_tick is not None:
        do_tick(commits)
    publish(commits, gateway)
    while some := chosen(records, Path(checkpoint), batch := commits.manifest.progress.batch + 1):
        do_batch(commits, batch, some)
        publish(commits, gateway)
        do_tick(commits, clock_ms(commits, records))
        publish(commits, gateway)
    commits.close()


if __name__ == "__main__":
    main()
