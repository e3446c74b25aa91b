"""The attempts of a process: each subscription has one, and others in turn as there is room."""

import asyncio
from random import Random

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


@pytest.mark.parametrize("seed", range(30))
async def test_any_run_of_attempts_leaves_all_room_and_nobody_waiting(seed: int) -> None:
    """At every moment no more run than may, each subscription that wants one has one, and no room is left unused."""
    chance = Random(seed)
    count_max = chance.randint(1, 4)
    rig, holders = Rig(count_max), [Holder() for _ in range(chance.randint(1, 5))]
    running: dict[Holder, set[str]] = {one: set() for one in holders}
    waiting: dict[Holder, list[str]] = {one: [] for one in holders}
    for step in range(150):
        holder = chance.choice(holders)
        dice = chance.random()
        if dice < 0.5:
            await rig.attempt(holder, f"{step}")
            waiting[holder].append(f"{step}")
        elif dice < 0.75 and running[holder]:
            for name in chance.sample(sorted(running[holder]), chance.randint(1, len(running[holder]))):
                rig.tell(name)  # several end in one turn of the event loop
                running[holder].remove(name)
            await settled()
        elif running[holder] or waiting[holder]:
            name = chance.choice([*sorted(running[holder]), *waiting[holder]])
            if chance.random() < 0.5:
                for other in running.values():  # an end may let it begin, and it does not know yet
                    if other and (ended := min(other)) != name:
                        rig.tell(ended)
                        other.remove(ended)
                await asyncio.sleep(0)
            await rig.cancel(name)
            running[holder].discard(name)
            waiting[holder] = [one for one in waiting[holder] if one != name]
        begun = set(rig.begun)
        for one in holders:
            started = [name for name in waiting[one] if name in begun]
            assert started == waiting[one][: len(started)], "not in the order in which they came"
            running[one].update(started)
            waiting[one] = waiting[one][len(started) :]
            assert running[one] or not waiting[one]
        more = sum(max(len(names) - 1, 0) for names in running.values())
        assert more <= count_max
        assert more == count_max or not any(waiting.values())
    await rig.cancel(*(name for names in (*running.values(), *waiting.values()) for name in names))
    first, names = holders[0], [f"last {number}" for number in range(count_max + 2)]
    await rig.attempt(first, *names)
    assert [name for name in names if name in rig.begun] == names[:-1]
    await rig.cancel(*names)
