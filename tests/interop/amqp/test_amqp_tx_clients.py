"""Pika and aio-pika against a whole gateway: transactions."""

import aio_pika
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import TIMEOUT_S, bodies, count, deaths, fresh, get, queue, until

pytestmark = pytest.mark.slow


@pytest.fixture
def tx(connection: pika.BlockingConnection) -> BlockingChannel:
    channel = connection.channel()
    channel.tx_select()
    return channel


def test_what_is_published_is_there_after_the_commit(channel, tx):
    names = [queue(channel) for _ in range(2)]
    for number in range(4):
        tx.basic_publish("", names[number % 2], b"%d" % number)
    assert [count(channel, name) for name in names] == [0, 0]
    tx.tx_commit()
    assert [bodies(channel, name) for name in names] == [[b"0", b"2"], [b"1", b"3"]]
    tx.tx_commit()
    assert [count(channel, name) for name in names] == [0, 0]


def test_what_is_rolled_back_was_never_published(channel, tx):
    name = queue(channel)
    tx.basic_publish("", name, b"1")
    tx.tx_rollback()
    tx.basic_publish("", name, b"2")
    tx.tx_commit()
    assert bodies(channel, name) == [b"2"]


def test_what_a_transaction_acknowledges_is_gone_with_its_commit(connection, channel):
    name = fresh("q")
    channel.queue_declare(name)
    for number in range(3):
        channel.basic_publish("", name, b"%d" % number)
    tx = connection.channel()
    tx.tx_select()
    tags = [get(tx, name)[0].delivery_tag for _ in range(3)]
    tx.basic_ack(tags[0])
    tx.tx_commit()
    tx.basic_ack(tags[1])
    tx.close()
    until(lambda: count(channel, name) == 2)
    assert bodies(channel, name) == [b"1", b"2"]
    channel.queue_delete(name)


def test_after_a_rollback_messages_are_acknowledged_once_more(channel, tx):
    name = queue(channel)
    channel.basic_publish("", name, b"1")
    tag = get(tx, name)[0].delivery_tag
    tx.basic_ack(tag)
    tx.tx_rollback()
    tx.basic_nack(tag, requeue=True)
    tx.tx_commit()
    until(lambda: count(channel, name) == 1)


def test_messages_of_several_queues_are_moved_at_once(channel, tx):
    sources, target = [queue(channel) for _ in range(3)], queue(channel)
    for name in sources:
        channel.basic_publish("", name, name.encode())
    for name in sources:
        method, _, body = get(tx, name)
        tx.basic_publish("", target, body)
        tx.basic_ack(method.delivery_tag)
    tx.tx_commit()
    assert bodies(channel, target) == [name.encode() for name in sources]


def test_what_a_transaction_rejects_is_a_dead_letter_after_its_commit(channel, tx):
    dead = queue(channel)
    name = queue(channel, dead_letter_exchange="", dead_letter_routing_key=dead)
    channel.basic_publish("", name, b"1")
    tx.basic_reject(get(tx, name)[0].delivery_tag, requeue=False)
    assert count(channel, dead) == 0
    tx.tx_commit()
    assert deaths(get(channel, dead)[1]) == [(1, "rejected", name, "", [name], None)]


def test_a_mandatory_message_comes_back_with_the_commit(connection, tx):
    returned: list[bytes] = []
    tx.add_on_return_callback(lambda _channel, _method, _properties, body: returned.append(body))
    tx.basic_publish("amq.direct", fresh("nobody"), b"back", mandatory=True)
    tx.tx_commit()
    until(lambda: bool(returned), connection)
    assert returned == [b"back"]


@pytest.mark.parametrize(
    "mistake",
    [
        lambda c: c.tx_commit(),
        lambda c: c.tx_rollback(),
        lambda c: c.confirm_delivery() or c.tx_select(),
        lambda c: c.tx_select() and c.confirm_delivery(),
    ],
)
def test_a_channel_is_transactional_or_not(channel, mistake):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        mistake(channel)
    assert info.value.reply_code == 406


def test_a_transaction_to_an_exchange_that_is_not_there_does_nothing(connection, channel, tx):
    name = queue(channel)
    tx.basic_publish("", name, b"1")
    tx.basic_publish(fresh("nowhere"), "", b"2")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        tx.tx_commit()
    assert info.value.reply_code == 404
    assert count(channel, name) == 0


@pytest.mark.anyio
async def test_aio_pika_commits_and_rolls_back(shared_gateway):
    url = f"amqp://guest:guest@127.0.0.1:{shared_gateway.port('amqp')}/"
    async with await aio_pika.connect(url, timeout=TIMEOUT_S) as connection:
        channel = await connection.channel(publisher_confirms=False)
        name = (await channel.declare_queue(exclusive=True)).name
        exchange = channel.default_exchange
        async with channel.transaction():
            await exchange.publish(aio_pika.Message(b"kept"), name)
        transaction = channel.transaction()
        await transaction.select()
        await exchange.publish(aio_pika.Message(b"lost"), name)
        await transaction.rollback()
        other = await connection.channel()
        found = await (await other.get_queue(name)).get(no_ack=True)
        assert found.body == b"kept"
        assert await (await other.get_queue(name)).get(fail=False) is None
