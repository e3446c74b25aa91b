"""Events in the Avro Event Format 1.0.2: one event in Avro's binary encoding (Avro 1.9.0), by the format's own schema.

    CloudEvent      attribute: a map of null, boolean, int, string or bytes;
                    data: bytes, null, boolean, a map, an array, double or string
    CloudEventData  value: a map of null, boolean, maps and arrays of CloudEventData, double or string

The schema is fixed; this module reads and writes it value by value. The format has no batches. Data that is not bytes
is a value of JSON, and the body is its JSON text; a string is text unless its content type is JSON.
"""

import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

import msgspec

from adapters.cloudevents.attributes import CORE, OURS, Route, check, malformed
from adapters.cloudevents.charsets import decode_text, encode_text
from adapters.cloudevents.event import NATIVE, add_fields, message_of, placed, speak_for, take_fields, wrap
from adapters.cloudevents.structured import BASE64, data_type, is_json
from gateway.domain.errors import Cause, Refusal
from store.api.message import Message

STRUCTURED_AVRO: Final = "application/cloudevents+avro"
_DEPTH_MAX: Final = 32  # of JSON within JSON
_VALUES_COUNT_MAX: Final = 100_000  # of one event: each costs an object
_VARINT_BYTES_MAX: Final = 10  # of 64 bits
_DOUBLE: Final = struct.Struct("<d")
_NULL, _BOOLEAN, _INT, _STRING, _BYTES = range(5)  # the union of attributes
_DATA_BYTES, _DATA_NULL, _DATA_BOOLEAN, _DATA_MAP, _DATA_ARRAY, _DATA_DOUBLE, _DATA_STRING = range(7)  # that of data


# ---- reading


class _Reader:
    """Reads values of Avro's binary encoding from bytes. Raises `Refusal` (MALFORMED)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._values_count = 0  # <= _VALUES_COUNT_MAX

    @property
    def ended(self) -> bool:
        """Returns whether nothing is left."""
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        """Returns the next bytes."""
        if not 0 <= size <= len(self._data) - self._at:
            raise _no_avro("ends within a value")
        self._at += size
        return self._data[self._at - size : self._at]

    def long(self) -> int:
        """Returns a zig-zag number of 64 bits."""
        value = 0
        for index in range(_VARINT_BYTES_MAX):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >> 64:
                    break
                return (value >> 1) ^ -(value & 1)
        raise _no_avro("has a number of more than 64 bits")

    def boolean(self) -> bool:
        """Returns a boolean."""
        byte = self.take(1)
        if byte not in {b"\0", b"\1"}:
            raise _no_avro("has a boolean that is neither true nor false")
        return byte == b"\1"

    def double(self) -> float | int:
        """Returns a number that JSON can have; a whole one is an integer."""
        value: float = _DOUBLE.unpack(self.take(_DOUBLE.size))[0]
        if not isfinite(value):
            raise _no_avro("has a number that JSON has not")
        return int(value) if value.is_integer() and abs(value) < 1 << 53 else value

    def bytes_(self) -> bytes:
        """Returns bytes behind their length."""
        return self.take(self.long())

    def string(self) -> str:
        """Returns text."""
        try:
            return self.bytes_().decode()
        except UnicodeDecodeError as error:
            raise _no_avro("has a string that is not UTF-8") from error

    def items(self, read: Callable[[], None]) -> None:
        """Reads the blocks of a map or an array."""
        while count := self.long():
            if count < 0:
                self.long()  # the size of the block in bytes, for readers that skip it
                count = -count
            self._values_count += count
            if self._values_count > _VALUES_COUNT_MAX:
                raise _no_avro(f"has more than {_VALUES_COUNT_MAX} values")
            for _ in range(count):
                read()

    def map_of(self, value: Callable[[], Any]) -> dict[str, Any]:
        """Returns a map."""
        made: dict[str, Any] = {}

        def read() -> None:
            name = self.string()
            made[name] = value()

        self.items(read)
        return made

    def array_of(self, value: Callable[[], Any]) -> list[Any]:
        """Returns an array."""
        made: list[Any] = []
        self.items(lambda: made.append(value()))
        return made

    def branch(self, readers: tuple[Callable[[], Any], ...]) -> Any:
        """Returns a value of a union."""
        index = self.long()
        if not 0 <= index < len(readers):
            raise _no_avro("has a value of a type that the schema has not")
        return readers[index]()


def _nothing() -> None:
    return None


def _json_value(reader: _Reader, depth: int) -> dict[str, Any]:
    """Returns the map that a CloudEventData is."""
    if depth > _DEPTH_MAX:
        raise _no_avro(f"has data more than {_DEPTH_MAX} levels deep")

    def deeper() -> dict[str, Any]:
        return _json_value(reader, depth + 1)

    readers = (
        _nothing,
        reader.boolean,
        lambda: reader.map_of(deeper),
        lambda: reader.array_of(deeper),
        reader.double,
        reader.string,
    )
    return reader.map_of(lambda: reader.branch(readers))


def _data(reader: _Reader) -> tuple[int, Any]:
    """Returns the branch of the data's union, and the value."""
    branch = reader.long()

    def nested() -> dict[str, Any]:
        return _json_value(reader, 1)

    in_map = (_nothing, reader.boolean, nested, reader.double, reader.string)
    readers: dict[int, Callable[[], Any]] = {
        _DATA_BYTES: reader.bytes_,
        _DATA_NULL: _nothing,
        _DATA_BOOLEAN: reader.boolean,
        _DATA_MAP: lambda: reader.map_of(lambda: reader.branch(in_map)),
        _DATA_ARRAY: lambda: reader.array_of(nested),
        _DATA_DOUBLE: reader.double,
        _DATA_STRING: reader.string,
    }
    if branch not in readers:
        raise _no_avro("has data of a type that the schema has not")
    return branch, readers[branch]()


