"""A connection that has said everything, and waits for its peer to go."""

import asyncio

from gateway.runtime.turn import StreamHub
from gateway.runtime.unread import WriteStall, counted
from store.base import logs

log = logs.get(__name__)


class ClosingPeer(asyncio.Protocol):
    """A connection that has said everything, until its peer has read that and goes, or takes too long.

    Closed while the peer still sends, a socket is reset, and the peer loses the bytes that it had not read. Bytes that
    the peer has not read count in the process's budget until most of them are read, as they did while the connection
    was open.
    """

    def __init__(
        self, hub: StreamHub, transport: asyncio.Transport, stall: WriteStall, network: bytes, protocol: str
    ) -> None:
        self._hub = hub
        self._transport = transport
        self._stall = stall
        self._network = network
        self._name = protocol
        hub.lingering += 1

    def hold(self) -> None:
        """Counts bytes that the peer has not read; beyond the limit for all, a connection is cut off."""
        self._hub.unread.hold(self, self._network, self.unread_now())

    def unread_now(self) -> int:
        """See `gateway.runtime.unread.UnreadHolder`."""
        return counted(self._transport.get_write_buffer_size(), self._hub.write_buffer_bytes_max)

    def cancel(self) -> None:
        """See `gateway.runtime.unread.UnreadHolder`: peers make us hold too much, and this one makes way."""
        log.info("a closing connection is cut off: its peer does not read", protocol=self._name)
        self._hub.metrics.errors(self._name, "cut_off").inc()
        self._transport.abort()

    def resume_writing(self) -> None:
        """Notes that the peer has read most of the output."""
        self._hub.unread.release(self, self._network)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the wait for the peer, which has gone too."""
        self._stall.cancel()
        self._hub.unread.release(self, self._network)
        self._hub.lingering -= 1
