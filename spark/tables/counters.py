"""The counters of a pass: progress, records by protocol and quality, and the table `traffic`. The driver keeps them."""

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from spark.tables.data_files import OPEN, SETTLED, merge_files, write_rows
from spark.tables.files import now_ms
from spark.tables.manifest import JobProgress, TrafficRow
from spark.tables.reports import BucketReport, PassPlan
from spark.tables.schemas import SPECS
from spark.telemetry.windows import INSTANT, WINDOW_MS

DRIVER = 9999  # the "bucket" of the files that the driver writes itself


def progress_after(
    before: JobProgress, reports: Iterable[BucketReport], *, batch: int | None, began_ms: int, watermark_ms: int
) -> JobProgress:
    """Returns the progress that a pass brings; `batch` is None for a tick, `watermark_ms` is the job's setting.

    The job has read every queue up to a time: a queue with records in the batch, up to its newest; a queue without
    had none waiting when the batch was planned, and later records are stored later. So this time is the least of the
    newest; it never goes back.
    """
    offsets, newest, records = dict(before.offsets), dict[int, int](), 0
    corrected, devices, series = before.corrected, before.forgotten_devices, before.forgotten_series
    for report in reports:
        corrected += report.corrected
        devices, series = devices + report.forgotten[0], series + report.forgotten[1]
        for count in report.queues:
            offsets[count.queue] = max(offsets.get(count.queue, 0), count.next_offset)
            newest[count.queue] = max(newest.get(count.queue, 0), count.stored_at_ms)
            records += count.records
    read_to_ms = min(newest.values(), default=0)
    stamp, stored_at_ms = now_ms(), max([before.stored_at_ms, *newest.values()])
    return JobProgress(
        batch=before.batch if batch is None else batch,
        records=before.records + records,
        offsets=offsets,
        position=before.position,
        read_to_ms=max(before.read_to_ms, read_to_ms),
        watermark_ms=max(before.watermark_ms, read_to_ms - watermark_ms),
        stored_at_ms=stored_at_ms,
        committed_at_ms=stamp,
        batch_records=before.batch_records if batch is None else records,
        batch_ms=before.batch_ms if batch is None else max(0, stamp - began_ms),
        corrected=corrected,
        forgotten_devices=devices,
        forgotten_series=series,
        lag_ms=max(0, stamp - stored_at_ms) if stored_at_ms > before.stored_at_ms else before.lag_ms,
    )


def counts_after(totals: Mapping[str, Mapping[str, int]], reports: Iterable[BucketReport]) -> dict[str, dict[str, int]]:
    """Returns the records by protocol and quality after a pass."""
    found = {protocol: dict(by) for protocol, by in totals.items()}
    for report in reports:
        for row in report.traffic:
            mine = found.setdefault(row.protocol, {})
            mine[row.quality] = mine.get(row.quality, 0) + row.records
    return found


def traffic_after(
    before: Sequence[TrafficRow], plan: PassPlan, reports: Iterable[BucketReport], watermark_ms: int
) -> tuple[list[TrafficRow], BucketReport | None]:
    """Returns the traffic of the minutes that are not settled, and the table's new files; None when nothing changed."""
    counted = {(row.start_ms, row.protocol, row.topic, row.quality): row.records for row in before}
    came = [row for report in reports for row in report.traffic]
    for row in came:
        key = (row.start_ms, row.protocol, row.topic, row.quality)
        counted[key] = counted.get(key, 0) + row.records
    rows = sorted(TrafficRow(*key, records=records) for key, records in counted.items())
    settled = [row for row in rows if row.start_ms + WINDOW_MS <= watermark_ms]
    still_open = [row for row in rows if row.start_ms + WINDOW_MS > watermark_ms]
    if not came and not settled:
        return rows, None
    files = write_rows(plan, "traffic", SETTLED, DRIVER, _traffic_table(settled, settled=True))
    files += write_rows(plan, "traffic", OPEN, DRIVER, _traffic_table(still_open, settled=False))
    removed: dict[str, list[str]] = {}
    for nth, paths in enumerate(plan.merges.get(DRIVER, {}).get("traffic", ())):
        file, merged = merge_files(plan, "traffic", DRIVER, paths, nth)
        files.append(file)
        removed.setdefault("traffic", []).extend(merged)
    report = BucketReport(
        bucket=DRIVER, state=None, files=files, replaced=["traffic"], removed=removed, queues=[], traffic=[]
    )
    return still_open, report


def _traffic_table(rows: list[TrafficRow], *, settled: bool) -> pa.Table:
    made = {
        "start": pa.array([row.start_ms * 1000 for row in rows], INSTANT),
        "protocol": pa.array([row.protocol for row in rows], pa.string()),
        "topic": pa.array([row.topic for row in rows], pa.string()),
        "quality": pa.array([row.quality for row in rows], pa.string()),
        "records": pa.array([row.records for row in rows], pa.int64()),
        "settled": pa.array([settled] * len(rows), pa.bool_()),
    }
    return pa.table(made, schema=SPECS["traffic"].columns)
