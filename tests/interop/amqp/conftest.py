"""A connection of pika to the gateway that tests share, and a channel of it."""

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.amqp.pika_queues import connect


@pytest.fixture
def connection(shared_gateway: Any) -> Iterator[pika.BlockingConnection]:
    with connect(shared_gateway) as connection:
        yield connection


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()
