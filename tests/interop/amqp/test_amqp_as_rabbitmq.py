"""Pika against a whole gateway, where the specification leaves doubt: the answers are those of RabbitMQ."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import aio_pika
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
_numbers = itertools.count()

Connect = Callable[..., pika.BlockingConnection]
Mistake = Callable[[BlockingChannel], object]


def fresh(prefix: str) -> str:
    """Returns a name that no other test has used."""
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
    """Makes a mistake on a channel, and returns the reply code that closes it; returns 0 where it stays open."""
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


@pytest.mark.parametrize("exchange", ["amq.topic", "amq.direct", ""])
def test_a_routing_key_has_as_many_words_as_its_bytes_hold(connect, exchange):
    channel, key = connect().channel(), fresh("w").ljust(255, ".")
    channel.confirm_delivery()
    queue = channel.queue_declare("" if exchange else key, exclusive=True).method.queue
    if exchange:
        channel.queue_bind(queue, exchange, key)
    channel.basic_publish(exchange, key, b"deep", mandatory=True)
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.routing_key, body) == (key, b"deep")


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


def _exchange(channel: BlockingChannel, kind: str = "fanout", **options: Any) -> str:
    name = fresh("x")
    channel.exchange_declare(name, kind, **options)
    return name


@pytest.mark.parametrize(
    ("what", "closes"),
    [
        (lambda c: c.exchange_bind(_exchange(c), "amq.fanout"), None),
        (lambda c: c.exchange_bind("nowhere", "amq.fanout"), (404, 40, 30)),
        (lambda c: c.exchange_bind("amq.fanout", "nowhere"), (404, 40, 30)),
        (lambda c: c.exchange_bind("amq.fanout", ""), (403, 40, 30)),
        (lambda c: c.exchange_bind("", "amq.fanout"), (403, 40, 30)),
        (lambda c: c.exchange_unbind("amq.fanout", "amq.direct", "never"), None),
        (lambda c: c.exchange_unbind("", "amq.direct"), (403, 40, 40)),
        (lambda c: c.basic_publish(_exchange(c, internal=True), "", b""), (403, 60, 40)),
        (lambda c: c.exchange_declare(_exchange(c, internal=True), "fanout"), (406, 40, 10)),
        (lambda c: _exchange(c, arguments={"alternate-exchange": 1}), (406, 40, 10)),
    ],
)
def test_mistakes_with_exchanges_are_told_with_class_and_method(connect, what, closes):
    channel, told = connect().channel(), []
    channel._impl.add_callback(lambda frame: told.append(frame.method), [pika.spec.Channel.Close])
    channel.confirm_delivery()
    with contextlib.suppress(pika.exceptions.ChannelClosedByBroker):
        what(channel)
    assert [(m.reply_code, m.class_id, m.method_id) for m in told] == ([] if closes is None else [closes])


def test_a_message_through_a_cycle_of_exchanges_is_in_each_queue_once(connect):
    channel = connect().channel()
    first, second, third = (_exchange(channel, kind) for kind in ("topic", "fanout", "direct"))
    for source, destination in ((first, second), (second, third), (third, first)):
        channel.exchange_bind(destination, source, "k.1")
    queues = [channel.queue_declare("", exclusive=True).method.queue for _ in range(2)]
    for queue in queues:
        channel.queue_bind(queue, second)
        channel.queue_bind(queue, third, "k.1")
    channel.confirm_delivery()
    channel.basic_publish(first, "k.1", b"once", mandatory=True)
    for queue in queues:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        assert (method.exchange, method.routing_key, body, method.message_count) == (first, "k.1", b"once", 0)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(first, "k.2", b"", mandatory=True)
    channel.exchange_unbind(second, first, "k.1")
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(first, "k.1", b"", mandatory=True)


def test_mandatory_messages_return_when_the_alternate_routes_nowhere_either(connect):
    channel = connect().channel()
    alternate = _exchange(channel)
    exchange = _exchange(channel, "direct", arguments={"alternate-exchange": alternate})
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(exchange, "k", b"", mandatory=True)
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, alternate)
    channel.basic_publish(exchange, "k", b"unrouted", mandatory=True)
    method, _, body = channel.basic_get(queue, auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (exchange, "k", b"unrouted")


def test_bindings_between_exchanges_survive_kill_9(new_gateway, connect):
    gateway = new_gateway().start()
    channel = connect(gateway).channel()
    channel.exchange_declare("from", "topic", durable=True, arguments={"alternate-exchange": "amq.fanout"})
    channel.exchange_declare("in", "fanout", durable=True, internal=True)
    channel.exchange_bind("in", "from", "new.#")
    channel.queue_declare("lasting", durable=True)
    channel.queue_declare("rest", durable=True)
    channel.queue_bind("lasting", "in")
    channel.queue_bind("rest", "amq.fanout")
    gateway.kill()
    gateway.start()
    channel = connect(gateway).channel()
    channel.confirm_delivery()
    for key, queue in (("new.one", "lasting"), ("old", "rest")):
        channel.basic_publish("from", key, b"x", mandatory=True)
        assert channel.basic_get(queue, auto_ack=True)[0].routing_key == key
    assert code_of(connect(gateway), lambda c: (c.confirm_delivery(), c.basic_publish("in", "", b""))) == 403


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
    assert (
        info.value.reply_text
        == f"PRECONDITION_FAILED - message size {most + 1} is larger than configured max size {most}"
    )
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
    wait_until(lambda: count() == 0)
    assert channel.queue_purge(queue).method.message_count == 0
    assert channel.basic_get(queue) == (None, None, None)


@pytest.mark.anyio
async def test_a_password_that_does_not_expire_needs_no_new_secret(shared_gateway):
    port = shared_gateway.port("amqp")
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{port}/", timeout=TIMEOUT_S)
    await connection.update_secret("another", timeout=TIMEOUT_S)
    channel = await connection.channel()
    await channel.declare_queue(exclusive=True)
    await connection.close()
