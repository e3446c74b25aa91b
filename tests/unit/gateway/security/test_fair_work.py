"""Threads that are shared: each network is served in its turn, and the longest line is the one that gets no longer."""

import asyncio
import threading

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.security.fair_work import FairWork

pytestmark = pytest.mark.anyio

WAIT_S = 60.0


class HeldWork:
    """One thread, kept busy until `go`; what is done then is `order`."""

    def __init__(self, waiting_max=100):
        self._gate = threading.Event()
        self.fair = FairWork(1, waiting_max, name="test")
        self.order = []
        self.asked = [asyncio.ensure_future(self.fair.do(lambda: self._gate.wait(WAIT_S), network="first"))]

    async def ask(self, network, count=1):
        for n in range(count):
            name = f"{network}{n}"
            work = self.fair.do(lambda name=name: self.order.append(name), network=network)
            self.asked.append(asyncio.ensure_future(work))
        await asyncio.sleep(0)  # all have asked

    async def go(self):
        self._gate.set()
        return await asyncio.gather(*self.asked, return_exceptions=True)


async def test_networks_are_served_in_turn():
    held = HeldWork()
    await held.ask("a", 4)
    await held.ask("b", 2)
    await held.ask("c", 1)
    await held.go()
    assert held.order == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


async def test_beyond_the_limit_the_longest_line_loses_what_came_last():
    held = HeldWork(waiting_max=6)  # one of them is being done
    await held.ask("a", 8)
    await held.ask("b", 3)
    results = await held.go()
    assert held.order == ["a0", "b0", "a1", "b1", "a2"]
    refused = [one for one in results if isinstance(one, Refusal)]
    assert len(refused) == 6
    assert {one.cause for one in refused} == {Cause.OVERLOAD}
    await held.ask("a", 3)
    assert not any(isinstance(one, Refusal) for one in (await held.go())[-3:])


async def test_a_failure_is_told_to_who_asked_and_ends_nothing_else():
    held = HeldWork()

    def fail():
        raise ValueError("no")

    held.asked.append(asyncio.ensure_future(held.fair.do(fail, network="a")))
    await held.ask("b")
    assert isinstance((await held.go())[1], ValueError)
    assert held.order == ["b0"]


async def test_nothing_is_done_for_who_has_gone():
    held = HeldWork()
    await held.ask("a", 2)
    held.asked[1].cancel()
    await asyncio.sleep(0)
    await held.go()
    assert held.order == ["a1"]
