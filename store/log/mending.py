"""Repair in place: sound frames of another replica, written where this log has none, and files that were removed.

The new bytes replace acknowledged ones, so they are verified here, even if they were verified before.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter

from store.base.errors import CorruptFrame
from store.disk.files import Files
from store.format.frame import Frame, LogOffset, parse_header
from store.integrity.ledger import Damage
from store.log.log import CommitLog
from store.log.segment import Segment

logger = logging.getLogger(__name__)

_by_start = attrgetter("start")


def mend(log: CommitLog, start: LogOffset, data: bytes) -> None:
    """Writes whole frames, durably, in place of the damage that `start` lies in, from there on.

    Files that are missing are made, short ones grow. Does nothing where no damage is known any more. Raises
    `CorruptFrame` for anything but sound frames that belong there, also for frames behind the log's end, which only the
    writer takes, or behind a gap in the files; OSError.
    """
    with log.mending:
        known = log.damages.overlapping(start, LogOffset(start + max(len(data), 1)))
        if not known:
            return
        if known[0].start > start or start >= log.written:
            raise CorruptFrame(start, f"no damage in front of the log's end at {log.written} is here")
        frames = _whole_frames(data, known[0]._replace(start=start))
        end = frames[-1].end
        for segment, some in _placed(log, frames):
            segment.mend(some[0].start, [one.data for one in some], sealed=segment is not log.segments[-1])
        for item in log.scan(start, end):
            if not isinstance(item, Frame):
                raise CorruptFrame(item.start, f"the repair cannot be read back: {item.why}")
    log.damages.repaired(start, end)


def _whole_frames(data: bytes, damage: Damage) -> Sequence[Frame]:
    """Returns the frames of `data`, verified, which tile a damage from its beginning on and do not reach beyond it."""
    frames = list(_frames(data, damage.start))
    if not frames:
        raise CorruptFrame(damage.start, "no frame is given for the repair")
    if frames[-1].end > damage.end:
        raise CorruptFrame(frames[-1].start, f"the frame reaches beyond the damage, which ends at {damage.end}")
    return frames


def _frames(data: bytes, at: LogOffset) -> Iterator[Frame]:
    rest = memoryview(data)
    while rest:
        header = parse_header(rest, log_offset=at)
        frame = None if header is None else Frame.parse(bytes(rest[: header.size_bytes]), log_offset=at)
        if frame is None:
            raise CorruptFrame(at, "cut short")
        yield frame
        rest, at = rest[frame.header.size_bytes :], frame.end


def _placed(log: CommitLog, frames: Sequence[Frame]) -> Iterator[tuple[Segment, Sequence[Frame]]]:
    """Yields frames by the segments whose files they go to; a gap wider than a segment gets several."""
    while frames:
        first = frames[0]
        segment = log.segment_of(first.start)
        if segment is None:  # retention was faster
            raise CorruptFrame(first.start, f"the log begins at {log.first}")
        if first.start > segment.end:
            raise CorruptFrame(first.start, f"the file ends at {segment.end}: an earlier range is repaired first")
        later = bisect_right(log.segments, segment.start, key=_by_start)
        limit = log.segments[later].start if later < len(log.segments) else log.written
        if first.end > limit:
            raise CorruptFrame(first.start, f"the frame reaches into the segment at {limit}")
        full = max(segment.start + log.segment_size_bytes, segment.end)
        count = sum(1 for one in frames if one.end <= limit and (one.end <= full or one.start == segment.start))
        if not count:
            log.insert_lost(first.start)
            continue
        yield segment, frames[:count]
        frames = frames[count:]


def restore_removed(log: CommitLog, files: Files) -> None:
    """Writes removed files of closed segments anew, from those that are still open.

    A process goes on reading a file that was removed, so that otherwise only its next start would find out. One that is
    not open any more is damage to its readers.
    """
    names = set(files.names(log.segments[-1].path.parent))
    for segment in [one for one in log.segments[:-1] if one.path.name not in names]:
        with log.mending:
            if segment not in log.segments:  # retention was faster
                continue
            try:
                if segment.write_again():
                    logger.error("%s was removed while the store had it open: it is written anew", segment.path)
            except OSError as error:
                logger.error(
                    "%s was removed while the store had it open, and cannot be written anew: %s", segment.path, error
                )
