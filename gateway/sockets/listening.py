"""Ports: opened at every address of a host, and accepting in turns, so that a storm of connections lets others live."""

import asyncio
import errno
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.sockets.poller import Poller
from gateway.sockets.transport import SocketTransport
from store.base import logs

ACCEPTED_AT_ONCE: Final = 64  # connections, then others of the event loop have their turn
OUT_OF_FILES_S: Final = 1.0  # until it is tried again to accept, where there was no file descriptor left

log = logs.get(__name__)


class TcpListener(ABC):
    """A server as asyncio's, as far as it is used here."""

    def __init__(self) -> None:
        self.sockets: Sequence[socket.socket] = ()
        self._loop = asyncio.get_running_loop()

    @abstractmethod
    def accepted(self, sock: socket.socket, address: Any) -> None:
        """Takes a connection that was accepted; the socket does not block."""

    async def listen(self, host: str, port: int, *, backlog: int, shared: bool) -> None:
        """Opens the port, at every address of the host; a `shared` one is others' too. Raises OSError."""
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        opened: list[socket.socket] = []
        unsupported: OSError | None = None
        try:
            for family, kind, proto, _, address in dict.fromkeys(found):
                try:
                    sock = socket.socket(family, kind, proto)
                except OSError as error:  # a host has addresses of families that the kernel may be without
                    if error.errno != errno.EAFNOSUPPORT:
                        raise
                    unsupported = error
                    continue
                opened.append(sock)
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if shared:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(address)
                sock.listen(backlog)
            if unsupported is not None and not opened:
                raise unsupported
        except OSError:
            for sock in opened:
                sock.close()
            raise
        self.sockets = opened
        for sock in opened:
            self._loop.add_reader(sock, self._accept, sock)

    def is_serving(self) -> bool:
        """Returns whether connections are accepted."""
        return bool(self.sockets)

    def close(self) -> None:
        """Accepts no more."""
        for sock in self.sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self.sockets = ()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor, no memory
                log.error("connections cannot be accepted; tried again in a moment", error=str(error))
                self._loop.remove_reader(listening)
                self._loop.call_later(OUT_OF_FILES_S, self._accept_again, listening)
                return
            sock.setblocking(False)
            self.accepted(sock, address)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


class PlainListener(TcpListener):
    """A plain TCP port, whose connections the poller looks at. `together`: as of `SocketTransport`."""

    def __init__(self, connection: Callable[[], asyncio.Protocol], poller: Poller, *, together: bool = False) -> None:
        super().__init__()
        self._connection = connection
        self._poller = poller
        self._together = together

    def accepted(self, sock: socket.socket, _address: Any) -> None:
        """See `TcpListener.accepted`."""
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            SocketTransport(self._poller, self._loop, sock, self._connection(), together=self._together)
        except OSError:  # gone already, or the machine takes no more
            sock.close()
        except Exception:  # our own bug must not keep others from being let in
            log.exception("a connection cannot begin")
            sock.close()
