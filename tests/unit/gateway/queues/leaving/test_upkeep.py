"""The upkeep of queues: when each is looked at, and that it goes on whatever becomes of one of them."""

import asyncio

import pytest

from gateway.queues.leaving.upkeep import SWEEP_MS, Upkeep

pytestmark = pytest.mark.anyio


class Clock:
    now_ms = 1_000_000


async def looked(upkeep, look, count):
    """Returns the queues that are looked at, up to so many."""
    found, enough = [], asyncio.Event()

    async def noted(number):
        found.append(number)
        if len(found) == count:
            enough.set()
        return await look(number)

    running = asyncio.ensure_future(upkeep.run(noted, list))
    waiting = asyncio.ensure_future(enough.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    assert not running.done(), running.exception()
    for task in (running, waiting):
        task.cancel()
    await asyncio.wait({running, waiting})
    return found


async def test_a_queue_that_is_deleted_while_it_is_looked_at_does_not_end_the_upkeep():
    clock = Clock()
    upkeep = Upkeep(lambda: clock.now_ms)

    async def look(number):
        await asyncio.sleep(0)
        if number == 1:
            upkeep.forget(1)
            upkeep.changed(2)
        return clock.now_ms  # at once again

    upkeep.changed(1)
    assert await looked(upkeep, look, 2) == [1, 2]
    assert 1 not in upkeep._due, "nobody looks at it again"


async def test_a_look_that_fails_is_made_again_later():
    clock = Clock()
    upkeep = Upkeep(lambda: clock.now_ms)

    async def look(number):
        clock.now_ms += SWEEP_MS
        upkeep.changed(2)
        if number == 1:
            raise KeyError(number)

    upkeep.changed(1)
    assert set(await looked(upkeep, look, 3)) == {1, 2}
