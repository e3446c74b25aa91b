"""The data source's options for writing, parsed once and typed; no part of Spark is needed to read them."""

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from spark import parsing
from spark.errors import BadOption

ROWS_MAX = 10_000  # of one request
BYTES_MAX = 64 << 20  # likewise


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every option for writing, with its default. Option names are matched whatever their case."""

    gateway: str = "http://127.0.0.1:8080"  # the HTTP listener; of a cluster those of several proxies, comma-separated
    gatewayCaFile: Path | None = None  # noqa: N815  # PEM; the authorities of a gateway with https
    user: str = ""
    password: str = ""
    token: str = ""
    address: str = ""  # of every message, {column} standing for a column's text; else the column `address` says it
    type: str = "headgate.row.v1"  # of rows without a column `type`
    source: str = "//headgate/spark"  # of the events that the rows become
    contentType: str = "application/json"  # noqa: N815  # of rows without a column `content_type`
    qos: int = 1
    retain: bool = False
    batch: str = ""  # names a batch write: messages published by a write of this name are not published again
    rowsPerRequest: int = 500  # noqa: N815
    bytesPerRequest: int = 512 << 10  # noqa: N815  # of bodies, about; the gateway's max_body_bytes has to be larger
    retrySeconds: float = 60.0  # noqa: N815  # how long an absent gateway is waited for

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriterOptions":
        """Parses options as Spark gives them. Raises `BadOption`, naming the option and the nearest right name."""
        given = {name: text for name, text in options.items() if name.lower() not in _SPARKS}
        found = parsing.parse_options(cls, given, _PARSERS, {})
        if found.rowsPerRequest > ROWS_MAX:
            raise BadOption("rowsPerRequest", f"cannot be {found.rowsPerRequest}: it must be at most {ROWS_MAX}")
        if found.bytesPerRequest > BYTES_MAX:
            raise BadOption("bytesPerRequest", f"cannot be {found.bytesPerRequest}: it must be at most {BYTES_MAX}")
        return found


_SPARKS = frozenset({"checkpointlocation", "path", "queryname"})  # which Spark hands over with the sink's own


def fields_of(template: str) -> list[str]:
    """Returns the columns that a template names. Raises `BadOption`."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise BadOption("address", f"cannot be {template!r}: {error}") from error
    if any(name is not None and (not name or spec or conversion) for _, name, spec, conversion in parts):
        raise BadOption("address", f"cannot be {template!r}: between the braces stands a column's name alone")
    return [name for _, name, _, _ in parts if name is not None]


def _qos(text: str) -> int:
    if text.strip() not in ("0", "1", "2"):
        raise ValueError("it must be 0, 1 or 2")
    return int(text)


_PARSERS: Mapping[str, Any] = {
    "gateway": parsing.urls,
    "gatewayCaFile": parsing.file,
    "user": str,
    "password": str,
    "token": str.strip,
    "address": str,
    "type": str,
    "source": str,
    "contentType": str,
    "qos": _qos,
    "retain": parsing.flag,
    "batch": str.strip,
    "rowsPerRequest": parsing.positive,
    "bytesPerRequest": parsing.positive,
    "retrySeconds": parsing.seconds,
}
assert _PARSERS.keys() == set(WriterOptions.__struct_fields__)
