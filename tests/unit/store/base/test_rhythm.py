"""Periodic work in step: all that is done every so often is done at multiples of that time."""

import asyncio

import pytest

from store.base import rhythm
from store.base.rhythm import PHASE_S, Reminder, since_last_s, until_next_s

pytestmark = pytest.mark.anyio


@pytest.fixture
async def clock(monkeypatch):
    """Returns a setter of the event loop's clock."""
    now = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    return lambda at_s: now.__setitem__(0, at_s)


@pytest.fixture
def anyio_backend():
    """Chooses asyncio, whose loop's clock can be set."""
    return "asyncio"


async def test_work_with_different_periods_is_due_at_the_same_times(clock):
    clock(10.3)
    assert until_next_s(1.0) == pytest.approx(0.7)
    assert until_next_s(0.5) == pytest.approx(0.2)
    assert since_last_s(0.5) == pytest.approx(0.3)


async def test_a_timer_that_rings_early_or_late_does_not_lead_out_of_step(clock):
    for at_s in (10.999, 11.0, 11.001, 11.7):
        clock(at_s)
        assert at_s + until_next_s(1.0) == pytest.approx(12.0)


async def test_processes_may_have_phases_of_their_own(clock):
    clock(10.0)
    token = PHASE_S.set(0.3)
    try:
        assert until_next_s(1.0) == pytest.approx(0.7)
    finally:
        PHASE_S.reset(token)


async def test_a_reminder_is_due_at_once_and_then_in_step_whatever_is_said_between(clock):
    clock(10.2)
    reminder = Reminder(0.5)
    assert reminder.left_s == 0.0
    reminder.said()
    assert reminder.left_s == pytest.approx(0.3)
    clock(10.4)
    reminder.said()
    assert reminder.left_s == pytest.approx(0.1)
    clock(10.5 - rhythm._EARLY_S / 2)
    assert reminder.left_s == 0.0
