"""Programs of kombu: simple queues, producers with retries, several serializers, broadcasts."""

from typing import Any

import kombu
from kombu.common import Broadcast
from kombu.pools import producers, reset

from tests.support.amqp.programs.stage import TIMEOUT_S, Stage


def a_simple_queue(stage: Stage) -> None:
    """Puts messages of several serializers into a simple queue, and gets them, one of them twice."""
    kombu.enable_insecure_serializers(["pickle"])
    with kombu.Connection(stage.url) as connection, connection.SimpleQueue(stage.name("simple")) as queue:
        for serializer in ("json", "pickle", "yaml", "msgpack", "raw"):
            if serializer in ("json", "pickle"):
                queue.put({"n": 1, "by": serializer}, serializer=serializer, headers={"h": 1})
        message = queue.get(timeout=TIMEOUT_S)
        stage.say(message.content_type, message.content_encoding, message.headers, message.delivery_info["redelivered"])
        message.requeue()
        for _ in range(2):
            message = queue.get(timeout=TIMEOUT_S)
            stage.say(message.content_type, len(message.body) > 0)
            message.ack()
        try:
            queue.get(block=False)
        except queue.Empty:
            stage.say("empty")
        queue.consumer.cancel()
        queue.queue.delete()


def producers_and_consumers(stage: Stage) -> None:
    """Publishes through a pool with retries, consumes with a prefetch, rejects to a dead-letter exchange."""
    with kombu.Connection(stage.url, transport_options={"confirm_publish": True}) as connection:
        channel = connection.channel()
        dead = kombu.Queue(stage.name("dead"), kombu.Exchange(stage.name("dlx"), "fanout", auto_delete=True))
        tasks = kombu.Queue(
            stage.name("tasks"),
            kombu.Exchange(stage.name("x"), "topic", auto_delete=True),
            routing_key="task.*",
            queue_arguments={"x-dead-letter-exchange": stage.name("dlx")},
            max_length=10,
        )
        for queue in (dead(channel), tasks(channel)):
            queue.declare()
        found: list[tuple[str, Any]] = []
        with producers[connection].acquire(block=True) as producer:
            for number in range(3):
                producer.publish(
                    {"n": number},
                    exchange=tasks.exchange,
                    routing_key=f"task.{number}",
                    retry=True,
                    expiration=60,
                    priority=number,
                    declare=[tasks],
                )

        def work(body: Any, message: kombu.Message) -> None:
            found.append((message.delivery_info["routing_key"], body))
            if body["n"] == 1:
                message.reject()
            else:
                message.ack()

        with kombu.Consumer(channel, [tasks], callbacks=[work], prefetch_count=1, accept=["json"]):
            while len(found) < 3:
                connection.drain_events(timeout=TIMEOUT_S)
        stage.say(found)
        for _ in range(1_000):
            if (message := dead(channel).get()) is not None:
                break
        assert message is not None
        death = message.headers["x-death"][0]
        stage.say(
            message.payload,
            death["reason"],
            death["count"],
            death["routing-keys"],
            message.properties.get("expiration"),
        )
        for queue in (dead(channel), tasks(channel)):
            queue.delete()
        try:
            connection.drain_events(timeout=0.05)
        except TimeoutError:
            stage.say("nothing more")
        reset()


def a_broadcast(stage: Stage) -> None:
    """Sends a message to the queues of all workers."""
    with kombu.Connection(stage.url) as connection:
        channel = connection.channel()
        queues = [Broadcast(stage.name("all"), channel=channel, unique=True) for _ in range(3)]
        found: list[Any] = []
        with kombu.Consumer(channel, queues, callbacks=[lambda body, message: (found.append(body), message.ack())]):
            kombu.Producer(channel).publish({"stop": True}, exchange=queues[0].exchange, serializer="json")
            while len(found) < 3:
                connection.drain_events(timeout=TIMEOUT_S)
        stage.say(found)
        queues[0].exchange(channel).delete()


PROGRAMS = (a_simple_queue, producers_and_consumers, a_broadcast)
