"""Sealing closed segments in the background, and holding a log against its seals when it is opened."""

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter

from store.format.frame import HEADER, Frame, LogOffset
from store.integrity.seals import Seal, SealFile, Sealing
from store.log.log import CommitLog
from store.log.segment import BadRange

logger = logging.getLogger(__name__)

SEALING_S_MAX = 0.05  # of one step
_READ_BYTES = 256 << 10
_BY_START = "start"


def hold_against_seals(log: CommitLog, seals: SealFile, first: LogOffset, reached: LogOffset) -> None:
    """Reports the missing parts of a log's closed segments, before anything of it is read.

    `first` is where it should begin. A log that ends in front of `reached` goes on there, in a new segment. Segments
    whose files are missing are in the log's list from here on, so that their ranges are damaged and not simply gone.
    Raises OSError.
    """
    seals.drop_before(first)
    if restore_segments(log, seals.all, first, behind=True):
        if seals.all and log.segments[-1].start < seals.all[-1].end:
            log.begin_segment(seals.all[-1].end)  # the files behind the last sealed one are missing too
        for seal in seals.all:
            segment = log.segment_of(seal.start)
            if segment is not None and segment.start == seal.start and segment.end > seal.end:
                logger.error(
                    "a closed segment is longer than its seal says, and is cut",
                    extra={"segment": segment.path.name, "end": segment.end, "sealed": seal.end},
                )
                segment.truncate(seal.end)
    else:
        logger.error(
            "the file `seals` belongs to another log: the digests of segments are computed again",
            extra={"log_first": log.first},
        )
        seals.drop_from(LogOffset(0))
    if log.end < reached:
        log.begin_segment(reached)
    for segment, following in pairwise(log.segments):
        if segment.end < following.start:
            for item in log.scan(segment.start, following.start):
                if not isinstance(item, Frame):
                    log.damaged(item, _BY_START)


def restore_segments(log: CommitLog, seals: Sequence[Seal], first: LogOffset, *, behind: bool = False) -> bool:
    """Lists the segments that should be there; returns False where the seals speak of other segments than there are.

    Those `behind` the last file only on demand: the log has to go on behind them then.
    """
    starts = {segment.start for segment in log.segments}
    bounds = {seal.start for seal in seals} | {seal.end for seal in seals}
    begin, end = (seals[0].start, seals[-1].end) if seals else (first, first)
    if any(begin < start < end and start not in bounds for start in starts):
        return False
    last = log.segments[-1].start
    for seal in seals:
        if seal.start not in starts and (seal.start < last or behind):
            log.insert_lost(seal.start)
    if log.first > first:
        log.insert_lost(first)
    return True


class SealCheck:
    """Compares the digests of segments that are read from end to end with their seals."""

    def __init__(self, log: CommitLog, seal_of: Callable[[LogOffset], Seal | None]) -> None:
        self._log = log
        self._seal_of = seal_of
        self._sealing: Sealing | None = None  # of the open segment, read from its beginning

    def take(self, item: Frame | BadRange) -> BadRange | None:
        """Takes the next item read; returns the segment that ends with it, if its frames differ from the seal."""
        if not isinstance(item, Frame):
            self._sealing = None
            return None
        segment = self._log.segment_of(item.start)
        if segment is not None and segment.start == item.start:
            self._sealing = Sealing(item.start)
        sealing = self._sealing
        if sealing is None or sealing.at != item.start:  # begun in the middle, or trimmed meanwhile
            self._sealing = None
            return None
        sealing.add(item.data[: HEADER.size], item.end)
        seal = self._seal_of(sealing.start)
        if seal is None or seal.end != item.end:
            return None
        self._sealing = None
        if sealing.digest == seal.digest:
            return None
        return BadRange(seal.start, seal.end, "the frames are not those that were sealed")


class Sealer:
    """Seals one closed segment after the other. `step` is for one thread."""

    def __init__(self, log: CommitLog, seals: SealFile) -> None:
        self._log = log
        self._seals = seals
        self._sealing: Sealing | None = None  # of the open segment
        self._end = LogOffset(0)  # of it
        self._distrusted: LogOffset | None = None  # from here on, seals are made again

    def distrust(self, at: LogOffset) -> None:
        """Discards the seals from a log offset on; the next step makes them again. Any thread may call."""
        self._distrusted = at

    def step(self, seconds: float = SEALING_S_MAX) -> None:
        """Reads on in the open segment, for as long as allowed, and seals it at its end."""
        distrusted, self._distrusted = self._distrusted, None
        if distrusted is not None:
            self._seals.drop_from(distrusted)
            self._sealing = None
        self._seals.drop_before(self._log.first)
        deadline = perf_counter() + seconds
        while self._begun() and perf_counter() < deadline:
            sealing = self._sealing
            assert sealing is not None
            for item in self._log.scan(sealing.at, self._end, read_bytes=_READ_BYTES):
                if not isinstance(item, Frame):
                    self._log.damaged(item, "scrub")
                    self._sealing = None
                    return
                sealing.add(item.data[: HEADER.size], item.end)
                if perf_counter() >= deadline:
                    break
            if sealing.at == self._end:
                self._seals.add(sealing.seal(self._seals.all[-1] if self._seals.all else None))
                self._sealing = None

    def _begun(self) -> bool:
        """Begins with the oldest segment that is closed, sound as far as known, and has no seal."""
        log, seals = self._log, self._seals.all
        segments = log.segments
        if self._sealing is not None:
            if segments[0].start <= self._sealing.start and not log.damages.overlapping(self._sealing.start, self._end):
                return True
            self._sealing = None
        wanted = seals[-1].end if seals else segments[0].start
        for segment, following in pairwise(segments):
            if segment.start == wanted:
                if log.damages.overlapping(segment.start, following.start):
                    return False
                self._sealing, self._end = Sealing(segment.start), following.start
                return True
            if segment.start > wanted:  # a repair has made other files than there were
                self._seals.drop_from(LogOffset(0))
                return False
        return False
