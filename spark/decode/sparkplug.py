"""Sparkplug B payloads (Sparkplug 3.0.0, chapter 6): metrics by name or alias, without a protobuf library.

    Payload: 1 timestamp (ms), 2 metric, repeated, 3 seq
    Metric:  1 name, 2 alias, 3 timestamp, 4 datatype, 7 is_null,
             10 int, 11 long, 12 float, 13 double, 14 boolean, 15 string

A BIRTH says names and aliases, also of metrics without a value; DATA may say aliases alone. Such a row's metric is
`alias/17` until the keeper of the names gives it its own. DATA that says both gives a name as a BIRTH does: payloads
under addresses that are no topic names of Sparkplug do not tell which they are. A metric whose name is too long stays
`alias/17`.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from spark.decode.values import ITEMS_MAX, METRIC_CHARS_MAX, Rows, Undecodable

ALIAS: Final = "alias/"

_SIGNED: Final = {1: 8, 2: 16, 3: 32, 4: 64}  # Int8 to Int64: bits (6.4.16)
_SESSION: Final = frozenset({"bdSeq"})  # of the session, no measurements
_TIME_MS_MAX: Final = 1 << 47  # of a metric; a later one is skipped


def read(rows: Rows, data: bytes, time_ms: int) -> None:
    """Adds a payload's metrics. Raises `Undecodable`."""
    stamp = time_ms
    metrics: list[bytes] = []
    left = [ITEMS_MAX]
    for field, kind, value in _fields(data, left):
        if field == 1 and kind == 0:
            stamp = value
        elif field == 2 and kind == 2:
            metrics.append(value)
    for metric in metrics:
        if rows.full and rows.named:
            return
        _metric(rows, metric, stamp, left)


def _metric(rows: Rows, data: bytes, stamp_ms: int, left: list[int]) -> None:
    name, value = "", None
    told: dict[int, Any] = {2: None, 3: stamp_ms, 4: 0, 7: 0}  # alias, timestamp, data type, whether it is null
    for field, kind, raw in _fields(data, left):
        if field == 1 and kind == 2:
            name = _text(raw)
        elif field in told and kind == 0:
            told[field] = raw
        elif (read := _VALUES.get((field, kind))) is not None:
            value = read(raw)
    alias, stamp, datatype, null = told.values()
    if not name and alias is None:
        raise Undecodable("a metric has neither name nor alias")
    if name and alias is not None:
        rows.name(alias, name if len(name) <= METRIC_CHARS_MAX else f"{ALIAS}{alias}")
    if name in _SESSION or null or value is None or stamp >= _TIME_MS_MAX:
        return
    if isinstance(value, int) and not isinstance(value, bool) and (bits := _SIGNED.get(datatype)):
        value &= (1 << bits) - 1
        value -= (value >> (bits - 1)) << bits
    count = len(rows.metrics)
    rows.value(name or f"{ALIAS}{alias}", value, None, stamp * 1000)
    if alias is not None and len(rows.metrics) > count:  # not one that was skipped
        rows.alias(alias)


def _fields(data: bytes, left: list[int]) -> Iterator[tuple[int, int, Any]]:
    """Yields a protobuf message's fields: number, wire type, and the varint or the bytes.

    `left` has how many may still come in the whole payload.
    """
    at, end = 0, len(data)
    while at < end:
        left[0] -= 1
        if left[0] < 0:
            raise Undecodable(f"protobuf has more than {ITEMS_MAX} fields")
        key, at = _varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == 0:
            number, at = _varint(data, at)
            yield field, kind, number
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise Undecodable(f"protobuf has the wire type {kind}")
        if field == 0 or at + size > end:
            raise Undecodable("protobuf ends in the middle")
        yield field, kind, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Undecodable("protobuf ends in the middle")
        byte = data[at]
        at += 1
        found |= (byte & 127) << shift
        if byte < 128:
            return found & 0xFFFF_FFFF_FFFF_FFFF, at
    raise Undecodable("a protobuf number has more than ten bytes")


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Undecodable("a text is not UTF-8") from error


_VALUES: Mapping[tuple[int, int], Callable[[Any], Any]] = {  # by field and wire type
    (10, 0): int,
    (11, 0): int,
    (12, 5): lambda raw: struct.unpack("<f", raw)[0],
    (13, 1): lambda raw: struct.unpack("<d", raw)[0],
    (14, 0): bool,
    (15, 2): _text,
}
