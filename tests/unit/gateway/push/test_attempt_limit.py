"""The attempts of a process: each subscription has one, and others in turn as there is room."""

import asyncio

import pytest

from gateway.push.context import AttemptLimit

pytestmark = pytest.mark.anyio


class Holder:
    """A subscription."""

    def room(self) -> None: ...


class Rig:
    """Attempts that last until they are told to end."""

    def __init__(self, count_max: int) -> None:
        self.limit = AttemptLimit(count_max)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def attempt(self, holder: Holder, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(holder, name))
        await settled()

    async def _run(self, holder: Holder, name: str) -> None:
        async with self.limit.begun(holder):
            self.begun.append(name)
            await self._ends[name].wait()

    def tell(self, name: str) -> None:
        self._ends[name].set()

    async def end(self, *names: str) -> None:
        for name in names:
            self.tell(name)
            await self._tasks[name]
        await settled()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self._tasks[name].cancel()
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_sinks_that_do_not_answer_hold_up_no_other_subscription() -> None:
    rig, dead, good = Rig(2), Holder(), Holder()
    await rig.attempt(dead, "d1", "d2", "d3", "d4")
    assert rig.begun == ["d1", "d2", "d3"]
    await rig.attempt(good, "g1", "g2")
    assert rig.begun[3:] == ["g1"]
    await rig.end("g1")
    assert rig.begun[4:] == ["g2"]
    await rig.end("d2")
    assert rig.begun[5:] == ["d4"]


async def test_room_goes_round_those_that_wait() -> None:
    rig, one, other = Rig(1), Holder(), Holder()
    await rig.attempt(one, "a1", "a2", "a3", "a4")
    await rig.attempt(other, "b1", "b2", "b3")
    await rig.end("a2")
    await rig.end("a3")
    await rig.end("b2")
    assert rig.begun == ["a1", "a2", "b1", "a3", "b2", "a4"]


async def test_attempts_that_are_given_up_leave_their_room_to_others() -> None:
    rig, one = Rig(1), Holder()
    await rig.attempt(one, "a1", "a2", "a3", "a4", "a5")
    await rig.cancel("a3", "a2")
    assert rig.begun == ["a1", "a2", "a4"]
    rig.tell("a4")
    await asyncio.sleep(0)  # the turn of a5 has come, and it does not know
    await rig.cancel("a5")
    await rig.attempt(one, "a6")
    assert rig.begun[3:] == ["a6"]
