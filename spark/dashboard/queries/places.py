"""The places of a device's messages in the log, for a part of its chart: by samples that are kept, else by windows.

A chart is by the device's own time, and so is its part; a queue is in the order in which the store got the messages.
Each window has the offsets of its first and last sample, and when its newest was stored, however late that was. So the
windows of a part say from which offset, and until when, its messages were stored. The windows beside it are looked at
too, for a message that was overtaken.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import DAY_MS, MINUTE_MS, day, instant

ADDRESSES_MAX = 64  # of a device, that messages are looked for at


class Places(NamedTuple):
    """The addresses of a device, the first offset of each queue with messages, and when the last of them was stored."""

    addresses: tuple[str, ...]
    first: Mapping[int, int]
    stored_until_ms: int
    shared: bool  # other devices have one of the addresses, too


def of_windows(reading: Reading, device: str, from_ms: int, until_ms: int) -> Places | None:
    """Returns the places of the messages whose samples have times of a part; None where no window has a sample."""
    if "windows_1m" not in reading.names:
        return None
    start_ms = from_ms // MINUTE_MS * MINUTE_MS
    near = [device, day(start_ms - MINUTE_MS), day(until_ms + MINUTE_MS)]
    near += [instant(start_ms - MINUTE_MS), instant(until_ms + MINUTE_MS)]
    where = "FROM windows_1m WHERE device = ? AND day >= ? AND day <= ? AND start >= ? AND start < ?"
    (found,) = reading.rows(
        "SELECT list(DISTINCT address) AS addresses, epoch_ms(max(stored_at)) AS stored_ms, "
        f"count(*) FILTER (start >= ? AND start < ?) AS inside {where}",
        [instant(start_ms), instant(until_ms), *near],
    )
    if not found["inside"]:
        return None
    offsets = reading.rows(
        'SELECT queue, min("offset") AS first FROM (SELECT unnest([first_queue, last_queue]) AS queue, '  # noqa: S608
        f'unnest([first_offset, last_offset]) AS "offset" {where}) GROUP BY queue',
        near,
    )
    names = {one for one in found["addresses"] if one} | _newest(reading, device)
    addresses = tuple(sorted(names)[:ADDRESSES_MAX])
    first = {row["queue"]: row["first"] for row in offsets}
    return Places(addresses, first, found["stored_ms"] + 1, _shared(reading, device, addresses))


def sampled(
    reading: Reading, device: str, from_ms: int, until_ms: int, *, after: tuple[int, int] = (-1, -1), limit: int
) -> list[dict[str, Any]] | None:
    """Returns the first messages from a place on, as far as `samples` has them; None where it does not have all.

    It has all when it has as many numbers of each minute of the part as the windows. The times are those of samples,
    `values` the samples themselves.
    """
    if not {"samples", "windows_1m"} <= set(reading.names):
        return None
    start_ms, end_ms = from_ms // MINUTE_MS * MINUTE_MS, -(-until_ms // MINUTE_MS) * MINUTE_MS
    first_day = day(max(0, start_ms - DAY_MS))  # a clock that is ahead has its sample stored the day before
    (counts,) = reading.rows(
        "SELECT (SELECT count(*) FROM samples WHERE device = ? AND day >= ? AND time >= ? AND time < ? "
        "AND value IS NOT NULL) AS kept, (SELECT coalesce(sum(count), 0) FROM windows_1m WHERE device = ? "
        "AND day >= ? AND day <= ? AND start >= ? AND start < ?) AS counted",
        [
            *(device, first_day, instant(start_ms), instant(end_ms)),
            *(device, day(start_ms), day(end_ms), instant(start_ms), instant(end_ms)),
        ],
    )
    if not counts["kept"] or counts["kept"] < counts["counted"]:
        return None
    return reading.rows(
        'SELECT queue, "offset", epoch_ms(min(time)) AS time_ms, epoch_ms(min(stored_at)) AS stored_ms, '  # noqa: S608
        "any_value(address) AS address, any_value(protocol) AS protocol, any_value(topic) AS topic, list({'metric': "
        "metric, 'value': value, 'text': text, 'unit': unit} ORDER BY metric) AS values FROM samples "
        "WHERE device = ? AND day >= ? AND time >= ? AND time < ? "
        'AND (queue > ? OR (queue = ? AND "offset" >= ?)) '
        f'GROUP BY queue, "offset" ORDER BY queue, "offset" LIMIT {limit:d}',
        [device, first_day, instant(from_ms), instant(until_ms), after[0], after[0], after[1]],
    )


def _newest(reading: Reading, device: str) -> set[str]:
    if "latest" not in reading.names:
        return set()
    found = reading.rows("SELECT DISTINCT address FROM latest WHERE device = ?", [device])
    return {row["address"] for row in found if row["address"]}


def _shared(reading: Reading, device: str, addresses: tuple[str, ...]) -> bool:
    if "latest" not in reading.names:
        return True
    sql = "SELECT 1 FROM latest WHERE list_contains(?, address) AND device <> ? LIMIT 1"
    return bool(reading.rows(sql, [list(addresses), device]))
