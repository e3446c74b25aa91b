"""Pika and aio-pika against a whole gateway: where messages go that leave their queue, and what is written of that."""

import socket
import time
from collections.abc import Callable
from typing import Any

import aio_pika
import pika
import pytest
from pamqp.commands import Basic, Channel, Connection
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.amqp_peer import HEADER, PROPERTIES, encoded
from tests.support.amqp.pika_queues import TIMEOUT_S, count, deaths, first_death, fresh, get, queue, until

pytestmark = pytest.mark.slow


def dead_letter_queue(channel: BlockingChannel, kind: str = "fanout", key: str = "") -> tuple[str, str]:
    """Declares an exchange, and a queue that is bound to it."""
    exchange, name = fresh("dlx"), queue(channel)
    channel.exchange_declare(exchange, kind, auto_delete=True)
    channel.queue_bind(name, exchange, key)
    return exchange, name


@pytest.mark.parametrize("how", ["reject", "nack", "nack all"])
def test_a_rejected_message_is_a_dead_letter(channel, how):
    dlx, dead = dead_letter_queue(channel)
    source = queue(channel, dead_letter_exchange=dlx)
    properties = pika.BasicProperties(
        headers={"h": 1, "t": True},
        content_type="a/b",
        message_id="m",
        expiration="600000",
        delivery_mode=2,
        priority=3,
    )
    channel.basic_publish("", source, b"body", properties)
    method, _, _ = get(channel, source)
    if how == "reject":
        channel.basic_reject(method.delivery_tag, requeue=False)
    else:
        channel.basic_nack(0 if how == "nack all" else method.delivery_tag, multiple=how == "nack all", requeue=False)
    method, found, body = get(channel, dead)
    assert (body, method.exchange, method.routing_key, method.redelivered) == (b"body", dlx, source, False)
    assert deaths(found) == [(1, "rejected", source, "", [source], "600000")]
    assert first_death(found) == ["rejected", source, ""]
    assert found.expiration is None
    assert (found.headers["h"], found.headers["t"]) == (1, True)
    assert (found.content_type, found.message_id, found.delivery_mode, found.priority) == ("a/b", "m", 2, 3)
    assert channel.basic_get(source)[0] is None


def test_a_dead_letter_has_the_key_that_the_queue_says(channel):
    dlx, dead = dead_letter_queue(channel, "direct", "grave")
    source = queue(channel, dead_letter_exchange=dlx, dead_letter_routing_key="grave")
    channel.queue_bind(source, "amq.topic", "a.*")
    channel.basic_publish("amq.topic", "a.b", b"1")
    channel.basic_reject(get(channel, source)[0].delivery_tag, requeue=False)
    method, found, _ = get(channel, dead)
    assert (method.exchange, method.routing_key) == (dlx, "grave")
    assert deaths(found) == [(1, "rejected", source, "amq.topic", ["a.b"], None)]


@pytest.mark.parametrize("by", ["queue", "message", "both"])
def test_what_expires_is_a_dead_letter_without_anybody_looking(channel, by):
    dead = queue(channel)
    arguments = {"message_ttl": 30} if by != "message" else {}
    source = queue(channel, dead_letter_exchange="", dead_letter_routing_key=dead, **arguments)
    expiration = None if by == "queue" else "20"
    for n in range(3):
        channel.basic_publish("", source, b"%d" % n, pika.BasicProperties(expiration=expiration))
    for n in range(3):
        method, found, body = get(channel, dead)
        assert (body, method.routing_key) == (b"%d" % n, dead)
        assert deaths(found) == [(1, "expired", source, "", [source], expiration)]
    assert channel.queue_declare(source, passive=True).method.message_count == 0


