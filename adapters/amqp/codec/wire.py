"""Frames, fields and methods of AMQP 0-9-1 as bytes.

pamqp's classes describe the fields of each method, and encode the methods that we send. The peer's bytes are read here,
in one pass: pamqp copies the rest of a table for each of its fields and recurses as deep as a peer likes.

    frame   type u8 | channel u16 | size u32 | payload | 0xCE        (AMQP 0-9-1, 2.3.5)
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from pamqp.base import Frame
from pamqp.commands import INDEX_MAPPING, Basic

from adapters.amqp.codec.access import ACCESS
from gateway.domain.errors import Cause, ProtocolError

Table: TypeAlias = dict[str, Any]

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
PROTOCOL_HEADERS: Final = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")  # of 0-9 too: it is 0-9-1 here, as in RabbitMQ
FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
FRAME_OVERHEAD: Final = 8  # bytes of a frame that are not its payload
HEAD: Final = struct.Struct(">BHI")
HEARTBEAT: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
TABLE_DEPTH_MAX: Final = 32  # tables and arrays within each other

# Reply codes (AMQP 0-9-1, 1.2).
ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406
CONNECTION_FORCED, FRAME_ERROR, SYNTAX_ERROR, COMMAND_INVALID, CHANNEL_ERROR = 320, 501, 502, 503, 504
UNEXPECTED_FRAME, RESOURCE_ERROR, NOT_ALLOWED, NOT_IMPLEMENTED, INTERNAL_ERROR = 505, 506, 530, 540, 541
REPLY_NAMES: Final = {  # names in the specification; RabbitMQ begins its reply texts with them
    CONNECTION_FORCED: "CONNECTION_FORCED",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
# A refusal of one of these ends the channel, any other the connection.
CHANNEL_CODES: Final = frozenset({ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED})
REPLY_CODES: Final = {
    Cause.UNAUTHENTICATED: ACCESS_REFUSED,
    Cause.FORBIDDEN: ACCESS_REFUSED,
    Cause.MALFORMED: PRECONDITION_FAILED,
    Cause.TOO_LARGE: PRECONDITION_FAILED,  # as RabbitMQ answers
    Cause.NOT_FOUND: NOT_FOUND,
    Cause.CONFLICT: RESOURCE_LOCKED,
    Cause.PRECONDITION: PRECONDITION_FAILED,
    Cause.QUOTA: RESOURCE_ERROR,
    Cause.RATE: RESOURCE_ERROR,
    Cause.OVERLOAD: RESOURCE_ERROR,
    Cause.UNAVAILABLE: INTERNAL_ERROR,
    Cause.DAMAGED: INTERNAL_ERROR,
    Cause.UNKNOWN: INTERNAL_ERROR,
}

_U32 = struct.Struct(">I")
SHORT_BYTES_MAX: Final = 255  # of a short string
_SIGNED_MAX: Final = (1 << 63) - 1
Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]  # (data, at) -> (value, behind it)


_CUT: Final = "a field ends behind its frame"
TRAILING: Final = "there are bytes behind the last field"

# ---- reading: within this module malformed input raises ValueError, IndexError or struct.error; the caller makes
#      one of them: ValueError of a table, `ProtocolError` of a method


def _fixed(layout: str) -> Reader:
    unpack, size = struct.Struct(">" + layout).unpack_from, struct.calcsize(">" + layout)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    return read


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(data):
        raise ValueError(_CUT)
    return data[at:end], end


def read_short_string(data: bytes, at: int) -> tuple[str, int]:
    """Returns a short string and where it ends. Raises ValueError, IndexError."""
    raw, end = _take(data, at + 1, data[at])
    return raw.decode(), end


def _long_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _U32.unpack_from(data, at)
    return _take(data, at + 4, size)


def _long_string(data: bytes, at: int) -> tuple[str | bytes, int]:
    """Returns text where it is text: the type is used for both (AMQP 0-9-1, 4.2.5.3)."""
    raw, end = _long_bytes(data, at)
    try:
        return raw.decode(), end
    except UnicodeDecodeError:
        return raw, end


def _decimal(data: bytes, at: int) -> tuple[str, int]:
    """Returns a decimal as its text: no other type of ours keeps its scale."""
    scale, digits = struct.unpack_from(">Bi", data, at)
    sign, text = "-" if digits < 0 else "", str(abs(digits)).rjust(scale + 1, "0")
    return sign + (f"{text[:-scale]}.{text[-scale:]}" if scale else text), at + 5


def _nothing(_data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


read_octet = _fixed("B")
read_timestamp = _fixed("Q")

# The types that brokers and clients agree on: https://www.rabbitmq.com/amqp-0-9-1-errata#section_3
_FIELDS: Final[dict[int, Reader]] = {
    ord("t"): _boolean,
    ord("b"): _fixed("b"),
    ord("B"): _fixed("B"),
    ord("s"): _fixed("h"),
    ord("u"): _fixed("H"),
    ord("I"): _fixed("i"),
    ord("i"): _fixed("I"),
    ord("l"): _fixed("q"),
    ord("L"): _fixed("q"),
    ord("f"): _fixed("f"),
    ord("d"): _fixed("d"),
    ord("D"): _decimal,
    ord("S"): _long_string,
    ord("T"): read_timestamp,
    ord("V"): _nothing,
    ord("x"): _long_bytes,
}
_TABLE, _ARRAY = ord("F"), ord("A")
_TOO_DEEP: Final = f"more than {TABLE_DEPTH_MAX} tables or arrays are within each other"


def read_table(data: bytes, at: int) -> tuple[Table, int]:
    """Returns a field table and where it ends. Raises ValueError, and nothing else, for whatever is malformed.

    Values are plain: bool, int (a timestamp too, in seconds), float, str (a decimal too), bytes, None, list, dict.
    """
    try:
        return _read_table(data, at, 0)
    except (IndexError, struct.error) as error:
        raise ValueError(_CUT) from error


def field_spans(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yields where each field of a table that has been read before begins and ends, its name included."""
    (size,) = _U32.unpack_from(data, at)
    at, end = at + 4, at + 4 + size
    while at < end:
        start = at
        _, at = read_short_string(data, at)
        _, at = _read_value(data, at, 0)
        yield start, at


