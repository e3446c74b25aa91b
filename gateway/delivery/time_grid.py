"""Answers of searches on a grid of time, so that their delay does not tell how much was skipped.

Looking at a message that may not be read takes some microseconds. Averaged over many requests that can be measured; on
the grid it disappears, unless so much was skipped that the answer reaches the next line.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

GRID_S: Final = 0.025  # between two lines: more than most searches take

T = TypeVar("T")


async def on_grid(work: Awaitable[T]) -> T:
    """Returns the result of `work`, or raises its error, a whole number of `GRID_S` after the call."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        return await work
    finally:
        await asyncio.sleep(GRID_S - (loop.time() - began_s) % GRID_S)
