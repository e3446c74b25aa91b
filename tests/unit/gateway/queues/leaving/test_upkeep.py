"""The upkeep of queues: when each is looked at, and that it goes on whatever becomes of one of them."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.queues.leaving.upkeep import AGAIN_MS, LOOKS_COUNT_MAX, RETRY_MS, SWEEP_MS, Upkeep
from store.base.errors import StoreFull

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


async def test_that_the_store_refuses_is_logged_once_a_queue():
    clock, looks = Clock(), 0
    upkeep = Upkeep(lambda: clock.now_ms)

    async def look(number):
        nonlocal looks
        looks += 1
        clock.now_ms += RETRY_MS
        upkeep.changed(number)  # or it would wait for a clock that stands still
        if looks != 4:
            raise StoreFull("no room")

    upkeep.changed(1)
    with capture_logs() as logged:
        await looked(upkeep, look, 7)
    assert [one["queue"] for one in logged if "cannot be applied" in one["event"]] == [1, 1]


async def test_a_busy_queue_is_looked_at_after_the_clock_is_set_back():
    clock, looks, seen = Clock(), 0, asyncio.Event()
    upkeep = Upkeep(lambda: clock.now_ms)

    async def look(number):
        nonlocal looks
        looks += 1
        seen.set()

    async def passes(ms):
        """Lets time pass while messages come."""
        for _ in range(ms):
            clock.now_ms += 1
            upkeep.changed(1)
            await asyncio.sleep(0.001)

    running = asyncio.ensure_future(upkeep.run(look, list))
    upkeep.changed(1)
    await seen.wait()
    upkeep.changed(1)  # a look is due in AGAIN_MS
    clock.now_ms -= 3_600_000
    seen.clear()
    for _ in range(50):
        await passes(AGAIN_MS)
        if seen.is_set():
            break
    assert looks > 1
    running.cancel()
    await asyncio.wait({running})


async def test_a_look_is_due_as_long_after_as_it_says_whatever_the_clock_was_set_to():
    clock = Clock()
    upkeep, dues = Upkeep(lambda: clock.now_ms), []

    async def look(number):
        if number == 1:
            dues.append(clock.now_ms)
            if len(dues) == 1:
                return clock.now_ms + 50
        return None

    upkeep.changed(1)
    clock.now_ms -= 3_600_000
    running = asyncio.ensure_future(upkeep.run(look, list))
    for _ in range(1_000):
        if len(dues) == 2:
            break
        clock.now_ms += 1
        upkeep.changed(2)  # it wakes up
        await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait({running})
    first, second = dues
    assert 50 <= second - first < 500


async def test_a_look_that_waits_holds_up_no_others():
    clock = Clock()
    upkeep, waiting = Upkeep(lambda: clock.now_ms), asyncio.Event()

    async def look(number):
        upkeep.changed(number + 1)
        if number == 1:
            await waiting.wait()

    upkeep.changed(1)
    assert (await looked(upkeep, look, 4))[:4] == [1, 2, 3, 4]


async def test_a_queue_that_changes_while_it_is_looked_at_is_looked_at_once_more_behind_that():
    clock = Clock()
    upkeep, looking, most = Upkeep(lambda: clock.now_ms), [], 0
    for later_ms in (AGAIN_MS, 0):  # leaves an entry behind, for the time of the change below
        clock.now_ms = Clock.now_ms + later_ms
        upkeep.changed(1)

    async def look(number):
        nonlocal most
        looking.append(number)
        most = max(most, looking.count(1))
        if number == 1:
            clock.now_ms += AGAIN_MS
            upkeep.changed(1)
            upkeep.changed(2)
            for _ in range(20):  # others go on
                await asyncio.sleep(0)
        looking.remove(number)

    assert {*await looked(upkeep, look, 12)} == {1, 2}
    assert most == 1


async def test_no_more_than_some_are_looked_at_at_once():
    clock = Clock()
    upkeep, go_on, most = Upkeep(lambda: clock.now_ms), asyncio.Event(), 0
    looking = set()

    async def look(number):
        nonlocal most
        looking.add(number)
        most = max(most, len(looking))
        if len(looking) == LOOKS_COUNT_MAX:
            asyncio.get_running_loop().call_soon(go_on.set)
        await go_on.wait()
        looking.discard(number)

    for number in range(2 * LOOKS_COUNT_MAX):
        upkeep.changed(number)
    assert sorted(await looked(upkeep, look, 2 * LOOKS_COUNT_MAX)) == list(range(2 * LOOKS_COUNT_MAX))
    assert most == LOOKS_COUNT_MAX
