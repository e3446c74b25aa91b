"""Numbers and times as people read them."""

import math
from datetime import UTC, datetime

_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def count(value: float) -> str:
    """Returns a count with separators."""
    return f"{value:,.0f}"


def words(name: str) -> str:
    """Returns the name of a column as words."""
    return name.replace("_", " ").capitalize()


def share(part: int, rate: float) -> str:
    """Returns a count and its share of all; a bare zero for none."""
    return f"{count(part)} ({100 * rate:.2f} %)" if part else "0"


def skew(seconds: float | None) -> str:
    """Returns by how much a device's clock differs from the store's. Below a second, transit is the same as skew."""
    if seconds is None:
        return "-"
    if abs(seconds) < 1:
        return "right"
    return f"{duration(1_000 * abs(seconds))} {'behind' if seconds > 0 else 'ahead'}"


def number(value: float | None) -> str:
    """Returns a value with up to five significant digits; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.0f}" if 1e5 <= abs(value) < 1e15 else f"{value:.5g}"


def duration(ms: float | None) -> str:
    """Returns a duration in its largest unit, with a decimal where it is short."""
    if ms is None:
        return "-"
    for size, unit in _STEPS:
        if ms >= size:
            whole = ms / size
            return f"{whole:.1f}".removesuffix(".0") + f" {unit}" if whole < 10 else f"{whole:.0f} {unit}"
    return f"{ms:.0f} ms"


def ago(ms: int | None, now_ms: int) -> str:
    """Returns how long ago a time was."""
    if ms is None:
        return "never"
    return "just now" if now_ms - ms < 1_000 else f"{duration(now_ms - ms)} ago"


def instant(ms: int | None) -> str:
    """Returns ms since 1970 as a time of UTC, to the second."""
    return "-" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
