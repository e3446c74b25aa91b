"""The memory that a process holds, its limit, and freed memory that goes back to the system.

glibc keeps freed memory in its heap: after a flood of handshakes a process held hundreds of MB of which it used a
fifth. `HeapTrimming` decides when to have it give that back, and `heap_trim` returns the call that does so
(malloc_trim(3)).
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

PEAK_BYTES: Final = 64 << 20  # of unauthenticated input: after as much, it is worth while
LITTLE_BYTES: Final = 16 << 20  # of unauthenticated input: the flood is over
TRIM_INTERVAL_MS: Final = 30_000  # between two trims, at least: one keeps other threads from the heap
FUTILE_BYTES: Final = 16 << 20  # a trim that gives back less has found that the memory is in use
FUTILE_INTERVAL_MS: Final = 300_000  # after which it is tried again above the limit
_MEMORY_SHARE: Final = 0.6  # of the machine's, where no limit is configured
_LIMITS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_RESIDENT: Final = "/proc/self/statm"
_LINE_BYTES_MAX: Final = 256  # of that file, which has one
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Returns the memory that this process holds; 0 where that is not known."""
    try:  # twice a second: without a file object it is a fraction of the price
        file = os.open(_RESIDENT, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return int(os.read(file, _LINE_BYTES_MAX).split()[1]) * _PAGE_BYTES
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return 0


def memory_limit_bytes(configured: int) -> int:
    """Returns the limit for this process: as configured, or, for 0, a share of the machine's or cgroup's memory."""
    if configured:
        return configured
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _LIMITS:
        try:
            found = min(found, int(path.read_text("ascii")))
        except (OSError, ValueError):  # no such limit
            continue
    return int(found * _MEMORY_SHARE)


def heap_trim() -> Callable[[], object] | None:
    """Returns glibc's malloc_trim, which lets other threads of Python run; None where the C library has none (musl)."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    trim.argtypes, trim.restype = (ctypes.c_size_t,), ctypes.c_int
    return lambda: trim(0)


class HeapTrimming:
    """The rule for giving freed memory back: behind a flood, and while the process holds more than its limit."""

    def __init__(self, memory_bytes_max: int) -> None:
        """Begins with nothing trimmed."""
        self.memory_bytes_max = memory_bytes_max
        self._calm = False  # a flood was over at the last look; its memory is freed by the next one
        self._trimmed_ms: int | None = None
        self._futile = False

    def due(self, *, peak_bytes: int, held_bytes: int, resident_bytes: int, now_ms: int) -> bool:
        """Looks at the process; returns whether to trim now.

        `held_bytes` of unauthenticated input are held now, `peak_bytes` were at most since the last trim.
        """
        over = peak_bytes >= PEAK_BYTES and held_bytes <= LITTLE_BYTES
        flood_over, self._calm = over and self._calm, over
        since_ms = None if self._trimmed_ms is None else now_ms - self._trimmed_ms
        if since_ms is not None and since_ms < TRIM_INTERVAL_MS:
            return False
        above = resident_bytes > self.memory_bytes_max
        return flood_over or (above and (since_ms is None or not self._futile or since_ms >= FUTILE_INTERVAL_MS))

    def trimmed(self, gave_bytes: int, *, now_ms: int) -> None:
        """Notes a trim, and how much less the process holds than before."""
        self._trimmed_ms, self._calm = now_ms, False
        self._futile = gave_bytes < FUTILE_BYTES
