"""recv(2) and send(2) on sockets that do not block, with the interpreter's lock kept.

The methods of `socket.socket` give the lock away around each call. Where other threads are busy, and the store's are, a
turn with a thousand calls would have to win it back a thousand times. A call that never blocks need not do that.
"""

import ctypes
import errno
import os
from ctypes import c_char_p, c_int, c_size_t, c_ssize_t, c_void_p
from typing import Final

__all__ = ["NO_SIGNAL", "READ_BYTES", "check", "read", "read_some", "send", "write"]

READ_BYTES: Final = 256 << 10  # of one socket in one turn
_NOTHING_YET = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR}
NO_SIGNAL = 0x4000  # a peer that has gone is an error, not a signal

_libc = ctypes.PyDLL(None, use_errno=True)
_recv, send = _libc.recv, _libc.send  # `send` itself is for those who count calls: `write` says what it means
_recv.argtypes, _recv.restype = [c_int, c_void_p, c_size_t, c_int], c_ssize_t
send.argtypes, send.restype = [c_int, c_char_p, c_size_t, c_int], c_ssize_t

_buffer = bytearray(READ_BYTES)  # of the one thread that turns: the event loop's
_view = memoryview(_buffer)
_place = ctypes.addressof((ctypes.c_char * READ_BYTES).from_buffer(_buffer))


def read(number: int) -> bytes | None:
    """Returns what a socket has, at most `READ_BYTES`; empty at its end, None when nothing is there. Raises OSError."""
    count = _recv(number, _place, READ_BYTES, 0)
    if count >= 0:
        return bytes(_view[:count])
    check()
    return None


def read_some(number: int) -> bytes:
    """Returns what a socket has; empty where `read` says more."""
    count = _recv(number, _place, READ_BYTES, 0)
    return bytes(_view[:count]) if count > 0 else b""


def write(number: int, data: bytes) -> int:
    """Writes what a socket takes at once and returns how many bytes that were, 0 when none. Raises OSError."""
    count: int = send(number, data, len(data), NO_SIGNAL)
    if count >= 0:
        return count
    check()
    return 0


def check() -> None:
    """Raises OSError when the last call did not end for want of something to do."""
    number = ctypes.get_errno()
    if number not in _NOTHING_YET:
        raise OSError(number, os.strerror(number))
