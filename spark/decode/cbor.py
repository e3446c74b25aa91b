"""CBOR (RFC 8949) to plain values: as much as telemetry takes, bounded in depth and size.

Maps, arrays, integers, floats, texts, byte strings, booleans and null; of tags the value that they mark, but for
bignums and decimals, which become floats. Everything that a body can claim is bounded by the body's own bytes, and
its items are counted.
"""

import struct
from typing import Final

from spark.decode.values import ITEMS_MAX, Undecodable

_DEPTH_MAX: Final = 32
_KEY_MAX: Final = 1 << 64  # integers' own limit; of bignums any number may have the same hash
_BREAK = object()
_SIMPLE: Final = {20: False, 21: True, 22: None, 23: None}
_FLOATS: Final = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}


def decode(data: bytes) -> object:
    """Returns the value of a whole body. Raises `Undecodable`."""
    value, end = _item(data, 0, 0, [ITEMS_MAX])
    if end != len(data) or value is _BREAK:
        raise Undecodable("bytes follow the CBOR value" if value is not _BREAK else "a CBOR break stands alone")
    return value


def _item(data: bytes, at: int, depth: int, left: list[int]) -> tuple[object, int]:
    """Returns the item at a place, and its end; `left` has how many items may still come."""
    left[0] -= 1
    if left[0] < 0:
        raise Undecodable(f"CBOR has more than {ITEMS_MAX} items")
    if depth > _DEPTH_MAX:
        raise Undecodable(f"CBOR is nested deeper than {_DEPTH_MAX}")
    if at >= len(data):
        raise Undecodable("CBOR ends in the middle")
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    if major == 7:
        return _simple(data, at, info)
    argument, at = _argument(data, at, info)
    if major in (0, 1):
        if argument is None:
            raise Undecodable("a CBOR integer has no length")
        return (argument if major == 0 else -1 - argument), at
    if major in (2, 3):
        return _string(data, at, argument, left, text=major == 3)
    if major == 4:
        return _array(data, at, argument, depth, left)
    if major == 5:
        return _map(data, at, argument, depth, left)
    value, at = _item(data, at, depth + 1, left)
    return _tagged(argument, value), at


def _argument(data: bytes, at: int, info: int) -> tuple[int | None, int]:
    """Returns the number behind the first byte; None: of indefinite length."""
    if info < 24:
        return info, at
    if info == 31:
        return None, at
    if info > 27:
        raise Undecodable("CBOR has a reserved length")
    size = 1 << (info - 24)
    if at + size > len(data):
        raise Undecodable("CBOR ends in the middle")
    return int.from_bytes(data[at : at + size], "big"), at + size


def _simple(data: bytes, at: int, info: int) -> tuple[object, int]:
    if info == 31:
        return _BREAK, at
    if info in _FLOATS:
        packed = _FLOATS[info]
        if at + packed.size > len(data):
            raise Undecodable("CBOR ends in the middle")
        return packed.unpack_from(data, at)[0], at + packed.size
    if info == 24:
        return None, at + 1
    if info > 24:
        raise Undecodable("CBOR has a reserved simple value")
    return _SIMPLE.get(info), at


def _string(data: bytes, at: int, size: int | None, left: list[int], *, text: bool) -> tuple[object, int]:
    if size is None:
        parts = []
        while True:
            if data[at : at + 1] in (b"\x5f", b"\x7f"):
                raise Undecodable("a CBOR string has parts without a length")  # RFC 8949, 3.2.3
            part, at = _item(data, at, _DEPTH_MAX, left)
            if part is _BREAK:
                break
            if not isinstance(part, str if text else bytes):
                raise Undecodable("a CBOR string has parts of another type")
            parts.append(part)
        return ("".join(parts) if text else b"".join(parts)), at  # type: ignore[arg-type]  # checked above
    if at + size > len(data):
        raise Undecodable("CBOR ends in the middle")
    found = data[at : at + size]
    if not text:
        return found, at + size
    try:
        return found.decode(), at + size
    except UnicodeDecodeError as error:
        raise Undecodable("a CBOR text is not UTF-8") from error


def _array(data: bytes, at: int, size: int | None, depth: int, left: list[int]) -> tuple[object, int]:
    found: list[object] = []
    while size is None or len(found) < size:
        value, at = _item(data, at, depth + 1, left)
        if value is _BREAK:
            if size is None:
                break
            raise Undecodable("a CBOR break stands alone")
        found.append(value)
    return found, at


def _map(data: bytes, at: int, size: int | None, depth: int, left: list[int]) -> tuple[object, int]:
    found: dict[object, object] = {}
    count = 0
    while size is None or count < size:
        key, at = _item(data, at, depth + 1, left)
        if key is _BREAK and size is None:
            break
        value, at = _item(data, at, depth + 1, left)
        if key is _BREAK or value is _BREAK or not isinstance(key, str | int | float | bytes):
            raise Undecodable("a CBOR map has a key that is no text and no number")
        if isinstance(key, int) and not -_KEY_MAX <= key < _KEY_MAX:
            raise Undecodable("a CBOR map has a key of more than 64 bits")
        found[key] = value
        count += 1
    return found, at


def _tagged(tag: int | None, value: object) -> object:
    if value is _BREAK or tag is None:
        raise Undecodable("a CBOR tag marks nothing")
    if tag in (2, 3) and isinstance(value, bytes):
        number = int.from_bytes(value[:128], "big")
        return number if tag == 2 else -1 - number
    if tag == 4 and isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value):
        exponent, mantissa = value
        return float(f"{mantissa}e{exponent}") if abs(exponent) < 400 else None
    return value
