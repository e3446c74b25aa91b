"""The data source's columns: their Spark types, and how each is made from a chunk of the log.

A chunk becomes one Arrow record batch, built column by column. Only the work that the requested columns need is done:
where none of them comes from the message itself, no record is decoded. Records that a query does not want
(`spark.source.selection`) are left out before: by their addresses first, for which no more than that is decoded.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark.decode.rules import DecodeRules
from spark.decode.samples import Decoder
from spark.decode.values import BAD_BODY, ENCODED, Rows
from spark.errors import BadOption
from spark.source.bodies import DATA, DATA_ERROR, BodyDecoder, data_type
from spark.source.selection import Selection, address_of
from store.api.devices import Devices
from store.api.message import Message, decode
from store.api.queues import Fetched
from store.base.errors import CorruptFrame
from store.format.frame import HEADER, ROWS_DTYPE

TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999: the last instant Spark and Python can both show

_TEXT = StringType()
_PAIRS = ArrayType(StructType([StructField("name", _TEXT), StructField("value", _TEXT)]))
_SAMPLES = ArrayType(
    StructType(
        [
            *(StructField("metric", _TEXT), StructField("value", DoubleType()), StructField("text", _TEXT)),
            *(StructField("unit", _TEXT), StructField("time", TimestampType()), StructField("alias", LongType())),
        ]
    )
)
_NAMES = ArrayType(StructType([StructField("alias", LongType()), StructField("metric", _TEXT)]))
_REJECTED = (BAD_BODY, ENCODED)
REJECTED_BYTES_MAX = 65_536  # of a body that cannot be decoded; the rest is cut off

TYPES: Mapping[str, DataType] = {
    "topic": _TEXT,
    "queue": IntegerType(),
    "offset": LongType(),
    "position": _TEXT,
    "id": _TEXT,
    "address": _TEXT,
    "key": _TEXT,
    "type": _TEXT,
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "time": TimestampType(),
    "stored_at": TimestampType(),
    "protocol": _TEXT,
    "device": _TEXT,
    "speaker": _TEXT,
    "principal": _TEXT,
    "qos": ByteType(),
    "retain": BooleanType(),
    "expires_at": TimestampType(),
    "deliver_at": TimestampType(),
    "reply_to": _TEXT,
    "correlation": BinaryType(),
    "traceparent": _TEXT,
    "properties": _PAIRS,
    "headers": MapType(_TEXT, _TEXT),
    "native": _TEXT,
    "body": BinaryType(),
    "samples": _SAMPLES,
    "aliases": _NAMES,
    "quality": _TEXT,
    "reason": _TEXT,
    "rejected": BinaryType(),
    DATA_ERROR: _TEXT,
}
_DecodedT = TypeVar("_DecodedT")
_encode = msgspec.json.Encoder(enc_hook=repr).encode
_ROW_WORDS = ROWS_DTYPE.itemsize // 8
DERIVED = ("samples", "aliases", "quality", "reason", "rejected", DATA_ERROR)  # made from the body; only on request


def schema_of(names: Sequence[str], format_: str = "raw") -> StructType:
    """Returns the Spark schema of these columns, in this order. Raises `BadOption`.

    None named: all but `DERIVED`, and `data` and `data_error` where a format is asked for.
    """
    data = data_type(format_)
    types = TYPES if data is None else {**TYPES, DATA: data}
    wanted = names or [*(name for name in TYPES if name not in DERIVED), *((DATA, DATA_ERROR) if data else ())]
    if unknown := [name for name in wanted if name not in types]:
        raise BadOption("columns", f"names {', '.join(unknown)}; there are: {', '.join(types)}")
    return StructType([StructField(name, types[name]) for name in wanted])


class RecordColumns:
    """Makes record batches of one schema. Raises `BadOption` when the schema has a column that there is not."""

    def __init__(
        self,
        schema: StructType,
        rules: DecodeRules | None = None,
        *,
        format_: str = "raw",
        selection: Selection | None = None,
    ) -> None:
        rules = rules or DecodeRules()
        self._devices, self._decoder = Devices(rules.devices), Decoder(rules.decode)
        self._selection = selection or Selection()
        for field in schema.fields:
            if field.name == DATA:
                continue
            if TYPES.get(field.name) != field.dataType:
                known = TYPES.get(field.name)
                why = f"is {known.simpleString()}" if known else f"is none of: {', '.join(TYPES)}"
                raise BadOption("schema", f"has {field.name} {field.dataType.simpleString()}, which {why}")
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._make = [(_MAKERS[field.name], self._schema.field(field.name).type) for field in schema.fields]
        self._bodies = self._body_decoder(schema, format_)

    def _body_decoder(self, schema: StructType, format_: str) -> tuple[BodyDecoder, pa.DataType] | None:
        """Returns the decoder of the columns `data` and `data_error`, where the schema has one of them."""
        if DATA in schema.names:
            return BodyDecoder(format_, schema[DATA].dataType), self._schema.field(DATA).type
        kind = data_type(format_)
        if DATA_ERROR not in schema.names or kind is None:
            return None
        arrow = to_arrow_schema(StructType([StructField(DATA, kind)]), timezone="UTC")
        return BodyDecoder(format_, kind), arrow.field(DATA).type

    def batch(self, fetched: Fetched, *, queue: int, topic: str) -> pa.RecordBatch:
        """Returns the wanted records of a chunk. Raises `CorruptFrame` for a record that is no message."""
        chunk = _Chunk(fetched, queue, topic, self._devices, self._decoder, bodies=self._bodies)
        chunk.choose(self._selection)
        return pa.RecordBatch.from_arrays([make(chunk, kind) for make, kind in self._make], schema=self._schema)


class _Chunk:
    """One chunk; values shared by columns are made once, on demand. `picked` are the wanted records, None: all."""

    def __init__(
        self,
        fetched: Fetched,
        queue: int,
        topic: str,
        devices: Devices,
        decoder: Decoder,
        *,
        bodies: tuple[BodyDecoder, pa.DataType] | None,
    ) -> None:
        self.devices, self.decoder, self._bodies = devices, decoder, bodies
        self.fetched, self.queue, self.topic = fetched, queue, topic
        self.count = fetched.next - fetched.offset
        self.sizes = [len(rows) for rows in fetched.rows]
        self.picked: npt.NDArray[np.int64] | None = None

    def choose(self, selection: Selection) -> None:
        """Leaves out the records that are not wanted, before any column is made."""
        if selection.by_address:
            self._pick(np.flatnonzero(selection.addresses(self._decoded(address_of))))
        if selection.by_message:
            messages = self.messages
            wanted = selection.messages(messages, self.devices)
            before = np.arange(self.count) if self.picked is None else self.picked
            self._pick(before[wanted])
            self.messages = [message for message, keep in zip(messages, wanted.tolist(), strict=True) if keep]

    def _pick(self, picked: npt.NDArray[np.int64]) -> None:
        self.picked, self.count = picked, len(picked)
        self.__dict__.pop("rows", None)

    def only_picked(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the values of the wanted records."""
        return values if self.picked is None else values[self.picked]

    @cached_property
    def _all_rows(self) -> npt.NDArray[np.void]:
        """The queue's rows of all frames, gathered as plain integers: three times as fast as structures."""
        found = [
            np.frombuffer(f.data, "<u8", f.header.row_count * _ROW_WORDS, HEADER.size).reshape(-1, _ROW_WORDS)[rows]
            for f, rows in zip(self.fetched.frames, self.fetched.rows, strict=True)
        ]
        return np.concatenate(found).view(ROWS_DTYPE).ravel()

    @cached_property
    def rows(self) -> npt.NDArray[np.void]:
        """The rows of the wanted records."""
        return self.only_picked(self._all_rows)

    @cached_property
    def messages(self) -> list[Message]:
        """The wanted records: 0.25 us each with the slicing, the one step that is the same for every reader."""
        return self._decoded(decode)

    def _decoded(self, decoder: Callable[[bytes], _DecodedT]) -> list[_DecodedT]:
        """Decodes each wanted record. Raises `CorruptFrame`."""
        rows = self._all_rows
        starts = rows["pos"].astype(np.int64)
        starts += np.repeat([frame.payload_start for frame in self.fetched.frames], self.sizes)
        ends = starts + rows["len"]
        counts = self.sizes
        if self.picked is not None:
            starts, ends = starts[self.picked], ends[self.picked]
            bounds = np.searchsorted(self.picked, np.cumsum([0, *self.sizes]))
            counts = np.diff(bounds).tolist()
        begins, stops = starts.tolist(), ends.tolist()
        found: list[_DecodedT] = []
        at = 0
        for frame, size in zip(self.fetched.frames, counts, strict=True):
            if not size:
                continue
            data, upto = frame.plain, at + size
            try:
                found += [decoder(data[s:e]) for s, e in zip(begins[at:upto], stops[at:upto], strict=True)]
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise CorruptFrame(frame.start, f"a record of queue {self.queue} is no message: {error}") from error
            at = upto
        return found

    @cached_property
    def positions(self) -> list[str]:
        """Each record's position, as `str(Position)` writes it."""
        found = [
            f"{prefix}{row:x}"
            for frame, rows in zip(self.fetched.frames, self.fetched.rows, strict=True)
            for prefix in (f"{frame.start:x}.",)
            for row in np.asarray(rows).tolist()
        ]
        return found if self.picked is None else [found[n] for n in self.picked.tolist()]

    @cached_property
    def data(self) -> tuple[pa.Array, list[str | None]]:
        """The decoded bodies, and why some are null."""
        if self._bodies is None:
            return pa.nulls(self.count), [None] * self.count
        decoder, kind = self._bodies
        return decoder.arrays(self.messages, kind)

    @cached_property
    def samples(self) -> Rows:
        return self.decoder.read(self.messages)


