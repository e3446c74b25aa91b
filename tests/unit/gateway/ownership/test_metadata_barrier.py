"""Asking the controllers whether everything is known here."""

import asyncio

import pytest

from controller.api.client import ControllerError
from gateway.ownership.metadata_barrier import MetadataBarrier

pytestmark = pytest.mark.anyio


class BarrierControllers:
    def __init__(self):
        self.asked = []
        self.tasks = []

    async def barrier(self):
        self.asked.append(asyncio.get_running_loop().create_future())
        await self.asked[-1]

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))

    def metadata_barrier(self):
        return MetadataBarrier(self.barrier, spawn=self.spawn)


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_who_asks_while_an_answer_is_on_its_way_waits_for_the_next():
    controllers = BarrierControllers()
    barrier = controllers.metadata_barrier()
    first = [asyncio.ensure_future(barrier.passed()) for _ in range(3)]
    await turns()
    later = [asyncio.ensure_future(barrier.passed()) for _ in range(3)]
    await turns()
    assert len(controllers.asked) == 1
    controllers.asked[0].set_result(None)
    assert await asyncio.gather(*first) == [True] * 3
    await turns()
    assert not any(one.done() for one in later)
    controllers.asked[1].set_result(None)
    assert await asyncio.gather(*later) == [True] * 3
    assert len(controllers.asked) == 2


@pytest.mark.parametrize("how", ["error", "silence"])
async def test_controllers_that_do_not_answer_are_left_alone_for_a_while(how, monkeypatch):
    monkeypatch.setattr("gateway.ownership.metadata_barrier.ANSWER_S", 0.01)
    controllers = BarrierControllers()
    barrier = controllers.metadata_barrier()
    asking = asyncio.ensure_future(barrier.passed())
    await turns()
    if how == "error":
        controllers.asked[0].set_exception(ControllerError("no leader"))
    assert await asking is False
    assert await barrier.passed() is False
    assert len(controllers.asked) == 1
    barrier._paused_until_s = 0.0
    asking = asyncio.ensure_future(barrier.passed())
    await turns()
    controllers.asked[1].set_result(None)
    assert await asking is True


async def test_who_goes_away_takes_no_answer_from_others():
    controllers = BarrierControllers()
    barrier = controllers.metadata_barrier()
    gone, here = [asyncio.ensure_future(barrier.passed()) for _ in range(2)]
    await turns()
    gone.cancel()
    controllers.asked[0].set_result(None)
    assert await here is True
