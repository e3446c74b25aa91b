"""Programs that consume: prefetch, priorities, exclusive consumers, queues that go away, streams."""

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.programs.stage import Stage, bodies


def a_worker_is_told_that_its_queue_is_gone(stage: Stage) -> None:
    """Deletes a queue under its consumer, which is told, and whose channel stays open."""
    with stage.connect() as working, stage.channel() as operator:
        channel = working.channel()
        queue = stage.name("q")
        operator.queue_declare(queue)
        told: list[str] = []
        channel.add_on_cancel_callback(
            lambda frame: told.append(f"{type(frame.method).__name__} {frame.method.consumer_tag}")
        )
        channel.basic_consume(queue, lambda *_: None, consumer_tag="worker")
        stage.say(operator.queue_declare(queue, passive=True).method.consumer_count)
        operator.queue_delete(queue)
        stage.until(working, lambda: told)
        stage.say(told, channel.is_open, channel.consumer_tags)


def exclusive_queues_and_consumers(stage: Stage) -> None:
    """Uses another connection's exclusive queue, consumes beside an exclusive consumer."""
    with stage.connect() as first:
        channel = first.channel()
        mine, common = stage.queue(channel, "mine"), stage.name("common")
        channel.queue_declare(common, auto_delete=True)
        for what, act in (
            ("declaring", lambda c: c.queue_declare(mine)),
            ("asking", lambda c: c.queue_declare(mine, passive=True)),
            ("fetching", lambda c: c.basic_get(mine)),
            ("consuming", lambda c: c.basic_consume(mine, lambda *_: None)),
            ("binding", lambda c: c.queue_bind(mine, "amq.direct", "k")),
            ("purging", lambda c: c.queue_purge(mine)),
            ("deleting", lambda c: c.queue_delete(mine)),
        ):
            stage.mistake(what, act)
        channel.basic_consume(common, lambda *_: None, exclusive=True)
        stage.mistake("consuming beside", lambda c: c.basic_consume(common, lambda *_: None))
        stage.mistake("consuming alone", lambda c: c.basic_consume(common, lambda *_: None, exclusive=True))
    stage.mistake("asking later", lambda c: c.queue_declare(mine, passive=True))


def what_a_consumer_leaves_comes_again_in_order(stage: Stage) -> None:
    """Closes a channel with messages that are not acknowledged; another consumer gets them first."""
    with stage.connect() as connection:
        channel = connection.channel()
        queue = stage.queue(channel, "q")
        for number in range(6):
            channel.basic_publish("", queue, b"%d" % number)
        first = connection.channel()
        first.basic_qos(prefetch_count=4)
        held: list[int] = []
        first.basic_consume(queue, lambda _c, method, _p, _b: held.append(method.delivery_tag))
        stage.until(connection, lambda: len(held) == 4)
        first.basic_ack(held[1])  # one of them alone
        stage.until(connection, lambda: len(held) == 5)
        first.close()
        found = [stage.next(channel, queue, auto_ack=True) for _ in range(5)]
        stage.say([(body.decode(), method.redelivered) for method, _, body in found])


def urgent_messages_first(stage: Stage) -> None:
    """Publishes messages of several priorities to a queue with priorities."""
    with stage.channel() as channel:
        queue = stage.queue(channel, "q", arguments={"x-max-priority": 5})
        for number, priority in enumerate((0, 5, None, 1, 9, 5)):
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(priority=priority))
        found = [stage.next(channel, queue) for _ in range(6)]
        stage.say([(body.decode(), properties.priority) for _, properties, body in found])
        channel.basic_nack(found[0][0].delivery_tag, requeue=True)
        channel.basic_nack(found[-1][0].delivery_tag, requeue=True)
        stage.say(bodies(channel, queue))


