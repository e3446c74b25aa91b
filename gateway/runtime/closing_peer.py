"""A connection that has said everything, and waits for its peer to go."""

import asyncio

from gateway.runtime.turn import StreamHub


class ClosingPeer(asyncio.Protocol):
    """A connection that has said everything, until its peer has read that and goes, or takes too long.

    Closed while the peer still sends, a socket is reset, and the peer never sees what it had not read.
    """

    def __init__(self, hub: StreamHub, timer: asyncio.TimerHandle) -> None:
        self._hub = hub
        self._timer = timer
        hub.lingering += 1

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone too."""
        self._timer.cancel()
        self._hub.lingering -= 1
