"""Pika against a whole gateway: queues with priorities behave as RabbitMQ's classic queues."""

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import bodies, connect, count, deaths, fresh, get, queue, until

pytestmark = pytest.mark.slow


def publish(channel: BlockingChannel, name: str, *priorities: int | None, **properties: Any) -> None:
    """Publishes messages that are named by their number and have these priorities."""
    for number, priority in enumerate(priorities):
        said = pika.BasicProperties(priority=priority, **properties)
        channel.basic_publish("", name, b"%d" % number, said)


def test_higher_priorities_come_first_and_equal_ones_in_order(channel):
    name = queue(channel, max_priority=5)
    publish(channel, name, 1, None, 5, 3, 9, 1, 0, 255, 3)
    assert count(channel, name) == 9
    assert b"".join(bodies(channel, name)) == b"247380516"


def test_without_the_argument_priorities_mean_nothing(channel):
    name = queue(channel)
    publish(channel, name, 1, None, 5)
    assert bodies(channel, name) == [b"0", b"1", b"2"]


def test_what_is_given_back_returns_to_its_place(channel):
    name = queue(channel, max_priority=3)
    publish(channel, name, 1, 1, 3, 3)
    tags = [get(channel, name)[0].delivery_tag for _ in range(3)]
    assert count(channel, name) == 1
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    found = []
    for _ in range(4):
        method, properties, body = get(channel, name)
        found.append((body, method.redelivered, properties.priority))
    assert found == [(b"2", True, 3), (b"3", True, 3), (b"0", True, 1), (b"1", False, 1)]
    channel.basic_ack(0, multiple=True)
    assert count(channel, name) == 0


def test_a_consumer_gets_what_is_most_urgent_of_what_waits(shared_gateway, connection, channel):
    name = queue(channel, max_priority=10)
    channel.basic_qos(prefetch_count=1)
    publish(channel, name, 1, 5, 2)
    found: list[bytes] = []

    def deliver(_channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        found.append(body)
        if len(found) == 2:
            publish(publisher, name, *[1, 7])  # b"0" and b"1": the second is more urgent than what waits
        channel.basic_ack(method.delivery_tag)

    with connect(shared_gateway) as other:
        publisher = other.channel()
        publisher.confirm_delivery()  # so that both are stored before the acknowledgement asks for the next
        channel.basic_consume(name, deliver)
        until(lambda: len(found) == 5, connection)
    assert found[0] == b"1"
    assert found.index(b"1", 1) < 4  # prefetched at the most is one other
    assert sorted(found) == [b"0", b"0", b"1", b"1", b"2"]


@pytest.mark.parametrize("limit", [{"max_length": 2}, {"max_length_bytes": 2}])
def test_a_queue_that_is_too_long_drops_from_its_head_what_is_most_urgent(channel, limit):
    dead = queue(channel)
    name = queue(channel, max_priority=3, dead_letter_exchange="", dead_letter_routing_key=dead, **limit)
    publish(channel, name, 1, 3, 0, 2)
    gone = [get(channel, dead, auto_ack=True) for _ in range(2)]
    assert [body for *_, body in gone] == [b"1", b"3"]
    assert deaths(gone[0][1])[0][1] == "maxlen"
    assert bodies(channel, name) == [b"0", b"2"]


def test_a_full_queue_refuses_whatever_the_priority(channel):
    name = queue(channel, max_priority=3, max_length=2, overflow="reject-publish")
    channel.confirm_delivery()
    publish(channel, name, 0, 1)
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, name, 3)
    assert bodies(channel, name) == [b"1", b"0"]


def test_purging_and_deleting_count_all_priorities(channel):
    name = queue(channel, fresh("q" * 200), max_priority=200)
    publish(channel, name, 0, 100, 255)
    assert channel.queue_purge(name).method.message_count == 3
    publish(channel, name, 0, 7)
    assert channel.queue_delete(name).method.message_count == 2


def test_rejected_messages_are_dead_letters(channel):
    dead = queue(channel, max_priority=3)
    name = queue(channel, max_priority=3, dead_letter_exchange="", dead_letter_routing_key=dead)
    publish(channel, name, 0, 3, 1)
    tags = [get(channel, name)[0].delivery_tag for _ in range(3)]
    channel.basic_nack(tags[-1], multiple=True, requeue=False)
    until(lambda: count(channel, dead) == 3)
    assert bodies(channel, dead) == [b"1", b"2", b"0"]


def test_what_expires_leaves_its_queue(channel):
    name = queue(channel, max_priority=3, message_ttl=50)
    publish(channel, name, 0, 3, 1)
    until(lambda: count(channel, name) == 0)


def test_a_transaction_settles_messages_of_several_priorities(channel):
    name = queue(channel, max_priority=3)
    publish(channel, name, 0, 3)
    channel.tx_select()
    tags = [get(channel, name)[0].delivery_tag for _ in range(2)]
    channel.basic_ack(tags[-1], multiple=True)
    publish(channel, name, 1)
    channel.tx_commit()
    channel.tx_rollback()
    channel.close()
    again = channel.connection.channel()
    assert bodies(again, name) == [b"0"]


@pytest.mark.parametrize("value", [-1, 256, "5", None])
def test_what_is_no_greatest_priority_is_refused(channel, value):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        queue(channel, max_priority=value)
    assert closed.value.reply_code == 406


def test_it_cannot_be_declared_again_with_another_one(channel):
    name = queue(channel, fresh("q"), max_priority=5)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare(name, exclusive=True, arguments={"x-max-priority": 4})
    assert closed.value.reply_code == 406
