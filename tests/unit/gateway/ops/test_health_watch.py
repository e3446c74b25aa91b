"""A proxy looks again soon at what passes soon."""

import asyncio

import pytest

from controller.elections.registry import GroupRoute, RouteReplica
from gateway.ops import health_watch
from gateway.ops.health_watch import GroupWatch
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class Controllers:
    """Controllers that have heard what `master` says of itself; `asked` counts who wanted to know."""

    def __init__(self, **master):
        self.master, self.asked = master, 0

    def watch(self, _listener):
        return lambda: None

    async def routes(self):
        self.asked += 1
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
