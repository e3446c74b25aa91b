"""Devices, a page at a time: searched, sorted and counted by the server."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import day, instant

PAGE_ROWS = 25
ROWS_MAX = 250_000  # of a file
SPARK_MS = 3_600_000

SORTS = {"device": "device", "address": "address", "metrics": "metrics", "heard": "heard_ms"}

_DEVICES = """
SELECT device, address, state, coalesce(metrics, 0) AS metrics, epoch_ms(last_seen) AS heard_ms, metric, shown, unit
FROM devices LEFT JOIN (
    SELECT device, count(*) AS metrics, arg_max(metric, newest) AS metric, arg_max(unit, newest) AS unit,
           arg_max(coalesce(text, value::VARCHAR), newest) AS shown
    FROM (SELECT *, (stored_at, metric) AS newest FROM latest)  -- among equals the same at each look
    GROUP BY device
) USING (device)
WHERE (? = '' OR contains(lower(device), ?) OR contains(lower(address), ?))
"""
_NEEDED = {"devices", "latest"}


class DevicePage(NamedTuple):
    """A page of devices, and the number of all that the search finds."""

    rows: list[dict[str, Any]]
    total: int

    @property
    def pages(self) -> int:
        """Returns the count of pages; at least one."""
        return max(1, -(-self.total // PAGE_ROWS))


def devices(
    reading: Reading, *, search: str = "", sort: str = "device", descending: bool = False, page: int = 1
) -> DevicePage:
    """Returns one page of the devices whose name or address contains the search, in any case of letters.

    A device without a value that counts, as one whose clock is ahead, is among them; its metric is None.
    """
    if not set(reading.names) >= _NEEDED:
        return DevicePage([], 0)
    wanted = search.strip().lower()
    values = [wanted] * 3
    order = f"{SORTS.get(sort, 'device')} {'DESC' if descending else 'ASC'} NULLS LAST, device"
    found = reading.rows(
        f"SELECT *, count(*) OVER () AS total FROM ({_DEVICES}) ORDER BY {order} LIMIT {PAGE_ROWS} OFFSET ?",  # noqa: S608 - of SORTS
        [*values, (max(1, page) - 1) * PAGE_ROWS],
    )
    if found or page <= 1:
        return DevicePage(found, found[0]["total"] if found else 0)
    return devices(reading, search=search, sort=sort, descending=descending)  # the search has fewer pages


def every_device(reading: Reading, search: str = "") -> pa.Table:
    """Returns all devices that a search finds, by name, at most `ROWS_MAX` of them."""
    if not set(reading.names) >= _NEEDED:
        return pa.table({"device": pa.array([], pa.string())})
    wanted = search.strip().lower()
    columns = "device, address, metrics, heard_ms, metric, shown AS value, unit, state"
    return reading.table(f"SELECT {columns} FROM ({_DEVICES}) ORDER BY device", [wanted] * 3, rows_max=ROWS_MAX).rows  # noqa: S608


def sparklines(reading: Reading, wanted: Sequence[tuple[str, str]], now_ms: int) -> dict[str, list[float]]:
    """Returns the means of the last hour's windows of some devices, for one metric each: device -> values."""
    if "windows_1m" not in reading.names or not wanted:
        return {}
    since_ms = now_ms - SPARK_MS
    names = ", ".join("?" for _ in wanted)
    rows = reading.rows(
        "SELECT device, metric, mean FROM windows_1m "  # noqa: S608 - question marks
        f"WHERE day >= ? AND start >= ? AND device IN ({names}) AND metric IN ({names}) ORDER BY start",
        [day(since_ms), instant(since_ms), *(one for one, _ in wanted), *(metric for _, metric in wanted)],
    )
    metric_of, found = dict(wanted), dict[str, list[float]]()
    for row in rows:
        if metric_of[row["device"]] == row["metric"]:
            found.setdefault(row["device"], []).append(row["mean"])
    return found
