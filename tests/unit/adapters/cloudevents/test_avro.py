"""The Avro format, against fastavro and the schema of the specification, and whatever else may come."""

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.cloudevents import attributes_of, from_avro, from_structured, to_avro, to_structured
from gateway.domain.errors import Refusal
from store.api.message import Message
from tests.support.http.avro_events import heard, written
from tests.support.process.examples import examples

CORE = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def read(wire: bytes) -> Message:
    return from_avro(wire, now_ms=5, protocol="http", device="d")


def long(value: int) -> bytes:
    made, value = b"", (value << 1) ^ (value >> 63)
    while value > 0x7F:
        made, value = made + bytes([value & 0x7F | 0x80]), value >> 7
    return made + bytes([value])


def text(value: bytes) -> bytes:
    return long(len(value)) + value


HEAD = long(4) + b"".join(text(name.encode()) + long(3) + text(said.encode()) for name, said in CORE.items()) + long(0)


def test_an_event_byte_by_byte() -> None:
    message = read(HEAD + long(0) + text(b"\0\1"))
    assert (message.id, message.type, message.body, message.address) == ("1", "t", b"\0\1", "events/t")
    assert read(to_avro(message)) == message


NESTED = {"value": {"a": None, "b": True, "c": {"d": {"value": {"e": 1.5}}}, "f": [{"value": {"g": "h"}}]}}


@pytest.mark.parametrize(
    ("data", "content_type", "body"),
    [
        (b"\0\xff", None, b"\0\xff"),
        (b'{"a":1}', "application/json", b'{"a":1}'),
        (None, None, b""),
        (True, None, b"true"),
        (21.5, None, b"21.5"),
        (3.0, "application/json", b"3"),
        ("text", None, b"text"),
        ("text", "text/plain", b"text"),
        ("text", "application/json", b'"text"'),
        ({"a": None, "b": 1.0, "c": "x", "d": False}, None, b'{"a":null,"b":1,"c":"x","d":false}'),
        ({"n": NESTED}, None, b'{"n":{"a":null,"b":true,"c":{"d":{"e":1.5}},"f":[{"g":"h"}]}}'),
        ([{"value": {"a": 1.0}}], None, b'[{"a":1}]'),
    ],
)
def test_data_of_every_type(data: Any, content_type: str | None, body: bytes) -> None:
    said = CORE if content_type is None else {**CORE, "datacontenttype": content_type}
    message = read(written(said, data))
    assert (message.body, message.content_type) == (body, content_type)
    again = read(to_avro(message))
    assert again.body == body
    document = msgspec.json.decode(to_structured(message))
    if content_type is None and body and not isinstance(data, bytes):
        assert document["data"] == (data if isinstance(data, str) else msgspec.json.decode(body))


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain"])
@pytest.mark.parametrize("data", [b"", b"\xff", "text", "5", "", None])
def test_data_leaves_as_the_type_that_it_came_as(data: bytes | str | None, content_type: str | None) -> None:
    said = CORE if content_type is None else {**CORE, "datacontenttype": content_type}
    found = heard(to_avro(read(written(said, data))))
    json_text = isinstance(data, str) and content_type == "application/json"  # not all JSON can be a value of Avro
    assert found == {"attribute": said, "data": msgspec.json.encode(data) if json_text else data}


def test_attributes_keep_their_types() -> None:
    said = {
        **CORE,
        "subject": "a/b",
        "time": "2026-01-02T03:04:05.5Z",
        "flag": True,
        "number": -7,
        "bin": b"\1",
        "no": None,
    }
    message = read(written(said, b"x"))
    attributes = attributes_of(message)
    assert attributes is not None
    assert (attributes["time"], message.address, attributes["bin"]) == (said["time"], "a/b", "AQ==")
    found = heard(to_avro(message))
    assert found["data"] == b"x"
    assert found["attribute"] == {**{name: value for name, value in said.items() if name != "no"}, "bin": "AQ=="}


@pytest.mark.parametrize(
    "body",
    [
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":[1,2]},"ext":1}',
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/plain","data":"\xc3\xa9"}',
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"AAE="}',
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}',
    ],
)
def test_an_event_in_json_leaves_in_avro(body: bytes) -> None:
    message = from_structured(body, now_ms=5, protocol="http", device="d")
    found = heard(to_avro(message))
    assert found["attribute"]["id"] == "1"
    data = found["data"]
    assert (data or b"" if not isinstance(data, str) else data.encode()) == message.body


DEEP = long(3) + (long(1) + text(b"a") + long(2)) + (long(1) + text(b"v") + long(2) + long(1) + text(b"w")) * 40


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        HEAD,
        HEAD + long(0),
        HEAD + long(7),
        HEAD + long(-1),
        HEAD + long(0) + text(b"x") + b"\0",
        HEAD + long(0) + long(-1),
        HEAD + long(2) + b"\2",
        HEAD + long(5) + struct.pack("<d", float("nan")),
        HEAD + long(6) + text(b"\xff"),
        HEAD + DEEP,
        HEAD + long(4) + long(200_000) + bytes(200_000) + long(0),
        b"\xff" * 11,
        long(1) + text(b"id") + long(9),
        long(0) + long(1),
        HEAD[:-1] + long(1) + text(b"number") + long(2) + long(1 << 31) + long(0) + long(1),
        long(1) + text(b"time") + long(1) + b"\1" + long(0) + long(1),
    ],
)
def test_what_is_no_event_is_refused(wire: bytes) -> None:
    with pytest.raises(Refusal):
        read(wire)


def test_blocks_may_say_their_size() -> None:
    parts = [text(name.encode()) + long(3) + text(said.encode()) for name, said in CORE.items()]
    blocks = b"".join(long(-1) + long(len(part)) + part for part in parts)
    assert read(blocks + long(0) + long(1)).id == "1"


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(HEAD) + 8))
@example(b"", 0)
def test_whatever_comes_is_read_or_refused(noise: bytes, at: int) -> None:
    for good in (HEAD + long(0) + text(b"body"), HEAD + long(3) + long(1) + text(b"a") + long(3) + bytes(8) + long(0)):
        for one in (noise, good[:at] + noise, good[:at] + noise + good[at:]):
            try:
                message = read(one)
            except Refusal:
                continue
            assert read(to_avro(message)).id == message.id
            msgspec.msgpack.encode(message)
