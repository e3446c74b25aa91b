"""A TLS connection whose output is kept where it can be counted.

The event loop's TLS takes all output, encrypts it at once and hands it to the socket's transport, whose buffer is
hidden from the layers above: a response of 16 MiB that the peer does not read counts as nothing, and the protocol is
not asked to pause. So output is passed on in pieces, and no more of it while the socket does not take any.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

PIECE_BYTES: Final = 64 << 10  # passed on at a time; up to three of them lie below, where they do not count


class Below(Protocol):
    """Reads the socket below TLS."""

    def changed(self) -> None:
        """Notes that the transport above is read again, or has ended."""


class _Gone(asyncio.Transport):
    """The transport of a connection that is gone: nothing comes, and nothing leaves."""

    def is_closing(self) -> bool:
        return True

    def is_reading(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


_GONE = _Gone()


def _nobody(_data: bytes) -> None:
    """Takes input of a connection that is gone."""


class PacedTransport(asyncio.Transport, asyncio.Protocol):
    """The transport of a protocol above TLS, and the protocol of the transport below."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        asyncio.Transport.__init__(self)
        self._inner: asyncio.Transport
        self._kept: deque[memoryview] = deque()  # written, and not passed on yet
        self._kept_bytes = 0
        self._full = False  # below, nothing more is taken for now
        self._high_bytes, self._low_bytes = PIECE_BYTES, PIECE_BYTES // 4
        self._paused = False  # the protocol was asked not to write
        self._closing = False
        self.ended = False  # once everything is written: TLS says good-bye
        self.received_bytes = 0  # of plaintext
        self._reading = True  # the protocol wants input
        self._below: Below | None = None
        self._deliver: Callable[[bytes], object]
        self.set_protocol(protocol)

    # ---- from below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes over once the handshake is done."""
        self._inner = cast(asyncio.Transport, transport)  # uvloop's do not derive from it
        self._inner.set_write_buffer_limits(high=PIECE_BYTES)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        """Passes on what the peer has sent."""
        self.received_bytes += len(data)
        self._deliver(data)

    @property
    def reading(self) -> bool:
        """Returns whether input is passed on; else it waits below, unless this has `ended`."""
        return self._reading and not self._closing

    def lie_on(self, below: Below | None) -> None:
        """Takes what reads the socket, below TLS; None once that is gone."""
        self._below = below

    def eof_received(self) -> bool | None:
        """Passes on the peer's end of input."""
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Lets go, as the connection is gone: else TLS's buffers stay until cycles are looked for."""
        self._drop()
        self._protocol.connection_lost(exc)
        self._closing, self._inner, self._below, self._deliver = True, _GONE, None, _nobody

    def pause_writing(self) -> None:
        """Pauses passing bytes on."""
        self._full = True

    def resume_writing(self) -> None:
        """Passes on the kept bytes; the protocol writes on when little is left."""
        self._full = False
        self._pass_on()
        if self._paused and self._kept_bytes <= self._low_bytes:
            self._paused = False
            self._protocol.resume_writing()

    # ---- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Writes the bytes, or keeps those that are too many for now."""
        if self._closing:
            return
        if not self._kept and not self._full and len(data) <= PIECE_BYTES:
            self._inner.write(data)
            return
        self._kept.append(memoryview(bytes(data)))
        self._kept_bytes += len(data)
        self._pass_on()
        if self._kept_bytes > self._high_bytes and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def _pass_on(self) -> None:
        kept = self._kept
        while kept and not self._full and not self._inner.is_closing():
            piece = kept[0][:PIECE_BYTES]
            if len(piece) == len(kept[0]):
                kept.popleft()
            else:
                kept[0] = kept[0][PIECE_BYTES:]
            self._kept_bytes -= len(piece)
            self._inner.write(piece)
        if not kept and self._closing:
            self._end()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Says when the protocol is asked to pause, and when to go on; in bytes."""
        self._high_bytes = PIECE_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Returns how many bytes wait."""
        return self._kept_bytes + self._inner.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Returns the low and the high water mark, in bytes."""
        return self._low_bytes, self._high_bytes

    def can_write_eof(self) -> bool:
        """Returns False: TLS has no halves."""
        return False

    # ---- reading

    def is_reading(self) -> bool:
        """Returns whether the peer is read."""
        return not self._closing and self._inner.is_reading()

    def pause_reading(self) -> None:
        """Reads no more for now."""
        self._reading = False
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        """Resumes reading, where it is not closed."""
        self._reading = True
        if self._closing:
            return
        self._inner.resume_reading()
        if self._below is not None:
            self._below.changed()

    # ---- the end

    def is_closing(self) -> bool:
        """Returns whether it is closed, or will be when everything is written."""
        return self._closing or self._inner.is_closing()

    def close(self) -> None:
        """Writes the kept output, then closes; nothing is read meanwhile."""
        if self._closing:
            return
        self._closing = True
        if self._kept:
            self._inner.pause_reading()
        else:
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._inner.close()
        if self._below is not None:
            self._below.changed()

    def abort(self) -> None:
        """Closes, whatever is kept."""
        self._closing = True
        self._drop()
        self._inner.abort()

    def _drop(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    # ---- whose it is

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns the value of the transport below."""
        return self._inner.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Returns the protocol above."""
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Gives later input to another protocol."""
        self._protocol = cast(asyncio.Protocol, protocol)
        self._deliver = self._protocol.data_received
