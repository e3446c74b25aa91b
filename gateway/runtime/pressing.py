"""Tells connections of pressure on memory or disk, where their protocol has a word for it."""

import asyncio

from gateway.ops.pressure import PRESSURE_INTERVAL_MS
from gateway.port.pressed import PressedAdapter
from gateway.runtime.turn import StreamEndpoint, StreamHub
from store.base.clock import now_ms
from store.base.rhythm import pause

TELL_COUNT = 500  # connections that are notified in one turn of the event loop


def notify_of_pressure(connection: StreamEndpoint, why: str) -> None:
    """Tells one connection which resource is scarce; "": there is enough again."""
    adapter = connection.adapter
    if not connection.gone and isinstance(adapter, PressedAdapter):
        connection.guard(lambda: connection.act(adapter.pressed(why, now_ms=now_ms())))
        connection.flush()


async def watch_pressure(hub: StreamHub) -> None:
    """Looks at the pressure and tells all connections when it changes, forever."""
    while True:
        await pause(PRESSURE_INTERVAL_MS / 1_000)
        if not hub.pressure.look():
            continue
        reason = hub.pressure.reason
        for nth, connection in enumerate(list(hub.connections.values())):
            notify_of_pressure(connection, reason)
            if nth % TELL_COUNT == TELL_COUNT - 1:
                await asyncio.sleep(0)
