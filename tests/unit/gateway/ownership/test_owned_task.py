"""Work that follows the ownership of its name: begun, handed over, lost and ended with it."""

import asyncio
import random
from contextlib import suppress

import pytest

from gateway.ownership.owned_task import OwnedTask
from gateway.ownership.owners import OwnershipLost, Taken
from store.base.errors import StoreUnreachable
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class Names:
    """Owners of the one name, which note what is done with it."""

    def __init__(self):
        self.events = []
        self.refusal = None  # raised by `take`
        self.gate = asyncio.Event()
        self.gate.set()
        self.takes = 0

    async def take(self, name, *, wait):
        assert name == "x/1"
        assert not wait
        self.takes += 1
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self.events.append("taken")
        return self

    async def forget(self, operations):
        self.events.append(("forgotten", *operations))

    async def release(self):
        await asyncio.sleep(0)
        self.events.append("released")


class Work:
    """Runs until it is cancelled, told to end or told to fail; its end takes as long as `slow` is not set."""

    def __init__(self, names):
        self.names = names
        self.running = False
        self.told = asyncio.Event()
        self.failure = None
        self.slow = asyncio.Event()
        self.slow.set()

    async def __call__(self, owned):
        assert owned is self.names
        self.running = True
        self.names.events.append("begun")
        try:
            await self.told.wait()
            self.told.clear()
            if self.failure is not None:
                raise self.failure
        finally:
            await self.slow.wait()
            self.running = False
            self.names.events.append("over")


class Rig:
    def __init__(self, look_s):
        self.names = Names()
        self.work = Work(self.names)
        self.subject = OwnedTask("x/1", self.work, self.names, look_s=look_s, chance=random.Random(1))
        self.task = None

    def start(self):
        self.task = asyncio.ensure_future(self.subject.run())

    @property
    def events(self):
        return self.names.events


@pytest.fixture(params=[60.0])
async def rig(request):
    rig = Rig(request.param)
    yield rig
    rig.work.slow.set()
    rig.task.cancel()
    with suppress(asyncio.CancelledError):
        await rig.task


@pytest.fixture
async def running(rig):
    rig.start()
    await until(lambda: rig.work.running)
    return rig


async def test_when_it_stops_the_work_ends_before_the_name_is_released(running):
    running.task.cancel()
    await asyncio.wait([running.task])
    assert running.events == ["taken", "begun", "over", "released"]


@pytest.mark.parametrize("rig", [0.01], indirect=True)
async def test_a_name_that_another_process_has_is_looked_at_again(rig):
    rig.names.refusal = Taken("x/1")
    rig.start()
    await until(lambda: rig.names.takes > 2)
    rig.names.refusal = StoreUnreachable("the test says so")
    rig.names.takes = 0
    await until(lambda: rig.names.takes > 2)
    assert not rig.events
    rig.names.refusal = None
    await until(lambda: rig.work.running)


async def test_a_name_that_may_be_free_is_looked_at_now(rig):
    rig.names.refusal = Taken("x/1")
    rig.start()
    await until(lambda: rig.names.takes)
    rig.names.refusal = None
    rig.subject.look_now()
    await until(lambda: rig.work.running)


async def test_a_handed_over_name_is_released_when_the_work_has_ended(running):
    running.work.slow.clear()
    handing = asyncio.ensure_future(running.subject.hand_over())
    await asyncio.sleep(0)
    assert not handing.done()
    running.work.slow.set()
    await handing
    assert running.events == ["taken", "begun", "over", "released"]
    assert not running.task.done()


async def test_the_work_is_cancelled_once(running):
    """Another reason to stop does not interrupt its end."""
    running.work.slow.clear()
    handing = [asyncio.ensure_future(running.subject.hand_over()) for _ in range(2)]
    await asyncio.sleep(0)
    running.subject.end([])
    running.task.cancel()
    await asyncio.sleep(0)
    assert running.work.running
    running.work.slow.set()
    await asyncio.gather(*handing)
    assert running.events == ["taken", "begun", "over", ("forgotten",), "released"]


async def test_a_lost_name_is_not_released(running):
    running.subject.lose()
    await until(lambda: not running.work.running)
    running.task.cancel()
    await asyncio.wait([running.task])
    assert running.events == ["taken", "begun", "over"]


async def test_who_hears_of_a_later_owner_releases_nothing(running):
    running.work.failure = OwnershipLost("x/1")
    running.work.told.set()
    await until(lambda: not running.work.running)
    running.task.cancel()
    await asyncio.wait([running.task])
    assert running.events == ["taken", "begun", "over"]


@pytest.mark.parametrize("rig", [0.01], indirect=True)
@pytest.mark.parametrize("failure", [None, ZeroDivisionError()])
async def test_work_that_ends_is_begun_again_by_whoever_takes_the_name(running, failure):
    running.work.failure = failure
    running.work.told.set()
    await until(lambda: running.events.count("begun") == 2)
    assert running.events[:6] == ["taken", "begun", "over", "released", "taken", "begun"]


async def test_a_name_that_ends_is_forgotten(running):
    running.subject.end(["change"])
    await running.task
    assert running.events == ["taken", "begun", "over", ("forgotten", "change"), "released"]


async def test_work_that_ends_while_its_name_is_taken_is_not_begun(rig):
    rig.names.gate.clear()
    rig.start()
    await until(lambda: rig.names.takes)
    rig.subject.end([])
    rig.names.gate.set()
    await rig.task
    assert rig.events == ["taken", ("forgotten",), "released"]
