"""kill -9 while messages are rejected and expire: each is in its queue or in that of dead letters, never in both."""

import random
import threading
import time
from typing import Any

import pika
import pytest

pytestmark = pytest.mark.slow

CYCLES = 3
TIMEOUT_S = 60
REJECTED, EXPIRING, DEAD = "rejected", "expiring", "dead"


def connect(gateway: Any) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"), socket_timeout=TIMEOUT_S)
    )


def declare(gateway: Any) -> None:
    connection = connect(gateway)
    channel = connection.channel()
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    channel.queue_declare(DEAD, durable=True)
    channel.queue_declare(REJECTED, durable=True, arguments={**letters, "x-max-priority": 2})
    channel.queue_declare(EXPIRING, durable=True, arguments={**letters, "x-message-ttl": 40})
    connection.close()


class AmqpPublisher(threading.Thread):
    """Publishes numbers to both queues until the gateway is gone; notes those that are confirmed."""

    def __init__(self, gateway: Any, first: int) -> None:
        super().__init__()
        self.gateway, self.next = gateway, first
        self.confirmed: list[int] = []

    def run(self) -> None:
        try:
            channel = connect(self.gateway).channel()
            channel.confirm_delivery()
            while True:
                number, self.next = self.next, self.next + 1
                queue = EXPIRING if number % 2 else REJECTED
                channel.basic_publish(
                    "", queue, b"%d" % number, pika.BasicProperties(delivery_mode=2, priority=number % 5)
                )
                self.confirmed.append(number)
        except (pika.exceptions.AMQPError, OSError):
            return


class Rejecter(threading.Thread):
    """Rejects what it gets until the gateway is gone."""

    def __init__(self, gateway: Any) -> None:
        super().__init__()
        self.gateway = gateway
        self.count = 0

    def run(self) -> None:
        try:
            channel = connect(self.gateway).channel()
            channel.basic_qos(prefetch_count=7)
            for method, _, _ in channel.consume(REJECTED):
                channel.basic_reject(method.delivery_tag, requeue=False)
                self.count += 1
        except (pika.exceptions.AMQPError, OSError):
            return


def drained(gateway: Any) -> list[int]:
    """Rejects and waits until all numbers are dead letters, and returns these."""
    connection = connect(gateway)
    channel = connection.channel()
    deadline = time.monotonic() + TIMEOUT_S
    left = 1
    while left:
        assert time.monotonic() < deadline
        method, _, _ = channel.basic_get(REJECTED)
        if method is not None:
            channel.basic_reject(method.delivery_tag, requeue=False)
            continue
        left = channel.queue_declare(EXPIRING, passive=True).method.message_count
    found = [int(body) for _, _, body in iter(lambda: channel.basic_get(DEAD, auto_ack=True), (None, None, None))]
    connection.close()
    return found


def test_no_crash_loses_or_doubles_a_dead_letter(new_gateway):
    gateway = new_gateway()
    confirmed: list[int] = []
    following = 0
    for seed in range(CYCLES):
        chance = random.Random(seed)
        gateway.start()
        declare(gateway)
        publisher, rejecter = AmqpPublisher(gateway, following), Rejecter(gateway)
        publisher.start()
        rejecter.start()
        enough = chance.randrange(40, 150)
        while len(publisher.confirmed) < enough or rejecter.count < enough // 4:
            assert publisher.is_alive(), f"seed {seed}"
            assert rejecter.is_alive(), f"seed {seed}"
            publisher.join(chance.random() * 0.02)
        gateway.kill()
        for thread in (publisher, rejecter):
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        following = publisher.next
        confirmed += publisher.confirmed
    gateway.start()
    found = drained(gateway)
    assert len(found) == len(set(found)), "doubled"
    assert set(confirmed) <= set(found) <= set(range(following))