def from_avro(
    body: bytes,
    *,
    now_ms: int,
    protocol: str,
    device: str,
    route: Route | None = None,
    trusted_gateway: bool = False,
    **fields: Any,
) -> Message:
    """Returns the message of one event. Parameters and errors are those of `from_attributes`."""
    reader = _Reader(body)
    values = (_nothing, reader.boolean, reader.long, reader.string, reader.bytes_)
    attributes = reader.map_of(lambda: reader.branch(values))
    branch, data = _data(reader)
    if not reader.ended:
        raise _no_avro("goes on behind the event")
    context: dict[str, str] = {}
    typed: dict[str, int | bool] = {}
    for name, value in attributes.items():
        if value is None or name in OURS:  # which only the gateway says
            continue
        if isinstance(value, bytes):
            context[name] = b64encode(value).decode()
        elif isinstance(value, str):
            context[name] = value
        else:
            context[name] = _checked(name, value)
            typed[name] = value
    native: dict[str, Any] = {"typed": typed} if typed else {}
    content = _content(branch, data, context, native)
    check(context)
    fields.update(protocol=protocol, device=device, time_ms=now_ms)
    take_fields(context, fields)
    if trusted_gateway:
        speak_for(context, fields)
    return message_of(context, content, native, route, fields)


def _checked(name: str, value: int) -> str:
    """Returns a boolean or an integer as text. Raises `AttributeRefusal`."""
    if name in CORE:
        raise malformed(name, "is not a string")
    if isinstance(value, bool):
        return str(value).lower()
    if not -(1 << 31) <= value < 1 << 31:
        raise malformed(name[:64], "is not an integer of 32 bits")
    return str(value)


def _content(branch: int, data: Any, context: Mapping[str, str], native: dict[str, Any]) -> bytes:
    """Returns the body; `native` notes how the event held it where its content type does not say."""
    if branch == _DATA_BYTES:
        assert isinstance(data, bytes)
        if not data:
            native["data"] = BASE64  # there is data, which is empty
        return data
    if branch == _DATA_NULL:
        return b""
    declared = context.get("datacontenttype")
    json = is_json(declared)
    if branch == _DATA_STRING and (declared is None or not json):
        body, native["data"] = encode_text(str(data), declared)
        return body
    if not json:
        native["data"] = "json"
    return msgspec.json.encode(data)


def _no_avro(why: str) -> Refusal:
    return Refusal(Cause.MALFORMED, f"the body is no event in Avro: it {why}")


# ---- writing


def to_avro(message: Message) -> bytes:
    """Returns one event; a message that never was an event is wrapped, its id filled in.

    Text is a string, everything else bytes: not all JSON can be a value of the schema.
    """
    attributes = placed(message)
    native: dict[str, Any] = {}
    if attributes is None:
        attributes = wrap(message)
    elif message.native is not None:
        native = message.native[NATIVE]
    form = native.get("data")
    if (kind := data_type(message)) is not None:
        attributes["datacontenttype"] = kind
    add_fields(attributes, message)
    typed = native.get("typed", {})
    made = [_long(len(attributes))]
    for name, text in attributes.items():
        made += (_counted(name.encode()), _attribute(typed.get(name, text)))
    made += (_long(0), _written(message, form))
    return b"".join(made)


def _attribute(value: str | int | bool) -> bytes:
    if isinstance(value, bool):
        return _long(_BOOLEAN) + (b"\1" if value else b"\0")
    if isinstance(value, int):
        return _long(_INT) + _long(value)
    return _long(_STRING) + _counted(value.encode("utf-8", "replace"))


def _written(message: Message, form: str | None) -> bytes:
    if (text := decode_text(message.body, form, message.content_type)) is not None:
        return _long(_DATA_STRING) + _counted(text.encode())
    if not message.body and form is None:
        return _long(_DATA_NULL)
    return _long(_DATA_BYTES) + _counted(message.body)


def _counted(value: bytes) -> bytes:
    return _long(len(value)) + value


def _long(value: int) -> bytes:
    """Returns a zig-zag number."""
    value = (value << 1) ^ (value >> 63)
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
