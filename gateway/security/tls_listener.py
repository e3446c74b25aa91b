"""A TLS port: it accepts connections itself, so that handshakes are counted by where they come from.

Until its handshake is over a connection is nobody's, and a peer can have it wait for `handshake_s`. When many
connections wait, networks with too many are cut off; when too many wait in all, every new one is.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from gateway.security.limits import network_of
from gateway.sockets.listening import TcpListener
from gateway.sockets.paced import PacedTransport
from store.base import logs

HANDSHAKES_COUNT_MAX: Final = 4_096  # in progress; each takes some 50 KiB
CROWD_COUNT: Final = 1_024  # so many, and a network may have only
NETWORK_COUNT_MAX: Final = 128  # of them

log = logs.get(__name__)


class Handshakes:
    """The number of handshakes in progress, of all TLS ports of a process."""

    def __init__(self) -> None:
        self.count = 0
        self.by_network: dict[str, int] = {}

    def enter(self, network: str) -> bool:
        """Counts one more handshake and returns True, or returns False where it may not begin."""
        own = self.by_network.get(network, 0)
        if self.count >= HANDSHAKES_COUNT_MAX or (self.count >= CROWD_COUNT and own >= NETWORK_COUNT_MAX):
            return False
        self.count += 1
        self.by_network[network] = own + 1
        return True

    def leave(self, network: str) -> None:
        """Notes the end of one that had begun."""
        self.count -= 1
        left = self.by_network.pop(network) - 1
        if left:
            self.by_network[network] = left


class TlsListener(TcpListener):
    """A TLS port. `cut_off` is called with each connection that is not let in."""

    def __init__(
        self,
        connection: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        handshakes: Handshakes,
        *,
        handshake_s: float,
        cut_off: Callable[[], object],
    ) -> None:
        super().__init__()
        self._connection = connection
        self._context = context
        self._handshakes = handshakes
        self._handshake_s = handshake_s
        self._cut_off = cut_off
        self._shaking: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Accepts no more, and ends handshakes in progress."""
        super().close()
        for task in self._shaking:
            task.cancel()

    def accepted(self, sock: socket.socket, address: Any) -> None:
        """See `TcpListener.accepted`."""
        network = network_of(str(address[0]))
        if not self._handshakes.enter(network):
            sock.close()
            self._cut_off()
            return
        task = self._loop.create_task(self._shake(sock, network))
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    async def _shake(self, sock: socket.socket, network: str) -> None:
        """Shakes hands; a peer that does not bring it to an end is no connection."""
        try:
            with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
                await self._loop.connect_accepted_socket(
                    lambda: PacedTransport(self._connection()),
                    sock,
                    ssl=self._context,
                    ssl_handshake_timeout=self._handshake_s,
                )
        except Exception:  # our own bug must not keep others from being let in
            log.exception("a connection cannot begin")
        finally:
            self._handshakes.leave(network)
