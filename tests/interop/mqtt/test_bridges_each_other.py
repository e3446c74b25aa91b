"""Gateways that read the same addresses from each other: a message is stored once by each of them."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes

from tests.support.mqtt.bridge_figures import configured, connected, figures
from tests.support.mqtt.paho_client import PahoClient, properties
from tests.support.process.gateways import restart
from tests.support.process.relay import Relay
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

COUNT = 20


@pytest.fixture
def bridged(tmp_path) -> Callable[[Any, int], None]:
    """Configures a gateway that is not started to read what is at a port."""

    def configure(gateway: Any, port: int) -> None:
        directory = tmp_path / gateway.data_dir.name.replace("data", "bridge")
        directory.mkdir()
        file = configured(directory, f"mqtt://127.0.0.1:{port}", to="{topic}")
        gateway.arguments = ("--config", str(file))

    return configure


@pytest.fixture
def ring(new_gateway, bridged) -> Callable[[int], list[Any]]:
    """Makes gateways of which each reads the next one, and the last the first."""

    def make(count: int) -> list[Any]:
        gateways = [new_gateway() for _ in range(count)]
        for at, gateway in enumerate(gateways):
            bridged(gateway, gateways[(at + 1) % count].port("mqtt"))
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
    """Waits until every message has come back to its origin and is dropped there, so that none is in flight."""
    wait_until(lambda: sum(figures(one)["refused"].get("looped", 0) for one in gateways) == count, "messages go round")


def until_stored(gateway, count):
    """Waits until the gateway has counted its messages, because a reader may have one before its bridge counts it."""
    wait_until(lambda: figures(gateway)["stored"] == count, "messages are lost, or doubled")


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
        until_stored(gateway, (count - 1) * COUNT)
        looped = 'headgate_bridge_messages_total{bridge="up",status="looped"}'
        assert f"{looped} {COUNT}.0" in gateway.admin("/metrics")
        wait_until(lambda one=gateway: not figures(one)["unacknowledged"], "what is stored is not acknowledged")
        assert "skipped" not in gateway.log.read_text()  # there was no reason to warn
    assert all(reader.messages.empty() for reader in readers)


@pytest.mark.anyio
async def test_it_stays_so_when_a_gateway_begins_again(new_gateway, bridged, client):
    """Also where it has not heard yet that the other one has stored a message of QoS 2: that one knows it again."""
    first, second = new_gateway(), new_gateway()
    async with Relay(first.port("mqtt")) as relay:

        def begin():
            bridged(first, second.port("mqtt"))
            bridged(second, relay.port)
            for one in (first, second):
                one.start()
            for one in (first, second):
                connected(one)

        def restarted():
            assert first.stop() == 0
            client(second).publish("up/x", b"meanwhile", 1)
            loop.call_soon_threadsafe(relay.resume)
            restart(first)
            connected(first)
            until_stored(first, 1)
            until_all_are_dropped([second], 1)
            client(first).publish("up/x", b"last", 1)  # behind what comes again
            until_stored(second, 2)
            until_all_are_dropped([second], 1)

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(begin)
        relay.hold(back=False)
        client(first).publish("up/x", b"before", 2)
        await asyncio.to_thread(until_all_are_dropped, [first], 1)
        await asyncio.to_thread(restarted)
    assert figures(first)["stored"] == 1
