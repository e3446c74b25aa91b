"""Wills that wait while no process runs, and whose right is revoked meanwhile."""

import asyncio
import time

import msgspec
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from controller.api.client import User
from controller.api.commands import SetUser
from controller.node.local import LocalController
from gateway.sessions.wills import WillRecord
from store.base.clock import now_ms
from tests.support.gateway.ruled_gateway import HASHED, RuledGateway, UserClient, fresh, ruled

pytestmark = pytest.mark.slow

DELAY_S = 600  # the clock of the store is ahead after the restart


def lose(served: RuledGateway, name: str) -> None:
    """Ends the connection of a client whose will waits then."""
    client = UserClient(served, name, fresh("client"))
    delay = Properties(PacketTypes.WILLMESSAGE)
    delay.WillDelayInterval = DELAY_S
    client.paho.will_set(f"wills/{name}", b"x", 1, retain=True, properties=delay)
    assert client.connect(expiry_s=1000) == 0
    client.paho.loop_stop()
    client.paho.socket().close()


async def timers(served: RuledGateway, count: int) -> None:
    """Waits until as many wills wait."""
    while True:
        page = await served.gateway.hub.store.keys.prefix("session-wills/", limit=100)
        records = [msgspec.msgpack.decode(entry.value, type=WillRecord) for entry in page]
        if sum(bool(record.timer) for record in records) >= count:
            return
        await asyncio.sleep(0.01)


async def revoke(data_dir, name):
    """Revokes all rights of a user while no gateway runs."""
    controller = LocalController.open(data_dir / "controller", now_ms=now_ms)
    await controller.do(SetUser(user=User(name=name, password=HASHED, rights={"access": ruled()})))
    await controller.close()


def test_a_will_that_is_due_at_a_start_is_called_off_where_its_right_was_revoked_before(tmp_path, monkeypatch):
    """It was published before anybody had looked."""
    data_dir = tmp_path / "data"
    with RuledGateway(data_dir) as served:
        for name in ("bob", "eve"):
            served.do(served.set_user(name, ruled("publish:wills/#")))
            lose(served, name)
        served.do(timers(served, 2))
    asyncio.run(revoke(data_dir, "bob"))
    monkeypatch.setattr("store.local.local.WallClock", lambda: lambda: now_ms() + 2_000 * DELAY_S)
    with RuledGateway(data_dir) as served, served.http("admin") as http:
        while http.get("/topics/wills/eve").status_code != 200:
            time.sleep(0.01)
        assert http.get("/topics/wills/bob").status_code == 404
