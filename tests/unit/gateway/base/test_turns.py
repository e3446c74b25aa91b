"""Turns: one at a time by name, in order, whoever gives up waiting."""

import asyncio

import pytest

from gateway.base.turns import Turns

pytestmark = pytest.mark.anyio


class TurnsRig:
    def __init__(self):
        self.turns = Turns()
        self.said = []
        self.over = {}

    def go(self, who, name="a"):
        self.over[who] = asyncio.Event()
        return asyncio.create_task(self._work(who, name))

    async def _work(self, who, name):
        async with self.turns.at(name):
            self.said.append(f"{who} begins")
            await self.over[who].wait()
            self.said.append(f"{who} ends")

    async def until(self, said):
        async with asyncio.timeout(60):
            while said not in self.said:
                await asyncio.sleep(0)

    @property
    def known(self):
        return len(self.turns._waiting)


@pytest.fixture
def rig():
    return TurnsRig()


async def test_one_after_the_other_in_the_order_of_asking(rig):
    tasks = [rig.go(who) for who in ("x", "y", "z")]
    await rig.until("x begins")
    for who in ("z", "y", "x"):
        rig.over[who].set()
    await asyncio.gather(*tasks)
    assert rig.said == [f"{who} {what}" for who in ("x", "y", "z") for what in ("begins", "ends")]
    assert not rig.known


async def test_who_is_closed_while_waiting_has_given_up():
    turns = Turns()
    await turns.begin("a")
    waiting = turns.begin("a")
    waiting.send(None)  # to its first wait, outside of any task
    waiting.close()
    turns.end("a")
    async with asyncio.timeout(60), turns.at("a"):
        pass
    assert not turns._waiting


async def test_another_name_does_not_wait(rig):
    tasks = [rig.go("x", "a"), rig.go("y", "b")]
    await rig.until("y begins")
    assert rig.known == 2
    rig.over["y"].set()
    await rig.until("y ends")
    assert rig.known == 1
    rig.over["x"].set()
    await asyncio.gather(*tasks)


async def test_a_turn_that_fails_is_over(rig):
    with pytest.raises(ValueError, match="no"):
        async with rig.turns.at("a"):
            raise ValueError("no")
    async with rig.turns.at("a"):
        pass


async def test_who_gives_up_waiting_is_passed_over(rig):
    first, second, third = rig.go("x"), rig.go("y"), rig.go("z")
    await rig.until("x begins")
    second.cancel()
    rig.over["x"].set()
    rig.over["z"].set()
    await asyncio.gather(first, third)
    assert rig.said == ["x begins", "x ends", "z begins", "z ends"]
    assert second.cancelled()
    assert not rig.known


async def test_who_gives_up_as_its_turn_comes_hands_it_on(rig):
    await rig.turns.begin("a")
    second, third = rig.go("y"), rig.go("z")
    await asyncio.sleep(0)  # both wait
    rig.turns.end("a")
    second.cancel()  # its turn has come, and it has not run yet
    rig.over["z"].set()
    await third
    assert rig.said == ["z begins", "z ends"]
    assert second.cancelled()
    assert not rig.known


async def test_the_last_one_to_give_up_leaves_nothing(rig):
    first, second = rig.go("x"), rig.go("y")
    await rig.until("x begins")
    second.cancel()
    rig.over["x"].set()
    await first
    await asyncio.gather(second, return_exceptions=True)
    assert not rig.known
