"""The scrub: reads the log slowly, again and again, so that a flipped bit is found before a reader needs it.

Of the segment that is written to, it reads the part that has been on disk for a while. After a start the whole log is
read once, at a higher rate: the files may have changed while the store was stopped.

A step at a time, bounded in bytes and in time. Where it is outlives the process, in the file `scrub` of the data
directory: a pass over a large log takes days.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import NamedTuple

import msgspec

from store.disk.files import Files
from store.disk.space import NO_ROOM
from store.format.frame import Frame, LogOffset
from store.integrity.ledger import BY_SEAL
from store.integrity.seals import SealFile
from store.log.log import CommitLog
from store.log.mending import restore_removed
from store.log.sealer import SealCheck
from store.log.segment import BadRange

logger = logging.getLogger(__name__)

SCRUB_BYTES_PER_S = 8 << 20  # a terabyte in a day and a half
STEP_S = 1.0  # between two steps
BUSY_S_MAX = 0.05  # of one step: small frames cost more time than their bytes say
PASS_INTERVAL_MS = 24 * 3600 * 1000  # from the beginning of one pass to that of the next
READ_BYTES = 256 << 10
REST_MS = 10 * 60 * 1000  # bytes that are on disk for so long are verified: no writer is near them
START_FACTOR = 8  # times the usual rate, for the first pass after a start: 64 MiB/s
START_BUSY_S_MAX = 0.5  # of one step of that pass
WORK_S, PAUSE_S = 2e-3, 2e-3  # of that pass while there are writes
START_BYTES_MAX = 256 << 20  # a log that is no larger counts as `verifying` until its first pass is over
SAVE_BYTES = 64 << 20  # read again, at most, after a crash


class Scrubbed(NamedTuple):
    """The progress of a pass: from the log's beginning to `to`, now at `at`. `passes` were finished."""

    at: LogOffset
    to: LogOffset
    passes: int
    began_ms: int


class _Saved(msgspec.Struct, frozen=True):
    at: int = 0
    to: int = 0
    passes: int = 0
    began_ms: int = 0


