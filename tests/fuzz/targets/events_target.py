"""Fuzz targets of events and conditions: `python -m tests.fuzz.targets.events_target --inputs 1000000 --seed 7`.

`json`, `protobuf`, `avro` and `attributes` take one event an input: what is read is written again in its format and
read as the same message, or it is refused. `batch` takes a JSON batch, which the one loop for plain events has to read
as event by event; `bulk` a Protobuf batch. `expression` compiles conditions of SQL92 and CESQL and evaluates them. A
finding is found again by its lot: `--seed 7 --lot 123 --inputs 10000`.
"""

import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from adapters.cloudevents import (
    attributes_of,
    each_of_batch,
    each_of_protobuf_batch,
    from_attributes,
    from_avro,
    from_batch,
    from_protobuf,
    from_structured,
    to_avro,
    to_protobuf,
    to_protobuf_batch,
    to_structured,
    whole_batch,
)
from gateway.domain.cesql.expression import compile_expression
from gateway.domain.errors import Refusal
from gateway.domain.sql92 import compile_where
from store.api.message import Message
from tests.fuzz.targets import lots
from tests.fuzz.targets.lots import Target, drawn, single_inputs

NOW: dict[str, Any] = {"now_ms": 5, "protocol": "http", "device": "d"}
JSON = [
    b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"value":21.5}}',
    b'{"specversion":"1.0","id":"1","source":"/s","type":"t","subject":"a/b","time":"2026-11-23T02:45:00.12Z",'
    b'"datacontenttype":"text/plain","data":"text \\u00e9"}',
    b'{"specversion":"1.0","id":"1","source":"//h/s","type":"t","data_base64":"aGk=","datacontenttype":"image/png"}',
    b'{"specversion":"1.0","id":"1","source":"/s","type":"t","dataschema":"http://s/","partitionkey":"k","n":5,"b":true,'
    b'"expirytime":"2027-01-01T00:00:00+01:00","traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
    b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":null,"replyto":"a/b","correlationid":"c"}',
]
TELLING_JSON = b'"{}[],:\\u0019eE.-+tfn /\x00\x1f\x7f\x80\xc3\xe9\xff'
TELLING = b"\x00\x01\x02\x07\x08\x0a\x12\x2a\x7f\x80\xfe\xff/\xc3"
SHAPES = [from_structured(one, **NOW) for one in JSON]
BATCHES = [b"[" + b",".join(JSON[:n]) + b"]" for n in (1, 2, 5)]
BATCHES.append(b"[" + b",".join([JSON[0], JSON[0].replace(b'"/s"', b'"/u"')] * 2) + b"]")
PROTOBUF = [to_protobuf(one) for one in SHAPES]
AVRO = [to_avro(one) for one in SHAPES]
BULKS = [to_protobuf_batch(SHAPES[:n]) for n in (1, 2, 5)]
ATTRIBUTES = [{**found} for one in SHAPES if (found := attributes_of(one)) is not None]
_VALUES = (
    "",
    " ",
    "1.0",
    "0.3",
    "a/b",
    "a//b",
    "+",
    "#",
    "\x00",
    "\ud800",
    "\ufffe",
    "é",
    "2026-02-30T00:00:00Z",
    "9999-12-31T23:59:60Z",
    "0001-01-01T00:00:00+14:00",
    "2026-11-23T02:45:00." + "9" * 30 + "Z",
    "9" * 40,
    "k" * 2_000,
)
_NAMES = ("id", "source", "type", "subject", "time", "specversion", "datacontenttype", "expirytime", "n" * 30, "A", "x")
_SAMPLES = (
    "a = 1 AND b <> 'x' OR NOT ( n IN ( 1 , 2 ) )",
    "type LIKE 'com.%' ESCAPE '_' XOR subject = source",
    "n BETWEEN 1 AND 5 OR properties.a IS NOT NULL",
    "ABS ( n ) > 2.5 AND SUBSTRING ( id , 1 , 2 ) = 'it''s'",
    'EXISTS subject AND UPPER ( LEFT ( type , 3 ) ) != "b" AND NOT FALSE',
    "- n + 9223372036854775808 * 7 / 0 % 3 <= size_bytes",
    "INT ( 'x' ) >= LENGTH ( CONCAT ( a , b ) ) AND BOOL ( TRUE ) AND STRING ( 1 ) = '%'",
)
_WORDS = [*" ".join(_SAMPLES).split(), "(", ")", "'", '"', ",", ".", "\\", "\0", "é", "NULL", "1e9", '"x y"', "--"]
_EVENT = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "n": 5, "b": True, "subject": "x"}
_MESSAGE = replace(SHAPES[3], properties=(("a", "1"), ("x y", "2"), ("b", "z")))
hurt_json = partial(lots.hurt, telling=TELLING_JSON)
hurt = partial(lots.hurt, telling=TELLING)


