"""A CSV file as messages, with its own time stamps.

Either a row has the columns `metric` and `value`, or each column beside time and device is a metric. A field that is
no number is a state; an empty one is left out. Times are RFC 3339, or numbers since 1970 whose size tells their unit.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark.decode.fields import time_us_of
from spark.errors import BadOption, SparkError
from spark.generator.fleet import LEVEL, Reading, is_level

METRIC, VALUE = "metric", "value"


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The options of a replay."""

    path: Path
    time: str = "time"  # the column's name
    device: str = "device"  # likewise
    name: str = ""  # the device, where no column says it
    skip_bad: bool = False  # rows that cannot be read; else they end the replay

    def readings(self) -> Iterator[Reading]:
        """Yields a message for each row, in the file's order, due at its own time. Raises `SparkError`."""
        numbers: dict[str, int] = {}
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                rows = csv.DictReader(file)
                self._check(rows.fieldnames or ())
                for row in rows:
                    one = self._reading(row, rows.line_num)
                    if one is not None:
                        number = numbers[one.device] = numbers.get(one.device, -1) + 1
                        yield one._replace(number=number)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise SparkError(f"{self.path} cannot be read: {why}") from error

    def _check(self, columns: Sequence[str]) -> None:
        if self.time not in columns:
            raise BadOption("time-column", f"cannot be {self.time}: the columns are {', '.join(columns) or 'none'}")
        if not self.name and self.device not in columns:
            raise BadOption("device-column", f"cannot be {self.device}: no such column; option device names one device")

    def _reading(self, row: Mapping[str | None, str | None], line: int) -> Reading | None:
        text = (row.get(self.time) or "").strip()
        device = self.name or (row.get(self.device) or "").strip()
        try:
            time_us = time_us_of(float(text)) if text else None
        except ValueError:
            time_us = time_us_of(text)
        values = self._values(row)
        if time_us is None or not is_level(device) or None in row or not values:
            if self.skip_bad:
                return None
            faults = {"more fields than columns": None in row, "no time": time_us is None, "no value": not values}
            why = next((name for name, there in faults.items() if there), f"the device {device!r} ({LEVEL})")
            raise SparkError(f"line {line} of {self.path} has {why}; option skip-bad skips such lines")
        time_ms = time_us // 1_000
        return Reading(time_ms, device, time_ms, values, 0)

    def _values(self, row: Mapping[str | None, str | None]) -> dict[str, float | str]:
        if row.get(METRIC):
            pairs = [(row[METRIC], row.get(VALUE))]
        else:
            pairs = [(name, text) for name, text in row.items() if name not in (self.time, self.device)]
        return {name: _value(text.strip()) for name, text in pairs if name and text and text.strip()}


def live_from(readings: Iterable[Reading], now_ms: int) -> Iterator[Reading]:
    """Yields messages with their times moved, so that the first is due now."""
    by_ms: int | None = None
    for one in readings:
        by_ms = now_ms - one.time_ms if by_ms is None else by_ms
        yield one._replace(due_ms=one.due_ms + by_ms, time_ms=one.time_ms + by_ms)


def _value(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
