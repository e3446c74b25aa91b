"""Pika against a whole gateway: queues that are limited, that end by themselves, and whose consumers have an order."""

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import bodies, count, deaths, fresh, get, queue, until

pytestmark = pytest.mark.slow


def publish(channel: BlockingChannel, name: str, *numbers: int, size: int = 0) -> list[int]:
    """Publishes numbers, with confirms where the channel has them; returns those that were refused."""
    refused = []
    for number in numbers:
        try:
            channel.basic_publish("", name, b"%d" % number + b"." * size)
        except pika.exceptions.NackError:
            refused.append(number)
    return refused


def test_the_oldest_leave_a_queue_that_is_too_long(channel):
    name = queue(channel, max_length=3)
    publish(channel, name, *range(10))
    assert count(channel, name) == 3
    assert bodies(channel, name) == [b"7", b"8", b"9"]


def test_the_oldest_leave_a_queue_that_is_too_large(channel):
    name = queue(channel, max_length_bytes=100)
    publish(channel, name, *range(10), size=29)
    assert [body[:1] for body in bodies(channel, name)] == [b"7", b"8", b"9"]
    publish(channel, name, 1, size=200)
    assert bodies(channel, name) == []
    publish(channel, name, 2, size=99)
    assert [body[:1] for body in bodies(channel, name)] == [b"2"]


def test_what_is_leased_does_not_count(channel):
    channel.confirm_delivery()
    name = queue(channel, max_length=2)
    publish(channel, name, 0, 1)
    tags = [get(channel, name)[0].delivery_tag for _ in range(2)]
    publish(channel, name, 2, 3)
    assert count(channel, name) == 2
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    assert bodies(channel, name) == [b"2", b"3"]


def test_what_is_too_much_is_a_dead_letter(channel):
    dead = queue(channel)
    name = queue(channel, max_length=1, dead_letter_exchange="", dead_letter_routing_key=dead)
    publish(channel, name, *range(3))
    for number in range(2):
        _, properties, body = get(channel, dead)
        assert body == b"%d" % number
        assert deaths(properties) == [(1, "maxlen", name, "", [name], None)]
    assert bodies(channel, name) == [b"2"]


def test_a_full_queue_refuses_what_is_published(channel):
    name = queue(channel, max_length=2, overflow="reject-publish")
    channel.confirm_delivery()
    assert publish(channel, name, *range(5)) == [2, 3, 4]
    assert bodies(channel, name) == [b"0", b"1"]
    until(lambda: publish(channel, name, 5) == [])
    assert bodies(channel, name) == [b"5"]


def test_a_queue_that_is_full_in_bytes_refuses_what_is_published(channel):
    name = queue(channel, max_length_bytes=100, overflow="reject-publish")
    channel.confirm_delivery()
    assert publish(channel, name, *range(5), size=39) == [2, 3, 4]
    assert publish(channel, name, 5, size=19) == []
    assert publish(channel, name, 6) == [6]


def test_a_full_queue_takes_nothing_from_others(channel):
    full, other, exchange = queue(channel, max_length=1, overflow="reject-publish"), queue(channel), fresh("x")
    channel.exchange_declare(exchange, "fanout", auto_delete=True)
    for name in (full, other):
        channel.queue_bind(name, exchange)
    channel.confirm_delivery()
    refused = []
    for number in range(3):
        try:
            channel.basic_publish(exchange, "", b"%d" % number)
        except pika.exceptions.NackError:
            refused.append(number)
    assert refused == [1, 2]
    assert bodies(channel, full) == [b"0"]
    assert bodies(channel, other) == [b"0", b"1", b"2"]


def test_without_confirms_nobody_hears_of_a_full_queue(channel):
    name = queue(channel, max_length=1, overflow="reject-publish")
    publish(channel, name, *range(3))
    assert bodies(channel, name) == [b"0"]


def test_what_a_full_queue_refuses_may_be_a_dead_letter(channel):
    dead = queue(channel)
    letters = {"dead_letter_exchange": "", "dead_letter_routing_key": dead}
    name = queue(channel, max_length=1, overflow="reject-publish-dlx", **letters)
    channel.confirm_delivery()
    assert publish(channel, name, *range(3)) == [1, 2]
    for number in (1, 2):
        _, properties, body = get(channel, dead)
        assert body == b"%d" % number
        assert deaths(properties) == [(1, "maxlen", name, "", [name], None)]
    assert bodies(channel, name) == [b"0"]


def exists(connection: pika.BlockingConnection, name: str) -> bool:
    try:
        connection.channel().queue_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


def test_a_queue_that_nobody_uses_ends(connection, channel):
    used, unused = fresh("used"), fresh("unused")
    for name in (used, unused):
        channel.queue_declare(name, arguments={"x-expires": 300})
    channel.basic_consume(used, lambda *_: None, consumer_tag="c")
    time.sleep(0.1)  # a use less than the time to live ago
    until(lambda: not exists(connection, unused), every_s=0.5)
    assert exists(connection, used)
    channel.basic_cancel("c")
    until(lambda: not exists(connection, used), every_s=0.5)


def test_one_consumer_is_active_and_the_next_one_follows(connection, channel):
    name = queue(channel, single_active_consumer=True)
    taken: list[tuple[str, bytes]] = []

    def take(tag: str) -> Callable[..., None]:
        return lambda _channel, method, _properties, body: taken.append((tag, body))

    for tag in ("one", "two"):
        channel.basic_consume(name, take(tag), consumer_tag=tag, auto_ack=True)
    publish(channel, name, *range(5))
    until(lambda: len(taken) == 5, connection)
    assert taken == [("one", b"%d" % n) for n in range(5)]
    channel.basic_cancel("one")
    publish(channel, name, 5)
    until(lambda: len(taken) == 6, connection)
    assert taken[5] == ("two", b"5")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        connection.channel().basic_consume(name, print, exclusive=True)
    assert info.value.reply_code == 403


def test_consumers_of_a_higher_priority_are_first(connection, channel):
    name = queue(channel)
    taken: list[str] = []

    def took(_channel: Any, method: Any, *_: Any) -> None:
        taken.append(method.consumer_tag)

    channel.basic_qos(prefetch_count=2)
    for tag, priority in (("low", -1), ("high", 10), ("none", None)):
        arguments = {} if priority is None else {"x-priority": priority}
        channel.basic_consume(
            name, lambda _c, m, *_: taken.append(m.consumer_tag), consumer_tag=tag, arguments=arguments
        )
    publish(channel, name, *range(6))
    until(lambda: len(taken) == 6, connection)
    assert taken == ["high", "high", "none", "none", "low", "low"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-expires": 0},
        {"x-expires": "soon"},
        {"x-max-length": -1},
        {"x-max-length-bytes": "1k"},
        {"x-overflow": "explode"},
        {"x-single-active-consumer": 1},
        {"x-message-ttl": 1 << 40},
    ],
)
def test_limits_that_mean_nothing_are_refused(channel, arguments: dict[str, Any]):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        channel.queue_declare(fresh("q"), arguments=arguments)
    assert info.value.reply_code == 406
    assert "invalid" in info.value.reply_text
    assert next(iter(arguments)) in info.value.reply_text
