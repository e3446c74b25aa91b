"""A wait for an event that ends without an error when time is up."""

import asyncio


async def wait_at_most(event: asyncio.Event, wait_s: float | None) -> bool:
    """Waits until the event is set, for `wait_s` seconds at most (None: no limit), and returns whether it is set."""
    try:
        async with asyncio.timeout(wait_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
