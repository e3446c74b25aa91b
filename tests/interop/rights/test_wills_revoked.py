"""Wills that wait while no process runs, and whose right is revoked meanwhile."""

import asyncio
import threading

import httpx
import pytest

from controller.api.client import User
from controller.api.commands import SetUser
from controller.node.local import LocalController
from gateway.sessions.will_rights import WaitingWills
from gateway.sessions.wills import NAMESPACE
from store.base.clock import now_ms
from store.local.local import LocalStore
from tests.support.gateway.ruled_gateway import HASHED, RuledGateway, UserClient, fresh, leave_will, ruled, wills_wait
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

DELAY_S = 600  # the clock of the store is ahead after the restart


def leave_wills(data_dir, *names):
    """Leaves wills of some users that wait, and stops the gateway."""
    with RuledGateway(data_dir) as served:
        for name in names:
            served.do(served.set_user(name, ruled("publish:wills/#")))
            leave_will(UserClient(served, name, fresh("client")), f"wills/{name}", DELAY_S, retain=True)
        served.do(wills_wait(served, len(names)))


async def revoke(data_dir, name):
    """Revokes all rights of a user while no gateway runs."""
    controller = LocalController.open(data_dir / "controller", now_ms=now_ms)
    await controller.do(SetUser(user=User(name=name, password=HASHED, rights={"access": ruled()})))
    await controller.close()


async def store_broken(data_dir):
    """Stores records of wills that cannot be decoded while no gateway runs."""
    async with await LocalStore.open(data_dir, hold_timers=True) as store:
        for n in range(3):
            await store.keys.put(f"{NAMESPACE}/ broken-{n}", b"\xc1 not a will")


def later(monkeypatch):
    """Lets the time of the wills come."""
    monkeypatch.setattr("store.local.local.machine_ms", lambda: now_ms() + 2_000 * DELAY_S)


def heard(http, name):
    """Waits for the will of a user."""
    wait_until(lambda: http.get(f"/topics/wills/{name}").status_code == 200, f"the will of {name} is not there")


def test_a_will_that_is_due_at_a_start_is_called_off_where_its_right_was_revoked_before(tmp_path, monkeypatch):
    """It was published before anybody had looked."""
    data_dir = tmp_path / "data"
    leave_wills(data_dir, "bob", "eve")
    asyncio.run(revoke(data_dir, "bob"))
    later(monkeypatch)
    with RuledGateway(data_dir) as served, served.http("admin") as http:
        heard(http, "eve")
        assert http.get("/topics/wills/bob").status_code == 404


def test_records_that_cannot_be_decoded_stop_neither_a_start_nor_other_wills(tmp_path, monkeypatch):
    """One of them ended every start."""
    data_dir = tmp_path / "data"
    leave_wills(data_dir, "bob", "eve")
    asyncio.run(revoke(data_dir, "bob"))
    asyncio.run(store_broken(data_dir))
    later(monkeypatch)
    with RuledGateway(data_dir) as served, served.http("admin") as http:
        heard(http, "eve")
        assert http.get("/topics/wills/bob").status_code == 404
        metrics = httpx.get(f"http://127.0.0.1:{served.ports['admin']}/metrics", trust_env=False).text
        assert "headgate_wills_undecodable 3.0" in metrics


def test_a_start_does_not_wait_for_wills_and_timers_do(tmp_path, monkeypatch):
    data_dir = tmp_path / "data"
    leave_wills(data_dir, "bob", "eve")
    asyncio.run(revoke(data_dir, "bob"))
    later(monkeypatch)
    may_look, look = threading.Event(), WaitingWills._look

    async def held_up(self):
        while not may_look.is_set():
            await asyncio.sleep(0.01)
        await look(self)

    monkeypatch.setattr(WaitingWills, "_look", held_up)
    with RuledGateway(data_dir) as served, served.http("admin") as http:
        assert http.post("/topics/other/x", content=b"x").status_code == 201
        assert http.get("/topics/wills/eve").status_code == 404
        may_look.set()
        heard(http, "eve")
        assert http.get("/topics/wills/bob").status_code == 404