Maker = Callable[[_Chunk, pa.DataType], pa.Array]


def _plain(attribute: str) -> Maker:
    """Returns a column that is an attribute of the message."""
    get = attrgetter(attribute)
    return lambda chunk, kind: pa.array(list(map(get, chunk.messages)), kind)


def _constant(attribute: str) -> Maker:
    get = attrgetter(attribute)
    return lambda chunk, kind: pa.repeat(pa.scalar(get(chunk), kind), chunk.count)


def _instants(times_ms: npt.NDArray[np.uint64], kind: pa.DataType) -> pa.Array:
    return pa.array(np.minimum(times_ms, TIME_MS_MAX).astype(np.int64) * 1000, kind)


def _offset(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    return pa.array(chunk.only_picked(np.arange(chunk.fetched.offset, chunk.fetched.next, dtype=np.int64)), kind)


def _position(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    return pa.array(chunk.positions, kind)


def _id(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    """Returns the message's id, or the position when the log gives it."""
    return pa.array([m.id or p for m, p in zip(chunk.messages, chunk.positions, strict=True)], kind)


def _time(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    return _instants(chunk.rows["time_ms"], kind)


def _stored_at(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    stored = np.array([frame.header.stored_at_ms for frame in chunk.fetched.frames], np.uint64)
    return _instants(chunk.only_picked(np.repeat(stored, chunk.sizes)), kind)


def _instant(attribute: str) -> Maker:
    """Returns a column that is a time in ms, or nothing."""
    get = attrgetter(attribute)

    def make(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
        times = list(map(get, chunk.messages))
        return pa.array([None if t is None else max(0, min(t, TIME_MS_MAX)) * 1000 for t in times], kind)

    return make


def _qos(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    return pa.array([m.qos & 0x7F for m in chunk.messages], kind)


def _structs(
    kind: pa.DataType, bounds: Sequence[int] | npt.NDArray[np.int64], columns: Sequence[Sequence[Any]]
) -> pa.Array:
    """Returns an array of lists of structs, from the structs' fields back to back."""
    fields = list(kind.value_type)
    children = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
    return pa.ListArray.from_arrays(
        pa.array(bounds, pa.int32()), pa.StructArray.from_arrays(children, fields=fields), type=kind
    )


def _properties(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    pairs = [m.properties for m in chunk.messages]
    bounds = [0, *np.cumsum([len(p) for p in pairs]).tolist()]
    flat = [pair for p in pairs if p for pair in p]
    return _structs(kind, bounds, ([name for name, _ in flat], [value for _, value in flat]))


def _headers(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    """Returns the properties by name; of a name that repeats the last one."""
    return pa.array([list(dict(m.properties).items()) if m.properties else () for m in chunk.messages], kind)


def _native(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    """Returns the fields that only the message's own protocol has, as JSON; bytes are Base64."""
    found = [None if m.native is None else _encode(m.native).decode() for m in chunk.messages]
    return pa.array(found, kind)


def _data(chunk: _Chunk, _kind: pa.DataType) -> pa.Array:
    return chunk.data[0]


def _data_error(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    return pa.array(chunk.data[1], kind)


def _samples(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    read = chunk.samples
    columns = (read.metrics, read.values, read.texts, read.units, read.times_us, read.aliases)
    return _structs(kind, read.bounds, columns)


def _aliases(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    """Returns the names that Sparkplug's BIRTHs give to aliases."""
    names = chunk.samples.names
    counts = np.bincount(np.array([message for message, _, _ in names], np.int64), minlength=chunk.count)
    columns = [alias for _, alias, _ in names], [metric for _, _, metric in names]
    return _structs(kind, np.concatenate([[0], np.cumsum(counts)]), columns)


def _device(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    """Returns the device by the rules; `speaker` is the name in the log."""
    return pa.array(chunk.devices.of(chunk.messages), kind)


def _reason(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    return pa.array(chunk.samples.reasons, kind)


def _rejected(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    """Returns the body, where it cannot be decoded."""
    judged = zip(chunk.messages, chunk.samples.quality, strict=True)
    return pa.array([m.body[:REJECTED_BYTES_MAX] if quality in _REJECTED else None for m, quality in judged], kind)


def _quality(chunk: _Chunk, kind: pa.DataType) -> pa.Array:
    return pa.array(chunk.samples.quality, kind)


_MAKERS: Mapping[str, Maker] = {name: _plain(name) for name in TYPES if name in Message.__struct_fields__} | {
    "topic": _constant("topic"),
    "queue": _constant("queue"),
    "offset": _offset,
    "position": _position,
    "id": _id,
    "time": _time,
    "stored_at": _stored_at,
    "expires_at": _instant("expires_at_ms"),
    "deliver_at": _instant("deliver_at_ms"),
    "qos": _qos,
    "properties": _properties,
    "headers": _headers,
    "native": _native,
    DATA: _data,
    DATA_ERROR: _data_error,
    "samples": _samples,
    "aliases": _aliases,
    "quality": _quality,
    "device": _device,
    "speaker": _plain("device"),
    "reason": _reason,
    "rejected": _rejected,
}
assert _MAKERS.keys() == TYPES.keys() | {DATA}
