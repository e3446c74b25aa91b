"""Pika against a whole gateway: queues of the type stream, read at any offset by consumers who take nothing away."""

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import bodies, connect, count, fresh, get, until

pytestmark = pytest.mark.slow

STREAM = {"x-queue-type": "stream"}


@pytest.fixture
def stream(channel: BlockingChannel) -> Iterator[str]:
    name = fresh("stream")
    channel.queue_declare(name, durable=True, arguments=STREAM)
    yield name
    channel.connection.channel().queue_delete(name)


def publish(channel: BlockingChannel, name: str, *bodies: str, **headers: Any) -> None:
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", name, body.encode(), pika.BasicProperties(headers=headers, delivery_mode=2))


class Reader:
    """A consumer of a stream with a channel of its own."""

    def __init__(
        self, connection: pika.BlockingConnection, name: str, *, prefetch: int = 100, **arguments: Any
    ) -> None:
        self.connection, self.ack = connection, True
        self.channel = connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.found: list[tuple[int, str]] = []  # offsets and bodies
        self.tags: list[int] = []
        said = {f"x-stream-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.channel.basic_consume(name, self._deliver, arguments=said)

    def _deliver(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        assert not method.redelivered
        self.found.append((properties.headers["x-stream-offset"], body.decode()))
        self.tags.append(method.delivery_tag)
        if self.ack:
            channel.basic_ack(method.delivery_tag)

    def has(self, count: int) -> list[str]:
        until(lambda: len(self.found) >= count, self.connection)
        return [body for _, body in self.found]


def test_every_consumer_gets_everything_from_where_it_begins(connection, channel, stream):
    publish(channel, stream, "a", "b", "c")
    assert count(channel, stream) == 3
    first, again = Reader(connection, stream, offset="first"), Reader(connection, stream, offset=1)
    following, last = Reader(connection, stream), Reader(connection, stream, offset="last")
    publish(channel, stream, "d")
    assert first.has(4) == ["a", "b", "c", "d"]
    assert [offset for offset, _ in first.found] == [0, 1, 2, 3]
    assert again.has(3) == ["b", "c", "d"]
    assert following.has(1) == ["d"]
    assert last.has(1)[-1] in {"c", "d"}
    assert count(channel, stream) == 4


def test_a_consumer_begins_at_a_time(connection, channel, stream):
    publish(channel, stream, "old")
    time.sleep(2.1)  # timestamps are seconds: what is new is to be another second's
    now = datetime.datetime.now(tz=datetime.UTC).replace(microsecond=0, tzinfo=None)
    publish(channel, stream, "new")
    assert Reader(connection, stream, offset="1h").has(2) == ["old", "new"]
    later = Reader(connection, stream, offset=now)
    assert later.has(1)[-1] == "new"


def test_a_consumer_gets_as_much_as_it_can_take(connection, channel, stream):
    publish(channel, stream, *"abcde")
    reader = Reader(connection, stream, prefetch=2, offset="first")
    reader.ack = False
    reader.has(2)
    connection.process_data_events(0.2)
    assert reader.has(2) == ["a", "b"]
    reader.channel.basic_nack(reader.tags[0], requeue=True)  # as an acknowledgement: nothing comes again
    reader.channel.basic_ack(reader.tags[1])
    assert reader.has(4) == ["a", "b", "c", "d"]


def test_consumers_filter_by_a_header(connection, channel, stream):
    publish(channel, stream, "1", "2", **{"x-stream-filter-value": "a"})
    publish(channel, stream, "3", **{"x-stream-filter-value": "b"})
    publish(channel, stream, "4")
    publish(channel, stream, "5", **{"x-stream-filter-value": "a"})
    assert Reader(connection, stream, offset="first", filter="a", prefetch=1).has(3) == ["1", "2", "5"]
    assert Reader(connection, stream, offset="first", filter=["b", "c"], match_unfiltered=True).has(2) == ["3", "4"]


def test_what_other_protocols_publish_is_in_a_stream(connection, channel, stream):
    channel.queue_bind(stream, "amq.topic", f"{stream}.#")
    channel.basic_publish("amq.topic", f"{stream}.a", b"x")
    assert Reader(connection, stream, offset="first").has(1) == ["x"]


def test_a_transaction_may_acknowledge_what_a_stream_has(connection, channel, stream):
    publish(channel, stream, "a")
    reader = Reader(connection, stream, offset="first")
    reader.ack = False
    reader.channel.tx_select()
    reader.has(1)
    reader.channel.basic_ack(reader.tags[0])
    reader.channel.basic_publish("", stream, b"b")
    reader.channel.tx_commit()
    assert reader.has(2) == ["a", "b"]


@pytest.mark.parametrize(
    "options",
    [
        {"durable": False},
        {"durable": True, "exclusive": True},
        {"durable": True, "auto_delete": True},
        {"durable": True, "arguments": {"x-max-age": "5"}},
        {"durable": True, "arguments": {"x-max-age": "1W"}},
        {"durable": True, "arguments": {"x-max-length": 5}},
        {"durable": True, "arguments": {"x-message-ttl": 5}},
        {"durable": True, "arguments": {"x-max-priority": 5}},
        {"durable": True, "arguments": {"x-max-length-bytes": -1}},
    ],
)
def test_what_a_stream_cannot_be(channel, options):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare(fresh("stream"), **{**options, "arguments": {**STREAM, **options.get("arguments", {})}})
    assert closed.value.reply_code == 406


@pytest.mark.parametrize("arguments", [{"x-max-age": "7D"}, {"x-max-length-bytes": 1 << 30, "x-max-age": "1Y"}])
def test_how_long_a_stream_keeps_messages(channel, arguments):
    name = fresh("stream")
    for _ in range(2):
        channel.queue_declare(name, durable=True, arguments={**STREAM, **arguments})
    channel.queue_delete(name)


@pytest.mark.parametrize("offset", ["soon", "1x", -1, True, ["first"]])
def test_where_no_consumer_can_begin(connection, stream, offset):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        Reader(connection, stream, offset=offset)
    assert closed.value.reply_code == 406


def test_a_consumer_of_a_stream_says_how_much_it_can_take(connection, stream):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        Reader(connection, stream, prefetch=0)
    assert closed.value.reply_code == 406


@pytest.mark.parametrize(
    "what",
    [
        lambda channel, name: channel.basic_get(name),
        lambda channel, name: channel.queue_purge(name),
        lambda channel, name: (channel.basic_qos(prefetch_count=1), channel.basic_consume(name, print, auto_ack=True)),
    ],
)
def test_what_streams_have_not(connection, channel, stream, what):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        what(channel, stream)
    assert closed.value.reply_code == 406


def test_only_streams_are_read_at_an_offset(connection, channel):
    name = channel.queue_declare("", exclusive=True).method.queue
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        Reader(connection, name, offset="first")
    assert closed.value.reply_code == 406


def test_a_kill_amid_consumption_keeps_streams_and_the_order_of_priorities(new_gateway):
    gateway = new_gateway().start()
    numbers = range(40)
    with connect(gateway) as connection:
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments={**STREAM, "x-max-age": "1h"})
        publish(channel, "s", *map(str, numbers))
        channel.queue_declare("p", durable=True, arguments={"x-max-priority": 3})
        for number in numbers:
            said = pika.BasicProperties(priority=number % 4, delivery_mode=2)
            channel.basic_publish("", "p", b"%d" % number, said)
        reader = Reader(connection, "s", offset="first", prefetch=7)
        reader.has(20)
        taking = connection.channel()
        taking.tx_select()
        done = [get(taking, "p") for _ in range(15)]
        taking.basic_ack(done[-1][0].delivery_tag, multiple=True)
        taking.tx_commit()  # says that it is on disk
        for _ in range(5):
            get(taking, "p")  # held, and not acknowledged
        gateway.kill()
    gateway.start()
    most_urgent_first = sorted(numbers, key=lambda number: (-(number % 4), number))
    with connect(gateway) as connection:
        channel = connection.channel()
        publish(channel, "s", "more")
        assert [int(body) for *_, body in done] == most_urgent_first[:15]
        assert [int(body) for body in bodies(channel, "p")] == most_urgent_first[15:]
        again = Reader(connection, "s", offset=20)
        assert again.has(21) == [*map(str, numbers[20:]), "more"]
        assert [offset for offset, _ in again.found] == list(range(20, 41))
        assert Reader(connection, "s", offset="first").has(41)[:40] == [*map(str, numbers)]
