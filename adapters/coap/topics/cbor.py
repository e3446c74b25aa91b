"""The part of CBOR (RFC 8949) that topic properties need: integers from 0, texts, byte strings, arrays and maps.

Lengths are definite and values well-formed: anything else, and bytes behind the value, raise `CborError`. A map has
each key once, which is an integer from 0. A value has few parts, as each takes longer to read than it takes to send.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

UINT, BYTES, TEXT, ARRAY, MAP, TAG = 0, 2, 3, 4, 5, 6  # major types (3.1)
DEPTH_MAX: Final = 4
PARTS_COUNT_MAX: Final = 256  # values in a value, keys of maps among them; topics have 9 properties
_ONE_BYTE: Final = 24  # an additional information below it is the argument itself (3)

Value: TypeAlias = "int | str | bytes | list[Value] | dict[int, Value]"


class CborError(ValueError):
    """The bytes are no value of these types."""


def decode(data: bytes) -> Value:
    """Returns the one value that some bytes are. Raises `CborError`."""
    value, end = _value(data, 0, DEPTH_MAX, iter(range(PARTS_COUNT_MAX)))
    if end != len(data):
        raise CborError("bytes follow the value")
    return value


def _value(data: bytes, at: int, depth: int, parts: Iterator[int]) -> tuple[Value, int]:
    if not depth:
        raise CborError("the value is nested too deeply")
    if next(parts, None) is None:
        raise CborError(f"the value has more than {PARTS_COUNT_MAX} parts")
    kind, argument, at = _head(data, at)
    if kind == UINT:
        return argument, at
    if kind in {BYTES, TEXT}:
        end = at + argument
        if end > len(data):
            raise CborError("the value is cut short")
        raw = bytes(data[at:end])
        try:
            return (raw if kind == BYTES else raw.decode()), end
        except UnicodeDecodeError as error:
            raise CborError("a text is not UTF-8") from error
    if kind == ARRAY:
        items: list[Value] = []
        while len(items) < argument:
            item, at = _value(data, at, depth - 1, parts)
            items.append(item)
        return items, at
    if kind == TAG:
        raise CborError("a value has a tag, as an expiration-date has: topics do not expire")
    if kind != MAP:
        raise CborError("neither an integer from 0, a string, an array nor a map")
    entries: dict[int, Value] = {}
    while len(entries) < argument:
        key, at = _value(data, at, depth - 1, parts)
        if not isinstance(key, int) or key in entries:
            raise CborError("a key of a map is no integer from 0, or there twice")
        entries[key], at = _value(data, at, depth - 1, parts)
    return entries, at


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns the major type of a value, its argument, and where it goes on."""
    if at >= len(data):
        raise CborError("the value is cut short")
    kind, short = data[at] >> 5, data[at] & 31
    at += 1
    if short < _ONE_BYTE:
        return kind, short, at
    if short > _ONE_BYTE + 3:
        raise CborError("a length is indefinite or reserved")
    end = at + (1 << short - _ONE_BYTE)
    if end > len(data):
        raise CborError("the value is cut short")
    return kind, int.from_bytes(data[at:end], "big"), end


def encode(value: Value) -> bytes:
    """Returns a value in its shortest form, maps in the order of their keys (4.2.1)."""
    match value:
        case int():
            return _argument(UINT, value)
        case bytes():
            return _argument(BYTES, len(value)) + value
        case str():
            raw = value.encode()
            return _argument(TEXT, len(raw)) + raw
        case list():
            return _argument(ARRAY, len(value)) + b"".join([encode(item) for item in value])
        case dict():
            entries = [encode(key) + encode(value[key]) for key in sorted(value)]
            return _argument(MAP, len(entries)) + b"".join(entries)


def _argument(kind: int, argument: int) -> bytes:
    if argument < _ONE_BYTE:
        return bytes((kind << 5 | argument,))
    size = next(size for size in range(4) if argument < 1 << (8 << size))
    return bytes((kind << 5 | _ONE_BYTE + size,)) + argument.to_bytes(1 << size, "big")
