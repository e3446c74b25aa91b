"""A mark that tells a file from a copy of it, whatever both hold: its inode and its creation time.

An inode's number is given again as soon as its file is gone, so that a file put in the place of another often has it.
Where the file system does not keep when a file was made, the number has to do.
"""

import ctypes
import os
import struct
from pathlib import Path

FileMark = tuple[int, int]  # inode, nanoseconds since the epoch or 0

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_MASK = struct.Struct("=I")
_TIME = struct.Struct("=qI")  # seconds, nanoseconds
_BTIME_AT = 80


def mark_of(path: Path) -> FileMark:
    """Returns the mark of a file. Raises OSError."""
    return path.stat().st_ino, _made_ns(path)


def _made_ns(path: Path) -> int:
    """Returns when a file was created, in nanoseconds; 0 where it is unknown (statx(2); Python has no call for it)."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None:
        return 0
    found = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found) != 0:
        return 0
    if not _MASK.unpack_from(found)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(found, _BTIME_AT)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)