class Scrub:
    """Verifies both checksums of every frame. `step` is called every `STEP_S` by one thread."""

    def __init__(
        self,
        log: CommitLog,
        *,
        files: Files,
        path: Path,
        now_ms: Callable[[], int],
        bytes_per_s: int = SCRUB_BYTES_PER_S,
        seals: SealFile | None = None,
        at_start: bool = False,
    ) -> None:
        """Goes on where `path` says the last process was. `bytes_per_s` 0: never.

        With `at_start` the whole log is read first. Segments are compared with their `seals`, too.
        """
        self._log = log
        self._files = files
        self._path = path
        self._now_ms = now_ms
        self._bytes_per_step = int(bytes_per_s * STEP_S)
        self._left = 0  # of the budget; negative after a frame that was larger than it
        self._saved = self._load()
        self._at = LogOffset(self._saved.at)
        # Where the pass ends: later frames are for the next one, and the log may have been cut since.
        self._to = LogOffset(min(self._saved.to, log.flushed))
        self._marked_ms, self._marked = now_ms(), log.flushed  # the end of the log on disk at that time
        self._rested = log.first  # on disk for REST_MS, <= _marked
        self._check = SealCheck(log, seals.of if seals is not None else lambda _start: None)
        self._starting = at_start and bytes_per_s > 0  # until the first pass is over
        self._start_size = log.flushed - log.first
        self._seen_end = log.end  # at the step before
        if self._starting:
            self._at = self._to = log.first
        self._passes = self._saved.passes
        self._began_ms = self._saved.began_ms
        self._hastened = False  # a pass over everything is to begin with the next step

    def hasten(self) -> bool:
        """Reads the whole log now, as after a start; returns whether that is allowed. Any thread may ask."""
        self._hastened = self._bytes_per_step > 0
        return self._hastened

    @property
    def hastened(self) -> bool:
        """Returns whether the whole log is being read now, or is about to be."""
        return self._hastened or self._starting

    @property
    def progress(self) -> Scrubbed:
        """Returns where the pass is. Any thread may ask."""
        return Scrubbed(self._at, self._to, self._passes, self._began_ms)

    @property
    def verifying(self) -> bool:
        """Returns whether the first pass after a start is running, over a log that is small enough to wait for."""
        return self._starting and self._start_size <= START_BYTES_MAX

    def step(self) -> None:
        """Verifies as much as a second allows, or waits for the next pass to be due."""
        if not self._bytes_per_step:
            return
        if self._hastened:
            self._starting, self._start_size = True, START_BYTES_MAX + 1  # serving does not wait for this pass
            self._at = self._to = self._log.first
            self._hastened = False
        self._look()
        if self._at >= self._to and not self._begin_pass():
            self._starting = False  # there is nothing to read
            return
        self._left = min(self._left, 0) + self._bytes_per_step * (START_FACTOR if self._starting else 1)
        if self._left <= 0:
            return
        writing, self._seen_end = self._log.end != self._seen_end, self._log.end
        began = perf_counter()
        deadline = began + (START_BUSY_S_MAX if self._starting else BUSY_S_MAX)
        rest = began + WORK_S if self._starting and writing else deadline
        self._at = sound = max(self._at, self._log.first)
        for item in self._log.scan(self._at, self._to, read_bytes=READ_BYTES):
            if not self._take(item):
                self._verified(sound, item.start)
                sound = item.end
            self._left -= item.end - self._at
            self._at = item.end
            now = perf_counter()
            if self._left <= 0 or now >= deadline:
                break
            if now >= rest:
                sleep(PAUSE_S)
                rest = now + PAUSE_S + WORK_S
        self._verified(sound, self._at)
        if self._at >= self._to:
            self._starting = False
            self._passes += 1
            logger.info("the log was scrubbed", extra={"to": self._to, "damaged": self._log.damages.count})
            self.save()
        elif self._at - self._saved.at >= SAVE_BYTES:
            self.save()

    def _take(self, item: Frame | BadRange) -> bool:
        """Reports damage, and compares the digest of a sealed segment that was read from end to end.

        Whether it is a sound frame.
        """
        other = self._check.take(item)
        if other is not None:
            self._log.damaged(other, BY_SEAL)
        if not isinstance(item, Frame):
            self._log.damaged(item, "scrub")
        return isinstance(item, Frame)

    def _verified(self, start: LogOffset, end: LogOffset) -> None:
        """Closes the damages of a range of sound frames: all at once, as the list is written for each change."""
        if self._log.damages.count:
            self._log.damages.verified(start, end)

    def save(self) -> None:
        """Remembers where it is, for the next process. A failure is no harm: that one reads some of it again."""
        saved = _Saved(self._at, self._to, self._passes, self._began_ms)
        if saved == self._saved:
            return
        written = self._path.with_suffix(".new")
        try:
            if written.name in self._files.names(self._path.parent):
                self._files.unlink(written)
            file = self._files.open(written, create=True)
            try:
                file.pwritev([msgspec.json.encode(saved)], 0)
            finally:
                file.close()
            self._files.rename(written, self._path)
        except OSError as error:
            level = logging.DEBUG if error.errno in NO_ROOM else logging.WARNING  # a full disk is logged by `Space`
            logger.log(level, "the scrub's position cannot be stored", extra={"error": str(error)})
        self._saved = saved

    def _look(self) -> None:
        """Takes note of how far the log is on disk, every `REST_MS`."""
        now_ms = self._now_ms()
        if not 0 <= now_ms - self._marked_ms < REST_MS:
            if now_ms > self._marked_ms:
                self._rested = self._marked
            self._marked_ms, self._marked = now_ms, self._log.flushed

    def _begin_pass(self) -> bool:
        """Begins anew when that is due and there is something."""
        now_ms, to = self._now_ms(), max(self._log.sealed, self._rested)
        if self._starting:
            to = self._log.flushed
        recent = self._began_ms and 0 <= now_ms - self._began_ms < PASS_INTERVAL_MS
        if to <= self._log.first or (recent and not self._starting):
            return False
        restore_removed(self._log, self._files)
        self._at, self._to, self._began_ms = self._log.first, to, now_ms
        return True

    def _load(self) -> _Saved:
        if self._path.name not in self._files.names(self._path.parent):
            return _Saved()
        try:
            file = self._files.open(self._path)
            try:
                return msgspec.json.decode(file.pread(file.size(), 0), type=_Saved)
            finally:
                file.close()
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("the scrub starts again at the beginning", extra={"error": str(error)})
            return _Saved()
