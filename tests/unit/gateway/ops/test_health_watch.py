"""A proxy looks again soon at what passes soon."""

import asyncio

import pytest

from controller.api.client import ControllerUnreachable
from controller.elections.registry import GroupRoute, RouteReplica
from gateway.ops import health_watch
from gateway.ops.health_watch import GroupWatch
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class Controllers:
    """Controllers that have heard what `master` says of itself; `asked` counts who wanted to know."""

    def __init__(self, **master):
        self.master, self.asked, self.silent = master, 0, False

    def watch(self, _listener):
        return lambda: None

    async def routes(self):
        self.asked += 1
        if self.silent:
            raise ControllerUnreachable("no controller answers")
        heard = {"alive": True, "in_sync": True, "learner": False, "confirmed": 9, "zone": ""}
        replicas = [RouteReplica(id=n, node=f"n{n}", address=f"n{n}:1", **heard, **self.said(n)) for n in (1, 2)]
        return [GroupRoute(group=0, master=2, master_epoch=7, replicas=tuple(replicas))]

    def said(self, id_):
        return self.master if id_ == 2 else {"full": True}


@pytest.fixture(autouse=True)
def intervals(monkeypatch):
    monkeypatch.setattr(health_watch, "LOOK_S", 3600.0)
    monkeypatch.setattr(health_watch, "REFUSED_S", 0.001)


@pytest.mark.parametrize("what", ["stalled", "full"])
async def test_a_master_that_takes_no_writes_is_believed_again_as_soon_as_it_takes_them(what):
    """Proxies said for 5 seconds that they could not serve, as a new master is stalled for a moment."""
    controllers = Controllers(**{what: True})
    async with GroupWatch(controllers).looking() as watch:
        await until(lambda: watch.routes)
        assert watch.routes[0].refuses
        controllers.master = {}
        await until(lambda: not watch.routes[0].refuses, 10)


async def test_a_master_that_takes_writes_is_looked_at_now_and_then():
    controllers = Controllers()
    async with GroupWatch(controllers).looking() as watch:
        await until(lambda: watch.routes)
        for _ in range(50):
            await asyncio.sleep(0)
    assert controllers.asked == 1


async def asked_again(controllers):
    """Waits until a look that began after this call has ended."""
    before = controllers.asked
    await until(lambda: controllers.asked >= before + 3, 10)


@pytest.mark.parametrize("what", ["stalled", "full"])
async def test_that_a_master_takes_no_writes_is_not_believed_for_long_when_all_controllers_are_silent(what):
    """Proxies said that they could not serve until a controller was back, though all they wrote was stored."""
    now_s = [100.0]
    controllers = Controllers(**{what: True})
    async with GroupWatch(controllers, now_s=lambda: now_s[0]).looking() as watch:
        await until(lambda: watch.routes)
        controllers.silent = True
        now_s[0] += health_watch.STALE_S - 1
        await asked_again(controllers)
        assert watch.routes[0].refuses
        assert not watch.warnings
        now_s[0] += 1
        await until(lambda: not watch.routes[0].refuses, 10)
        assert "15 s" in watch.warnings[0]
        assert watch.routes[0].replicas[0].full is True  # of the other replica, which refuses nobody


async def test_controllers_that_answer_again_are_believed(monkeypatch):
    monkeypatch.setattr(health_watch, "LOOK_S", 0.001)
    now_s = [100.0]
    controllers = Controllers(stalled=True)
    async with GroupWatch(controllers, now_s=lambda: now_s[0]).looking() as watch:
        await until(lambda: watch.routes)
        controllers.silent = True
        now_s[0] += health_watch.STALE_S
        await until(lambda: not watch.routes[0].refuses, 10)
        controllers.silent = False
        await until(lambda: watch.routes[0].refuses, 10)
        assert not watch.warnings
