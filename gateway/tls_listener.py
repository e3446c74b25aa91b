"""A TLS port: it accepts connections itself, so that handshakes are counted by where they come from.

Until its handshake is over a connection is nobody's, and a peer can have it wait for `handshake_s`. When many do, those
who have many of them are cut off, and when too many do, everybody is who comes then.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from gateway import logs
from gateway.limits import network_of

__all__ = ["HANDSHAKES_COUNT_MAX", "Handshakes", "TlsListener"]

HANDSHAKES_COUNT_MAX: Final = 4_096  # under way; each takes some 50 KiB
CROWD_COUNT: Final = 1_024  # so many, and a network may have only
NETWORK_COUNT_MAX: Final = 128  # of them
ACCEPTED_AT_ONCE: Final = 64  # connections, then others of the event loop have their turn
OUT_OF_FILES_S: Final = 1.0  # until it is tried again to accept, where there was no file descriptor left

log = logs.get(__name__)


class Handshakes:
    """How many handshakes are under way, of all TLS ports of a process."""

    def __init__(self) -> None:
        self.count = 0
        self._by_network: dict[str, int] = {}

    def enter(self, network: str) -> bool:
        """Whether another one may begin."""
        own = self._by_network.get(network, 0)
        if self.count >= HANDSHAKES_COUNT_MAX or (self.count >= CROWD_COUNT and own >= NETWORK_COUNT_MAX):
            return False
        self.count += 1
        self._by_network[network] = own + 1
        return True

    def leave(self, network: str) -> None:
        """One that had begun is over."""
        self.count -= 1
        left = self._by_network.pop(network) - 1
        if left:
            self._by_network[network] = left


class TlsListener:
    """A server as asyncio's, as far as it is used here. `cut_off` is told of each connection that is not let in."""

    def __init__(
        self,
        connection: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        handshakes: Handshakes,
        *,
        handshake_s: float,
        cut_off: Callable[[], object],
    ) -> None:
        self.sockets: Sequence[socket.socket] = ()
        self._connection = connection
        self._context = context
        self._handshakes = handshakes
        self._handshake_s = handshake_s
        self._cut_off = cut_off
        self._loop = asyncio.get_running_loop()
        self._shaking: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int, *, backlog: int, shared: bool) -> None:
        """Open the port, at every address of the host; a `shared` one is others' too. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        opened: list[socket.socket] = []
        try:
            for family, kind, proto, _, address in dict.fromkeys(found):
                opened.append(sock := socket.socket(family, kind, proto))
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if shared:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(address)
                sock.listen(backlog)
        except OSError:
            for sock in opened:
                sock.close()
            raise
        self.sockets = opened
        for sock in opened:
            self._loop.add_reader(sock, self._accept, sock)

    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return bool(self.sockets)

    def close(self) -> None:
        """Accept no more, and end handshakes that are under way."""
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self.sockets = ()
        for task in self._shaking:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor, no memory
                log.error("connections are not accepted for a moment", error=str(error))
                self._loop.remove_reader(listening)
                self._loop.call_later(OUT_OF_FILES_S, self._accept_again, listening)
                return
            network = network_of(str(address[0]))
            if not self._handshakes.enter(network):
                sock.close()
                self._cut_off()
                continue
            sock.setblocking(False)
            task = self._loop.create_task(self._shake(sock, network))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)

    async def _shake(self, sock: socket.socket, network: str) -> None:
        """A handshake; whoever does not bring it to an end is no connection."""
        try:
            with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
                await self._loop.connect_accepted_socket(
                    self._connection, sock, ssl=self._context, ssl_handshake_timeout=self._handshake_s
                )
        except Exception:  # our own bug must not keep others from being let in
            log.exception("a connection cannot begin")
        finally:
            self._handshakes.leave(network)
