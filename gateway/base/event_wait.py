"""A wait for an event that ends without an error when time is up."""

import asyncio
from contextlib import suppress


async def wait_at_most(event: asyncio.Event, wait_s: float) -> None:
    """Waits until the event is set, for `wait_s` seconds at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await event.wait()
