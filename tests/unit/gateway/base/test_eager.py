import asyncio

import pytest

from gateway.base.eager import eager_start

pytestmark = pytest.mark.anyio


async def test_what_does_not_wait_needs_no_task():
    async def work():
        return 7

    begun = eager_start(work())
    assert begun.rest is None
    assert begun.value == 7


async def test_what_is_raised_at_once_is_raised_at_once():
    async def work():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        eager_start(work())


async def test_what_waits_goes_on_in_a_task():
    first, second = asyncio.Event(), asyncio.get_running_loop().create_future()
    steps = []

    async def work():
        steps.append(1)
        await first.wait()
        steps.append(2)
        steps.append(await second)
        await asyncio.sleep(0)
        async with asyncio.timeout(60):  # it is in a task by now
            await asyncio.sleep(0)
        return "done"

    begun = eager_start(work())
    assert steps == [1]
    assert begun.rest is not None
    first.set()
    task = asyncio.create_task(begun.rest)
    await asyncio.sleep(0)
    second.set_result(3)
    assert await task == "done"
    assert steps == [1, 2, 3]


async def test_what_it_waits_for_may_be_done_before_the_task_begins():
    future = asyncio.get_running_loop().create_future()

    async def work():
        return await future

    begun = eager_start(work())
    future.set_exception(KeyError("k"))
    with pytest.raises(KeyError):
        await begun.rest


@pytest.mark.parametrize("started", [False, True])
async def test_it_is_cancelled_like_any_other(started):
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    begun = eager_start(work())
    task = asyncio.create_task(begun.rest)
    if started:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del begun, task
    assert ended == [True]


async def test_one_that_is_cancelled_before_its_first_step_may_wait_for_something_else():
    """It was given the first thing that it had waited for once more, and waited for it for ever."""
    first, cleaned = asyncio.Event(), asyncio.Event()

    async def work():
        try:
            await first.wait()
        finally:
            await cleaned.wait()

    begun = eager_start(work())
    assert begun.rest is not None
    task = asyncio.create_task(begun.rest)
    task.cancel()
    await asyncio.sleep(0)
    cleaned.set()
    done, _ = await asyncio.wait([task], timeout=30)
    assert task in done
    assert task.cancelled()
