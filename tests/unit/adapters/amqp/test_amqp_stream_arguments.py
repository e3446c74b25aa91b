"""Consumers of streams: what their arguments say, and the header that says where a message lies."""

import datetime

import msgspec
import pytest
from pamqp.commands import Basic, Channel

from adapters.amqp.codec.properties import properties_of
from adapters.amqp.codec.property_fields import read_fields
from gateway.port.queues import ADDED, PROPERTIES, STORED
from gateway.port.streams import StreamRead
from store.api.message import Message
from tests.support.amqp.amqp_peer import Peer


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, None),
        ({"x-stream-offset": "first"}, StreamRead(place="first")),
        ({"x-stream-offset": "last"}, StreamRead(place="last")),
        ({"x-stream-offset": 5}, StreamRead(place="offset", value=5)),
        ({"x-stream-offset": "10m"}, StreamRead(place="ago", value=600_000)),
        (
            {"x-stream-offset": datetime.datetime.fromtimestamp(1_700_000_000, tz=datetime.UTC)},
            StreamRead(place="time", value=1_700_000_000_000),
        ),
        ({"x-stream-filter": "a"}, StreamRead(wanted=("a",))),
        (
            {"x-stream-filter": ["a", "b"], "x-stream-match-unfiltered": True},
            StreamRead(wanted=("a", "b"), unfiltered=True),
        ),
    ],
)
def test_consumers_of_streams_say_where_they_begin(said, meant):
    peer = Peer().open()
    peer.send(Basic.Qos(prefetch_count=5), channel=1)
    (effect,) = peer.send(Basic.Consume(queue="q", arguments=said), channel=1)
    assert (effect.stream, effect.limited, effect.credit) == (meant, True, 5)


@pytest.mark.parametrize("filter_", [5, [1], {"a": "b"}, ["x"] * 1_001])
def test_filters_that_are_none(filter_):
    peer = Peer().open(frame_max=131_072)
    peer.send(Basic.Consume(queue="q", arguments={"x-stream-filter": filter_}), channel=1)
    assert peer.one(Channel.Close).reply_code == 406


@pytest.mark.parametrize(
    "native",
    [
        None,
        {"mqtt": {"a": 1}},
        {"amqp": {"properties": b"\x20\x00\x00\x00\x00\x08\x01ht\x01\x01at\x00", "a": 1}},
    ],
)
def test_messages_of_a_stream_have_their_offset_in_a_header(native):
    before = Message("a/b", b"x", native=native, content_type="text/plain")
    own = {PROPERTIES: b"", ADDED: {"x-stream-offset": 77}, STORED: (native or {}).get("amqp")}
    raw = properties_of(msgspec.structs.replace(before, native={**(native or {}), "amqp": own}), now_ms=0)
    wanted = read_fields(properties_of(before, now_ms=0))
    wanted["headers"] = {"x-stream-offset": 77, **(wanted.get("headers") or {})}
    assert read_fields(raw) == wanted
