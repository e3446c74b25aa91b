"""Time ranges that pages show, and the width of a point in each, so that no chart has more than some 1,500."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import NamedTuple

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
DEFAULT_RANGE = "1h"


class TimeRange(NamedTuple):
    """The time from `ms` before now until now, in points of `width_ms`."""

    words: str
    ms: int
    width_ms: int

    def since_ms(self, now_ms: int) -> int:
        """Returns the beginning of the first point, in ms since 1970."""
        return (now_ms - self.ms) // self.width_ms * self.width_ms


RANGES: Mapping[str, TimeRange] = {
    "15m": TimeRange("15 minutes", 15 * MINUTE_MS, MINUTE_MS),
    "1h": TimeRange("1 hour", HOUR_MS, MINUTE_MS),
    "6h": TimeRange("6 hours", 6 * HOUR_MS, MINUTE_MS),
    "24h": TimeRange("24 hours", DAY_MS, MINUTE_MS),
    "7d": TimeRange("7 days", 7 * DAY_MS, 15 * MINUTE_MS),
    "30d": TimeRange("30 days", 30 * DAY_MS, HOUR_MS),
}


def range_named(name: str | None) -> TimeRange:
    """Returns the range of a name; the usual one for a name that is none."""
    return RANGES.get(name or "", RANGES[DEFAULT_RANGE])


def range_since(chosen: TimeRange, from_ms: int, now_ms: int) -> TimeRange:
    """Returns a range, or the next longer one that reaches back to a time; the longest where none does."""
    longer = [one for one in RANGES.values() if one.ms >= chosen.ms]
    return next((one for one in longer if one.since_ms(now_ms) <= from_ms), longer[-1])


def instant(ms: int) -> datetime:
    """Returns ms since 1970 as a time."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def day(ms: int) -> date:
    """Returns the day of ms since 1970, by which tables are partitioned."""
    return instant(ms).date()
