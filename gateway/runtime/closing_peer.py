"""A connection that has said everything, and waits for its peer to go."""

import asyncio

from gateway.runtime.turn import StreamHub
from store.base import logs

log = logs.get(__name__)


class ClosingPeer(asyncio.Protocol):
    """A connection that has said everything, until its peer has read that and goes, or takes too long.

    Closed while the peer still sends, a socket is reset, and the peer never sees what it had not read. What the peer
    has not read counts in the process's budget until most of it is read, as it did while the connection was open.
    """

    def __init__(
        self, hub: StreamHub, transport: asyncio.Transport, timer: asyncio.TimerHandle, network: bytes, protocol: str
    ) -> None:
        self._hub = hub
        self._transport = transport
        self._timer = timer
        self._network = network
        self._name = protocol
        hub.lingering += 1

    def hold(self, unread_bytes: int) -> None:
        """Counts bytes that the peer has not read; beyond what all may, the connection with most is cut off."""
        self._hub.unread.hold(self, self._network, unread_bytes)

    def cancel(self) -> None:
        """See `store.base.listening.strangers.Holder`: peers make us hold too much, and this one most."""
        log.info("a closing connection is cut off: its peer does not read", protocol=self._name)
        self._hub.metrics.errors(self._name, "cut_off").inc()
        self._transport.abort()

    def resume_writing(self) -> None:
        """Notes that the peer has read most of it."""
        self._hub.unread.release(self, self._network)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer has gone too."""
        self._timer.cancel()
        self._hub.unread.release(self, self._network)
        self._hub.lingering -= 1