def _events(
    shapes: list[bytes],
    read: Callable[[bytes], Message],
    write: Callable[[Message], bytes],
    bend: Callable[[bytes, Random], bytes],
    *,
    forms: bool = True,
) -> Target:
    """Returns the target of a format of single events; without `forms` it writes JSON as bytes, which are read so."""

    def check(data: bytes) -> str:
        message = read(data)
        again = read(write(message))
        if not forms and again != message:
            assert attributes_of(again) == attributes_of(message), message
            again = replace(again, native=message.native)
        assert again == message, message
        return "parsed"

    return single_inputs(drawn(shapes, bend), check, refusals=Refusal)


def _batch_of(read: Callable[[], list[Message]]) -> Any:
    try:
        return read()
    except Refusal as refusal:
        return str(refusal), getattr(refusal, "refused", {}).keys()


def _batch(data: bytes) -> str:
    """Compares the two readers of JSON batches."""
    found = _batch_of(lambda: from_batch(data, **NOW))
    each = _batch_of(lambda: whole_batch(each_of_batch(data, None, trusted_gateway=False, **NOW)))
    assert each == found
    return "parsed" if isinstance(found, list) else "refused"


def _bulk(data: bytes) -> str:
    found = list(each_of_protobuf_batch(data, None, trusted_gateway=bool(len(data) & 1), **NOW))
    assert all(isinstance(one, Message | Refusal) for one in found)
    return "parsed"


def _draw_attributes(random: Random) -> dict[str, str]:
    given = dict(ATTRIBUTES[random.getrandbits(16) % len(ATTRIBUTES)])
    for _ in range(1 + random.getrandbits(1)):
        name = random.choice(_NAMES)
        if random.getrandbits(2):
            given[name] = random.choice(_VALUES)
        else:
            given.pop(name, None)
    return given


def _attributes(given: dict[str, str]) -> str:
    """Reads what bindings hand over of binary mode."""
    message = from_attributes(given, b"x", content_type=None, **NOW)
    to_structured(message)
    again = attributes_of(message)
    assert again is not None
    assert from_attributes(again, b"x", content_type=message.content_type, **NOW) == message, message
    return "parsed"


def _draw_expression(random: Random) -> tuple[bool, str]:
    """Returns a condition, and whether it is one of SQL92."""
    words = random.choice(_SAMPLES).split()
    for _ in range(random.getrandbits(2)):
        at, end = random.randrange(len(words) + 1), random.getrandbits(1)
        words[at : at + end] = random.choices(_WORDS, k=random.getrandbits(1))
    text = (" " if random.getrandbits(2) else "").join(words)
    if not random.getrandbits(8):
        text = random.choice(("(", "NOT ", "- ", "a=", "ABS(", "'")) * (1 << random.getrandbits(4))
    return bool(random.getrandbits(1)), text


def _expression(given: tuple[bool, str]) -> str:
    sql92, text = given
    if sql92:
        compile_where(text).matches(_MESSAGE)
    else:
        compile_expression(text).passes(_EVENT)
    return "compiled"


TARGETS: dict[str, Target] = {
    "json": _events(JSON, lambda data: from_structured(data, **NOW), to_structured, hurt_json),
    "protobuf": _events(PROTOBUF, lambda data: from_protobuf(data, **NOW), to_protobuf, hurt),
    "avro": _events(AVRO, lambda data: from_avro(data, **NOW), to_avro, hurt, forms=False),
    "attributes": single_inputs(_draw_attributes, _attributes, refusals=Refusal, shown=ascii),
    "batch": single_inputs(drawn(BATCHES, hurt_json), _batch, refusals=()),
    "bulk": single_inputs(drawn(BULKS, hurt), _bulk, refusals=Refusal),
    "expression": single_inputs(_draw_expression, _expression, refusals=Refusal, shown=ascii),
}

run = partial(lots.run, TARGETS)

if __name__ == "__main__":
    sys.exit(lots.main(TARGETS, __doc__, sys.argv[1:]))
