"""Fuzz targets of the telemetry job's readers: `python -m tests.fuzz.targets.bodies_target --inputs 1000000 --seed 7`.

Each format's target hurts bodies of it, and reads them by its content type and by rules: each is read, or is
undecodable for a reason of its format. A reader that stumbles is a finding, as are columns that Arrow does not take.
`cbor_items` makes CBOR of any items, tags and lengths. A finding is found again by its lot:
`--seed 7 --lot 123 --inputs 10000`.
"""

import struct
import sys
from collections.abc import Callable
from functools import partial
from random import Random

import pyarrow as pa

from spark.decode.samples import UNEXPECTED, Decoder
from spark.decode.values import OK, TIME_US_MAX, Rows
from store.api.decoding import DecodeRule
from store.api.message import Message
from tests.fuzz.targets import lots
from tests.fuzz.targets.lots import Target, drawn, single_inputs

JSON = [
    b'{"temperature":21.5,"humidity":40,"on":true,"mode":"auto","gone":null}',
    b'{"value":3,"ts":"2026-11-23T02:45:00.12Z","list":[{"n":"a","v":1,"u":"Cel"},{"n":"b","v":"x","t":1700000000}]}',
    b'{"a":{"b":[1,{"c":-2.5e3}],"a.b":1e308},"at":1700000000123}',
    b"21.5",
]
SENML = [
    b'[{"bn":"urn:dev:","bt":1.276020076e9,"bu":"A","bver":5},{"n":"v","u":"V","v":120.1},{"n":"c","t":-5,"vb":true}]',
    b'[{"n":"label","vs":"x","t":-10},{"n":"e","bv":2,"bs":1,"s":5.5},{"n":"d","vd":"aGk"}]',
]
EVENTS = [
    b'{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-11-23T02:45:00Z","data":{"value":21.5}}',
    b'{"specversion":"1.0","data_base64":"eyJhIjoxfQ==","datacontenttype":"application/json"}',
    b'{"data_base64":"oWFh+U1A","datacontenttype":"application/cbor","time":1700000000}',
    b'{"data_base64":"MjEuNQ==","datacontenttype":"text/plain; charset=utf-8"}',
]
CBOR = [
    bytes.fromhex(one)
    for one in (
        *(
            "a26161fb4035800000000000616e01",
            "a20119012c02f94d40",
            "9f0102ff",
            "a16174c11a6553f100",
            "a1616dc48221196ab3",
        ),
        *(
            "c249010000000000000000",
            "a1616c83a2616e616161760163616263f5",
            "7f657374726561646d696e67ff",
            "a16161c5820118ff",
        ),
    )
]
SENML_CBOR = [
    bytes.fromhex(one) for one in ("82a32163623a20fb41d3044ca80000000061", "81a300616102182a0601", "81a2006161c48201f5")
]
PLAIN = [b" 21.5\n", b"on", b"TRUE", b'{"a":1}', b"1e308"]


def _metric(*fields: bytes) -> bytes:
    metric = b"".join(fields)
    return b"\x12" + bytes([len(metric)]) + metric


SPARKPLUG = [
    b"\x08\x80\x80\x9c\xc5\xa0\x31"
    + _metric(b"\x0a\x04temp\x10\x11\x20\x0a", b"\x69" + struct.pack("<d", 21.5))
    + _metric(b"\x10\x12\x20\x03\x50\xf9\xff\xff\xff\x0f")
    + _metric(b"\x0a\x03run\x20\x0b\x70\x01")
    + _metric(b"\x0a\x04mode\x7a\x04auto")
    + b"\x18\x01",
    _metric(b"\x0a\x04gone\x10\x07\x38\x01") + _metric(b"\x10\x07\x65\x00\x00\xc0\x7f") + _metric(b"\x10\x01\x58\x05"),
]
ANY = [
    *(b"\xf4", b"\xf5", b"\xf6", b"\xf7", b"\x05", b"\x18\xff", b"\x1b" + b"\xff" * 8, b"\x3b" + b"\xff" * 8),
    *(b"\xf9\x7e\x00", b"\xf9\x4d\x40", b"\xfb" + b"\x7f\xef" + b"\xff" * 6, b"\x61a", b"\x62bn", b"\x61n", b"\x61v"),
    *(
        b"\x61t",
        b"\x42ab",
        b"\x60",
        b"\x7f\x61a\xff",
        b"\xff",
        b"\xc2\x58\x80" + b"\xff" * 128,
        b"\x1a\x65\x53\xf1\x00",
    ),
]
TAGS = (b"\xc0", b"\xc1", b"\xc2", b"\xc3", b"\xc4", b"\xc5", b"\xd8\x20", b"\xd9\xd9\xf7")
DEPTH = 4
TELLING_TEXT = b'"{}[],:\\.u0019eE-+tfn \x00\x1f\x7f\x80\xc3\xff'
TELLING_CBOR = b"\x00\x18\x1b\x38\x40\x58\x5f\x60\x7f\x80\x82\x9f\xa1\xbf\xc2\xc4\xc5\xd8\xf4\xf5\xf6\xf9\xfb\xff"
TELLING_SPARKPLUG = b"\x00\x01\x08\x0a\x10\x12\x18\x20\x38\x50\x58\x65\x69\x70\x7a\x7f\x80\xff"
RULES = [
    (),
    (DecodeRule(time="ts", each="list", metric="n", value="v", unit="u"),),
    (DecodeRule(metrics={"x": "a.0", "y": '"a.b"', "z": "1", "w": "a.b"}, time="at", ignore=("on", "a.c")),),
]
DECODERS = [Decoder(rules) for rules in RULES]


