"""The grid of time that answers are given on."""

import asyncio

import pytest

from gateway.delivery import time_grid as grid
from gateway.delivery.time_grid import GRID_S, on_grid

pytestmark = pytest.mark.anyio


class Loop:
    """A clock that work moves on."""

    now_s = 7.0

    def time(self):
        return self.now_s


@pytest.mark.parametrize("took_s", [0.0, 0.0001, 0.024, 0.0251, 0.3])
@pytest.mark.parametrize("fails", [False, True])
async def test_answers_and_refusals_come_on_the_next_line(monkeypatch, took_s, fails):
    loop, slept = Loop(), []

    async def sleep(seconds):
        slept.append(seconds)

    async def work():
        loop.now_s += took_s
        if fails:
            raise KeyError
        return "found"

    monkeypatch.setattr(grid.asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(grid.asyncio, "sleep", sleep)
    if fails:
        with pytest.raises(KeyError):
            await on_grid(work())
    else:
        assert await on_grid(work()) == "found"
    monkeypatch.undo()
    (rest_s,) = slept
    lines = (took_s + rest_s) / GRID_S
    assert 0 < rest_s <= GRID_S
    assert lines == pytest.approx(round(lines))
    await asyncio.sleep(0)
