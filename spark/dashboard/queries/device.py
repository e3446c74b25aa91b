"""One device: its newest values, and the windows of one of its metrics as a series."""

from typing import Any

import pyarrow as pa

from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import TimeRange, day, instant
from spark.tables.schemas import WINDOW_TABLES, WINDOWS, partials_from, presented
from spark.telemetry.windows import coarser

COLUMNS = ("start_ms", "count", "min", "max", "mean", "p50", "p95")
GAP_POINTS = 3  # so many points without a value break the line
METRICS_MAX = 500  # of a device, that are listed

RAW_ROWS = 20  # newest samples of a range that are listed
SESSION_ROWS = 20  # the same of sessions of activity

_SHOWN = "epoch_ms(start) AS start_ms, count, min, max, mean, p50, p95"


def latest(reading: Reading, device: str) -> list[dict[str, Any]]:
    """Returns the newest value of each metric of a device, by name."""
    if "latest" not in reading.names:
        return []
    return reading.rows(
        "SELECT metric, value, text, unit, address, epoch_ms(time) AS time_ms, epoch_ms(stored_at) AS stored_ms, "  # noqa: S608
        f'queue, "offset", position FROM latest WHERE device = ? ORDER BY metric LIMIT {METRICS_MAX}',
        [device],
    )


def state(reading: Reading, device: str) -> dict[str, Any] | None:
    """Returns a device's liveness: state, interval, first and last seen, protocol; None: nothing."""
    if "devices" not in reading.names:
        return None
    rows = reading.rows(
        "SELECT state, protocol, address, interval_s, jitter_s, flaps, records, epoch_ms(first_seen) AS first_ms, "
        "epoch_ms(last_seen) AS last_ms, epoch_ms(silent_since) AS silent_ms FROM devices WHERE device = ? LIMIT 1",
        [device],
    )
    return rows[0] if rows else None


def raw(reading: Reading, device: str, metric: str, chosen: TimeRange, now_ms: int) -> list[dict[str, Any]] | None:
    """Returns the newest samples of a series in a time range, at most `RAW_ROWS`; None where samples are not kept."""
    if "samples" not in reading.names or not reading.rows("SELECT 1 FROM samples LIMIT 1"):
        return None
    since_ms = chosen.since_ms(now_ms)
    return reading.rows(
        "SELECT epoch_ms(time) AS time_ms, value, text, unit, quality, address, protocol, queue, "  # noqa: S608
        '"offset", position FROM samples WHERE day >= ? AND device = ? AND metric = ? AND time >= ? '
        f'ORDER BY time DESC, "offset" DESC LIMIT {RAW_ROWS}',
        [day(since_ms), device, metric, instant(since_ms)],
    )


def sessions(reading: Reading, device: str, chosen: TimeRange, now_ms: int) -> list[dict[str, Any]]:
    """Returns the newest sessions of activity of a device that reach into a time range, at most `SESSION_ROWS`."""
    if "sessions" not in reading.names:
        return []
    return reading.rows(
        "SELECT epoch_ms(first_seen) AS first_ms, epoch_ms(last_seen) AS last_ms, 1000 * duration_s AS lasted_ms, "  # noqa: S608
        "records, settled, address FROM sessions WHERE device = ? AND last_seen >= ? "
        f"ORDER BY first_seen DESC LIMIT {SESSION_ROWS}",
        [device, instant(chosen.since_ms(now_ms))],
    )


def series(reading: Reading, device: str, metric: str, chosen: TimeRange, now_ms: int) -> pa.Table:
    """Returns the windows of a metric in a time range, in order of time, with the columns `COLUMNS`.

    Longer points than the tables have are merged from the windows with their digests, so that percentiles are right.
    """
    name, width_ms = max((width, name) for name, width in WINDOW_TABLES.items() if width <= chosen.width_ms)[::-1]
    if name not in reading.names:
        return pa.table({one: [] for one in COLUMNS})
    since_ms = chosen.since_ms(now_ms)
    where = "WHERE device = ? AND metric = ? AND day >= ? AND start >= ? ORDER BY start"
    values = [device, metric, day(since_ms), instant(since_ms)]
    if width_ms == chosen.width_ms:
        return reading.table(f"SELECT {_SHOWN} FROM {name} {where}", values).rows  # noqa: S608 - a table of ours
    columns = ", ".join(f'"{one}"' for one in WINDOWS.names)
    rows = reading.table(f"SELECT {columns} FROM {name} {where}", values).rows.cast(WINDOWS)  # noqa: S608
    merged = presented(coarser(partials_from(rows), chosen.width_ms), settled=True).sort_by("start")
    start_ms = pa.array([None if one is None else one.value // 1000 for one in merged["start"]], pa.int64())
    return pa.table([start_ms, *(merged[one] for one in COLUMNS[1:])], names=list(COLUMNS))


def with_gaps(found: pa.Table, width_ms: int) -> dict[str, list[Any]]:
    """Returns the columns of a series as lists, with a point without values where `GAP_POINTS` or more are missing.

    A chart then breaks its line there, and draws no value that was not reported.
    """
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    before = None
    for row in found.to_pylist():
        if before is not None and row["start_ms"] - before > GAP_POINTS * width_ms:
            columns["start_ms"].append(before + width_ms)
            for name in COLUMNS[1:]:
                columns[name].append(None)
        for name in COLUMNS:
            columns[name].append(row[name])
        before = row["start_ms"]
    return columns
