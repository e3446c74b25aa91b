"""The newest frames of the log in memory, from when they are written, to be streamed to replicas and applied here."""

from collections.abc import Sequence
from threading import Lock

from store.format.frame import FRAME_OBJECTS_BYTES, LogOffset
from store.format.placed import Placed

TAIL_BYTES_MAX = 64 << 20  # beyond, the oldest frames go, and are read from the disk's cache when they are wanted


class LogTail:
    """Frames back to back, bounded in bytes. One thread adds, any may ask."""

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._frames: dict[LogOffset, Placed] = {}  # in log order
        self._bytes = 0  # of _frames; <= _bytes_max between calls
        self._lock = Lock()

    def add(self, placed: Sequence[Placed]) -> None:
        """Adds frames that were written behind the ones before."""
        with self._lock:
            for one in placed:
                self._frames[one.start] = one
                self._bytes += one.memory_bytes + FRAME_OBJECTS_BYTES
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._frames))
                self._bytes -= self._frames.pop(oldest).memory_bytes + FRAME_OBJECTS_BYTES

    def frames(self, start: LogOffset, end: LogOffset, max_bytes: int) -> list[Placed]:
        """Returns whole frames from one up to `end`: about `max_bytes`, at least one; none: the first is not here."""
        found: list[Placed] = []
        size = 0
        with self._lock:
            at = start
            while (one := self._frames.get(at)) is not None:
                at = one.end
                size += at - one.start
                if at > end or (found and size > max_bytes):
                    break
                found.append(one)
        return found
