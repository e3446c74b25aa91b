"""The Protobuf format, against bytes that the official implementation has written, and whatever else may come."""

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.cloudevents import (
    attributes_of,
    each_of_protobuf_batch,
    from_attributes,
    from_protobuf,
    to_protobuf,
    to_protobuf_batch,
    to_structured,
)
from gateway.domain.errors import Refusal
from store.api.message import Message
from tests.support.process.examples import examples

# Written by the library protobuf from cloudevents.proto: the bytes and the body in Base64, and what they say.
GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).resolve().parent / "protobuf.json").read_text("utf-8"))


def read(wire: bytes) -> Message:
    return from_protobuf(wire, now_ms=5, protocol="http", device="d")


@pytest.mark.parametrize("one", GOLDEN, ids=range(len(GOLDEN)))
def test_what_the_official_implementation_writes_is_read_and_written_again(one: dict[str, Any]) -> None:
    message, said = read(b64decode(one["wire"])), one["said"]
    attributes = attributes_of(message)
    assert attributes is not None
    assert message.native is not None
    typed = message.native["cloudevents"].get("typed", {})
    for name, value in said.items():
        if name == "time_ms":
            assert message.time_ms == value
        elif name == "datacontenttype":
            assert message.content_type == value
        elif isinstance(value, bool | int):
            assert typed[name] is value or typed[name] == value
        else:
            assert attributes[name] == value
    assert message.body == b64decode(one["body"])
    again = read(to_protobuf(message))
    assert again == message


@pytest.mark.parametrize("number", [6, 7])
@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain", "image/png"])
@pytest.mark.parametrize("body", [b"", b"5"])
def test_data_keeps_its_kind(number: int, content_type: str | None, body: bytes) -> None:
    came = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    wire = to_protobuf(from_attributes(came, b"", content_type=content_type, now_ms=5, protocol="http", device="d"))
    data = bytes([number << 3 | 2, len(body)]) + body
    message = read(wire + data)
    assert message.body == body
    assert data in to_protobuf(message)
    document = json.loads(to_structured(message))
    if not body:
        assert document["data" if number == 7 else "data_base64"] == ""
    elif content_type in {None, "application/json"}:
        assert document["data"] == 5
    else:
        assert document["data" if number == 7 else "data_base64"] == ("5" if number == 7 else "NQ==")


@pytest.mark.parametrize(
    "time", ["2026-11-23T02:45:00.120004096Z", "2026-11-23T02:45:00.123456Z", "1969-12-31T23:59:59.000000001Z"]
)
def test_a_time_keeps_its_nanoseconds(time: str) -> None:
    """Clocks of Go and Java say them, and an event leaves as it came."""
    came = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "time": time}
    message = from_attributes(came, b"", content_type=None, now_ms=5, protocol="http", device="d")
    said = attributes_of(read(to_protobuf(message)))
    assert said is not None
    assert said["time"] == time


def test_a_batch_names_the_event_that_is_none() -> None:
    good = read(b64decode(GOLDEN[0]["wire"]))
    batch = to_protobuf_batch([good, good])
    found = list(each_of_protobuf_batch(batch, None, now_ms=5, trusted_gateway=False, protocol="http", device="d"))
    assert found == [good, good]
    bad = batch + b"\x0a\x02\x0a\x00"
    *_, last = each_of_protobuf_batch(bad, None, now_ms=5, trusted_gateway=False, protocol="http", device="d")
    assert isinstance(last, Refusal)


@pytest.mark.parametrize(
    "wire",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x00\x00",
        b"\x0b",
        b"\x0a\x01\xff",
        b"\x2a\x00",
        b"\x2a\x0c\x0a\x04time\x12\x04\x3a\x02\x10\xff",
        b"",
    ],
)
def test_what_is_no_event_is_refused(wire: bytes) -> None:
    with pytest.raises(Refusal):
        read(wire)


def test_a_required_attribute_is_not_said_a_second_time_among_the_others() -> None:
    wire = b64decode(GOLDEN[0]["wire"])
    with pytest.raises(Refusal, match=r"^id: "):
        read(wire + b"\x2a\x09\x0a\x02id\x12\x03\x1a\x01x")


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(GOLDEN) - 1), st.data())
def test_whatever_comes_is_read_or_refused(noise: bytes, which: int, data: st.DataObject) -> None:
    wire = b64decode(GOLDEN[which]["wire"])
    at = data.draw(st.integers(0, len(wire)))
    for one in (noise, wire[:at] + noise, wire[:at] + noise + wire[at:]):
        try:
            message = read(one)
        except Refusal:
            continue
        assert read(to_protobuf(message)).id == message.id
        msgspec.msgpack.encode(message)
