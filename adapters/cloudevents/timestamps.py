"""RFC 3339 timestamps and milliseconds since 1970."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

MINUTES_MAX: Final = 1_024  # kept in a process, of times that were read; then all are forgotten

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_FRACTION = re.compile(r"\.(\d+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MINUTE_LENGTH: Final = len("1970-01-01T00:00:")
_WITH_SECONDS: Final = len("1970-01-01T00:00:00Z")
_WITH_MS: Final = len("1970-01-01T00:00:00.001Z")
_SECONDS: Final = {f"{n:02}": 1_000 * n for n in range(60)}
_THOUSANDTHS: Final = {f"{n:03}": n for n in range(1, 1_000)}  # without 000, which `format_ms` does not write
_minutes: dict[str, int] = {}
_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999: later ones have no RFC 3339 form


def parse_ms(text: str) -> int:
    """Returns milliseconds since 1970, finer fractions cut off; negative before. Raises ValueError for any other text.

    A leap second counts as the first second of the next minute (RFC 3339, 5.6 and 5.7).
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 timestamp")
    year, month, day, hour, minute, second, fraction, sign, offset_hour, offset_minute = match.groups()
    if hour > "23" or minute > "59" or second > "60":
        raise ValueError("no such time of day")
    total_s = (date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY) * 86_400
    total_s += int(hour) * 3600 + int(minute) * 60 + int(second)
    if sign is not None:
        if offset_hour > "23" or offset_minute > "59":
            raise ValueError("no such offset")
        offset_s = int(offset_hour) * 3600 + int(offset_minute) * 60
        total_s += offset_s if sign == "-" else -offset_s
    return total_s * 1000 + (int(fraction[:3].ljust(3, "0")) if fraction else 0)


def parse_ns(text: str) -> int:
    """Returns nanoseconds since 1970, as `parse_ms` returns milliseconds."""
    seconds = parse_ms(text) // 1_000
    fraction = _FRACTION.search(text)
    return seconds * 1_000_000_000 + (int(fraction[1][:9].ljust(9, "0")) if fraction else 0)


def format_ms(time_ms: int) -> str:
    """Returns the timestamp in UTC, with milliseconds if there are any. Times beyond RFC 3339 become its limit."""
    at = _EPOCH + timedelta(milliseconds=min(max(time_ms, 0), _MS_MAX))
    return f"{at.isoformat(timespec='milliseconds' if time_ms % 1000 else 'seconds')[:-6]}Z"


def canonical_ms(text: str) -> int | None:
    """Returns the milliseconds of a timestamp that is written as `format_ms` writes it; None for any other text."""
    # A device's events are of few minutes: 0.5 us each, where `parse_ms` and `format_ms` take 5.
    minute = text[:_MINUTE_LENGTH]
    start_ms = _minutes.get(minute)
    if start_ms is None:
        start_ms = _minute_ms(minute)
        if start_ms is None:
            return None
    seconds_ms = _SECONDS.get(text[_MINUTE_LENGTH : _WITH_SECONDS - 1])
    if seconds_ms is None or text[-1] != "Z":
        return None
    if len(text) == _WITH_SECONDS:
        return start_ms + seconds_ms
    if len(text) != _WITH_MS or text[_WITH_SECONDS - 1] != ".":
        return None
    ms = _THOUSANDTHS.get(text[_WITH_SECONDS:-1])
    return None if ms is None else start_ms + seconds_ms + ms


def _minute_ms(minute: str) -> int | None:
    """Returns when a minute begins that is written so far as `format_ms` writes it."""
    first = f"{minute}00Z"
    try:
        start_ms = parse_ms(first)
    except ValueError:
        return None
    if format_ms(start_ms) != first:
        return None
    if len(_minutes) >= MINUTES_MAX:
        _minutes.clear()
    _minutes[minute] = start_ms
    return start_ms
