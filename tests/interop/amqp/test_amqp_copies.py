"""Pika against a whole gateway: messages that name more routing keys in the headers CC and BCC, as for RabbitMQ."""

import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import bodies, connect, deaths, fresh, get, queue

pytestmark = pytest.mark.slow


@pytest.fixture
def channel(shared_gateway: Any) -> Iterator[BlockingChannel]:
    with connect(shared_gateway) as connection:
        yield connection.channel()


def publish(channel: BlockingChannel, exchange: str, key: str, body: bytes = b"x", **headers: Any) -> None:
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers), mandatory=True)


def test_a_message_is_in_the_queues_of_all_keys_and_in_each_once(channel):
    to, cc, bcc, other = (queue(channel) for _ in range(4))
    publish(channel, "", to, CC=[cc, to], BCC=[bcc, cc])
    for name in (to, cc, bcc):
        method, properties, body = get(channel, name, auto_ack=True)
        assert (body, method.exchange, method.routing_key) == (b"x", "", to)
        assert properties.headers == {"CC": [cc, to]}
        assert bodies(channel, name) == []
    assert bodies(channel, other) == []


@pytest.mark.parametrize("header", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["a", 1, {"a": "b"}])
def test_what_is_no_array_closes_the_channel(channel, header, value):
    publish(channel, "", "nowhere", **{header: value})
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.basic_qos()
    assert closed.value.reply_code == 406


def test_elements_that_are_no_texts_are_passed_over(channel):
    name = queue(channel)
    publish(channel, "", "nowhere", CC=[1, name, None])
    assert bodies(channel, name) == [b"x"]


def test_topics_match_by_any_key(channel):
    exchange, name, single = fresh("topic"), queue(channel), queue(channel)
    channel.exchange_declare(exchange, "topic", auto_delete=True)
    channel.queue_bind(name, exchange, "b.*")
    channel.queue_bind(single, exchange, "*")
    publish(channel, exchange, "a", b"1", BCC=["b.c", "b.d"])
    publish(channel, exchange, "", b"2", CC=["word"])
    assert bodies(channel, name) == [b"1"]
    assert bodies(channel, single) == [b"1", b"2"]


def test_keys_go_through_bound_exchanges(channel):
    first, second, name = fresh("x"), fresh("x"), queue(channel)
    for exchange in (first, second):
        channel.exchange_declare(exchange, "direct", auto_delete=True)
    channel.queue_bind(name, second, "b")
    channel.exchange_bind(second, first, "b")
    publish(channel, first, "a", CC=["b"])
    assert bodies(channel, name) == [b"x"]


def test_an_alternate_takes_what_no_key_finds(channel):
    alternate, exchange = fresh("x"), fresh("x")
    channel.exchange_declare(alternate, "fanout", auto_delete=True)
    channel.exchange_declare(exchange, "direct", auto_delete=True, arguments={"alternate-exchange": alternate})
    found, lost = queue(channel), queue(channel)
    channel.queue_bind(found, exchange, "b")
    channel.queue_bind(lost, alternate)
    publish(channel, exchange, "a", b"1", CC=["b"])
    publish(channel, exchange, "a", b"2", CC=["c"])
    assert bodies(channel, found) == [b"1"]
    assert bodies(channel, lost) == [b"2"]


def test_a_mandatory_message_is_returned_when_no_key_finds_a_queue(channel):
    name = queue(channel)
    channel.confirm_delivery()
    publish(channel, "", "nowhere", CC=[name])
    with pytest.raises(pika.exceptions.UnroutableError) as unroutable:
        publish(channel, "", "nowhere", CC=["nobody"], BCC=["hidden"])
    (returned,) = unroutable.value.messages
    assert returned.properties.headers == {"CC": ["nobody"]}


def test_copies_are_part_of_a_transaction(channel):
    to, cc = queue(channel), queue(channel)
    channel.tx_select()
    publish(channel, "", to, CC=[cc])
    assert bodies(channel, cc) == []
    channel.tx_commit()
    assert bodies(channel, to) == bodies(channel, cc) == [b"x"]


def test_a_delayed_message_is_put_into_all_its_queues(channel):
    to, cc = queue(channel), queue(channel)
    channel.basic_publish("", to, b"x", pika.BasicProperties(headers={"x-delay": 50, "CC": [cc]}))
    for name in (to, cc):
        assert get(channel, name, auto_ack=True)[2] == b"x"


def test_a_dead_letter_keeps_its_keys_unless_its_queue_has_one(channel):
    exchange, plain, named = fresh("dlx"), fresh("q"), fresh("q")
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    by_key, by_copy, by_name = (queue(channel) for _ in range(3))
    queue(channel, plain, dead_letter_exchange=exchange)
    queue(channel, named, dead_letter_exchange=exchange, dead_letter_routing_key="dead")
    for name, key in ((by_key, plain), (by_copy, "copy"), (by_name, "dead")):
        channel.queue_bind(name, exchange, key)
    publish(channel, "", plain, b"1", CC=["copy"], BCC=["hidden"])
    publish(channel, "", named, b"2", CC=["copy"])
    for name in (plain, named):
        method, *_ = get(channel, name)
        channel.basic_reject(method.delivery_tag, requeue=False)
    for name in (by_key, by_copy):
        _, properties, body = get(channel, name, auto_ack=True)
        assert body == b"1"
        assert properties.headers["CC"] == ["copy"]
        assert "BCC" not in properties.headers
        assert deaths(properties) == [(1, "rejected", plain, "", [plain, "copy"], None)]
    _, properties, body = get(channel, by_name, auto_ack=True)
    assert body == b"2"
    assert "CC" not in properties.headers
    assert deaths(properties) == [(1, "rejected", named, "", [named, "copy"], None)]
    assert bodies(channel, by_copy) == []


def test_a_message_for_a_hundred_queues_is_stored_once(new_gateway):
    gateway = new_gateway().start()
    size = 50_000

    def log_end():
        return json.loads(gateway.admin("/status"))["log"]["end"]

    with connect(gateway) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("all", "fanout")
        names = [queue(channel) for _ in range(100)]
        for name in names:
            channel.queue_bind(name, "all")
        before = log_end()
        channel.basic_publish("all", "", bytes(size))
        assert size <= log_end() - before < 2 * size
        assert {len(body) for name in names for body in bodies(channel, name)} == {size}
