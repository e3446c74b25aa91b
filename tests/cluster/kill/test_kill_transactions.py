"""kill -9 while transactions move messages from queue to queue: each is in one of the two, never in both."""

import random
import threading
import time
from typing import Any

import pika
import pytest

from tests.support.amqp.pika_queues import TIMEOUT_S, bodies, connect, count

pytestmark = pytest.mark.slow

CYCLES = 3
MESSAGES = 400
BATCH = 3
SOURCES, TARGET = ("one", "two"), "target"


class Mover(threading.Thread):
    """Moves messages of both queues, a few in each transaction, until the gateway is gone."""

    def __init__(self, gateway: Any) -> None:
        super().__init__()
        self.gateway = gateway
        self.commits = 0

    def run(self) -> None:
        try:
            with connect(self.gateway) as connection:
                channel = connection.channel()
                channel.tx_select()
                while self._move(channel):
                    channel.tx_commit()
                    self.commits += 1
        except (pika.exceptions.AMQPError, OSError):
            return

    def _move(self, channel: Any) -> bool:
        moved = False
        for _ in range(BATCH):
            for name in SOURCES:
                method, _, body = channel.basic_get(name)
                if method is not None:
                    channel.basic_publish("", TARGET, body, pika.BasicProperties(delivery_mode=2))
                    channel.basic_ack(method.delivery_tag)
                    moved = True
        return moved


def test_no_crash_loses_or_doubles_what_a_transaction_moves(new_gateway):
    gateway = new_gateway().start()
    with connect(gateway) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for name in (*SOURCES, TARGET):
            channel.queue_declare(name, durable=True)
        for number in range(MESSAGES):
            channel.basic_publish("", SOURCES[number % 2], b"%d" % number, pika.BasicProperties(delivery_mode=2))
    for seed in range(CYCLES):
        mover = Mover(gateway)
        mover.start()
        enough = random.Random(seed).randrange(2, 8)
        deadline = time.monotonic() + TIMEOUT_S
        while mover.commits < enough and mover.is_alive():
            assert time.monotonic() < deadline
            mover.join(0.003)
        gateway.kill()
        mover.join(TIMEOUT_S)
        assert not mover.is_alive()
        gateway.start()
    with connect(gateway) as connection:
        channel = connection.channel()
        moved = count(channel, TARGET)
        found = [int(body) for name in (*SOURCES, TARGET) for body in bodies(channel, name)]
    assert sorted(found) == list(range(MESSAGES))
    assert moved >= BATCH * CYCLES
