"""Figures over the whole fleet: records a minute by protocol, lag, devices that are alive."""

from typing import NamedTuple

from spark.dashboard.queries.reading import Reading
from spark.dashboard.queries.time_ranges import TimeRange, day, instant
from spark.telemetry.liveness import BACK
from spark.telemetry.windows import WINDOW_MS

ALIVE_MS = 5 * 60_000  # a device that was heard in the last five minutes
RATE_MS = 5 * 60_000  # the time of which there is a rate, at most
RATE_LAG_MS_MAX = 2 * 60_000  # tables that are further behind tell no rate of now


class Lag(NamedTuple):
    """`publish_ms`: from storing the newest record to its commit. `idle_ms`: since the last commit, None: none yet."""

    publish_ms: int | None
    idle_ms: int | None


class Fleet(NamedTuple):
    """Devices that were ever heard, those heard within `ALIVE_MS`, and series (device and metric)."""

    devices: int
    alive: int
    series: int


class AnomaliesNow(NamedTuple):
    """Findings within `ALIVE_MS`, the return of devices left out, and the devices that they are about."""

    found: int
    devices: int


def anomalies(reading: Reading, now_ms: int) -> AnomaliesNow:
    """Returns how much is strange now."""
    if "anomalies" not in reading.names:
        return AnomaliesNow(0, 0)
    since_ms = now_ms - ALIVE_MS
    (row,) = reading.rows(
        "SELECT count(*) found, count(DISTINCT device) devices FROM anomalies "
        "WHERE day >= ? AND time >= ? AND kind <> ?",
        [day(since_ms), instant(since_ms), BACK],
    )
    return AnomaliesNow(**row)


def lag(reading: Reading, now_ms: int) -> Lag:
    """Returns how far the tables are behind the log."""
    progress = reading.progress
    if not progress.committed_at_ms:
        return Lag(None, None)
    return Lag(progress.publish_ms, max(0, now_ms - progress.committed_at_ms))


def fleet(reading: Reading, now_ms: int) -> Fleet:
    """Returns the size of the fleet."""
    if not {"devices", "latest"} <= set(reading.names):
        return Fleet(0, 0, 0)
    (row,) = reading.rows(
        "SELECT count(*) devices, count(*) FILTER (last_seen >= ?) alive, (SELECT count(*) FROM latest) series "
        "FROM devices",
        [instant(now_ms - ALIVE_MS)],
    )
    return Fleet(**row)


def traffic(reading: Reading, by: str, chosen: TimeRange, now_ms: int) -> list[dict[str, object]]:
    """Returns records of each point of time: rows of `start_ms`, `name` and `records`, in order of time.

    `by` is the column that gives the name: protocol, quality or topic.
    """
    if "traffic" not in reading.names:
        return []
    assert by in {"protocol", "quality", "topic"}
    since_ms, width = chosen.since_ms(now_ms), chosen.width_ms
    return reading.rows(
        f"SELECT epoch_ms(start) // {width} * {width} start_ms, {by} AS name, sum(records)::BIGINT records "  # noqa: S608 - our own names
        "FROM traffic WHERE day >= ? AND start >= ? AND start <= ? GROUP BY ALL ORDER BY start_ms, name",
        [day(since_ms), instant(since_ms), instant(now_ms)],
    )


def topic_rates(reading: Reading, now_ms: int) -> dict[str, float]:
    """Returns the messages a second of each topic that had any in the last minutes; none when the tables lag.

    They are those of whole minutes, and of the last one as far as every queue has been read.
    """
    until_ms = min(now_ms, reading.progress.read_to_ms)
    if "traffic" not in reading.names or now_ms - until_ms > RATE_LAG_MS_MAX:
        return {}
    since_ms = -(-(until_ms - RATE_MS) // WINDOW_MS) * WINDOW_MS
    rows = reading.rows(
        "SELECT topic, sum(records)::BIGINT records FROM traffic "
        "WHERE day >= ? AND start >= ? AND start < ? GROUP BY topic",
        [day(since_ms), instant(since_ms), instant(until_ms)],
    )
    return {row["topic"]: 1_000 * row["records"] / (until_ms - since_ms) for row in rows}
