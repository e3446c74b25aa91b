"""Bodies decoded one by one, and CBOR encoded."""

import struct
from typing import NamedTuple

from spark.decode.samples import Decoder
from store.api.decoding import DecodeRule
from store.api.message import Message

T_MS = 1_700_000_000_000


def rows(body: bytes, *rules: DecodeRule, address: str = "telemetry/d1/temp", **message):
    """Decodes a message: returns (value, text, unit, time) by metric, and the quality."""
    read = Decoder(rules).read([Message(address=address, body=body, time_ms=T_MS, **message)])
    columns = (read.values, read.texts, read.units, read.times_us)
    assert read.bounds == [0, len(read.metrics)]
    assert all(len(column) == len(read.metrics) for column in (*columns, read.aliases))
    found = {metric: row for metric, *row in zip(read.metrics, *columns, strict=True)}
    return {metric: tuple(row) for metric, row in found.items()}, read.quality[0]


def one(body: bytes, *rules: DecodeRule, **message):
    """Decodes a message: returns number or text by metric, and the quality."""
    found, quality = rows(body, *rules, **message)
    return {m: v if t is None else (t if v is None else t == "true") for m, (v, t, _, _) in found.items()}, quality


class Tagged(NamedTuple):
    tag: int
    value: object


def encode_cbor(value) -> bytes:
    """Encodes a value; a tag is a `Tagged`."""

    def head(major: int, n: int) -> bytes:
        if n < 24:
            return bytes([major << 5 | n])
        size = next(s for s in (1, 2, 4, 8) if n < 1 << 8 * s)
        return bytes([major << 5 | 24 + (1, 2, 4, 8).index(size)]) + n.to_bytes(size, "big")

    match value:
        case Tagged():
            return head(6, value.tag) + encode_cbor(value.value)
        case bool() | None:
            return bytes([{False: 0xF4, True: 0xF5, None: 0xF6}[value]])
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case float():
            return b"\xfb" + struct.pack(">d", value)
        case str():
            return head(3, len(value.encode())) + value.encode()
        case bytes():
            return head(2, len(value)) + value
        case list():
            return head(4, len(value)) + b"".join(map(encode_cbor, value))
        case dict():
            return head(5, len(value)) + b"".join(encode_cbor(k) + encode_cbor(v) for k, v in value.items())
    raise AssertionError(value)
