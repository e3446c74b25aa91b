"""Pika against a whole gateway, where the specification leaves doubt: the answers are those of RabbitMQ."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import aio_pika
import aiormq
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
_numbers = itertools.count()

Connect = Callable[..., pika.BlockingConnection]
Mistake = Callable[[BlockingChannel], object]


def fresh(prefix: str) -> str:
    """A name nobody has used."""
    return f"{prefix}-{time.monotonic_ns()}-{next(_numbers)}"


def _close(connection: pika.BlockingConnection) -> None:
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


@pytest.fixture
def connect(shared_gateway: Any) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def make(gateway: Any = shared_gateway, **options: Any) -> pika.BlockingConnection:
            connection = pika.BlockingConnection(
                pika.ConnectionParameters(
                    "127.0.0.1",
                    gateway.port("amqp"),
                    socket_timeout=TIMEOUT_S,
                    blocked_connection_timeout=TIMEOUT_S,
                    **options,
                )
            )
            stack.callback(_close, connection)
            return connection

        yield make


def code_of(connection: pika.BlockingConnection, mistake: Mistake) -> int:
    """The reply code that closes a channel; 0 where nothing does."""
    channel = connection.channel()
    try:
        mistake(channel)
        channel.basic_qos()  # an answer: what was wrong before has been said
    except pika.exceptions.ChannelClosedByBroker as error:
        return int(error.reply_code)
    channel.close()
    return 0


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("*", ["a"]),
        ("*.#", [".", "a", "a.b"]),
        ("#.*", [".", "a", "a.b"]),
        ("*.*", [".", "a.b"]),
        ("#", ["", ".", "a", "a.b"]),
        ("", [""]),
    ],
)
@pytest.mark.parametrize("exchange", ["amq.topic", "own"])
def test_an_empty_routing_key_has_no_word(connect, exchange, pattern, keys):
    channel = connect().channel()
    if exchange == "own":
        exchange = fresh("topic")
        channel.exchange_declare(exchange, "topic", auto_delete=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, exchange, pattern)
    for key in ("", ".", "a", "a.b"):
        channel.basic_publish(exchange, key, key.encode())
    found = iter(lambda: channel.basic_get(queue, auto_ack=True)[2], None)
    assert [body.decode() for body in found] == keys


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (lambda c: c.exchange_declare("", "direct", durable=True), 403),
        (lambda c: c.exchange_declare("", passive=True), 403),
        (lambda c: c.exchange_declare("amq.direct", passive=True), 0),
        (lambda c: c.exchange_delete(""), 403),
        (lambda c: c.exchange_delete("amq.nothing"), 403),
        (lambda c: c.exchange_delete(fresh("nothing")), 0),
    ],
)
def test_what_may_be_done_to_exchanges(connect, what, code):
    assert code_of(connect(), what) == code


def test_an_exclusive_queue_is_declared_again_as_it_is(connect):
    owner, other, name = connect(), connect(), fresh("q")
    owner.channel().queue_declare(name, exclusive=True)

    def again(connection: pika.BlockingConnection, **flags: Any) -> int:
        return code_of(connection, lambda channel: channel.queue_declare(name, **flags))

    assert again(owner, exclusive=True) == 0
    assert again(owner, passive=True) == 0
    assert again(owner, exclusive=True, durable=True) == 0  # it goes with its connection: durable means nothing
    assert again(owner) == 405
    assert again(owner, durable=True) == 405
    assert again(owner, exclusive=True, auto_delete=True) == 406
    assert again(owner, exclusive=True, arguments={"x-message-ttl": 5}) == 406
    for flags in ({"exclusive": True}, {}, {"passive": True}, {"exclusive": True, "auto_delete": True}):
        assert again(other, **flags) == 405


def test_a_queue_of_all_is_not_declared_exclusive_later(connect):
    owner, other, name = connect(), connect(), fresh("q")
    owner.channel().queue_declare(name, auto_delete=True)
    for connection in (owner, other):
        assert code_of(connection, lambda c: c.queue_declare(name, auto_delete=True, exclusive=True)) == 405
        assert code_of(connection, lambda c: c.queue_declare(name, auto_delete=True, durable=True)) == 406
        assert code_of(connection, lambda c: c.queue_declare(name)) == 406
    other.channel().queue_delete(name)


@pytest.mark.parametrize("channel_max", [3, 2_047])
def test_as_many_channels_open_as_were_agreed_on_and_no_more(connect, channel_max):
    connection = connect(channel_max=channel_max)
    implementation = connection._impl
    opened: list[int] = []
    closed: list[BaseException] = []
    implementation.add_on_close_callback(lambda _connection, error: closed.append(error))
    for number in range(1, channel_max + 1):
        implementation.channel(number, on_open_callback=lambda channel: opened.append(channel.channel_number))
    deadline = time.monotonic() + TIMEOUT_S
    while len(opened) < channel_max and time.monotonic() < deadline:
        connection.process_data_events(0.01)
    assert len(opened) == channel_max
    implementation._send_method(channel_max + 1, pika.spec.Channel.Open())
    while not closed and time.monotonic() < deadline:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.process_data_events(0.01)
    assert isinstance(closed[0], pika.exceptions.ConnectionClosedByBroker)
    assert closed[0].reply_code == 530


def test_a_body_of_16_mib_is_taken_and_no_larger_one(connect):
    connection, most = connect(), 16 << 20
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue
    body = bytes(range(256)) * (most // 256)
    channel.basic_publish("", queue, body)
    assert channel.basic_get(queue, auto_ack=True)[2] == body
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as info:
        channel.basic_publish("", queue, body + b"x")
    assert info.value.reply_code == 406
    assert info.value.reply_text == f"message size {most + 1} is larger than configured max size {most}"
    assert connection.channel().queue_declare(queue, passive=True).method.message_count == 0


@pytest.mark.parametrize("own", [True, False])
def test_what_has_expired_is_in_no_count(connect, own):
    channel = connect().channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True, arguments={"x-message-ttl": 100} if own else {}).method.queue
    properties = None if own else pika.BasicProperties(expiration="100")

    def count() -> int:
        return int(channel.queue_declare(queue, passive=True).method.message_count)

    for _ in range(3):
        channel.basic_publish("", queue, b"old", properties)
    deadline = time.monotonic() + TIMEOUT_S
    while count() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert count() == 0
    assert channel.queue_purge(queue).method.message_count == 0
    assert channel.basic_get(queue) == (None, None, None)


async def update_secret(shared_gateway: Any, secret: str) -> aio_pika.abc.AbstractConnection:
    port = shared_gateway.port("amqp")
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/", timeout=TIMEOUT_S)
    await connection.update_secret(secret, timeout=TIMEOUT_S)
    return connection


@pytest.mark.anyio
async def test_a_secret_can_be_updated(shared_gateway):
    connection = await update_secret(shared_gateway, "guest")
    channel = await connection.channel()
    await channel.declare_queue(exclusive=True)
    await connection.close()


@pytest.mark.anyio
async def test_a_wrong_secret_is_refused_when_it_is_updated(shared_gateway):
    with pytest.raises(aiormq.exceptions.ConnectionNotAllowed):
        await update_secret(shared_gateway, "wrong")
