"""RFC 3339 timestamps and milliseconds since 1970."""

import re
from datetime import UTC, date, datetime, timedelta

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))",
    re.ASCII,
)
_FRACTION = re.compile(r"\.(\d+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
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
