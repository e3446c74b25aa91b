"""Rules for the bodies of some addresses: their format, and which of their fields are metrics."""

import functools
import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from store.api.filters import matches

Format = Literal["auto", "json", "senml", "senml-cbor", "cbor", "sparkplug", "number", "text", "none"]

_REMEMBERED_MAX: Final = 1_024  # paths
_STEP = re.compile(r'"((?:[^"]|"")*)"(?=\.|\Z)|([^".][^.]*|)(?=\.|\Z)')
_NUMBER = re.compile(r"-?[0-9]{1,20}")


class Step(NamedTuple):
    """A name in a path; where it is a number and not quoted, also an array's element and an integer key of CBOR."""

    name: str
    number: int | None


@functools.lru_cache(_REMEMBERED_MAX)
def steps_of(path: str) -> tuple[Step, ...]:
    """Returns the steps of a path: names joined by dots; one with dots is quoted, a quote in it is doubled.

    Raises ValueError for a quoted name that does not end.
    """
    found: list[Step] = []
    at = 0
    while at <= len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ValueError(f'path {path!r}: a quoted name ends with " and a dot, or with " and the path')
        quoted, plain = step.groups()
        if quoted is None:
            found.append(Step(plain, int(plain) if _NUMBER.fullmatch(plain) else None))
        else:
            found.append(Step(quoted.replace('""', '"'), None))
        at = step.end() + 1
    return tuple(found)


class DecodeRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way to read bodies of some addresses. Raises ValueError for a rule that is none.

    Paths are names joined by dots, a number being an array's element or an integer key of CBOR, too. A name that has
    dots is quoted: `motor."temp.max"`.
    """

    filter: str = "#"  # of addresses, with + and #
    format: Format = "auto"  # none: the body is no telemetry
    each: str = ""  # the path of an array whose elements are read one by one
    time: str = ""  # the path of the time: ISO 8601, or seconds, ms, us or ns since 1970
    metrics: dict[str, str] = {}  # metric -> path; none: every field
    metric: str = ""  # the path of the metric's name, where each element is one value
    value: str = "value"  # and of its value
    unit: str = ""  # and of its unit
    ignore: tuple[str, ...] = ()  # paths, and everything below them

    def __post_init__(self) -> None:
        for path in (self.each, self.time, *self.metrics.values(), self.metric, self.value, self.unit, *self.ignore):
            steps_of(path)

    def matches(self, levels: Sequence[str]) -> bool:
        """Returns whether it is for an address of these levels."""
        return matches(self.filter.split("/"), levels)
