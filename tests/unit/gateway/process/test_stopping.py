"""The end of a gateway, while the store does not take the last cursors of subscriptions and bridges."""

import asyncio

import pytest

from gateway.config.config import load
from gateway.process.app import Gateway
from gateway.process.backend import local_backend

pytestmark = pytest.mark.anyio

CONNECT = bytes.fromhex("100e 0004 4d515454 05 02 003c 00 0001 61")  # of MQTT 5
CONNACK, DISCONNECT, SHUTTING_DOWN = 0x20, 0xE0, 0x8B
PATIENCE_S = 30.0


@pytest.fixture
async def gateway(tmp_path):
    overrides = {
        "store": {"data_dir": str(tmp_path)},
        "listeners": {"mqtt": {"port": 0}}
        | {name: {"enabled": False} for name in ("mqtt-ws", "coap", "coap-tcp", "amqp", "http")},
        "rpc": {"enabled": False},
        "admin": {"port": 0},
        "gateway": {"shutdown_grace_s": 0.5},
    }
    config = load(environ={}, overrides=overrides)
    async with local_backend(config) as backend, asyncio.TaskGroup() as tasks:
        gateway = Gateway(config, backend, tasks)
        await gateway.start()
        yield gateway
        await gateway.stop_admin()
        gateway.hub.cancel_tasks()


async def test_clients_hear_of_the_end_while_a_last_cursor_waits_for_the_store(gateway, monkeypatch):
    """They heard of it behind the cursors, which wait for as long as the name is certainly still owned."""
    away = asyncio.Event()
    monkeypatch.setattr(gateway.hub.push, "stop", away.wait)
    port = next(one.port for one in gateway.listening if one.name == "mqtt")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(CONNECT)
    head = await reader.readexactly(2)
    assert head[0] == CONNACK
    await reader.readexactly(head[1])
    stopping = asyncio.ensure_future(gateway.stop())
    async with asyncio.timeout(PATIENCE_S):
        last = await reader.read()
        await stopping
    assert (last[0], last[2]) == (DISCONNECT, SHUTTING_DOWN)
    assert not away.is_set()
    writer.close()
