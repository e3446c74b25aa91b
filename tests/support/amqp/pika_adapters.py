"""One set of cases by each of pika's asynchronous adapters: `python -m tests.support.amqp.pika_adapters ADAPTER PORT`.

A case is a generator: it yields a request and goes on with its answer. The adapters differ in who calls back: a loop of
pika's, of asyncio, Tornado or gevent, or Twisted's reactor by way of Deferreds. It ends with one line of JSON: the
names of the cases, each with "passed" or what went wrong.
"""

import json
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import pika
import pika.exceptions
from pika.spec import Basic

from tests.support.amqp.pika_queues import fresh

PATIENCE_S = 60
PARALLEL = 50
BIG = 100_000 * 12

Resume = Callable[[Any], None]
Request = Callable[["Channel", Resume], None]
Case = Generator[Request, Any, None]


class Channel:
    """A channel of an adapter: what a case asks of it, and what has come without being asked for."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.came: deque[Any] = deque()
        self.waiting: Resume | None = None

    def arrived(self, one: Any) -> None:
        """Notes a delivery, a confirm, a return, a cancel or the end, or hands it to the case that waits."""
        if self.waiting is None:
            self.came.append(one)
        else:
            waiting, self.waiting = self.waiting, None
            waiting(one)


# ---- requests


def ask(method: str, **arguments: Any) -> Request:
    """Returns a request whose answer is the frame of the broker, or the reply code with which it closes the channel."""

    def request(channel: Channel, resume: Resume) -> None:
        channel.waiting = resume
        channel.raw.ask(method, arguments, channel.arrived)

    return request


def tell(method: str, **arguments: Any) -> Request:
    """Returns a request without an answer."""

    def request(channel: Channel, resume: Resume) -> None:
        channel.raw.tell(method, arguments)
        resume(None)

    return request


def hear(channel: Channel, resume: Resume) -> None:
    """Waits for what comes next by itself."""
    if channel.came:
        resume(channel.came.popleft())
    else:
        channel.waiting = resume


def publish(exchange: str, key: str, body: bytes, **options: Any) -> Request:
    return tell("basic_publish", exchange=exchange, routing_key=key, body=body, **options)


# ---- cases


def confirms_in_batches() -> Case:
    queue = (yield ask("queue_declare", queue="", exclusive=True)).method.queue
    yield ask("confirm_delivery")
    for number in range(PARALLEL):
        yield publish("", queue, b"%d" % number)
    confirmed = 0
    while confirmed < PARALLEL:
        kind, tag, multiple = yield hear
        assert kind == "ack"
        confirmed = tag if multiple else confirmed + 1
    assert (yield ask("queue_declare", queue=queue, passive=True)).method.message_count == PARALLEL


def answers_and_no_answers_by_turns() -> Case:
    name = fresh("adapter")
    yield ask("exchange_declare", exchange=name, exchange_type="topic", auto_delete=True)
    yield tell("exchange_declare", exchange=name, exchange_type="topic", auto_delete=True)  # without a callback: nowait
    yield ask("exchange_declare", exchange=name, exchange_type="topic", auto_delete=True)
    yield tell("exchange_delete", exchange=name)
    assert (yield ask("exchange_declare", exchange=name, passive=True)) == 404


def exchanges_come_and_go() -> Case:
    name, other = fresh("adapter"), fresh("adapter")
    yield ask("exchange_declare", exchange=name, exchange_type="direct")
    yield ask("exchange_declare", exchange=other, exchange_type="fanout")
    yield ask("exchange_bind", destination=other, source=name, routing_key="k")
    yield ask("exchange_unbind", destination=other, source=name, routing_key="k")
    for one in (name, other):
        assert (yield ask("exchange_delete", exchange=one)).method.NAME == "Exchange.DeleteOk"


def an_exchange_that_differs_closes_the_channel() -> Case:
    name = fresh("adapter")
    yield ask("exchange_declare", exchange=name, exchange_type="direct", auto_delete=True)
    assert (yield ask("exchange_declare", exchange=name, exchange_type="fanout", auto_delete=True)) == 406


def queues_come_and_go() -> Case:
    for name in ("", fresh("adapter")):
        queue = (yield ask("queue_declare", queue=name, exclusive=True)).method.queue
        assert queue.startswith(name or "amq.gen")
        assert (yield ask("queue_delete", queue=queue)).method.NAME == "Queue.DeleteOk"


def a_queue_that_differs_closes_the_channel() -> Case:
    name = fresh("adapter")
    yield ask("queue_declare", queue=name, auto_delete=True)
    assert (yield ask("queue_declare", queue=name, durable=True)) == 406


def a_transaction_is_committed_and_rolled_back() -> Case:
    queue = (yield ask("queue_declare", queue="", exclusive=True)).method.queue
    yield ask("tx_select")
    yield publish("", queue, b"never")
    yield ask("tx_rollback")
    yield publish("", queue, b"once")
    assert (yield ask("queue_declare", queue=queue, passive=True)).method.message_count == 0
    yield ask("tx_commit")
    assert (yield ask("basic_get", queue=queue, auto_ack=True)) == b"once"
    assert (yield ask("basic_get", queue=queue, auto_ack=True)) is None


def a_commit_without_a_transaction_closes_the_channel() -> Case:
    assert (yield ask("tx_commit")) == 406


def a_rollback_without_a_transaction_closes_the_channel() -> Case:
    assert (yield ask("tx_rollback")) == 406


def messages_are_consumed_given_back_and_acknowledged() -> Case:
    name = fresh("adapter")
    yield ask("exchange_declare", exchange=name, exchange_type="topic", auto_delete=True)
    queue = (yield ask("queue_declare", queue="", exclusive=True)).method.queue
    yield ask("queue_bind", queue=queue, exchange=name, routing_key="a.#")
    yield ask("basic_qos", prefetch_count=1)
    yield ask("basic_consume", queue=queue, consumer_tag="one")
    big = b"0123456789ab" * (BIG // 12)
    for body in (b"small", big):
        yield publish(name, "a.b", body)
    method, body = yield hear
    assert (body, method.consumer_tag, method.routing_key, method.redelivered) == (b"small", "one", "a.b", False)
    yield tell("basic_nack", delivery_tag=method.delivery_tag, requeue=True)
    method, body = yield hear
    assert (body, method.redelivered) == (b"small", True)
    yield tell("basic_ack", delivery_tag=method.delivery_tag)
    method, body = yield hear
    assert body == big
    yield tell("basic_reject", delivery_tag=method.delivery_tag, requeue=False)
    yield ask("basic_cancel", consumer_tag="one")
    assert (yield ask("queue_purge", queue=queue)).method.message_count == 0


def a_mandatory_message_is_returned() -> Case:
    yield ask("confirm_delivery")
    yield publish("amq.direct", fresh("nowhere"), b"back", mandatory=True)
    assert sorted([(yield hear), (yield hear)], key=str) == [("ack", 1, False), ("return", 312, b"back")]


def a_consumer_is_cancelled_with_its_queue() -> Case:
    name = fresh("adapter")
    yield ask("queue_declare", queue=name)
    yield ask("basic_consume", queue=name, consumer_tag="gone")
    yield tell("queue_delete", queue=name)
    assert (yield hear) == ("cancel", "gone")


def a_queue_that_is_not_there_closes_the_channel() -> Case:
    assert (yield ask("basic_consume", queue=fresh("nowhere"), consumer_tag="x")) == 404


CASES: list[Callable[[], Case]] = [
    confirms_in_batches,
    answers_and_no_answers_by_turns,
    exchanges_come_and_go,
    an_exchange_that_differs_closes_the_channel,
    queues_come_and_go,
    a_queue_that_differs_closes_the_channel,
    a_transaction_is_committed_and_rolled_back,
    a_commit_without_a_transaction_closes_the_channel,
    a_rollback_without_a_transaction_closes_the_channel,
    messages_are_consumed_given_back_and_acknowledged,
    a_mandatory_message_is_returned,
    a_consumer_is_cancelled_with_its_queue,
    a_queue_that_is_not_there_closes_the_channel,
]


class Run:
    """The cases, one behind another, each with a channel of its own."""

    def __init__(self, stop: Callable[[], None], open_channel: Callable[[Callable[[Channel], None]], None]) -> None:
        self.results: dict[str, str] = {}
        self._stop = stop
        self._open_channel = open_channel
        self._left = deque(CASES)

    def following(self) -> None:
        """Begins the next case, or ends."""
        if self._left:
            self._open_channel(lambda channel: self._begin(self._left.popleft(), channel))
        else:
            self._stop()

    def _begin(self, case: Callable[[], Case], channel: Channel) -> None:
        steps = case()

        def resume(value: Any) -> None:
            try:
                request = steps.send(value)
            except StopIteration:
                self.results[case.__name__] = "passed"
                self.following()
            except Exception:  # noqa: BLE001 - told with the results
                self.results[case.__name__] = traceback.format_exc()
                self.following()
            else:
                request(channel, resume)

        resume(None)


# ---- adapters that call back


class CallingBack:
    """A channel of an adapter that calls back."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.of = Channel(self)
        channel.add_on_close_callback(lambda _, why: self.of.arrived(getattr(why, "reply_code", str(why))))
        channel.add_on_cancel_callback(lambda frame: self.of.arrived(("cancel", frame.method.consumer_tag)))
        channel.add_on_return_callback(lambda _, method, __, body: self.of.arrived(("return", method.reply_code, body)))
        channel.add_callback(lambda _: self.of.arrived(None), [Basic.GetEmpty], one_shot=False)

    def ask(self, method: str, arguments: dict[str, Any], answered: Resume) -> None:
        """Asks for something whose answer is a frame."""
        if method == "basic_consume":
            arguments = {**arguments, "on_message_callback": lambda _, said, __, body: self.of.arrived((said, body))}
        elif method == "confirm_delivery":
            arguments = {"ack_nack_callback": self._confirmed}
        if method == "basic_get":
            self._channel.basic_get(**arguments, callback=lambda _, __, ___, body: answered(body))
        else:
            getattr(self._channel, method)(**arguments, callback=answered)

    def tell(self, method: str, arguments: dict[str, Any]) -> None:
        """Asks for something that is not answered."""
        getattr(self._channel, method)(**arguments)

    def _confirmed(self, frame: Any) -> None:
        kind = "ack" if isinstance(frame.method, Basic.Ack) else "nack"
        self.of.arrived((kind, frame.method.delivery_tag, frame.method.multiple))


