"""Gateways that read the same addresses from each other: a message is stored once by each of them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from test_bridges_upstream import configured, connected, figures

from tests.support.mqtt.paho_client import PahoClient, properties
from tests.support.process.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

COUNT = 20


@pytest.fixture
def ring(new_gateway, tmp_path) -> Callable[[int], list[Any]]:
    """Makes gateways of which each reads the next one, and the last the first."""

    def make(count: int) -> list[Any]:
        gateways = [new_gateway() for _ in range(count)]
        for at, gateway in enumerate(gateways):
            directory = tmp_path / f"{at}"
            directory.mkdir()
            url = f"mqtt://127.0.0.1:{gateways[(at + 1) % count].port('mqtt')}"
            gateway.arguments = ("--config", str(configured(directory, url, to="{topic}")))
        for gateway in gateways:
            gateway.start()
        for gateway in gateways:
            connected(gateway)
        return gateways

    return make


@pytest.fixture
def client() -> Iterator[Callable[[Any], PahoClient]]:
    made: list[PahoClient] = []

    def make(gateway: Any) -> PahoClient:
        made.append(PahoClient(gateway.port("mqtt")).connect())
        return made[-1]

    yield make
    for one in made:
        one.close()


def until_all_are_dropped(gateways, count):
    """Every message ends where it began: what is still under way is nowhere."""
    wait_until(lambda: sum(figures(one)["refused"].get("looped", 0) for one in gateways) == count, "messages go round")


@pytest.mark.parametrize("count", [2, 3])
def test_a_message_is_stored_once_by_each(ring, client, count):
    gateways = ring(count)
    readers = [client(one) for one in gateways]
    for reader in readers:
        reader.subscribe("up/#", qos=2)
    said = properties(PacketTypes.PUBLISH, UserProperty=[("b", "1"), ("a", "2")])
    for gateway in gateways:
        writer = client(gateway)
        for number in range(COUNT):
            writer.publish(f"up/{number % 3}", b"%d" % number, 1 + number % 2, properties=said)
    until_all_are_dropped(gateways, count * COUNT)
    for gateway, reader in zip(gateways, readers, strict=True):
        found = [reader.get() for _ in range(count * COUNT)]
        assert sorted(int(one.payload) for one in found) == sorted([*range(COUNT)] * count)
        assert all(one.properties.UserProperty[:2] == [("b", "1"), ("a", "2")] for one in found)
        assert figures(gateway)["stored"] == (count - 1) * COUNT
        looped = 'headgate_bridge_messages_total{bridge="up",status="looped"}'
        assert f"{looped} {COUNT}.0" in gateway.admin("/metrics")
        assert json.loads(gateway.admin("/status"))["bridges"][0]["unacknowledged"] == 0
        assert "skipped" not in gateway.log.read_text()  # there was no reason to warn
    assert all(reader.messages.empty() for reader in readers)


def test_it_stays_so_when_a_gateway_begins_again(ring, client):
    first, second = ring(2)
    client(first).publish("up/x", b"before", 1)
    until_all_are_dropped([first], 1)
    assert first.stop() == 0
    client(second).publish("up/x", b"meanwhile", 1)
    first.start()
    connected(first)
    wait_until(lambda: figures(first)["stored"] == 1, "it is not read")
    until_all_are_dropped([second], 1)
    client(second).publish("up/x", b"after", 1)
    until_all_are_dropped([second], 2)
    assert figures(first)["stored"] == 2
    assert figures(second)["stored"] == 1
