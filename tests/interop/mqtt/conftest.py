"""Clients of paho at the gateway that tests share, each closed in the end."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paho.mqtt import client as paho

from tests.support.mqtt.paho_client import PahoClient

Make = Callable[..., PahoClient]


@pytest.fixture
def client(shared_gateway: Any) -> Iterator[Make]:
    made: list[PahoClient] = []

    def make(version: int = paho.MQTTv5, port: int | None = None, **options: Any) -> PahoClient:
        connect = options.pop("connect", {})
        one = PahoClient(port or shared_gateway.port("mqtt"), version, **options)
        made.append(one)
        return one.connect(**connect)

    yield make
    for one in made:
        one.close()
