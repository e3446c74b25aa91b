"""The parts of the port for queues of the type stream: where a consumer begins, and which messages it wants."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

OFFSET_HEADER: Final = "x-stream-offset"  # a header of deliveries, and an argument of consumers
FILTER_VALUE: Final = "x-stream-filter-value"  # the header that consumers filter by
FIRST, LAST, NEXT, OFFSET, TIME, AGO = "first", "last", "next", "offset", "time", "ago"
AGE_MS_MAX: Final = 1 << 53

_AGE: Final = re.compile("([0-9]{1,12})([YMDhms])", re.ASCII)
_SECOND_MS: Final = 1_000
_DAY_MS: Final = 86_400 * _SECOND_MS
_UNITS_MS: Final = {
    "Y": 365 * _DAY_MS,
    "M": 30 * _DAY_MS,
    "D": _DAY_MS,
    "h": 3_600 * _SECOND_MS,
    "m": 60 * _SECOND_MS,
    "s": _SECOND_MS,
}


class StreamRead(msgspec.Struct, frozen=True, kw_only=True):
    """The place where a consumer begins, and a filter.

    `value` is an offset for "offset", ms since 1970 for "time", and ms before now for "ago". Where something is
    `wanted`, only messages whose header `FILTER_VALUE` is among it are delivered, and with `unfiltered` those without
    that header.
    """

    place: str = NEXT
    value: int = 0
    wanted: Sequence[str] = ()
    unfiltered: bool = False


def age_ms(text: object) -> int | None:
    """Returns the ms of an interval such as "7D" or "1h", in RabbitMQ's units; None for any other text."""
    match = _AGE.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else min(int(match[1]) * _UNITS_MS[match[2]], AGE_MS_MAX)