def items(random: Random, depth: int = 0) -> bytes:
    """Returns an item of CBOR, well formed or almost."""
    kind = random.random()
    if depth > DEPTH or kind < 0.5:
        return random.choice(ANY)
    count = random.getrandbits(2)
    inner = partial(items, random, depth + 1)
    if kind < 0.65:
        return bytes([0x80 + count]) + b"".join(inner() for _ in range(count))
    if kind < 0.8:
        return bytes([0xA0 + count]) + b"".join(inner() + inner() for _ in range(count))
    if kind < 0.83:
        return b"\x9f" + inner() + b"\xff"
    return random.choice(TAGS) + (b"\x82" + inner() + inner() if random.getrandbits(1) else inner())


def pack(random: Random) -> bytes:
    """Returns a SenML pack of one record with a name, and any items at some labels."""
    labels = random.sample(b"\x01\x02\x03\x04\x05\x06\x20\x21\x22\x23\x24\x25", random.getrandbits(2))
    fields = b"".join(bytes([label]) + items(random, 3) for label in labels)
    return b"\x81" + bytes([0xA1 + len(labels)]) + b"\x00\x61a" + fields


def read(data: bytes, content_type: str | None, address: str) -> str:
    """Reads a body by each of the rules; returns the quality by the first."""
    first = ""
    for decoder in DECODERS:
        rows = decoder.read([Message(address=address, body=data, content_type=content_type, time_ms=1_700_000_000_000)])
        reason = rows.reasons[0] or ""
        assert not reason.startswith(UNEXPECTED), reason
        check(rows)
        first = first or rows.quality[0]
    return "read" if first == OK else first.replace("_", " ")


def check(rows: Rows) -> None:
    """Raises AssertionError or Arrow's error where the rows are none of the columns that the job takes."""
    columns = (rows.metrics, rows.values, rows.texts, rows.units, rows.times_us, rows.aliases)
    assert all(len(column) == rows.bounds[-1] for column in columns)
    assert all(time is None or 0 <= time <= TIME_US_MAX for time in rows.times_us)
    for column, kind in zip(
        columns, (pa.string(), pa.float64(), pa.string(), pa.string(), pa.int64(), pa.int64()), strict=True
    ):
        pa.array(column, kind)


def _target(
    draw: Callable[[Random], bytes], content_type: str | None = None, address: str = "telemetry/s/d/x"
) -> Target:
    return single_inputs(draw, lambda data: read(data, content_type, address), refusals=())


def _hurt(shapes: list[bytes], telling: bytes) -> Callable[[Random], bytes]:
    return drawn(shapes, partial(lots.hurt, telling=telling))


TARGETS: dict[str, Target] = {
    "json": _target(_hurt(JSON, TELLING_TEXT)),
    "senml": _target(_hurt(SENML, TELLING_TEXT), "application/senml+json"),
    "event": _target(_hurt(EVENTS, TELLING_TEXT), "application/cloudevents+json"),
    "plain": _target(_hurt(PLAIN, TELLING_TEXT), "text/plain"),
    "cbor": _target(_hurt(CBOR, TELLING_CBOR), "application/cbor"),
    "cbor_items": _target(items, "application/cbor"),
    "senml_cbor": _target(_hurt(SENML_CBOR, TELLING_CBOR), "application/senml+cbor"),
    "senml_cbor_items": _target(pack, "application/senml+cbor"),
    "sparkplug": _target(_hurt(SPARKPLUG, TELLING_SPARKPLUG), address="spBv1.0/g/DDATA/e/d"),
}

run = partial(lots.run, TARGETS)

if __name__ == "__main__":
    sys.exit(lots.main(TARGETS, __doc__, sys.argv[1:]))
