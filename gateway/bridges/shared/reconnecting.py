"""Connecting to an upstream again and again, with pauses that double."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.upstream_stream import UpstreamError
from gateway.domain.errors import ProtocolError
from store.base import logs
from store.base.streams import Backoff

STEADY_S: Final = 10.0  # a connection that has lasted so long makes the next attempt a first one

log = logs.get(__name__)


async def reconnecting(
    bridge: str,
    config: BridgeConfig,
    connection: Callable[[], Awaitable[None]],
    *,
    failed: Callable[[str], None],
    uniform: Callable[[float, float], float],
) -> None:
    """Runs one connection after the other until cancelled; `failed` is called with the reason when one has ended.

    A `connection` ends by raising: `UpstreamError` or `ProtocolError` for the next attempt, anything else for good.
    """
    backoff = Backoff(config.reconnect_min_s, config.reconnect_max_s, uniform=uniform)
    while True:
        began_s = time.monotonic()
        try:
            await connection()
        except (UpstreamError, ProtocolError) as error:
            failed(str(error))
            if time.monotonic() - began_s >= STEADY_S:
                backoff.reset()
            wait_s = backoff.next_s()
            log.warning("bridge: not connected", bridge=bridge, error=str(error), retry_s=round(wait_s, 2))
            await asyncio.sleep(wait_s)
