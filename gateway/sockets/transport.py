"""The transport of one plain TCP connection, as `asyncio.Transport` says it, read and written in the poller's turns."""

import asyncio
import os
import socket
from ctypes import get_errno
from select import EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, EPOLLRDHUP
from typing import Any, Final, cast

from gateway.sockets import calls
from gateway.sockets.calls import NO_SIGNAL, NOTHING_YET, send
from gateway.sockets.poller import Poller

WRITE_BUFFER_BYTES: Final = 64 << 10  # until `set_write_buffer_limits` says otherwise
_READ, _WRITE, _BROKEN = EPOLLIN | EPOLLRDHUP, EPOLLOUT, EPOLLERR | EPOLLHUP
_ENDING = EPOLLRDHUP | _BROKEN  # there may be nothing new to tell of it, though it was not heard to its end


class SocketTransport(asyncio.Transport):
    """A connection that was accepted. Everything happens in the event loop's thread.

    `write` hands over to the kernel at once as much as it takes, and keeps the rest; the protocol is asked to pause
    when more than the high water mark is kept. `connection_lost` comes in a turn of its own, as with every asyncio
    transport.
    """

    def __init__(
        self,
        poller: Poller,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        protocol: asyncio.Protocol,
        *,
        together: bool = False,
    ) -> None:
        """Begins the connection. Raises OSError, and the protocol's errors.

        `together`: the protocol's reads are handed over with those of others (`Poller`), not by `data_received`.
        """
        super().__init__({"socket": sock, "peername": _name(sock.getpeername), "sockname": _name(sock.getsockname)})
        self._poller = poller
        self._loop = loop
        self._sock = sock
        self._number = sock.fileno()
        self._protocol = protocol
        self._together = protocol if together else None
        self.writable_number = (
            self._number
        )  # of the socket, while it is written to at once; -1: `write` keeps its input
        self._kept: list[bytes] = []  # written, and not taken by the kernel yet
        self._kept_bytes = 0
        self._high_bytes = WRITE_BUFFER_BYTES
        self._low_bytes = WRITE_BUFFER_BYTES // 4
        self._paused = False  # the protocol was asked not to write
        self._reading = True
        self._events = _READ
        self._closing = False
        self._ended = False  # the peer's half is closed
        self._ends = False  # its half is closed when nothing is kept any more
        poller.add(self._number, self, _READ)
        self._read_together()
        try:
            protocol.connection_made(self)
        except BaseException:
            self._lose(None)  # else the poller would take the next socket of this number for it
            raise

    # ---- from the poller

    def ready(self, events: int) -> None:
        """See `gateway.sockets.poller.PolledSocket`."""
        if events & _WRITE:
            self._write_on()
        if self._number < 0:
            return
        if events & _READ and self._reading:
            self._read()
        elif events & _BROKEN and not events & _WRITE:
            if self._ended:
                self._lose(None)
            else:
                self._read()  # says why, or that it has ended
        if events & _ENDING:
            self.look_again()

    def look_again(self) -> None:
        """See `gateway.sockets.poller.PolledSocket`."""
        if self._number >= 0:
            self._poller.change(self._number, self._events)

    def _read(self) -> None:
        try:
            data = calls.read(self._number)
        except OSError as error:
            self._lose(error)
            return
        if data:
            if len(data) == calls.READ_BYTES:  # perhaps there is more
                self.look_again()
            self._protocol.data_received(data)
        elif data is not None and not self._ended:
            self._ended = True
            self._look()
            if not self._protocol.eof_received():
                self.close()

    # ---- reading

    def is_reading(self) -> bool:
        """Returns whether the socket is read."""
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        """Reads no more for now."""
        self._reading = False
        self._poller.readers.pop(self._number, None)
        self._look()

    def resume_reading(self) -> None:
        """Resumes reading, where it is not closed."""
        if not self._closing:
            self._reading = True
            self._read_together()
            self._look()

    def _read_together(self) -> None:
        """Lets the poller hand the reads over with those of others, where that is wanted."""
        if self._together is not None:
            self._poller.readers[self._number] = self._together

    def _look(self) -> None:
        """Sets the events that the poller looks for."""
        if self._number < 0:
            return
        events = (_READ if self._reading and not self._ended else 0) | (_WRITE if self._kept else 0)
        if events != self._events:
            self._events = events
            self._poller.change(self._number, events)

    # ---- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes, and keeps the bytes that the kernel does not take."""
        if self._number < 0 or self._ends:
            return
        if self._kept:
            self._keep(bytes(data))
            return
        if type(data) is not bytes:
            data = bytes(data)
        taken = send(self._number, data, len(data), NO_SIGNAL)
        if taken != len(data):
            self.wrote(data, taken if taken >= 0 else -get_errno())

    def wrote(self, data: bytes, taken: int) -> None:
        """Notes that the kernel has taken so many bytes of some and no more; below 0 it is an error's number.

        Nothing was kept then, and `writable_number` is where they were written.
        """
        if self._number < 0:
            return
        if taken < 0:
            if -taken not in NOTHING_YET:
                self._lose(OSError(-taken, os.strerror(-taken)))
                return
            taken = 0
        self._keep(data[taken:])

    def _keep(self, data: bytes) -> None:
        """Keeps the bytes that the kernel has not taken."""
        self._kept.append(data)
        self._kept_bytes += len(data)
        self.writable_number = -1
        self._look()
        if self._kept_bytes > self._high_bytes and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def _write_on(self) -> None:
        kept = b"".join(self._kept)
        try:
            taken = calls.write(self._number, kept)
        except OSError as error:
            self._lose(error)
            return
        self._kept = [kept[taken:]] if taken < len(kept) else []
        self._kept_bytes -= taken
        self._look()
        if not self._kept:
            if self._ends:
                self._end()
            if self._closing:
                self._lose(None)
                return
            if not self._ends:
                self.writable_number = self._number
        if self._paused and self._kept_bytes <= self._low_bytes:
            self._paused = False
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Says when the protocol is asked to pause, and when to go on; in bytes."""
        self._high_bytes = WRITE_BUFFER_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Returns how many bytes are kept."""
        return self._kept_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Returns the low and the high water mark, in bytes."""
        return self._low_bytes, self._high_bytes

    def can_write_eof(self) -> bool:
        """Returns True: TCP has halves."""
        return True

    def write_eof(self) -> None:
        """Closes this half when everything is written."""
        if self._ends or self._number < 0:
            return
        self._ends = True
        self.writable_number = -1
        if not self._kept:
            self._end()

    def _end(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            self._lose(error)

    # ---- the end

    def is_closing(self) -> bool:
        """Returns whether it is closed, or will be when everything is written."""
        return self._closing

    def close(self) -> None:
        """Writes the kept output, then closes."""
        if self._closing:
            return
        self._closing = True
        self._reading = False
        self.writable_number = -1
        self._poller.readers.pop(self._number, None)
        if self._kept:
            self._look()
        else:
            self._lose(None)

    def abort(self) -> None:
        """Closes, whatever is kept."""
        self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if self._number < 0:
            return
        self._closing = True
        self._kept, self._kept_bytes = [], 0
        self._poller.remove(self._number)
        self._number = self.writable_number = -1
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._sock.close()

    # ---- whose it is

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Returns the protocol."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives later input to another protocol."""
        self._protocol = cast(asyncio.Protocol, protocol)
        self._together = None
        self._poller.readers.pop(self._number, None)


def _name(ask: Any) -> Any:
    """Returns an address of a socket; None where the peer has gone already."""
    try:
        return ask()
    except OSError:
        return None
