"""Reading old data without pushing newer data out of the page cache.

Cached pages stay; pages that had to be fetched are let go when the reader has passed them. For that to be known the
kernel must not read ahead by itself, so this does: nothing for single reads, more and more for a reader that goes on
where it was. Linux; where the file system does not say which pages are cached, everything stays as the kernel has it.
"""

import os
from threading import Lock
from typing import NamedTuple

AHEAD_BYTES_MIN, AHEAD_BYTES_MAX = 128 << 10, 1 << 20
GAP_BYTES_MAX = 128 << 10  # a reader may skip so much and still go on where it was
WINDOWS_MAX = 8  # readers of one file that are counted each by itself


class _Window(NamedTuple):
    """The range that one reader has fetched and will fetch next; `ahead` is how much of it was not asked for."""

    start: int
    end: int
    ahead: int


class ColdReads:
    """The reads of one file. Any thread may read."""

    __slots__ = ("_fd", "_lock", "_windows")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = Lock()
        self._windows: list[_Window] = []  # the one used last at the end; len <= WINDOWS_MAX
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def before(self, size: int, offset: int) -> None:
        """Notes bytes about to be read that are not cached, fetches ahead, and releases pages already read."""
        end = offset + size
        if any(window.start <= offset and end <= window.end for window in self._windows) or not self._cold(end):
            return
        with self._lock:
            before = next((w for w in self._windows if w.start <= offset <= w.end + GAP_BYTES_MAX), None)
            if before is not None:
                self._windows.remove(before)
                ahead = min(max(2 * before.ahead, AHEAD_BYTES_MIN), AHEAD_BYTES_MAX)
            else:
                ahead = 0
                before = self._windows.pop(0) if len(self._windows) == WINDOWS_MAX else None
            self._windows.append(_Window(offset, end + ahead, ahead))
        if before is not None:
            os.posix_fadvise(self._fd, before.start, before.end - before.start, os.POSIX_FADV_DONTNEED)
        if ahead:
            os.posix_fadvise(self._fd, offset, size + ahead, os.POSIX_FADV_WILLNEED)

    def _cold(self, end: int) -> bool:
        """Returns whether the last byte would have to be fetched (preadv2(2), RWF_NOWAIT)."""
        try:
            os.preadv(self._fd, [bytearray(1)], max(end - 1, 0), os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False
