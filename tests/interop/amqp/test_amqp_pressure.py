"""Pika against a gateway that is short of memory: publishers are told, and stored all the same."""

import contextlib

import pika
import pytest

from tests.support.amqp.pika_queues import bodies, connect, queue, until

pytestmark = pytest.mark.slow


def told(connection: pika.BlockingConnection) -> list[str]:
    """Returns the reasons why a connection was blocked; they come with time."""
    reasons: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: reasons.append(frame.method.reason))
    return reasons


def test_publishers_are_told_that_memory_is_short_and_stored_all_the_same(new_gateway):
    gateway = new_gateway(environ={"HEADGATE__GATEWAY__MEMORY_HIGH_BYTES": "1000"}).start()
    with contextlib.ExitStack() as stack:
        publisher, consumer = (stack.enter_context(connect(gateway)) for _ in range(2))
        published, consumed = told(publisher), told(consumer)
        channel, reader = publisher.channel(), consumer.channel()
        channel.confirm_delivery()
        name = queue(reader)
        sent = []

        def publish_until_told() -> bool:
            channel.basic_publish("amq.topic", name, b"%d" % len(sent))
            sent.append(b"%d" % len(sent))
            return bool(published)

        reader.queue_bind(name, "amq.topic", name)
        until(publish_until_told, publisher)
        assert published == ["low on memory"]
        channel.basic_publish("amq.topic", name, b"more")
        assert bodies(reader, name) == [*sent, b"more"]
        assert consumed == []
