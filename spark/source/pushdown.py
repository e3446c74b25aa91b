"""Filters of a query, as Spark hands them to a source, to queues and offsets that need not be read.

Spark looks at every row again, so a filter that cannot be used here costs time and nothing else.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from spark.source.selection import FIELDS, Selection

_END: Final = (1 << 63) - 1


@dataclass
class PushedBounds:
    """The bounds that filters give: topics and queues, offsets, and the time when records were stored."""

    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    first: int = 0  # offset, inclusive
    end: int = _END  # exclusive
    from_ms: int | None = None  # stored at or after
    until_ms: int | None = None  # and before
    selection: Selection = field(default_factory=Selection)

    def take(self, filters: Iterable[Filter]) -> None:
        """Narrows by filters; all of them have to hold."""
        for one in filters:
            attribute: tuple[str, ...] = getattr(one, "attribute", ())
            value: Any = getattr(one, "value", None)
            if len(attribute) != 1:
                continue
            if isinstance(one, In | EqualTo):
                self._among(attribute[0], value if isinstance(one, In) else (value,))
            elif (compare := _COMPARES.get(type(one))) is not None:
                self._compared(attribute[0], compare, value)

    def _among(self, name: str, values: Iterable[Any]) -> None:
        wanted = [value for value in values if value is not None]  # no value equals null
        if name == "topic":
            self.topics = frozenset(wanted) if self.topics is None else self.topics & frozenset(wanted)
        elif name == "queue":
            self.queues = frozenset(wanted) if self.queues is None else self.queues & frozenset(wanted)
        elif name in FIELDS:
            self.selection.also(name, wanted)
        elif name in ("offset", "stored_at") and wanted:
            self._compared(name, _at_least, min(wanted))
            self._compared(name, _at_most, max(wanted))

    def _compared(self, name: str, compare: "Callable[[int], tuple[int, int]]", value: Any) -> None:
        if name == "offset" and isinstance(value, int):
            first, end = compare(value)
            self.first, self.end = max(self.first, first), min(self.end, end)
        elif name == "stored_at" and isinstance(value, datetime) and value.tzinfo is not None:
            first, end = compare(int(value.timestamp() * 1000))
            if first:
                self.from_ms = max(self.from_ms or 0, first - 1)  # less precise here than there: rather one more
            if end != _END:
                self.until_ms = min(self.until_ms or _END, end + 1)


def _at_least(value: int) -> tuple[int, int]:
    return value, _END


def _at_most(value: int) -> tuple[int, int]:
    return 0, value + 1


_COMPARES: Final[Mapping[type[Filter], Callable[[int], tuple[int, int]]]] = {
    GreaterThanOrEqual: _at_least,
    GreaterThan: lambda value: (value + 1, _END),
    LessThanOrEqual: _at_most,
    LessThan: lambda value: (0, value),
}
