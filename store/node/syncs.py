"""Detects a disk that syncs far more slowly than it should, which no write tells before it is done."""

from store.format.frame import LogOffset

SLOW_MS = 2_000  # a sync that takes so long; a healthy disk takes some ms, a busy one some hundred
SLOW_COUNT = 3  # in a row, and the disk is slow
HANGS_MS = 8_000  # one that takes so long is enough
FORGET_MS = 30_000  # without a slow sync, and the disk is not slow any more


class Syncs:
    """The syncs of one replica's disk. `look` is called with the time, several times a second."""

    def __init__(self) -> None:
        self.slow = False
        self.hangs = False  # slow, and the sync that is awaited has not ended
        self._waits: LogOffset | None = None  # for the log to be on disk up to here
        self._since_ms = 0  # that it was written
        self._slow_count = 0
        self._slow_ms: int | None = None  # when a sync was slow last

    def look(self, end: LogOffset, flushed: LogOffset, now_ms: int) -> bool:
        """Takes note of how far the log is written, and on disk; returns whether that changes if the disk is slow."""
        before = self.slow
        if self._waits is not None and flushed >= self._waits:
            late = now_ms - self._since_ms >= SLOW_MS
            self._slow_count = self._slow_count + 1 if late else 0
            self._slow_ms = now_ms if late else self._slow_ms
            self._waits = None
        if self._waits is None and end > flushed:
            self._waits, self._since_ms = end, now_ms
        self.hangs = self._waits is not None and now_ms - self._since_ms >= HANGS_MS
        if self.hangs:
            self._slow_ms = now_ms
        if self._slow_ms is not None and now_ms - self._slow_ms >= FORGET_MS:
            self._slow_count, self._slow_ms = 0, None
        self.slow = self.hangs or self._slow_count >= SLOW_COUNT
        return self.slow != before
