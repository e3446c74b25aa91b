"""Programs that ask and answer: queues for answers, RabbitMQ's direct reply-to, answers that nobody waits for."""

from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.support.amqp.programs.stage import Stage

DIRECT = "amq.rabbitmq.reply-to"


def _answer(channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
    """Answers with the request in capitals."""
    said = pika.BasicProperties(correlation_id=properties.correlation_id)
    channel.basic_publish("", properties.reply_to, body.upper(), said)
    channel.basic_ack(method.delivery_tag)


def requests_with_a_queue_for_answers(stage: Stage) -> None:
    """Asks a server three things, and tells the answers apart by their correlation."""
    with stage.connect() as asking, stage.connect() as serving:
        server, client = serving.channel(), asking.channel()
        requests = stage.queue(server, "requests")
        server.basic_qos(prefetch_count=1)
        server.basic_consume(requests, _answer)
        answers = client.queue_declare("", exclusive=True).method.queue
        found: dict[str, str] = {}

        def answered(_channel: object, _method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            found[properties.correlation_id] = body.decode()

        client.basic_consume(answers, answered, auto_ack=True)
        for text in ("a", "b", "c"):
            said = pika.BasicProperties(reply_to=answers, correlation_id=f"id-{text}")
            client.basic_publish("", requests, text.encode(), said)
        while len(found) < 3:
            serving.process_data_events(0.01)
            asking.process_data_events(0.01)
        stage.say(sorted(found.items()))
        stage.say(answers.startswith("amq.gen-"), len(answers))


def requests_with_direct_answers(stage: Stage) -> None:
    """Asks by RabbitMQ's direct reply-to, twice on one channel."""
    with stage.connect() as asking, stage.connect() as serving:
        server, client = serving.channel(), asking.channel()
        requests = stage.queue(server, "requests")
        server.basic_consume(requests, _answer)
        found: list[tuple[str, str, str]] = []

        def answered(_channel: object, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            key = method.routing_key
            found.append((body.decode(), properties.correlation_id, key[: len(DIRECT)]))

        client.basic_consume(DIRECT, answered, auto_ack=True)
        for number in range(2):
            said = pika.BasicProperties(reply_to=DIRECT, correlation_id=f"{number}")
            client.basic_publish("", requests, b"ask", said)
            while len(found) == number:
                serving.process_data_events(0.01)
                asking.process_data_events(0.01)
        stage.say(found)


def requests_that_nobody_takes(stage: Stage) -> None:
    """Asks a server that is not there, and learns it from the message that comes back."""
    with stage.channel() as channel:
        channel.basic_consume(DIRECT, lambda *_: None, auto_ack=True)
        channel.confirm_delivery()
        said = pika.BasicProperties(reply_to=DIRECT, headers={"n": 1}, message_id="m")
        try:
            channel.basic_publish("", stage.name("nobody"), b"ask", said, mandatory=True)
        except UnroutableError as error:
            (back,) = error.messages
            stage.say(
                back.method.reply_code, back.method.reply_text, repr(back.method.exchange), back.method.routing_key
            )
            stage.say(back.body.decode(), back.properties.message_id, back.properties.headers)
        channel.basic_publish("", stage.name("nobody"), b"ask", said)  # not mandatory: it is dropped
        stage.say("open", channel.is_open)


def direct_answers_used_wrongly(stage: Stage) -> None:
    """Makes the mistakes that there are with direct reply-to."""
    stage.mistake("a reply consumer that acknowledges", lambda c: c.basic_consume(DIRECT, lambda *_: None))
    stage.mistake(
        "asking without a reply consumer",
        lambda c: c.basic_publish("", "q", b"", pika.BasicProperties(reply_to=DIRECT)),
    )

    def twice(channel: BlockingChannel) -> None:
        for _ in range(2):
            channel.basic_consume(DIRECT, lambda *_: None, auto_ack=True)

    stage.mistake("a second reply consumer", twice)


def an_answer_comes_too_late(stage: Stage) -> None:
    """Answers a client that has gone: its queue is gone with it, and the server goes on."""
    with stage.connect() as serving:
        server = serving.channel()
        requests = stage.queue(server, "requests")
        with stage.connect() as asking:
            client = asking.channel()
            answers = client.queue_declare("", exclusive=True).method.queue
            client.confirm_delivery()
            client.basic_publish("", requests, b"ask", pika.BasicProperties(reply_to=answers))
        method, properties, _ = stage.next(server, requests)
        server.confirm_delivery()
        server.basic_publish("", properties.reply_to, b"late")
        server.basic_ack(method.delivery_tag)
        try:
            server.queue_declare(properties.reply_to, passive=True)
        except ChannelClosedByBroker as error:
            stage.say(error.reply_code, error.reply_text.replace(properties.reply_to, "THE QUEUE"))
        stage.say(serving.is_open)


PROGRAMS = (
    requests_with_a_queue_for_answers,
    requests_with_direct_answers,
    requests_that_nobody_takes,
    direct_answers_used_wrongly,
    an_answer_comes_too_late,
)