def test_what_nobody_wants_at_once_expires_at_once_with_a_time_to_live_of_zero(connection, channel):
    dead = queue(channel)
    source = queue(channel, message_ttl=0, dead_letter_exchange="", dead_letter_routing_key=dead)
    channel.basic_publish("", source, b"late")
    assert get(channel, dead)[2] == b"late"
    taken: list[bytes] = []
    channel.basic_consume(source, lambda _c, _m, _p, body: taken.append(body), auto_ack=True)
    connection.process_data_events(0.2)
    channel.basic_publish("", source, b"at once")
    channel.basic_publish("", source, b"too", pika.BasicProperties(expiration="0"))
    deadline = time.monotonic() + TIMEOUT_S
    while len(taken) < 2 and time.monotonic() < deadline:
        connection.process_data_events(0.05)
    assert taken == [b"at once", b"too"]
    assert channel.basic_get(dead)[0] is None


def test_the_account_counts_deaths_of_one_kind_and_puts_the_last_kind_first(channel):
    work, wait = fresh("work"), fresh("wait")
    queue(channel, work, dead_letter_exchange="", dead_letter_routing_key=wait)
    queue(channel, wait, dead_letter_exchange="", dead_letter_routing_key=work, message_ttl=20)
    channel.basic_publish("", work, b"again")
    for n in range(3):
        method, found, _ = get(channel, work)
        if n:
            assert deaths(found) == [
                (n, "expired", wait, "", [wait], None),
                (n, "rejected", work, "", [work], None),
            ]
            assert first_death(found) == ["rejected", work, ""]
        channel.basic_reject(method.delivery_tag, requeue=False)


def test_what_a_client_publishes_again_keeps_its_account(channel):
    dead = queue(channel)
    source = queue(channel, dead_letter_exchange="", dead_letter_routing_key=dead)
    channel.basic_publish("", source, b"1", pika.BasicProperties(headers={"own": "x"}))
    for n in range(1, 4):
        channel.basic_reject(get(channel, source)[0].delivery_tag, requeue=False)
        _, found, body = get(channel, dead, auto_ack=True)
        assert deaths(found) == [(n, "rejected", source, "", [source], None)]
        assert found.headers["own"] == "x"
        channel.basic_publish("", source, body, found)


@pytest.mark.parametrize("account", ["text", 5, {"count": 1}, [1, {"queue": 5}], []])
def test_an_account_that_is_none_is_begun_anew(channel, account):
    dead = queue(channel)
    source = queue(channel, dead_letter_exchange="", dead_letter_routing_key=dead)
    channel.basic_publish("", source, b"1", pika.BasicProperties(headers={"x-death": account}))
    channel.basic_reject(get(channel, source)[0].delivery_tag, requeue=False)
    assert get(channel, dead)[1].headers["x-death"][0]["queue"] == source


def test_a_message_that_expires_in_a_circle_of_queues_is_dropped(channel):
    one, two, end = fresh("one"), fresh("two"), queue(channel)
    queue(channel, one, dead_letter_exchange="", dead_letter_routing_key=two, message_ttl=10)
    queue(channel, two, dead_letter_exchange="", dead_letter_routing_key=one, message_ttl=10)
    channel.basic_publish("", one, b"round")
    deadline = time.monotonic() + TIMEOUT_S
    names = (one, two)
    while any(channel.queue_declare(name, passive=True).method.message_count for name in names):
        assert time.monotonic() < deadline
        channel.connection.sleep(0.01)
    channel.basic_publish("", end, b"after")
    assert get(channel, end)[2] == b"after"


def test_without_the_exchange_dead_letters_are_dropped(channel):
    source = queue(channel, dead_letter_exchange=fresh("nowhere"))
    channel.basic_publish("", source, b"1")
    channel.basic_reject(get(channel, source)[0].delivery_tag, requeue=False)
    channel.basic_publish("", source, b"2")
    assert get(channel, source)[2] == b"2"


def test_an_internal_exchange_takes_dead_letters_for_many_queues(channel):
    dlx, queues = fresh("dlx"), [queue(channel) for _ in range(3)]
    channel.exchange_declare(dlx, "fanout", internal=True, auto_delete=True)
    for name in queues:
        channel.queue_bind(name, dlx)
    source = queue(channel, dead_letter_exchange=dlx)
    channel.basic_publish("", source, b"1")
    channel.basic_reject(get(channel, source)[0].delivery_tag, requeue=False)
    assert [get(channel, name)[2] for name in queues] == [b"1"] * 3


