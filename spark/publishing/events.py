"""Rows to CloudEvents in JSON (CloudEvents JSON format 1.0.2, 4), as many in one request as belong together.

A column with the name of a message's field is that field; without a column `body` the other columns are the body, as a
JSON object. The same rows give the same requests, byte by byte, so a repetition can be recognised.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampNTZType, TimestampType

from spark.errors import BadOption, BadRow
from spark.publishing.options import WriterOptions, fields_of

_TEXT = (StringType,)
_TIME = (TimestampType, TimestampNTZType)
FIELDS: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "address": _TEXT,
    "body": (BinaryType, StringType),
    "key": _TEXT,
    "type": _TEXT,
    "content_type": _TEXT,
    "id": _TEXT,
    "time": _TIME,
    "expires_at": _TIME,
    "traceparent": _TEXT,
    "headers": (MapType,),
}
_ATTRIBUTES: Final = {"key": "partitionkey", "traceparent": "traceparent"}
_NAME = re.compile("[a-z0-9]+")  # of an attribute (CloudEvents 1.0.2, 3.1)
_TAKEN: Final = frozenset(
    {"id", "source", "specversion", "type", "datacontenttype", "dataschema", "subject", "time", "data", "data_base64"}
) | {*_ATTRIBUTES.values(), "expirytime", "headgateaddress"}
_ESCAPED = re.compile("%((?:25)*)(2B|23)")
_encode = msgspec.json.Encoder().encode
_Row = dict[str, Any]


class EventsRequest(NamedTuple):
    """The events of one request, and the number of its first row in the partition."""

    first: int
    rows: int
    body: bytes


class RowEvents:
    """Makes events of rows of one schema. Raises `BadOption` for a schema that has no address, or odd fields."""

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        self._options = options
        columns = {field.name: field.dataType for field in schema.fields}
        for name, kinds in FIELDS.items():
            if name in columns and not isinstance(columns[name], kinds):
                raise BadOption("schema", f"has {name} {columns[name].simpleString()}, which {_wanted(kinds)} is")
        self._template = fields_of(options.address) if options.address else None
        if self._template is None and "address" not in columns:
            raise BadOption("address", "is missing, and the rows have no column address; give one of them")
        if missing := [name for name in self._template or () if name not in columns]:
            raise BadOption("address", f"names {', '.join(missing)}; the columns are: {', '.join(columns)}")
        self._has_body = "body" in columns
        self._others = [name for name in columns if name not in FIELDS]
        if not self._has_body and not self._others:
            raise BadOption("schema", "has neither a column body nor others that a JSON body could be made of")

    def event(self, row: _Row, name: str) -> dict[str, Any]:
        """Returns the event of a row; `name` is its id where it has none. Raises `BadRow`."""
        options = self._options
        body = row["body"] if self._has_body else _encode({one: row[one] for one in self._others})
        body = body.encode() if isinstance(body, str) else body or b""
        event: dict[str, Any] = {
            "specversion": "1.0",
            "id": row.get("id") or name,
            "source": options.source,
            "type": row.get("type") or options.type,
            "subject": self._subject(row),
            "datacontenttype": row.get("content_type") or options.contentType,
        }
        for column, attribute in _ATTRIBUTES.items():
            if row.get(column) is not None:
                event[attribute] = row[column]
        for column, attribute in (("time", "time"), ("expires_at", "expirytime")):
            if row.get(column) is not None:
                event[attribute] = _written(row[column])
        for header, value in row.get("headers") or ():
            if _NAME.fullmatch(header) is None or header in _TAKEN:
                raise BadRow(
                    f"no header can be called {header[:64]!r}: use lower-case letters and digits, no field's name"
                )
            if value is not None:
                event[header] = value
        if body:
            event["data_base64"] = base64.b64encode(body).decode()
        return event

    def _subject(self, row: _Row) -> str:
        """Returns the subject that names the row's address (`+` and `#` in an address are written as %2B and %23)."""
        if self._template is None:
            address = row["address"]
        else:
            values = {name: row[name] for name in self._template}
            if empty := [name for name, value in values.items() if value is None or value == ""]:
                raise BadRow(f"the address needs {empty[0]}, which is empty")
            address = self._options.address.format_map(values)
        if not address:
            raise BadRow("the address is empty")
        if "+" in address or "#" in address:
            raise BadRow(f"the address {address[:64]!r} holds + or #, which stand in filters; write %2B or %23")
        return _ESCAPED.sub(_unescaped, address)


def requests(events: RowEvents, rows: Iterable[_Row], options: WriterOptions, scope: str) -> Iterator[EventsRequest]:
    """Yields the requests of a partition's rows: where one ends follows from the rows alone. Raises `BadRow`."""
    held: list[bytes] = []
    size = first = 0
    for number, row in enumerate(rows):
        try:
            event = _encode(events.event(row, f"{scope}-{number}"))
        except (BadRow, UnicodeEncodeError, TypeError) as error:
            raise BadRow(f"row {number} of the partition: {error}") from error
        if held and (len(held) >= options.rowsPerRequest or size + len(event) > options.bytesPerRequest):
            yield EventsRequest(first, len(held), _joined(held))
            held, size, first = [], 0, number
        held.append(event)
        size += len(event)
    if held:
        yield EventsRequest(first, len(held), _joined(held))


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    """Yields the rows of record batches."""
    for batch in batches:
        yield from batch.to_pylist()


def _joined(events: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(events) + b"]"


def _written(when: datetime) -> str:
    """Returns a time as RFC 3339 has it, in ms, UTC."""
    when = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
    return f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z"


def _unescaped(found: re.Match[str]) -> str:
    deeper, code = found[1], found[2]
    return f"%{deeper[2:]}{code}" if deeper else chr(int(code, 16))


def _wanted(kinds: Sequence[type[DataType]]) -> str:
    return " or ".join(kind.typeName() for kind in kinds)
