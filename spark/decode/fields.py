"""Parsed JSON or CBOR to rows: nested fields by their paths, arrays by their elements, times in every usual unit."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from spark.decode.values import DEPTH_MAX, METRIC_CHARS_MAX, METRICS_MAX, TIME_US_MAX, Rows, Undecodable
from store.api.decoding import DecodeRule, steps_of

_VALUE: Final = "value"
_YEAR_2200_S: Final = 7_258_118_400
_NO_RULE: Final = DecodeRule()


def read(rows: Rows, parsed: object, leaf: str, rule: DecodeRule = _NO_RULE) -> None:
    """Adds a parsed body's metrics. A bare value and the field `value` are the metric `leaf`. Raises `Undecodable`."""
    if not rule.each:
        _element(rows, parsed, leaf, rule, None)
        return
    elements = _at(parsed, rule.each)
    if not isinstance(elements, Sequence) or isinstance(elements, str | bytes):
        raise Undecodable(f"{rule.each} is no array")
    outer = _time(parsed, rule.time)
    for element in elements:
        if rows.full:
            return
        _element(rows, element, leaf, rule, outer)


def time_us_of(value: object) -> int | None:
    """Returns microseconds since 1970 of ISO 8601 (without a zone: UTC), or of a number whose size tells its unit.

    None for another value, and for a time before 1970 or after the year 9999, which tables do not hold.
    """
    if isinstance(value, str):
        try:
            when = datetime.fromisoformat(value)
            time_us = round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1e6)
        except (ValueError, OverflowError):
            return None
        return time_us if 0 <= time_us <= TIME_US_MAX else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e20:
        return None
    for per_s in (1, 1_000, 1_000_000, 1_000_000_000):
        if value < _YEAR_2200_S * per_s:
            return round(value * 1_000_000) if per_s == 1 else int(value * 1_000_000 // per_s)
    return None


def _element(rows: Rows, element: object, leaf: str, rule: DecodeRule, outer: int | None) -> None:
    time_us = _time(element, rule.time)
    time_us = outer if time_us is None else time_us
    if rule.metric:
        name, unit = _at(element, rule.metric), _at(element, rule.unit) if rule.unit else None
        if not isinstance(name, str):
            raise Undecodable(f"{rule.metric} is no text")
        rows.value(name, _at(element, rule.value), unit if isinstance(unit, str) else None, time_us)
    elif rule.metrics:
        for metric, path in rule.metrics.items():
            rows.value(metric, _at(element, path), None, time_us)
    else:
        skipped = [_plain(path) for path in (*rule.ignore, *((rule.time,) if rule.time else ()))]
        for path, value in _leaves(element, "", DEPTH_MAX):
            if rows.full:
                return
            if not any(path == skip or path.startswith(f"{skip}.") for skip in skipped):
                rows.value(leaf if path in ("", _VALUE) else path, value, None, time_us)


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    """Yields every value that is no object and no array, with its path; none whose path is too long for a metric."""
    if len(path) > METRIC_CHARS_MAX:
        return
    if isinstance(value, Mapping):
        if depth:
            for name, inner in value.items():
                yield from _leaves(inner, f"{path}.{name}" if path else str(name), depth - 1)
    elif isinstance(value, list):
        if depth:
            for n, inner in enumerate(value[: METRICS_MAX + 1]):
                yield from _leaves(inner, f"{path}.{n}" if path else str(n), depth - 1)
    else:
        yield path, value


def _at(value: object, path: str) -> object:
    """Returns the value at a path; None when there is none."""
    for name, number in steps_of(path):
        if isinstance(value, Mapping):
            found = value.get(name)
            value = value.get(number) if found is None and number is not None else found
        elif isinstance(value, list) and number is not None and 0 <= number < len(value):
            value = value[number]
        else:
            return None
    return value


def _plain(path: str) -> str:
    """Returns a path as `_leaves` writes it, without quotes."""
    return ".".join(name for name, _ in steps_of(path)) if '"' in path else path


def _time(element: object, path: str) -> int | None:
    return time_us_of(_at(element, path)) if path else None
