"""Structured events over AMQP: any body leaves as the bytes that came, or is refused."""

import json
from base64 import b64encode
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.amqp.codec.properties import read_properties
from adapters.amqp.codec.structured import body_of
from adapters.cloudevents import from_structured, to_structured
from store.api.message import Message, decode, encode

JSON = b"application/cloudevents+json"
PROPERTIES = b"\x80\x00" + bytes([len(JSON)]) + JSON
CORE = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
data = st.one_of(
    st.just({}),
    st.builds(lambda value: {"data": value}, values),
    st.builds(lambda value: {"data_base64": b64encode(value).decode()}, st.binary(max_size=8)),
    st.builds(lambda value: {"datacontenttype": "text/plain", "data": value}, st.text(max_size=8) | values),
    st.builds(lambda value: {"datacontenttype": "a/b+json", "data": value}, values),
)
bodies = st.builds(
    lambda members, spaced, ascii_: json.dumps({**CORE, **members}, indent=spaced, ensure_ascii=ascii_).encode(),
    data,
    st.none() | st.integers(0, 2),
    st.booleans(),
)


def published(body: bytes) -> Message:
    template = read_properties(PROPERTIES)
    return decode(encode(template.message("a/b", body, device="d", trusted_gateway=False, now_ms=5)))


def said(message: Message) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_structured(message))
    document.pop("headgateaddress", None)
    return document


@settings(deadline=None)
@given(bodies)
def test_an_event_leaves_as_the_bytes_that_came_and_is_the_same_event(body: bytes) -> None:
    message = published(body)
    assert body_of(message) == body
    assert said(message) == said(from_structured(body, now_ms=5, protocol="amqp", device="d"))


@settings(deadline=None)
@given(bodies, st.integers(0, 200), st.binary(max_size=3))
def test_a_body_that_is_hurt_leaves_as_it_came(body: bytes, at: int, noise: bytes) -> None:
    hurt = body[:at] + noise + body[at + 1 :]
    assert body_of(published(hurt)) == hurt
