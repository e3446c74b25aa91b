"""Work that is due: what cannot be done for now is tried again, and said once."""

import asyncio
import logging

import pytest

from store.base.errors import StoreFull
from store.replication.errors import NotEnoughInSync
from store.timers import ticker
from store.timers.ticker import Ticker

pytestmark = pytest.mark.anyio


async def test_what_has_to_wait_is_said_once_and_without_a_trace(caplog, monkeypatch):
    caplog.set_level(logging.DEBUG, "store.timers.ticker")
    outcomes = iter([NotEnoughInSync(1, 2), NotEnoughInSync(1, 2), None, StoreFull("no room"), StoreFull("no room")])

    async def work(_now_ms):
        outcome = next(outcomes, None)
        if outcome is not None:
            raise outcome

    due = Ticker(asyncio.get_running_loop(), lambda: 0, work)
    for _ in range(5):
        await due.look()
    said = [(one.levelname, one.getMessage()) for one in caplog.records]
    assert said == [
        ("WARNING", "work that is due has to wait: 1 replica in sync, 2 are needed"),
        ("DEBUG", "work that is due has to wait: 1 replica in sync, 2 are needed"),
        ("WARNING", "work that is due has to wait: no room"),
        ("DEBUG", "work that is due has to wait: no room"),
    ]
    assert not any(one.exc_info for one in caplog.records)
    await due.close()


async def test_it_is_tried_again(monkeypatch):
    monkeypatch.setattr(ticker, "RETRY_MS", 1)
    done, attempts = asyncio.Event(), []

    async def work(now_ms):
        attempts.append(now_ms)
        if len(attempts) < 3:
            raise NotEnoughInSync(1, 2)
        done.set()

    loop = asyncio.get_running_loop()
    due = Ticker(loop, lambda: int(loop.time() * 1_000), work)
    due.wake_by(0)
    async with asyncio.timeout(60):
        await done.wait()
    await due.close()


async def test_a_failure_is_an_error_each_time(caplog):
    async def work(_now_ms):
        raise ValueError("ours")

    due = Ticker(asyncio.get_running_loop(), lambda: 0, work)
    for _ in range(2):
        await due.look()
    assert [one.levelname for one in caplog.records] == ["ERROR"] * 2
    await due.close()
