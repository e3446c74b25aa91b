"""Work of a gateway that goes on whatever becomes of one round of it."""

import asyncio

import pytest

from gateway.base import periodic
from gateway.base.periodic import endless, every
from store.base.errors import StoreUnreachable

pytestmark = pytest.mark.anyio


class Work:
    """Fails as it is told, and waits, or returns, after that."""

    def __init__(self, *failures, ends):
        self.failures, self.ends = list(failures), ends
        self.rounds = 0
        self.waits = asyncio.Event()

    async def __call__(self):
        self.rounds += 1
        if self.failures:
            raise self.failures.pop(0)
        if not self.ends:
            self.waits.set()
            await asyncio.Event().wait()


@pytest.fixture
def pauses(monkeypatch):
    found = []

    async def pause(period_s):
        found.append(period_s)
        await asyncio.sleep(0)

    monkeypatch.setattr(periodic, "pause", pause)
    return found


@pytest.mark.parametrize("failure", [KeyError("x"), StoreUnreachable("x")])
async def test_work_without_an_end_begins_again_when_it_has_failed(pauses, failure):
    work = Work(failure, failure, ends=False)
    running = asyncio.ensure_future(endless(work))
    await work.waits.wait()
    assert (work.rounds, pauses) == (3, [periodic.AGAIN_S] * 2)
    running.cancel()
    await asyncio.wait([running])


async def test_work_that_has_nothing_to_do_is_not_begun_again(pauses):
    """A gateway that is alone follows nobody, and would begin with it each second."""
    work = Work(ends=True)
    await endless(work)
    assert (work.rounds, pauses) == (1, [])


async def test_work_of_each_interval_goes_on_when_a_round_has_failed(pauses):
    work = Work(KeyError("x"), ends=False)
    running = asyncio.ensure_future(every(5_000, work))
    await work.waits.wait()
    assert (work.rounds, pauses) == (2, [5.0] * 2)
    running.cancel()
    await asyncio.wait([running])
