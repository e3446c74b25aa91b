"""Pika against a whole gateway: the kinds of exchanges that RabbitMQ has as plug-ins."""

import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import bodies, connect, fresh, get, queue

pytestmark = pytest.mark.slow

DELAY_MS = 300


@pytest.fixture
def channel(shared_gateway: Any) -> Iterator[BlockingChannel]:
    with connect(shared_gateway) as connection:
        yield connection.channel()


def exchange(channel: BlockingChannel, kind: str, **arguments: Any) -> str:
    name = fresh("x")
    channel.exchange_declare(name, kind, auto_delete=True, arguments=arguments)
    return name


def headers(**said: Any) -> pika.BasicProperties:
    return pika.BasicProperties(headers=said)


# ---- delayed


@pytest.mark.parametrize(
    ("kind", "key", "binding"), [("direct", "k", "k"), ("topic", "a.b", "a.*"), ("fanout", "", "")]
)
def test_a_delayed_message_comes_when_it_is_due(channel, kind, key, binding):
    name, found = exchange(channel, "x-delayed-message", **{"x-delayed-type": kind}), queue(channel)
    channel.queue_bind(found, name, binding)
    began = time.monotonic()
    channel.basic_publish(name, key, b"late", headers(**{"x-delay": DELAY_MS}))
    channel.basic_publish(name, key, b"now", headers(**{"x-delay": -5}))
    channel.basic_publish(name, key, b"at once")
    assert [get(channel, found, auto_ack=True)[2] for _ in range(2)] == [b"now", b"at once"]
    method, properties, body = get(channel, found, auto_ack=True)
    assert time.monotonic() - began > DELAY_MS / 1_000 - 0.01
    assert (body, method.exchange, properties.headers) == (b"late", name, {"x-delay": -DELAY_MS})
    channel.basic_publish(name, key, b"again", properties)
    assert get(channel, found, auto_ack=True)[2] == b"again"


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": "nothing"}, {"x-delayed-type": "x-delayed-message"}])
def test_a_delayed_exchange_routes_as_one_that_there_is(channel, arguments):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        exchange(channel, "x-delayed-message", **arguments)
    assert closed.value.reply_code == 406


def test_what_no_binding_of_a_delayed_exchange_takes_goes_to_its_alternate(channel):
    other, found = exchange(channel, "fanout"), queue(channel)
    channel.queue_bind(found, other)
    name = exchange(channel, "x-delayed-message", **{"x-delayed-type": "direct", "alternate-exchange": other})
    channel.basic_publish(name, "nobody", b"x", headers(**{"x-delay": 20}))
    assert get(channel, found, auto_ack=True)[2] == b"x"


# ---- consistent hashing


def test_each_key_has_one_queue_and_all_queues_have_keys(channel):
    name, queues = exchange(channel, "x-consistent-hash"), [queue(channel) for _ in range(4)]
    for one in queues:
        channel.queue_bind(one, name, "10")
    keys = [f"key.{n}" for n in range(100)]
    channel.confirm_delivery()
    for key in keys * 2:
        channel.basic_publish(name, key, key.encode())
    found = [bodies(channel, one) for one in queues]
    assert all(found)
    assert sorted(body for some in found for body in some) == sorted(key.encode() for key in keys * 2)
    assert all(some.count(body) == 2 for some in found for body in some)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"hash-header": "who"}, lambda who: headers(who=who)),
        ({"hash-property": "message_id"}, lambda who: pika.BasicProperties(message_id=who)),
        ({"hash-property": "correlation_id"}, lambda who: pika.BasicProperties(correlation_id=who)),
        ({"hash-property": "timestamp"}, lambda who: pika.BasicProperties(timestamp=int(who) + 1)),
    ],
)
def test_messages_are_hashed_by_what_the_exchange_says(channel, argument, said):
    name, queues = exchange(channel, "x-consistent-hash", **argument), [queue(channel) for _ in range(3)]
    for one in queues:
        channel.queue_bind(one, name, "1")
    channel.confirm_delivery()
    for number in range(60):
        channel.basic_publish(name, f"{number}", b"%d" % (number % 20), said(f"{number % 20}"))
    found = [bodies(channel, one) for one in queues]
    assert sum(map(bool, found)) > 1
    assert all(some.count(body) == 3 for some in found for body in some)


def test_what_a_hashed_exchange_without_bindings_gets_goes_to_its_alternate(channel):
    other, lost, one = exchange(channel, "fanout"), queue(channel), queue(channel)
    channel.queue_bind(lost, other)
    name = fresh("x")
    channel.exchange_declare(name, "x-consistent-hash", arguments={"alternate-exchange": other})
    channel.basic_publish(name, "a", b"lost")
    channel.queue_bind(one, name, "1")
    channel.basic_publish(name, "a", b"hashed")
    assert get(channel, lost, auto_ack=True)[2] == b"lost"
    assert get(channel, one, auto_ack=True)[2] == b"hashed"
    channel.queue_unbind(one, name, "1")
    channel.basic_publish(name, "a", b"lost again")
    assert get(channel, lost, auto_ack=True)[2] == b"lost again"
    channel.exchange_delete(name)


def test_a_hashed_exchange_passes_messages_to_exchanges(channel):
    name, other, found = exchange(channel, "x-consistent-hash"), exchange(channel, "fanout"), queue(channel)
    channel.queue_bind(found, other)
    channel.exchange_bind(other, name, "3")
    channel.basic_publish(name, "a", b"x")
    assert get(channel, found, auto_ack=True)[2] == b"x"


@pytest.mark.parametrize("weight", ["", "a", "-1", "1.5"])
def test_a_binding_key_that_is_no_weight_is_refused(channel, weight):
    name, one = exchange(channel, "x-consistent-hash"), queue(channel)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_bind(one, name, weight)
    assert closed.value.reply_code == 406


def test_a_message_is_hashed_by_one_thing(channel):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        exchange(channel, "x-consistent-hash", **{"hash-header": "a", "hash-property": "message_id"})
    assert closed.value.reply_code == 406
