"""Log offsets that clients name, and may have made up."""

from store.base.errors import CorruptFrame
from store.format.frame import HEADER, Frame, LogOffset, looks_like_frame, parse_header
from store.log.log import CommitLog
from store.log.segment import BadRange


class NoFrameThere(Exception):
    """Raised for a log offset that no sound frame begins at: `CommitLog.sound_frame_at` says which one it is in."""

    def __init__(self, at: LogOffset) -> None:
        super().__init__(at)
        self.at = at


def frame_at(log: CommitLog, at: LogOffset) -> Frame:
    """Returns the frame that begins at a log offset, verified. Raises `NoFrameThere`. Nothing else is read."""
    segment = log.segment_of(at)
    try:
        if segment is not None and (header := parse_header(segment.read(at, HEADER.size), log_offset=at)) is not None:
            frame = Frame.parse(segment.read(at, header.size_bytes), log_offset=at)
            if frame is not None:
                return frame
    except (CorruptFrame, FileNotFoundError):
        pass
    raise NoFrameThere(at)


def is_suspicious(log: CommitLog, at: LogOffset) -> bool:
    """Returns whether a damaged frame may begin at a log offset where no sound one does."""
    segment = log.segment_of(at)
    try:
        raw = b"" if segment is None else segment.read(at, HEADER.size)
    except FileNotFoundError:
        raw = b""
    return not any(raw) or looks_like_frame(raw, at) or bool(log.damages.overlapping(at, LogOffset(at + 1)))


def damage_at(log: CommitLog, bad: BadRange) -> CorruptFrame:
    """Returns the error for a range that a reader has met, and reports it, unless the disk has failed only once."""
    sound = log.sound_frame_at(bad.start, "read")
    if sound is None:
        log.damaged(bad, "read")  # more of it may be damaged than was known
    return CorruptFrame(bad.start, f"{bad.why}, up to {bad.end}", end=None if sound else bad.end)
