"""JSON bodies as columns of any Spark type: decoded by msgspec into typed values, then put together column by column.

Of an object a field that is missing is null, and one that the type does not name is skipped. A map of texts takes
values of any kind, as JSON.
"""

import datetime
import decimal
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types as T  # noqa: N812  # as everywhere in Spark

from spark.decode.fields import time_us_of
from spark.errors import BadOption
from store.api.message import Message

_Build = Callable[[list[Any], pa.DataType], pa.Array]
_BITS: Final[dict[type[T.DataType], int]] = {T.ByteType: 7, T.ShortType: 15, T.IntegerType: 31, T.LongType: 63}
_PLAIN: Final[dict[type[T.DataType], Any]] = {
    T.StringType: str,
    T.BooleanType: bool,
    T.FloatType: float,
    T.DoubleType: float,
    T.BinaryType: bytes,  # Base64
    T.DateType: datetime.date,
    T.DecimalType: decimal.Decimal,
}
_Time = str | int | float


class Json:
    """One type: `read` decodes a body, `array` makes a column of decoded bodies. Raises `BadOption`."""

    def __init__(self, kind: T.DataType) -> None:
        python, self._build = _of(kind)
        self._decode = msgspec.json.Decoder(python).decode

    def read(self, message: Message) -> Any:
        """Returns the typed value of a body. Raises ValueError."""
        return self._decode(message.body)

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Returns a column of values that `read` returned, or None."""
        return self._build(values, kind)


def _of(kind: T.DataType) -> tuple[Any, _Build]:
    """Returns the Python type to decode a Spark type as, and how an Arrow array is made of such values."""
    if type(kind) in _BITS:
        end = 1 << _BITS[type(kind)]
        return Annotated[int, msgspec.Meta(ge=-end, le=end - 1)], pa.array
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)], pa.array
    if isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return _Time, _times
    if isinstance(kind, T.ArrayType):
        python, build = _of(kind.elementType)
        return list[python | None], _lists(build)  # type: ignore[valid-type]  # a type that is made here
    if isinstance(kind, T.MapType) and isinstance(kind.keyType, T.StringType):
        if isinstance(kind.valueType, T.StringType):
            return dict[str, msgspec.Raw], _maps(_raws)
        python, build = _of(kind.valueType)
        return dict[str, python | None], _maps(build)  # type: ignore[valid-type]
    if isinstance(kind, T.StructType):
        return _struct(kind)
    raise BadOption("schema", f"has data with {kind.simpleString()}, which format json does not make")


def _struct(kind: T.StructType) -> tuple[Any, _Build]:
    parts = [_of(field.dataType) for field in kind.fields]
    names = [f"f{n}" for n in range(len(parts))]
    made = msgspec.defstruct(
        "Body",
        [
            (name, python | None, msgspec.field(name=field.name, default=None))
            for name, field, (python, _) in zip(names, kind.fields, parts, strict=True)
        ],
        gc=False,
        frozen=True,
    )
    getters, empty = [attrgetter(name) for name in names], made()

    def build(values: list[Any], arrow: pa.DataType) -> pa.Array:
        rows = [empty if value is None else value for value in values]
        fields = list(arrow)
        children = [
            make(list(map(get, rows)), field.type) for get, (_, make), field in zip(getters, parts, fields, strict=True)
        ]
        mask = pa.array([value is None for value in values], pa.bool_())
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    return made, build


def _lists(build: _Build) -> _Build:
    def lists(values: list[Any], arrow: pa.DataType) -> pa.Array:
        bounds = _bounds(values)
        flat = [one for value in values if value for one in value]
        return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), build(flat, arrow.value_type), type=arrow)

    return lists


def _maps(build: _Build) -> _Build:
    def maps(values: list[Any], arrow: pa.DataType) -> pa.Array:
        keys = [key for value in values if value for key in value]
        items = [item for value in values if value for item in value.values()]
        offsets = pa.array(_bounds(values), pa.int32())
        return pa.MapArray.from_arrays(
            offsets, pa.array(keys, arrow.key_type), build(items, arrow.item_type), type=arrow
        )

    return maps


def _bounds(values: Sequence[Any]) -> list[int | None]:
    """Returns offsets of lists back to back; None where a value is null."""
    found: list[int | None] = []
    at = 0
    for value in values:
        found.append(None if value is None else at)
        at += len(value) if value else 0
    return [*found, at]


def _raws(values: list[Any], arrow: pa.DataType) -> pa.Array:
    return pa.array([_raw_text(bytes(value)) for value in values], arrow)


def _raw_text(raw: bytes) -> str | None:
    """Returns a text as it is, null as None, anything else as JSON."""
    if raw == b"null":
        return None
    return msgspec.json.decode(raw, type=str) if raw[:1] == b'"' else raw.decode()


def _times(values: list[Any], arrow: pa.DataType) -> pa.Array:
    return pa.array([time_us_of(value) for value in values], arrow)
