"""Findings: anomalies of series, silence and return of devices."""

from typing import Any

import pyarrow as pa

from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import TimeRange, day, instant

ROWS_SHOWN = 200  # of a page
FILE_ROWS_MAX = 250_000  # of a CSV file
Wanted = tuple[str, str]  # a device or a part of its name, and a kind; empty: any

_CHOSEN = "WHERE day >= ? AND time >= ? AND (? = '' OR contains(lower(device), ?)) AND (? = '' OR kind = ?)"
_COLUMNS = "epoch_ms(time) AS time_ms, device, metric, kind, value, expected, score, sentence, address"


def newest(reading: Reading, wanted: Wanted, chosen: TimeRange, now_ms: int) -> list[dict[str, Any]]:
    """Returns the newest findings of a time range, at most `ROWS_SHOWN`."""
    if "anomalies" not in reading.names:
        return []
    return reading.rows(
        f"SELECT {_COLUMNS} FROM anomalies {_CHOSEN} ORDER BY time DESC, score DESC, device LIMIT {ROWS_SHOWN}",  # noqa: S608
        _values(wanted, chosen, now_ms),
    )


def of_device(reading: Reading, device: str, chosen: TimeRange, now_ms: int, *, rows_max: int) -> list[dict[str, Any]]:
    """Returns the newest findings about one device in a time range."""
    if "anomalies" not in reading.names:
        return []
    since_ms = chosen.since_ms(now_ms)
    return reading.rows(
        f"SELECT {_COLUMNS} FROM anomalies WHERE day >= ? AND time >= ? AND device = ? "  # noqa: S608
        f"ORDER BY time DESC, score DESC LIMIT {rows_max:d}",
        [day(since_ms), instant(since_ms), device],
    )


def by_kind(reading: Reading, chosen: TimeRange, now_ms: int) -> dict[str, int]:
    """Returns how many findings of each kind there are in a time range."""
    if "anomalies" not in reading.names:
        return {}
    rows = reading.rows(
        f"SELECT kind, count(*) AS found FROM anomalies {_CHOSEN} GROUP BY kind ORDER BY kind",  # noqa: S608
        _values(("", ""), chosen, now_ms),
    )
    return {row["kind"]: row["found"] for row in rows}


def all_findings(reading: Reading, wanted: Wanted, chosen: TimeRange, now_ms: int) -> pa.Table:
    """Returns the findings of a time range for a file, the oldest first."""
    if "anomalies" not in reading.names:
        return pa.table({"device": pa.array([], pa.string())})
    sql = f"SELECT {_COLUMNS} FROM anomalies {_CHOSEN} ORDER BY time, device"  # noqa: S608
    return reading.table(sql, _values(wanted, chosen, now_ms), rows_max=FILE_ROWS_MAX).rows


def of_series(reading: Reading, device: str, metric: str, chosen: TimeRange, now_ms: int) -> list[dict[str, Any]]:
    """Returns the anomalies of one device and metric, in order of time, to be marked in its chart."""
    if "anomalies" not in reading.names:
        return []
    since_ms = chosen.since_ms(now_ms)
    return reading.rows(
        "SELECT epoch_ms(time) AS time_ms, kind, value, sentence FROM anomalies "  # noqa: S608 - a number
        f"WHERE day >= ? AND time >= ? AND device = ? AND metric = ? ORDER BY time LIMIT {ROWS_SHOWN}",
        [day(since_ms), instant(since_ms), device, metric],
    )


def _values(wanted: Wanted, chosen: TimeRange, now_ms: int) -> list[object]:
    device, kind = wanted[0].strip().lower(), wanted[1]
    since_ms = chosen.since_ms(now_ms)
    return [day(since_ms), instant(since_ms), device, device, kind, kind]
