"""The data source's options for reading, parsed once and typed; no part of Spark is needed to read them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from spark import parsing
from spark.decode.rules import DecodeRules
from spark.errors import BadOption
from store.api.filters import check_levels
from store.rpc import wire

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


class At(NamedTuple):
    """The first record of each queue that was stored at this time, ms since 1970, or later."""

    time_ms: int


Location: TypeAlias = Literal["earliest", "latest"] | At | Mapping[int, int]  # where to begin or end, in every queue
Format: TypeAlias = Literal["raw", "json", "cloudevents", "senml"]

_OFFSETS = msgspec.json.Decoder(dict[str, int])
_OFFSET_MAX = (1 << 63) - 1
_FORMATS: Final = ("raw", "json", "cloudevents", "senml")


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every option for reading, with its default. Option names are matched whatever their case."""

    target: str = "127.0.0.1:8081"  # host and port of a gateway's gRPC service; of a cluster several, comma-separated
    topic: tuple[str, ...] = ()  # names, comma-separated; none: all topics
    filter: tuple[str, ...] = ()  # of addresses, with + and #; one, or a JSON array of several
    device: tuple[str, ...] = ()  # by the rules; one, or a JSON array of several
    type: tuple[str, ...] = ()  # one, or a JSON array of several
    columns: tuple[str, ...] = ()  # names, comma-separated; none: all but the derived ones
    format: Format = "raw"  # how `body` is decoded into the column `data`
    startingOffsets: Location = EARLIEST  # noqa: N815  # the names Spark's other sources have
    startingTimestamp: int | None = None  # noqa: N815  # ms since 1970 or ISO 8601, by the time it was stored
    endingOffsets: Location = LATEST  # noqa: N815  # batch only
    endingTimestamp: int | None = None  # noqa: N815  # batch only; records stored before it
    maxRecordsPerTrigger: int | None = None  # noqa: N815  # records in one micro-batch
    maxBytesPerTrigger: int | None = None  # noqa: N815  # of records in one micro-batch
    maxOffsetsPerPartition: int = 500_000  # noqa: N815  # records in one task
    minPartitions: int = 1  # noqa: N815  # tasks, where there are as many records
    maxBytesPerFetch: int = wire.CHUNK_BYTES  # noqa: N815  # of one gRPC message, about
    rules: DecodeRules = DecodeRules()  # JSON: the devices' and bodies' rules (`spark.decode.rules`)
    failOnDataLoss: bool = True  # noqa: N815
    retrySeconds: float = 30.0  # noqa: N815  # how long an absent store is waited for
    caFile: Path | None = None  # noqa: N815  # PEM; with the two below where the cluster's nodes speak TLS
    certFile: Path | None = None  # noqa: N815
    keyFile: Path | None = None  # noqa: N815
    group: str = ""  # the consumer group whose offsets show how far a streaming query is
    gateway: str = "http://127.0.0.1:8080"  # where `group` is kept
    gatewayCaFile: Path | None = None  # noqa: N815  # PEM; the authorities of a gateway with https
    user: str = ""  # of the gateway
    password: str = ""
    token: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parses options as Spark gives them. Raises `BadOption`, naming the option and the nearest right name."""
        found = parsing.parse_options(cls, options, _PARSERS, _ALIASES)
        files = {"caFile": found.caFile, "certFile": found.certFile, "keyFile": found.keyFile}
        if any(files.values()) and (missing := [name for name, path in files.items() if path is None]):
            raise BadOption(missing[0], "is missing; the three files are given together or not at all")
        if found.group and len(found.topic) != 1:
            raise BadOption("group", "needs the option topic with one name: a group reads one topic")
        return found

    @property
    def targets(self) -> tuple[str, ...]:
        """The addresses; any of them will do."""
        return tuple(self.target.split(","))


def parse_location(text: str) -> Location:
    """Parses `earliest`, `latest`, a time, or JSON by queue number: `{"16": 120, "17": 0}`. Raises ValueError."""
    word = text.strip()
    if word == EARLIEST:
        return EARLIEST
    if word == LATEST:
        return LATEST
    if not word.startswith("{"):
        try:
            return At(parsing.timestamp_ms(word))
        except ValueError as error:
            why = "it must be earliest, latest, a time from 1970 to 9999, or JSON of queues and offsets"
            raise ValueError(why) from error
    found = {int(queue): offset for queue, offset in _OFFSETS.decode(word).items()}
    for queue, offset in found.items():
        if not 0 <= offset <= _OFFSET_MAX or not 0 <= queue <= 0xFFFF_FFFF:
            raise ValueError(f"queue {queue}: {offset} is not a valid offset")
    return found


def _filters(text: str) -> tuple[str, ...]:
    found = parsing.texts(text)
    for one in found:
        check_levels(one)
    return found


def _format(text: str) -> str:
    word = text.strip().lower()
    if word not in _FORMATS:
        raise ValueError(f"it must be one of {', '.join(_FORMATS)}")
    return word


_ALIASES: Mapping[str, str] = {  # as Kafka's source names them
    "maxoffsetspertrigger": "maxrecordspertrigger",
    "group.id": "group",
    "maxrecordsperpartition": "maxoffsetsperpartition",
}
_PARSERS: Mapping[str, Any] = {
    "target": parsing.targets,
    "topic": parsing.names,
    "filter": _filters,
    "device": parsing.texts,
    "type": parsing.texts,
    "columns": parsing.names,
    "format": _format,
    "startingOffsets": parse_location,
    "startingTimestamp": parsing.timestamp_ms,
    "endingOffsets": parse_location,
    "endingTimestamp": parsing.timestamp_ms,
    "maxRecordsPerTrigger": parsing.positive,
    "maxBytesPerTrigger": parsing.positive,
    "maxOffsetsPerPartition": parsing.positive,
    "minPartitions": parsing.positive,
    "maxBytesPerFetch": parsing.positive,
    "rules": DecodeRules.parse,
    "failOnDataLoss": parsing.flag,
    "retrySeconds": parsing.seconds,
    "caFile": parsing.file,
    "certFile": parsing.file,
    "keyFile": parsing.file,
    "group": str.strip,
    "gateway": parsing.urls,
    "gatewayCaFile": parsing.file,
    "user": str,
    "password": str,
    "token": str.strip,
}
assert _PARSERS.keys() == set(SourceOptions.__struct_fields__)