def test_what_is_rejected_just_before_the_end_of_a_connection_is_a_dead_letter(shared_gateway, channel):
    dead, source = queue(channel), fresh("q")
    channel.queue_declare(source, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for n in range(50):
        channel.basic_publish("", source, b"%d" % n)
    other = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", shared_gateway.port("amqp")))
    theirs = other.channel()
    for _ in range(50):
        get(theirs, source)
    theirs.basic_nack(0, multiple=True, requeue=False)
    other.close()
    assert sorted(int(get(channel, dead)[2]) for _ in range(50)) == list(range(50))
    channel.queue_delete(source)


def test_a_connection_whose_client_sends_its_end_behind_a_reject_ends(shared_gateway, channel):
    dead, source = queue(channel), fresh("source")
    channel.queue_declare(source, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for body in (b"rejected", b"held"):
        channel.basic_publish("", source, body)
    opening = Connection.StartOk(PROPERTIES, "PLAIN", "\0guest\0guest", "en_US"), Connection.TuneOk(), Connection.Open()
    work = Channel.Open(), Basic.Get(queue=source), Basic.Get(queue=source), Basic.Reject(1, requeue=False)
    until(lambda: count(channel, source) == 2)
    with socket.create_connection(("127.0.0.1", shared_gateway.port("amqp")), TIMEOUT_S) as peer:
        peer.sendall(HEADER + encoded(0, *opening))
        received = b""
        while encoded(0, Connection.OpenOk()) not in received:
            received += peer.recv(1 << 16)
        peer.sendall(encoded(1, *work))
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(1 << 16):
            pass
    assert get(channel, dead)[2] == b"rejected"
    assert get(channel, source)[2] == b"held"
    channel.queue_delete(source)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-dead-letter-exchange": 5},
        {"x-dead-letter-routing-key": "k"},
        {"x-dead-letter-routing-key": 5, "x-dead-letter-exchange": ""},
        {"x-message-ttl": -1},
        {"x-message-ttl": "5"},
    ],
)
def test_arguments_that_mean_nothing_are_refused(channel, arguments: dict[str, Any]):
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        channel.queue_declare(fresh("q"), arguments=arguments)
    assert info.value.reply_code == 406
    assert "invalid arg" in info.value.reply_text


def test_a_declaration_that_differs_is_told_in_what(connection, channel):
    name = queue(channel, fresh("q"), dead_letter_exchange="a", message_ttl=5)
    different: list[tuple[Callable[[BlockingChannel], Any], str]] = [
        (lambda c: queue(c, name, dead_letter_exchange="b", message_ttl=5), "'x-dead-letter-exchange'"),
        (lambda c: queue(c, name, dead_letter_exchange="a", message_ttl=6), "'x-message-ttl'"),
        (lambda c: queue(c, name, dead_letter_exchange="a"), "received none but current is"),
    ]
    for declare, said in different:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
            declare(connection.channel())
        assert info.value.reply_code == 406
        assert "inequivalent arg" in info.value.reply_text
        assert said in info.value.reply_text
    assert queue(channel, name, dead_letter_exchange="a", message_ttl=5) == name


@pytest.mark.anyio
async def test_aio_pika_retries_by_a_queue_to_wait_in(shared_gateway):
    url = f"amqp://guest:guest@127.0.0.1:{shared_gateway.port('amqp')}/"
    async with await aio_pika.connect(url, timeout=TIMEOUT_S) as connection:
        channel = await connection.channel()
        work = await channel.declare_queue(fresh("work"), exclusive=True)
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work.name, "x-message-ttl": 10}
        wait = await channel.declare_queue(fresh("wait"), exclusive=True, arguments=arguments)
        await channel.default_exchange.publish(aio_pika.Message(b"job", headers={"n": 1}), wait.name)
        tries = 0
        async with work.iterator(timeout=TIMEOUT_S) as messages:
            async for message in messages:
                account: Any = message.headers["x-death"]
                tries += 1
                assert account[0]["count"] == (1 if tries == 1 else tries)
                await message.ack()
                if tries == 3:
                    break
                headers = dict(message.headers)
                await channel.default_exchange.publish(aio_pika.Message(message.body, headers=headers), wait.name)
