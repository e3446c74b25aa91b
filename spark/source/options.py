"""The data source's options, parsed once and typed; no part of Spark is needed to read them."""

import difflib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from spark.decode.rules import Rules
from spark.errors import BadOption
from store.rpc import wire

__all__ = ["EARLIEST", "LATEST", "Place", "SourceOptions", "parse_place"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Place: TypeAlias = Literal["earliest", "latest"] | Mapping[int, int]  # where to begin or end, in every queue

_OFFSETS = msgspec.json.Decoder(dict[str, int])
_OFFSET_MAX = (1 << 63) - 1


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every option of the `headgate` data source, with its default. Option names are matched whatever their case."""

    target: str = "127.0.0.1:8081"  # host and port of the store's gRPC service
    topic: tuple[str, ...] = ()  # names, comma-separated; none: all topics
    columns: tuple[str, ...] = ()  # names, comma-separated; none: all but the derived ones
    startingOffsets: Place = EARLIEST  # noqa: N815  # the names Spark's other sources have
    startingTimestamp: int | None = None  # noqa: N815  # ms since 1970 or ISO 8601, by the time it was stored
    endingOffsets: Place = LATEST  # noqa: N815  # batch only
    maxOffsetsPerTrigger: int | None = None  # noqa: N815  # records in one micro-batch
    maxOffsetsPerPartition: int = 500_000  # noqa: N815  # records in one task
    maxBytesPerFetch: int = wire.CHUNK_BYTES  # noqa: N815  # of one gRPC message, about
    rules: Rules = Rules()  # JSON: the devices' and bodies' rules (`spark.decode.rules`)
    failOnDataLoss: bool = True  # noqa: N815
    retrySeconds: float = 30.0  # noqa: N815  # how long an absent store is waited for

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Options as Spark hands them over. Raises `BadOption`, naming the option and, for a typo, the right one."""
        names = {name.lower(): name for name in cls.__struct_fields__}
        values: dict[str, Any] = {}
        for given, text in options.items():
            name = names.get(given.lower())
            if name is None:
                near = difflib.get_close_matches(given.lower(), names, 1)
                raise BadOption(given, "is not an option" + (f"; {names[near[0]]} is" if near else ""))
            try:
                values[name] = _PARSERS[name](text)
            except ValueError as error:
                raise BadOption(name, f"cannot be {text!r}: {error}") from error
        return cls(**values)


def parse_place(text: str) -> Place:
    """`earliest`, `latest`, or JSON of queue numbers to offsets: `{"16": 120, "17": 0}`. Raises ValueError."""
    word = text.strip()
    if word == EARLIEST:
        return EARLIEST
    if word == LATEST:
        return LATEST
    found = {int(queue): offset for queue, offset in _OFFSETS.decode(word).items()}
    for queue, offset in found.items():
        if not 0 <= offset <= _OFFSET_MAX or not 0 <= queue <= 0xFFFF_FFFF:
            raise ValueError(f"offset {offset} of queue {queue} is not an offset")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _timestamp_ms(text: str) -> int:
    word = text.strip()
    if word.isdecimal():
        return int(word)
    when = datetime.fromisoformat(word)
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("it must be at least 1")
    return number


def _target(text: str) -> str:
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("it must be HOST:PORT")
    return text.strip()


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e9:
        raise ValueError("it must be a number of seconds")
    return number


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("it must be true or false")
    return word == "true"


_PARSERS: Mapping[str, Any] = {
    "target": _target,
    "topic": _names,
    "columns": _names,
    "startingOffsets": parse_place,
    "startingTimestamp": _timestamp_ms,
    "endingOffsets": parse_place,
    "maxOffsetsPerTrigger": _positive,
    "maxOffsetsPerPartition": _positive,
    "maxBytesPerFetch": _positive,
    "rules": Rules.parse,
    "failOnDataLoss": _flag,
    "retrySeconds": _seconds,
}
