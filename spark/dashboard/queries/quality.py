"""Data quality: counts of records, of late ones and of those that cannot be decoded, with examples."""

from typing import Any

from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import TimeRange, day, instant
from spark.telemetry.liveness import COUNTS

GOOD = ("ok", "finding")  # records in order: measurements, and the job's own messages
EXAMPLES_COUNT = 50
TOPICS_COUNT = 25
DEVICES_COUNT = 25
SKEW_S_SHOWN = 5.0  # a clock that is as far off makes a device one of those that are listed
BODY_BYTES_SHOWN = 120

_BAD = f"({' + '.join(COUNTS)})"
_OF_DEVICE = ", ".join(("device", "address", "records", "skew_s", *COUNTS, *(f"{name}_rate" for name in COUNTS)))


def totals(reading: Reading) -> dict[str, int]:
    """Returns records counted since the job began, by quality."""
    found: dict[str, int] = {}
    for by in reading.counts.values():
        for quality, count in by.items():
            found[quality] = found.get(quality, 0) + count
    return dict(sorted(found.items()))


def topics(reading: Reading, chosen: TimeRange, now_ms: int) -> list[dict[str, Any]]:
    """Returns the topics with the most records that are not `ok`, with the count and the share of them."""
    if "traffic" not in reading.names:
        return []
    since_ms = chosen.since_ms(now_ms)
    return reading.rows(
        "SELECT topic, sum(records)::BIGINT records, "  # noqa: S608 - a number
        "coalesce(sum(records) FILTER (quality NOT IN ('ok', 'finding')), 0)::BIGINT bad, bad / sum(records) AS share "
        "FROM traffic WHERE day >= ? AND start >= ? GROUP BY topic "
        f"ORDER BY bad DESC, records DESC, topic LIMIT {TOPICS_COUNT}",
        [day(since_ms), instant(since_ms)],
    )


def devices(reading: Reading) -> list[dict[str, Any]]:
    """Returns the devices with the most records that are not in order, then those whose clocks are furthest off.

    Counts and rates are since the job first heard of the device, whatever the time range.
    """
    if "quality" not in reading.names:
        return []
    return reading.rows(
        f"SELECT {_OF_DEVICE} FROM quality WHERE {_BAD} > 0 OR abs(skew_s) >= {SKEW_S_SHOWN} "  # noqa: S608 - our names
        f"ORDER BY {_BAD} DESC, abs(skew_s) DESC, device LIMIT {DEVICES_COUNT}"
    )


def of_device(reading: Reading, device: str) -> dict[str, Any] | None:
    """Returns the counts and rates of one device's records and the skew of its clock; None: nothing."""
    if "quality" not in reading.names:
        return None
    rows = reading.rows(f"SELECT {_OF_DEVICE} FROM quality WHERE device = ? LIMIT 1", [device])  # noqa: S608 - the same
    return rows[0] if rows else None


def reasons(reading: Reading, chosen: TimeRange, now_ms: int) -> list[dict[str, Any]]:
    """Returns the reasons for which records went to the quarantine, the most frequent first."""
    if "quarantine" not in reading.names:
        return []
    since_ms = chosen.since_ms(now_ms)
    return reading.rows(
        "SELECT reason, count(*) records, count(DISTINCT device) devices FROM quarantine "
        "WHERE day >= ? AND stored_at >= ? GROUP BY reason ORDER BY records DESC, reason LIMIT 25",
        [day(since_ms), instant(since_ms)],
    )


def examples(reading: Reading, chosen: TimeRange, now_ms: int) -> list[dict[str, Any]]:
    """Returns the newest records of the quarantine, with the beginning of their bytes as text."""
    if "quarantine" not in reading.names:
        return []
    since_ms = chosen.since_ms(now_ms)
    rows = reading.rows(
        "SELECT epoch_ms(stored_at) stored_ms, device, address, protocol, content_type, reason, queue, "  # noqa: S608 - a number
        '"offset", body FROM quarantine WHERE day >= ? AND stored_at >= ? '
        f"ORDER BY stored_at DESC LIMIT {EXAMPLES_COUNT}",
        [day(since_ms), instant(since_ms)],
    )
    for row in rows:
        body = row["body"] or b""
        text = body[:BODY_BYTES_SHOWN].decode("utf-8", "backslashreplace")
        row["body"] = "".join(c if c.isprintable() else "\ufffd" for c in text) + (
            "…" if len(body) > BODY_BYTES_SHOWN else ""
        )
    return rows
