"""Rules for the bodies of some addresses: their format, and which of their fields are metrics."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from store.api.filters import matches

Format = Literal["auto", "json", "senml", "senml-cbor", "cbor", "sparkplug", "number", "text", "none"]


class DecodeRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way to read bodies of some addresses. Paths are fields joined by dots, a number being an array's element."""

    filter: str = "#"  # of addresses, with + and #
    format: Format = "auto"  # none: the body is no telemetry
    each: str = ""  # the path of an array whose elements are read one by one
    time: str = ""  # the path of the time: ISO 8601, or seconds, ms, us or ns since 1970
    metrics: dict[str, str] = {}  # metric -> path; none: every field
    metric: str = ""  # the path of the metric's name, where each element is one value
    value: str = "value"  # and of its value
    unit: str = ""  # and of its unit
    ignore: tuple[str, ...] = ()  # paths, and everything below them

    def matches(self, levels: Sequence[str]) -> bool:
        """Returns whether it is for an address of these levels."""
        return matches(self.filter.split("/"), levels)
