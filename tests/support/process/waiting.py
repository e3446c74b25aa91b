"""Waits for conditions that no event announces."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

WAIT_S = 90.0  # on a busy machine; nobody waits so long where all is well
LOOK_S = 0.002
BLOCKING_LOOK_S = 0.02  # of processes, which take longer


async def until(condition: Callable[[], Awaitable[Any] | Any], timeout_s: float = WAIT_S) -> None:
    """Waits until a condition holds, which may be a coroutine function. Raises `TimeoutError`."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if await found if isawaitable(found) else found:
                return
            await asyncio.sleep(LOOK_S)


def wait_until(condition: Callable[[], Any], what: str = "", timeout_s: float = WAIT_S) -> Any:
    """Blocks until a condition holds, and returns its result. Fails with `what` when time is up."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(BLOCKING_LOOK_S)
    return found
