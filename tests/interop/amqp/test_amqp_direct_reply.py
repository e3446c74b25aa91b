"""Pika against a whole gateway: answers without a queue that the client declares (direct reply-to)."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import connect, fresh, get, until

pytestmark = pytest.mark.slow

REPLY_TO = "amq.rabbitmq.reply-to"


def asks(channel: BlockingChannel, name: str, number: str, **options: Any) -> None:
    properties = pika.BasicProperties(reply_to=REPLY_TO, correlation_id=number, headers={"h": 1}, **options)
    channel.basic_publish("", name, b"what is " + number.encode(), properties)


def test_a_question_is_answered_to_the_channel_that_asked(shared_gateway, connection, channel):
    with connect(shared_gateway) as servers:
        server = servers.channel()
        name = fresh("rpc")
        server.queue_declare(name, auto_delete=True)
        answers: list[tuple[str, bytes]] = []
        channel.basic_consume(
            REPLY_TO, lambda _c, _m, properties, body: answers.append((properties.correlation_id, body)), auto_ack=True
        )
        asks(channel, name, "1")
        asks(channel, name, "2", message_id="m", content_type="a/b")
        for number in ("1", "2"):
            _, properties, body = get(server, name, auto_ack=True)
            assert properties.reply_to.startswith("amq.")
            assert properties.reply_to != REPLY_TO
            assert (properties.correlation_id, properties.headers) == (number, {"h": 1})
            answer = pika.BasicProperties(correlation_id=properties.correlation_id)
            server.basic_publish("", properties.reply_to, body.replace(b"what", b"this"), answer)
        assert (properties.message_id, properties.content_type) == ("m", "a/b")
        until(lambda: len(answers) == 2, connection)
        assert answers == [("1", b"this is 1"), ("2", b"this is 2")]
        server.queue_delete(name)


def test_a_client_may_ask_whether_there_is_such_a_thing(channel):
    assert channel.queue_declare(REPLY_TO, passive=True).method.queue == REPLY_TO


def test_after_a_cancel_another_consumer_may_come(channel):
    for tag in ("one", "two"):
        channel.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True, consumer_tag=tag)
        channel.basic_cancel(tag)


@pytest.mark.parametrize(
    "mistake",
    [
        lambda c: c.basic_consume(REPLY_TO, lambda *_: None),
        lambda c: [c.basic_consume(REPLY_TO, lambda *_: None, auto_ack=True) for _ in range(2)],
        lambda c: asks(c, "anybody", "1") or c.basic_qos(),
    ],
)
def test_a_mistake_closes_the_channel(channel, mistake):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        mistake(channel)
    assert info.value.reply_code == 406
