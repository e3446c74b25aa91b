"""Exclusive queues as other connections meet them (AMQP 0-9-1, queue.declare)."""

import time

import pika
import pika.exceptions

LOCKED = 405  # resource-locked
PATIENCE_S = 60
# Operations on an exclusive queue that its connection alone may do.
ASKS = {
    "declare": lambda channel, queue: channel.queue_declare(queue, exclusive=True),
    "declare for all": lambda channel, queue: channel.queue_declare(queue),
    "look": lambda channel, queue: channel.queue_declare(queue, passive=True),
    "bind": lambda channel, queue: channel.queue_bind(queue, "amq.fanout"),
    "purge": lambda channel, queue: channel.queue_purge(queue),
    "get": lambda channel, queue: channel.basic_get(queue),
    "consume": lambda channel, queue: channel.basic_consume(queue, lambda *_: None),
    "delete": lambda channel, queue: channel.queue_delete(queue),
}


def connect(port):
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))


def codes(connection, queue):
    """Returns the code for each request that a connection makes of a queue; 0 where it is done."""
    return {name: _ask(connection, queue, ask)[0] for name, ask in ASKS.items()}


def take(connection, queue):
    """Declares an exclusive queue as soon as no other connection has it, and returns how many messages it holds."""
    deadline = time.monotonic() + PATIENCE_S
    code = LOCKED
    while code == LOCKED:
        assert time.monotonic() < deadline, f"{queue} is still another's"
        code, declared = _ask(connection, queue, ASKS["declare"])
    assert code == 0
    return declared.method.message_count


def _ask(connection, queue, ask):
    channel = connection.channel()
    try:
        answer = ask(channel, queue)
    except pika.exceptions.ChannelClosedByBroker as error:
        return error.reply_code, None
    channel.close()
    return 0, answer