def consumers_with_priorities(stage: Stage) -> None:
    """Consumes with priorities: the consumer with the lower one gets what the other has no room for."""
    with stage.connect() as connection:
        channel = connection.channel()
        queue = stage.queue(channel, "q")
        found: dict[str, list[str]] = {"high": [], "low": []}
        for tag, priority in (("low", 1), ("high", 5)):
            consumer = connection.channel()
            consumer.basic_qos(prefetch_count=2)
            consumer.basic_consume(
                queue,
                lambda _c, method, _p, body: found[method.consumer_tag].append(body.decode()),
                consumer_tag=tag,
                arguments={"x-priority": priority},
            )
        for number in range(3):
            channel.basic_publish("", queue, b"%d" % number)
        stage.until(connection, lambda: sum(map(len, found.values())) == 3)
        stage.say(found)


def one_active_consumer(stage: Stage) -> None:
    """Consumes a queue with a single active consumer; the next one goes on where the first has stopped."""
    with stage.connect() as connection:
        channel = connection.channel()
        queue = stage.queue(channel, "q", arguments={"x-single-active-consumer": True})
        found: list[str] = []
        for tag in ("first", "second"):
            channel.basic_consume(
                queue,
                lambda c, method, _p, body: (
                    found.append(f"{method.consumer_tag} {body.decode()}"),
                    c.basic_ack(method.delivery_tag),
                ),
                consumer_tag=tag,
            )
        for number in range(4):
            channel.basic_publish("", queue, b"%d" % number)
            stage.until(connection, lambda number=number: len(found) == number + 1)
            if number == 1:
                channel.basic_cancel("first")
        stage.say(found)


def a_stream_is_read_again_and_again(stage: Stage) -> None:
    """Reads a stream from several offsets; nothing is taken away."""
    with stage.connect() as connection:
        channel = connection.channel()
        queue = stage.name("stream")
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        for number in range(5):
            channel.basic_publish("", queue, b"%d" % number, pika.BasicProperties(headers={"n": number}))
        found: list[tuple[str, list[tuple[str, int]]]] = []

        def read(channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            found.append((body.decode(), sorted(properties.headers.items())))
            channel.basic_ack(method.delivery_tag)

        for offset in ("first", 3, "next"):
            found.clear()
            reader = connection.channel()
            reader.basic_qos(prefetch_count=10)
            reader.basic_consume(queue, read, arguments={"x-stream-offset": offset})
            if offset == "next":
                channel.basic_publish("", queue, b"new")
            count = {"first": 5, 3: 2, "next": 1}[offset]
            stage.until(connection, lambda count=count: len(found) == count)
            stage.say(offset, found)
            reader.close()
        channel.queue_delete(queue)


def a_prefetch_of_a_channel(stage: Stage) -> None:
    """Limits a channel as a whole: its consumers of two queues get their turns."""
    with stage.connect() as connection:
        channel = connection.channel()
        queues = [stage.queue(channel, text) for text in "ab"]
        for queue in queues:
            for number in range(20):
                channel.basic_publish("", queue, b"%d" % number)
        worker = connection.channel()
        worker.basic_qos(prefetch_count=1, global_qos=True)
        found: list[str] = []

        def work(channel: BlockingChannel, method: Any, _properties: object, _body: bytes) -> None:
            found.append(method.consumer_tag)
            channel.basic_ack(method.delivery_tag)

        for tag, queue in zip("ab", queues, strict=True):
            worker.basic_consume(queue, work, consumer_tag=tag)
        stage.until(connection, lambda: len(found) == 40)
        stage.say(found.count("a"), found.count("b"), min(found[:20].count(tag) for tag in "ab") > 0)


PROGRAMS = (
    a_worker_is_told_that_its_queue_is_gone,
    exclusive_queues_and_consumers,
    what_a_consumer_leaves_comes_again_in_order,
    urgent_messages_first,
    consumers_with_priorities,
    one_active_consumer,
    a_stream_is_read_again_and_again,
    a_prefetch_of_a_channel,
)
