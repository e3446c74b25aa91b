"""A connection that is passed on to another one, byte by byte, as fast as the slower side takes it."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LINGER_S = 5.0  # for bytes still to be sent to one side, when the other has ended


class _Side(asyncio.Protocol):
    """One side: its input goes to the other, which may be made later than bytes come."""

    def __init__(self, ended: asyncio.Event, came: Callable[[int], object]) -> None:
        """Sets `ended` when this side has; calls `came` with the size of each piece that comes from it."""
        self.transport: Any = None
        self.other: _Side
        self.lost = asyncio.Event()
        self._ended = ended
        self._came = came
        self._early: list[bytes] = []  # for this side, from before it was made; one read's, as reading pauses then
        self._full = False  # this side does not take more for now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self.transport = transport
        for data in self._early:
            self.transport.write(data)
        self._early.clear()
        if self.other.transport is not None and not self._full:
            self.other.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self.other.write(data)
        if self.other.transport is None:
            self.transport.pause_reading()
        self._came(len(data))

    def write(self, data: bytes) -> None:
        """Sends to this side, as soon as there is one."""
        if self.transport is None:
            self._early.append(data)
        elif not self.transport.is_closing():  # else no handler would get it
            self.transport.write(data)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._full = True
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self._full = False
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def eof_received(self) -> None:
        """See `asyncio.Protocol`: it is closed when it has been sent all its data, within a time limit."""
        self._ended.set()

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self.lost.set()
        self._ended.set()


async def pass_on(
    first: bytes, accepted: socket.socket, path: str, came: Callable[[int], object], *, name: str = ""
) -> None:
    """Passes a connection on to a Unix socket, with the bytes of it that were read already. Raises OSError.

    `came` is called with the size of each piece that who connected has sent. The Unix socket's other end sees `name`.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    there, here = _Side(ended, _ignore), _Side(ended, came)
    here.other, there.other = there, here
    there.write(first)
    came(len(first))
    inner = socket.socket(socket.AF_UNIX)
    try:
        inner.setblocking(False)
        if name:
            inner.bind(name)
        await loop.sock_connect(inner, path)
        await loop.create_unix_connection(lambda: there, sock=handed_over(inner))
        await loop.connect_accepted_socket(lambda: here, handed_over(accepted))
        await ended.wait()
        there.transport.close()
        here.transport.close()
        with suppress(TimeoutError):  # it does not read
            async with asyncio.timeout(LINGER_S):
                await there.lost.wait()
                await here.lost.wait()
    finally:
        inner.close()
        for half in (there, here):
            if half.transport is not None:
                half.transport.abort()


def _ignore(_size_bytes: int) -> None:
    """Counts nothing."""


def handed_over(held: socket.socket) -> socket.socket:
    """Returns the same socket for an owner that closes it from now on; closing `held` does nothing any more."""
    return socket.socket(held.family, held.type, held.proto, fileno=held.detach())