def _read_table(data: bytes, at: int, depth: int) -> tuple[Table, int]:
    (size,) = _U32.unpack_from(data, at)
    at, end = at + 4, at + 4 + size
    if end > len(data) or depth > TABLE_DEPTH_MAX:
        raise ValueError("a table ends behind its frame" if end > len(data) else _TOO_DEEP)
    table: Table = {}
    while at < end:
        name, at = read_short_string(data, at)
        table[name], at = _read_value(data, at, depth)
    if at != end:
        raise ValueError("a field ends behind its table")
    return table, end


def _read_array(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    (size,) = _U32.unpack_from(data, at)
    at, end = at + 4, at + 4 + size
    if end > len(data) or depth > TABLE_DEPTH_MAX:
        raise ValueError("an array ends behind its frame" if end > len(data) else _TOO_DEEP)
    values: list[Any] = []
    while at < end:
        value, at = _read_value(data, at, depth)
        values.append(value)
    if at != end:
        raise ValueError("a field ends behind its array")
    return values, end


def _read_value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    tag = data[at]
    if tag == _TABLE:
        return _read_table(data, at + 1, depth + 1)
    if tag == _ARRAY:
        return _read_array(data, at + 1, depth + 1)
    reader = _FIELDS.get(tag)
    if reader is None:
        raise ValueError(f"unknown field type {chr(tag)!r}")
    return reader(data, at + 1)


_CONSUME: Final = Basic.Consume.index  # its arguments may hold a time, or a number with another meaning
_TIMESTAMP: Final = ord("T")
_ARGUMENTS: Final[dict[str, Reader]] = {
    "octet": read_octet,
    "short": _fixed("H"),
    "long": _fixed("I"),
    "longlong": _fixed("Q"),
    "shortstr": read_short_string,
    "longstr": _long_bytes,
    "table": read_table,
    "timestamp": read_timestamp,
}


def mark_timestamps(table: Table, data: bytes, at: int) -> None:
    """Makes the timestamps of a table that has been read from `at` on a `Timestamp`, which are numbers otherwise."""
    for start, _ in field_spans(data, at):
        name, value_at = read_short_string(data, start)
        value = table.get(name)  # none of a header that was taken out
        if data[value_at] == _TIMESTAMP and type(value) is int:  # of a name that comes twice the last value counts
            table[name] = Timestamp(value)


class AmqpError(ProtocolError):
    """An error that is not of the method that is being handled: `method` is the index that a close names."""

    def __init__(self, code: int, detail: str, *, method: int) -> None:
        super().__init__(code, detail)
        self.method = method


def check_frame(kind: int, number: int, payload: bytes) -> None:
    """Raises `ProtocolError` (FRAME_ERROR) for a frame of no known type, or a heartbeat with anything in it."""
    if kind == FRAME_HEARTBEAT:
        if number or payload:  # AMQP 0-9-1, 4.2.7
            raise ProtocolError(FRAME_ERROR, "a heartbeat on a channel, or with a payload")
    elif kind not in (FRAME_METHOD, FRAME_HEADER, FRAME_BODY):
        raise ProtocolError(FRAME_ERROR, f"there is no frame type {kind}")


def method_index(payload: bytes) -> int:
    """Returns the class and method that a frame's payload begins with, as one number; 0 where it is too short."""
    return int.from_bytes(payload[:4], "big") if len(payload) >= 4 else 0


def read_method(payload: bytes) -> Frame:
    """Returns the method in a frame's payload, its arguments as attributes; long strings are bytes.

    Raises `ProtocolError` (FRAME_ERROR, NOT_IMPLEMENTED).
    """
    if len(payload) < 4:
        raise ProtocolError(FRAME_ERROR, "a method frame without a method")
    index = int.from_bytes(payload[:4], "big")
    kind: type[Frame] | None = INDEX_MAPPING.get(index) or ACCESS.get(index)
    if kind is None:
        raise ProtocolError(NOT_IMPLEMENTED, f"there is no method {index >> 16}.{index & 0xFFFF}")
    method: Frame = kind.__new__(kind)  # pamqp's constructors check, and some warn: a peer's values are set as they are
    at, bit = 4, 0
    try:
        for name in kind.__slots__:
            type_ = kind.amqp_type(name)
            if type_ == "bit":  # packed from the lowest on (AMQP 0-9-1, 4.2.5.2)
                setattr(method, name, bool(payload[at] >> bit & 1))
                at, bit = (at + 1, 0) if bit == 7 else (at, bit + 1)
                continue
            at, bit = at + (bit > 0), 0
            start, (value, at) = at, _ARGUMENTS[type_](payload, at)
            if type_ == "table" and index == _CONSUME:
                mark_timestamps(value, payload, start)
            setattr(method, name, value)
        if at + (bit > 0) != len(payload):
            raise ValueError(TRAILING)
    except (ValueError, IndexError, struct.error) as error:
        raise malformed(method.name, error) from error
    return method


def malformed(what: str, error: Exception) -> ProtocolError:
    """Returns the refusal of bytes that cannot be read (FRAME_ERROR, as in RabbitMQ); `error` is how reading ended."""
    if isinstance(error, UnicodeDecodeError):
        return AmqpError(FRAME_ERROR, "Malformed UTF-8 in shortstr", method=0)
    why = _CUT if isinstance(error, IndexError | struct.error) else error
    return ProtocolError(FRAME_ERROR, f"cannot decode {what}: {why}")


# ---- writing


def short_string(text: str) -> bytes:
    """Returns a text of at most 255 bytes."""
    raw = text.encode("utf-8", "replace")
    return bytes((len(raw),)) + raw


def reply_text(code: int, why: str) -> str:
    """Returns the reply text of channel.close or connection.close, cut to a short string.

    It begins with the name of its code, as RabbitMQ's do: `NOT_FOUND - no queue 'q' in vhost '/'`.
    """
    text = f"{REPLY_NAMES[code]} - {why}"
    return text.encode("utf-8", "replace")[:SHORT_BYTES_MAX].decode("utf-8", "ignore")


class Timestamp(int):
    """Seconds since 1970 that are written as a timestamp."""


def write_table(table: Table) -> bytes:
    """Returns a field table, of values as `_value` takes, in order; names are at most 255 bytes."""
    parts: list[bytes] = []
    for name, value in table.items():
        raw = name.encode()
        parts += (len(raw).to_bytes(1, "big"), raw, _value(value))
    packed = b"".join(parts)
    return _U32.pack(len(packed)) + packed


def _value(value: object) -> bytes:
    """Encodes a field's type and value: text, bytes, integer, timestamp, boolean, a table or an array of these."""
    match value:
        case str():
            raw = value.encode()
            return b"S" + _U32.pack(len(raw)) + raw
        case bytes():
            return b"x" + _U32.pack(len(value)) + value
        case dict():
            return b"F" + write_table(value)
        case list():
            packed = b"".join([_value(one) for one in value])
            return b"A" + _U32.pack(len(packed)) + packed
        case bool():
            return b"t\x01" if value else b"t\x00"
        case Timestamp():
            return b"T" + value.to_bytes(8, "big")
        case int() if value > _SIGNED_MAX:  # it was a timestamp, the one field of 64 bits without a sign
            return b"T" + value.to_bytes(8, "big")
        case int():
            return b"l" + value.to_bytes(8, "big", signed=True)
    raise TypeError(f"no field of a table holds {type(value).__name__}")


def _pack(method: type[Frame], values: tuple[Any, ...]) -> Iterator[bytes]:
    bits, used = 0, 0
    for name, value in zip(method.__slots__, values, strict=True):
        type_ = method.amqp_type(name)
        if type_ == "bit":
            bits, used = bits | value << used, used + 1
            continue
        if used:
            yield bytes((bits,))
            bits, used = 0, 0
        yield _WRITERS[type_](value)
    if used:
        yield bytes((bits,))


_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "octet": struct.Struct(">B").pack,
    "short": struct.Struct(">H").pack,
    "long": _U32.pack,
    "longlong": struct.Struct(">Q").pack,
    "shortstr": short_string,
    "longstr": lambda value: _U32.pack(len(value)) + value,
    "table": write_table,
}


def method_frame(channel: int, method: type[Frame], *values: Any) -> bytes:
    """Returns a method of ours as a frame, its arguments in the specification's order; long strings are bytes."""
    payload = _U32.pack(method.index) + b"".join(_pack(method, values))
    return HEAD.pack(FRAME_METHOD, channel, len(payload)) + payload + b"\xce"
