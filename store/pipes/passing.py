"""A connection that is passed on to another one, byte by byte, as fast as the slower side takes it."""

import asyncio
import socket
from typing import Any

__all__ = ["pass_on"]


class _Half(asyncio.Protocol):
    """One side: what comes goes to the other."""

    def __init__(self, ended: asyncio.Event) -> None:
        self.transport: Any = None
        self.other: _Half | None = None
        self._ended = ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BaseProtocol`."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """See `asyncio.BaseProtocol`."""
        self._ended.set()


async def pass_on(first: bytes, accepted: socket.socket, path: str) -> None:
    """Pass a connection on to a Unix socket, with the bytes of it that were read already. Raises OSError."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    there, here = _Half(ended), _Half(ended)
    here.other, there.other = there, here
    inner = socket.socket(socket.AF_UNIX)
    inner.setblocking(False)
    try:
        await loop.sock_connect(inner, path)
        await loop.create_unix_connection(lambda: there, sock=inner)
        there.transport.pause_reading()
        there.transport.write(first)
        await loop.connect_accepted_socket(lambda: here, accepted)
        there.transport.resume_reading()
        await ended.wait()
    finally:
        for half, its in ((there, inner), (here, accepted)):
            if half.transport is not None:
                half.transport.close()
            else:
                its.close()
