"""The stage on which a program runs: a broker, names of its own, and the transcript of what it says."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

TIMEOUT_S = 60
_numbers = itertools.count()


class Stage:
    """A broker's port, and the transcript of one program, which has the names without what makes them its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.transcript: list[str] = []
        self._suffix = f".{time.monotonic_ns()}{next(_numbers)}"

    @property
    def url(self) -> str:
        """The broker's URL."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def name(self, text: str) -> str:
        """Returns a name of this program's own."""
        return f"{text}{self._suffix}"

    def say(self, *values: object) -> None:
        """Adds a line to the transcript."""
        self.transcript.append(" ".join(map(str, values)).replace(self._suffix, ""))

    @contextlib.contextmanager
    def connect(self, **options: Any) -> Iterator[pika.BlockingConnection]:
        """Yields a connection that is closed behind the program, unless it is closed already."""
        parameters = pika.ConnectionParameters("127.0.0.1", self.port, socket_timeout=TIMEOUT_S, **options)
        connection = pika.BlockingConnection(parameters)
        try:
            yield connection
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    @contextlib.contextmanager
    def channel(self, **options: Any) -> Iterator[BlockingChannel]:
        """Yields a channel of a connection of its own."""
        with self.connect(**options) as connection:
            yield connection.channel()

    def queue(self, channel: BlockingChannel, text: str, **options: Any) -> str:
        """Declares a queue that goes with the connection; returns its name."""
        return channel.queue_declare(self.name(text), exclusive=True, **options).method.queue

    def next(self, channel: BlockingChannel, queue: str, *, auto_ack: bool = False) -> tuple[Any, Any, bytes]:
        """Returns the next message of a queue, which may have to come first."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            method, properties, body = channel.basic_get(queue, auto_ack)
            if method is not None:
                return method, properties, body
            channel.connection.sleep(0.005)
        raise AssertionError(f"nothing comes to {queue}")

    def until(self, connection: pika.BlockingConnection, condition: Callable[[], object]) -> None:
        """Lets a connection do its work until a condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, self.transcript
            connection.process_data_events(0.01)

    def mistake(self, what: str, act: Callable[[BlockingChannel], object]) -> None:
        """Says which error a program's mistake closes a fresh channel, or the connection, with."""
        with self.channel() as channel:
            try:
                act(channel)
                channel.basic_qos(prefetch_count=1)  # an answer: what was wrong before has been said
            except ChannelClosedByBroker as error:
                self.say(what, "closes the channel:", error.reply_code, error.reply_text)
            except ConnectionClosedByBroker as error:
                self.say(what, "closes the connection:", error.reply_code, error.reply_text)
            else:
                self.say(what, "is no mistake")


Program: TypeAlias = Callable[[Stage], None]


def bodies(channel: BlockingChannel, queue: str) -> list[str]:
    """Returns all messages that wait in a queue, which is empty then."""
    return [body.decode() for *_, body in iter(lambda: channel.basic_get(queue, auto_ack=True), (None, None, None))]


def waiting(channel: BlockingChannel, queue: str) -> int:
    """Returns how many messages wait in a queue."""
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def deaths(properties: pika.BasicProperties) -> str:
    """Returns the account of a dead letter, without times; the last death first, the others by their queues."""
    names = ("queue", "reason", "count", "exchange", "routing-keys", "original-expiration")
    found = (properties.headers or {}).get("x-death", [])
    said = [" ".join(f"{name}={one[name]}" for name in names if name in one) for one in found]
    return "; ".join(said[:1] + sorted(said[1:]))
