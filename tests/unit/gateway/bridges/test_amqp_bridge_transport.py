"""The reader that aio-pika gets its bytes from: bounded, and with the properties of messages as they came."""

import asyncio
import struct

import pytest
from aiormq.exceptions import AMQPConnectionError
from pamqp.frame import unmarshal
from pamqp.header import ContentHeader

from gateway.bridges.amqp.transport import CONTENT_COST_BYTES, FRAME_BYTES_MAX, ContentReader

pytestmark = pytest.mark.anyio

# flags: timestamp; a time that no date can say
ODD = (1 << 6).to_bytes(2, "big") + (1 << 62).to_bytes(8, "big")


def frame(kind, payload, channel=1):
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def content(body_size, properties=b"\0\0", channel=1):
    return frame(2, struct.pack(">HHQ", 60, 0, body_size) + properties, channel)


def reader(data, *, held_bytes_max=10_000, message_bytes_max=100):
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    return stream, ContentReader(stream, held_bytes_max=held_bytes_max, message_bytes_max=message_bytes_max)


async def next_frame(one):
    """Returns the next frame, read as aio-pika reads it."""
    head = await one.readexactly(1) + await one.readexactly(6)
    (size,) = struct.unpack_from(">I", head, 3)
    return unmarshal(head + await one.readexactly(size + 1))[2]


async def test_properties_come_as_the_bytes_they_are():
    _, one = reader(content(3, ODD) + frame(3, b"abc") + frame(8, b"", 0))
    header = await next_frame(one)
    assert isinstance(header, ContentHeader)
    assert header.body_size == 3
    assert one.take(header.properties.app_id).properties == ODD
    assert (await next_frame(one)).value == b"abc"
    assert (await next_frame(one)).name == "Heartbeat"


async def test_a_body_that_is_too_large_is_passed_over_as_it_comes():
    data = content(150) + frame(3, b"x" * 100) + frame(8, b"", 0) + frame(3, b"x" * 50) + content(1) + frame(3, b"y")
    _, one = reader(data)
    header = await next_frame(one)
    taken = one.take(header.properties.app_id)
    assert (header.body_size, taken.passed_over) == (0, True)
    assert (await next_frame(one)).name == "Heartbeat"
    header = await next_frame(one)
    assert (header.body_size, one.take(header.properties.app_id).passed_over) == (1, False)
    assert (await next_frame(one)).value == b"y"


async def test_beyond_the_limit_nothing_is_read_before_messages_are_released():
    stream, one = reader(content(90) + frame(3, b"x" * 90) + content(1), held_bytes_max=CONTENT_COST_BYTES)
    header = await next_frame(one)
    assert len((await next_frame(one)).value) == 90  # a message that was announced is read to its end
    waiting = asyncio.ensure_future(next_frame(one))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    one.release(one.take(header.properties.app_id).size_bytes)
    assert one.held_bytes == 0
    assert (await waiting).body_size == 1
    stream.feed_eof()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">BHI", 3, 1, FRAME_BYTES_MAX + 1),
        frame(2, b"\0\x3c"),
    ],
)
async def test_what_is_no_frame_ends_the_connection(data):
    _, one = reader(data)
    with pytest.raises(AMQPConnectionError):
        await next_frame(one)


async def test_an_upstream_that_ends_is_at_its_end():
    stream, one = reader(b"")
    stream.feed_eof()
    assert one.at_eof()
    with pytest.raises(asyncio.IncompleteReadError):
        await one.readexactly(1)
