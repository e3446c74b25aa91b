"""Queues of pika's blocking client, for tests over real sockets."""

import contextlib
import datetime
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

TIMEOUT_S = 60
_numbers = itertools.count()


def fresh(prefix: str) -> str:
    """Returns a name that no other test has used."""
    return f"{prefix}-{time.monotonic_ns()}-{next(_numbers)}"


@contextlib.contextmanager
def connect(gateway: Any, **options: Any) -> Iterator[pika.BlockingConnection]:
    """Yields a connection, and closes it behind the test unless it is closed already."""
    connection = pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"), socket_timeout=TIMEOUT_S, **options)
    )
    try:
        yield connection
    finally:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection.close()


def queue(channel: BlockingChannel, name: str = "", **arguments: Any) -> str:
    """Declares a queue of this connection's own. Arguments are named as in AMQP, `x_max_length` for `x-max-length`."""
    said = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return channel.queue_declare(name, exclusive=True, arguments=said).method.queue


def count(channel: BlockingChannel, name: str) -> int:
    """Returns how many messages wait in a queue."""
    return channel.queue_declare(name, passive=True).method.message_count


def get(channel: BlockingChannel, name: str, **options: Any) -> tuple[Any, Any, bytes]:
    """Returns the next message of a queue, and waits for it where the queue is empty."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        method, properties, body = channel.basic_get(name, **options)
        if method is not None:
            return method, properties, body
        channel.connection.sleep(0.01)
    raise AssertionError(f"nothing comes to {name}")


def bodies(channel: BlockingChannel, name: str) -> list[bytes]:
    """Takes all messages that wait in a queue, and returns their bodies."""
    return [body for *_, body in iter(lambda: channel.basic_get(name, auto_ack=True), (None, None, None))]


def until(condition: Callable[[], bool], connection: Any = None, *, every_s: float = 0.01) -> None:
    """Waits for a condition, and lets a connection do its work meanwhile."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        if connection is None:
            time.sleep(every_s)
        else:
            connection.process_data_events(every_s)


def deaths(properties: Any) -> list[tuple[Any, ...]]:
    """Returns a dead letter's list of deaths, without times."""
    names = ("count", "reason", "queue", "exchange", "routing-keys", "original-expiration")
    for death in properties.headers["x-death"]:
        assert isinstance(death["time"], datetime.datetime)
        assert set(death) <= {*names, "time"}
    return [tuple(death.get(name) for name in names) for death in properties.headers["x-death"]]


def first_death(properties: Any) -> list[Any]:
    """Returns the headers that say how a message died the first time."""
    return [properties.headers.get(f"x-first-death-{name}") for name in ("reason", "queue", "exchange")]
