"""Constrained devices on CoAP: confirmable and non-confirmable POSTs (aiocoap)."""

import asyncio

from aiocoap import CON, NON, POST, Context, Message, error
from aiocoap.numbers import ContentFormat

from deploy.demo.fleet import Fleet
from deploy.demo.plan import Reading

UNDER_WAY_MAX = 64  # requests without an answer; a fleet that cannot keep up publishes less
REQUEST_S = 60.0  # a confirmable request is given up after 45 s (RFC 7252, 4.8.2)


async def run(fleet: Fleet) -> None:
    """Sends requests until told to stop."""
    context = await Context.create_client_context()
    tasks: set[asyncio.Task[None]] = set()
    try:
        async for due in fleet.due():
            for _ in range(min(due, UNDER_WAY_MAX - len(tasks))):
                reading = fleet.readings.take()
                task = asyncio.create_task(_post(context, fleet, reading, confirmable=reading.device != 0))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        # The last of the device that asks for no confirmation is confirmed: its series has an end for all readers.
        await _post(context, fleet, fleet.readings.take(0), confirmable=True)
        fleet.phase = "stopped"
        await fleet.end.wait()
    finally:
        await context.shutdown()


async def _post(context: Context, fleet: Fleet, reading: Reading, *, confirmable: bool) -> None:
    request = Message(
        code=POST,
        mtype=CON if confirmable else NON,
        uri=f"coap://{fleet.target.host}:{fleet.target.coap}/t/{reading.address}",
        payload=reading.body,
        content_format=ContentFormat.JSON,
    )
    try:
        async with asyncio.timeout(REQUEST_S):
            answer = await context.request(request).response
    except (error.Error, OSError, TimeoutError):
        fleet.count("unknown")
        return
    fleet.count("acked" if answer.code.is_successful() else "refused")
