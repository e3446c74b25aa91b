"""recv(2) and send(2) on sockets that do not block, with the interpreter's lock kept.

The methods of `socket.socket` give the lock away around each call. Where other threads are busy, and the store's are, a
turn with a thousand calls would have to win it back a thousand times. A call that never blocks need not do that.
"""

import ctypes
import errno
import os
from ctypes import c_ssize_t
from typing import Any, Final

READ_BYTES: Final = 256 << 10  # of one socket in one turn
NOTHING_YET: Final = frozenset([errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR])
NO_SIGNAL = 0x4000  # a peer that has gone is an error, not a signal

# `receive` and `send` are for callers that handle the result codes themselves; others use `read` and `write`. Without
# declared types a call takes 0.3 us instead of 0.6: the arguments are numbers below 2**31, `BUFFER` and bytes, which it
# knows.
_libc = ctypes.PyDLL(None, use_errno=True)
receive, send = _libc.recv, _libc.send
receive.restype = send.restype = c_ssize_t

BUFFER: Any = (ctypes.c_char * READ_BYTES)()  # of the one thread that turns: the event loop's


def read(number: int) -> bytes | None:
    """Returns a socket's received bytes, at most `READ_BYTES`; empty at its end, None without any. Raises OSError."""
    count = receive(number, BUFFER, READ_BYTES, 0)
    if count >= 0:
        data: bytes = BUFFER[:count]
        return data
    check()
    return None


def write(number: int, data: bytes) -> int:
    """Writes as much as a socket takes at once and returns how many bytes that were, 0 when none. Raises OSError."""
    count: int = send(number, data, len(data), NO_SIGNAL)
    if count >= 0:
        return count
    check()
    return 0


def check() -> None:
    """Raises OSError when the last call did not end for want of something to do."""
    number = ctypes.get_errno()
    if number not in NOTHING_YET:
        raise OSError(number, os.strerror(number))
