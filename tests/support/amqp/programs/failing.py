"""Programs that fail, retry and move messages: dead letters, ladders of queues with a time to live, limits."""

import pika

from tests.support.amqp.programs.stage import Stage, bodies, deaths, waiting


def retry_by_a_queue_with_a_time_to_live(stage: Stage) -> None:
    """Rejects a message twice; a queue with a time to live sends it back each time."""
    with stage.channel() as channel:
        work, later = stage.name("work"), stage.name("later")
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 30}
        channel.queue_declare(later, exclusive=True, arguments=back)
        away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": later}
        channel.queue_declare(work, exclusive=True, arguments=away)
        channel.confirm_delivery()
        channel.basic_publish("", work, b"task", pika.BasicProperties(message_id="1", headers={"tries": 0}))
        for _ in range(3):
            method, properties, body = stage.next(channel, work)
            stage.say(body.decode(), properties.message_id, method.redelivered, sorted(properties.headers))
            stage.say(deaths(properties))
            if len(properties.headers.get("x-death", [])) and properties.headers["x-death"][0]["count"] == 2:
                channel.basic_ack(method.delivery_tag)
            else:
                channel.basic_reject(method.delivery_tag, requeue=False)
        stage.say(waiting(channel, work), waiting(channel, later))


def a_ladder_of_retries(stage: Stage) -> None:
    """Publishes what failed to the next step of a ladder, which waits longer, and gives up behind the last."""
    with stage.channel() as channel:
        work, failed = stage.queue(channel, "work"), stage.queue(channel, "failed")
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
        steps = [stage.queue(channel, f"wait.{ttl}", arguments={**back, "x-message-ttl": ttl}) for ttl in (10, 20, 40)]
        channel.confirm_delivery()
        channel.basic_publish("", work, b"job", pika.BasicProperties(delivery_mode=2, correlation_id="c"))
        for step in (*steps, failed):
            method, properties, body = stage.next(channel, work)
            stage.say(method.routing_key, properties.correlation_id, properties.delivery_mode, deaths(properties))
            channel.basic_publish("", step, body, properties)
            channel.basic_ack(method.delivery_tag)
        _, properties, _ = stage.next(channel, failed)
        stage.say(
            "gave up after", len(properties.headers["x-death"]), "first in", properties.headers["x-first-death-queue"]
        )


def messages_expire_each_for_itself(stage: Stage) -> None:
    """Publishes with `expiration`: what expires behind a message that does not waits for it."""
    with stage.channel() as channel:
        dead = stage.queue(channel, "dead")
        work = stage.queue(channel, "work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
        channel.confirm_delivery()
        channel.basic_publish("", work, b"short", pika.BasicProperties(expiration="10"))
        _, properties, body = stage.next(channel, dead)
        stage.say(body.decode(), properties.expiration, deaths(properties))
        channel.basic_publish("", work, b"long", pika.BasicProperties(expiration="600000"))
        channel.basic_publish("", work, b"now", pika.BasicProperties(expiration="0"))
        method, _, body = stage.next(channel, work)
        stage.say(body.decode())
        channel.basic_ack(method.delivery_tag)
        _, _, body = stage.next(channel, dead)
        stage.say(body.decode(), waiting(channel, work))


def a_full_queue(stage: Stage) -> None:
    """Fills queues with a limit: one drops its oldest messages, one refuses new ones."""
    with stage.channel() as channel:
        dead = stage.queue(channel, "dead")
        away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        dropping = stage.queue(channel, "dropping", arguments={**away, "x-max-length": 2})
        refusing = stage.queue(channel, "refusing", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        channel.confirm_delivery()
        for queue in (dropping, refusing):
            for number in range(4):
                try:
                    channel.basic_publish("", queue, b"%d" % number)
                except pika.exceptions.NackError as error:
                    stage.say(number, "is nacked", len(error.messages))
            stage.say(waiting(channel, queue), bodies(channel, queue))
        for _ in range(2):
            _, properties, body = stage.next(channel, dead, auto_ack=True)
            stage.say(body.decode(), deaths(properties))


def a_quorum_queue_gives_up(stage: Stage) -> None:
    """Gives a message back until the delivery limit of a queue declared as a quorum queue is reached."""
    with stage.channel() as channel:
        dead, work = stage.queue(channel, "dead"), stage.name("work")
        arguments = {
            "x-queue-type": "quorum",
            "x-delivery-limit": 2,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": dead,
        }
        channel.queue_declare(work, durable=True, arguments=arguments)
        channel.confirm_delivery()
        channel.basic_publish("", work, b"poison")
        for _ in range(3):
            method, properties, _ = stage.next(channel, work)
            stage.say(method.redelivered, properties.headers)
            channel.basic_nack(method.delivery_tag, requeue=True)
        _, properties, body = stage.next(channel, dead)
        stage.say(body.decode(), deaths(properties))
        channel.queue_delete(work)


def messages_are_moved(stage: Stage) -> None:
    """Moves messages from queue to queue as a shovel does: what it has fetched is acknowledged once it is confirmed."""
    with stage.channel() as source, stage.connect() as connection:
        target = connection.channel()
        one, other = stage.queue(source, "one"), stage.name("other")
        target.queue_declare(other, exclusive=True)
        target.confirm_delivery()
        for number in range(3):
            said = pika.BasicProperties(
                message_id=f"{number}",
                app_id="a",
                type="t",
                timestamp=1_600_000_000,
                priority=number,
                headers={"n": number},
            )
            source.basic_publish("", one, b"%d" % number, said)
        while (found := source.basic_get(one))[0] is not None:
            method, properties, body = found
            properties.headers["x-moved-from"] = method.routing_key
            target.basic_publish("", other, body, properties, mandatory=True)
            source.basic_ack(method.delivery_tag)
        stage.say(waiting(source, one), waiting(target, other))
        for _ in range(3):
            method, properties, body = stage.next(target, other, auto_ack=True)
            stage.say(method.message_count, body.decode(), properties)


def a_rejected_message_without_a_place_for_dead_letters(stage: Stage) -> None:
    """Rejects, gives back and forgets messages; order and flags of what comes again."""
    with stage.connect() as connection:
        channel = connection.channel()
        queue = stage.queue(channel, "q")
        for number in range(5):
            channel.basic_publish("", queue, b"%d" % number)
        tags = [stage.next(channel, queue)[0].delivery_tag for _ in range(5)]
        channel.basic_reject(tags[0], requeue=False)
        channel.basic_nack(tags[2], multiple=True, requeue=True)
        channel.basic_reject(tags[3], requeue=True)
        again = [stage.next(channel, queue) for _ in range(3)]
        stage.say([(body.decode(), method.redelivered) for method, _, body in again])
        channel.close()  # gives back what it holds
        channel = connection.channel()
        again = [stage.next(channel, queue) for _ in range(4)]
        stage.say([(body.decode(), method.redelivered, method.message_count) for method, _, body in again])
        channel.basic_recover(requeue=True)
        stage.say(waiting(channel, queue), channel.queue_purge(queue).method.message_count)


PROGRAMS = (
    retry_by_a_queue_with_a_time_to_live,
    a_ladder_of_retries,
    messages_expire_each_for_itself,
    a_full_queue,
    a_quorum_queue_gives_up,
    messages_are_moved,
    a_rejected_message_without_a_place_for_dead_letters,
)