def calling_back(adapter: type[Any], port: int) -> dict[str, str]:
    """Returns the results of all cases by an adapter that calls back."""
    runs: list[Run] = []

    def opened(connection: Any) -> None:
        connection._adapter_call_later(PATIENCE_S, lambda: _late(connection))
        run = Run(
            connection.close,
            lambda begin: connection.channel(on_open_callback=lambda channel: begin(CallingBack(channel).of)),
        )
        runs.append(run)
        run.following()

    ended: list[BaseException] = []
    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=10)
    connection = adapter(
        parameters,
        on_open_callback=opened,
        on_open_error_callback=lambda _, error: (ended.append(error), connection.ioloop.stop()),
        on_close_callback=lambda _, error: (ended.append(error), connection.ioloop.stop()),
    )
    loop = connection.ioloop
    loop.run_forever() if hasattr(loop, "run_forever") else loop.start()
    if not isinstance(ended[0], pika.exceptions.ConnectionClosedByClient):
        raise ended[0]
    return runs[0].results


def _late(connection: Any) -> None:
    if connection.is_open:
        connection.close(541, "the cases take too long")


# ---- Twisted


class Deferring:
    """A channel of Twisted's adapter."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self.of = Channel(self)
        self._confirming = False
        self._cancelled: str | None = None  # the consumer that the case itself has cancelled
        self._tags = 0
        channel.add_on_return_callback(lambda one: self.of.arrived(("return", one.method.reply_code, one.body)))

    def ask(self, method: str, arguments: dict[str, Any], answered: Resume) -> None:
        """Asks for something whose answer is a frame."""
        self._confirming = self._confirming or method == "confirm_delivery"
        self._cancelled = arguments.get("consumer_tag") if method == "basic_cancel" else self._cancelled
        deferred = getattr(self._channel, method)(**arguments)
        if method == "basic_consume":
            deferred.addCallbacks(lambda found: (answered(None), self._read(*found)), self._failed)
        elif method == "basic_get":
            deferred.addCallbacks(lambda found: answered(None if found is None else found.body), self._failed)
        else:
            deferred.addCallbacks(answered, self._failed)

    def tell(self, method: str, arguments: dict[str, Any]) -> None:
        """Asks for something that is not answered, or whose answer no case waits for."""
        found = getattr(self._channel, method)(**arguments)
        if method == "basic_publish" and self._confirming:
            self._tags += 1
            tag = self._tags
            found.addCallbacks(lambda _: self.of.arrived(("ack", tag, False)), lambda why: self._failed(why, tag))
        elif found is not None:
            found.addErrback(lambda _: None)

    def _read(self, queue: Any, tag: str) -> None:
        queue.get().addCallbacks(
            lambda one: (self.of.arrived((one.method, one.body)), self._read(queue, tag)),
            lambda failure: self._no_more(failure, tag),
        )

    def _no_more(self, failure: Any, tag: str) -> None:
        if failure.check(pika.exceptions.ConsumerCancelled) and tag != self._cancelled:
            self.of.arrived(("cancel", tag))

    def _failed(self, failure: Any, tag: int = 0) -> None:
        if failure.check(pika.exceptions.UnroutableError):  # the adapter says so when the confirm comes
            self.of.arrived(("ack", tag, False))
            return
        self.of.arrived(getattr(failure.value, "reply_code", str(failure.value)))


def twisted(port: int) -> dict[str, str]:
    """Returns the results of all cases by Twisted's adapter."""
    from pika.adapters.twisted_connection import TwistedProtocolConnection
    from twisted.internet import protocol, reactor

    found: list[Run] = []
    errors: list[Any] = []

    def ready(connection: Any) -> None:
        found.append(
            Run(
                lambda: connection.close().addBoth(lambda _: reactor.stop()),
                lambda begin: connection.channel().addCallback(lambda channel: begin(Deferring(channel).of)),
            )
        )
        found[0].following()

    def failed(failure: Any) -> None:
        errors.append(failure)
        reactor.stop()

    creator = protocol.ClientCreator(
        reactor, TwistedProtocolConnection, pika.ConnectionParameters("127.0.0.1", port, heartbeat=10)
    )
    connecting = creator.connectTCP("127.0.0.1", port)
    connecting.addCallback(lambda made: made.ready)
    connecting.addCallbacks(ready, failed)
    connecting.addErrback(failed)
    reactor.callLater(PATIENCE_S, reactor.stop)
    reactor.run()
    if errors:
        errors[0].raiseException()
    return found[0].results


def main(name: str, port: int) -> dict[str, str]:
    if name == "twisted":
        return twisted(port)
    if name == "select":
        from pika.adapters.select_connection import SelectConnection as Adapter
    elif name == "asyncio":
        from pika.adapters.asyncio_connection import AsyncioConnection as Adapter
    elif name == "tornado":
        from pika.adapters.tornado_connection import TornadoConnection as Adapter
    else:
        from pika.adapters.gevent_connection import GeventConnection as Adapter
    return calling_back(Adapter, port)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
