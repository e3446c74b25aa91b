"""The commit log: frames back to back in segments, one offset space."""

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from threading import Lock

from store.base.errors import CorruptFrame, TruncationRefused
from store.disk.files import Files
from store.disk.space import NO_FILES
from store.format.frame import (
    HEADER,
    Buffer,
    Frame,
    LogOffset,
    UnplacedFrame,
    group_of,
    looks_like_frame,
    origin_of,
    parse_header,
)
from store.format.placed import Placed
from store.integrity.floor import Floor
from store.integrity.ledger import Damage, DamageLedger
from store.log.segment import SCAN_BYTES, BadRange, OpenFiles, Segment, segment_name, segment_start, split_at
from store.log.sound_frames import SoundFrame, SoundFrames

logger = logging.getLogger(__name__)

SEGMENT_SIZE_BYTES = 256 << 20
START = LogOffset(0)
END = LogOffset(1 << 63)  # behind every log
_by_start = attrgetter("start")


class CommitLog:
    """Segments in a directory. One thread places and flushes; any thread reads below `confirmed`.

    A frame never spans segments: one that does not fit begins the next, and one larger than a segment has its own.
    Segments are contiguous, so a log offset is also a place in the concatenation of all files.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        *,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        begin: LogOffset = START,
        damages: DamageLedger | None = None,
        floor: Floor | None = None,
    ) -> None:
        """Opens the log, which begins at `begin` if it is new, with its known damages and its floor.

        But for `truncate`, `recover` must be exhausted before anything else is asked of it.
        """
        self._files = files
        self._directory = directory
        self._segment_size_bytes = segment_size_bytes
        self._parts: list[Buffer] = []  # placed in the last segment and not yet written
        self._changing = Lock()
        self.mending = Lock()  # files of sealed segments are written or deleted by one thread at a time
        files.make_directory(directory)
        starts = sorted(s for name in files.names(directory) if (s := segment_start(name)) is not None)
        self._open_files = OpenFiles()
        self._segments: Sequence[Segment] = [self._existing(start, sealed=start != starts[-1]) for start in starts]
        if not self._segments:
            self._add_segment(begin)
        files.sync_directory(directory)  # a process that was killed may not have synced the last segment's name
        self.end = self._segments[-1].end  # of the frames that have a place
        self.written = self.first  # of the frames in files; written <= end
        self.flushed = self.first  # of the frames on this disk; flushed <= written
        self.confirmed = self.first  # of the frames that readers may see; confirmed <= flushed
        self.corruptions: list[BadRange] = []  # met by recovery in front of valid frames
        self.damages = damages if damages is not None else DamageLedger()
        self._sound_frames = SoundFrames()
        self._floor = floor
        self._lacking: tuple[LogOffset, LogOffset] | None = None  # the end it has lost, until it is written again

    @property
    def first(self) -> LogOffset:
        """The log offset of the first frame that is kept."""
        return self._segments[0].start

    @property
    def floor(self) -> LogOffset:
        """The log offset before which everything is known to have been on this disk; 0 where that is not known.

        A power failure may have taken the file `floor`, and known damage lies below it.
        """
        known = self._floor is not None and self._floor.belongs_to(self.first)
        at = self._floor.at if known and self._floor is not None else START
        return max([at, *(one.end for one in self.damages.open()[-1:])])

    @property
    def origin(self) -> LogOffset:
        """Returns where the log of this store group began."""
        return origin_of(group_of(self.first))

    @property
    def segment_size_bytes(self) -> int:
        """Returns the size that a segment may grow to."""
        return self._segment_size_bytes

    def sealed_ends(self) -> list[LogOffset]:
        """Returns the ends of all segments but the last, oldest first."""
        return [segment.start for segment in self._segments[1:]]

    @property
    def sealed(self) -> LogOffset:
        """The log offset before which no segment is written to any more."""
        return self._segments[-1].start

    def damaged(self, bad: BadRange, found_by: str) -> None:
        """Reports damage that a reader has found."""
        segment = self.segment_of(bad.start)
        if segment is not None:  # else it was deleted meanwhile
            self.damages.report(Damage(segment.path.name, *bad, found_by))

    def look_for_missing(self, first: LogOffset, end: LogOffset, found_by: str) -> None:
        """Reports the missing parts of a log that is known to be kept from `first` on, and to have reached to `end`."""
        first = max(first, self.origin)
        for start, stop in ((first, self.first), (self.end, end)):
            if start < stop:
                why = "segments are missing, or the last one has lost its end"
                self.damages.report(Damage(segment_name(start), start, stop, why, found_by))

    @property
    def mendable_end(self) -> LogOffset:
        """The log offset behind the part that is repaired in place: the writer brings the rest."""
        return self.written if self._lacking is None else min(self._lacking[0], self.written)

    @property
    def lost_end(self) -> LogOffset | None:
        """The log offset up to which this disk once held the log, while it does not again; None: nothing is missing."""
        return None if self._lacking is None else self._lacking[1]

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments, oldest first; replaced, never changed."""
        return self._segments

    def begin_segment(self, start: LogOffset) -> None:
        """Continues at a log offset behind the end; between the two the log holds nothing. Only before `recover`."""
        assert start >= self.end
        self._add_segment(start)
        self.end = start

    def insert_lost(self, start: LogOffset) -> None:
        """Adds a segment whose file is missing, where the others leave a gap."""
        path = self._directory / segment_name(start)
        lost = Segment(self._files, path, start, lost=True, open_files=self._open_files)
        with self._changing:
            self._segments = sorted([*self._segments, lost], key=_by_start)

    def close(self) -> None:
        """Closes the files."""
        for segment in self._segments:
            segment.close()

    # ---- writing

    def place(self, frame: UnplacedFrame, *, epoch: int, stored_at_ms: int) -> Placed:
        """Gives a frame the next place. Raises OSError when a full segment cannot be finished."""
        start = self.end
        self._make_room(frame.size_bytes)
        header = frame.header(log_offset=start, epoch=epoch, stored_at_ms=stored_at_ms, unsynced=start - self.flushed)
        self._parts += (header, frame.rows, frame.payload)
        self.end = LogOffset(start + frame.size_bytes)
        return Placed(start, stored_at_ms, header, frame)

    def put(self, placed: Placed) -> None:
        """Takes a frame that another replica has given its place, the next one here. Raises OSError likewise."""
        assert placed.start == self.end
        self._make_room(placed.size_bytes)
        self._parts += (placed.header, placed.frame.rows, placed.frame.payload)
        self.end = placed.end

    def _make_room(self, size: int) -> None:
        if not self.fits(size):
            self.flush()  # first, so that only the last segment can ever be torn
            self._add_segment(self.end)

    def fits(self, size: int) -> bool:
        """Returns whether a frame of that size goes to the last segment; if not, placing it flushes and begins one."""
        used = self.end - self._segments[-1].start
        return not used or used + size <= self._segment_size_bytes

    def write(self) -> None:
        """Hands all that was placed to the operating system. Raises OSError; then `take_back`, or write no more."""
        parts, self._parts = self._parts, []
        self._segments[-1].write(parts)
        self.written = self.end

    def take_back(self) -> None:
        """Undoes frames placed and not written, or written in part. Durable with the next `sync`. Raises OSError."""
        self._parts = []
        self._segments[-1].undo()
        self.end = self.written

    def sync(self) -> None:
        """Syncs frames written before the call to disk. Raises OSError: then the log may not be written again.

        May run beside `place` and `write` as long as these do not begin a segment.
        """
        written = self.written
        self._segments[-1].sync()
        self.flushed = written
        if self._floor is not None:
            self._floor.raise_to(written)
        if self._lacking is not None and self._lacking[1] <= written:
            self.damages.repaired(*self._lacking)
            self._lacking = None

    def flush(self) -> None:
        """Writes and syncs all that was placed. Raises OSError."""
        if self._parts:
            self.write()
        if self.flushed < self.written:
            self.sync()

    def confirm(self, end: LogOffset) -> None:
        """Lets readers see the frames before a log offset."""
        assert self.confirmed <= end <= self.flushed
        self.confirmed = end

    def _existing(self, start: LogOffset, *, sealed: bool) -> Segment:
        segment = Segment(self._files, self._directory / segment_name(start), start, open_files=self._open_files)
        if sealed:
            segment.seal()
        return segment

    def _add_segment(self, start: LogOffset) -> None:
        path = self._directory / segment_name(start)
        segment = Segment(self._files, path, start, create=True, open_files=self._open_files)
        try:
            self._files.sync_directory(self._directory)
        except OSError as error:
            if error.errno in NO_FILES:  # the sync did not begin, so it can be tried again
                segment.close()
                self._files.unlink(path)
                raise
            # a failed sync, whatever its reason: not to be tried again
            raise OSError(errno.EIO, f"the log's directory: {error.strerror}") from error
        with self._changing:
            sealed = self._segments[-1] if self._segments else None
            self._segments = [*self._segments, segment]
        if sealed is not None:
            sealed.seal()

    # ---- trimming

    def trim(self, first: LogOffset) -> None:
        """Deletes the segments in front of a log offset, oldest first; never the last one. Raises OSError.

        For one thread at a time, beside the writer. Readers of a segment keep its file open until they are done.
        """
        with self.mending:
            with self._changing:
                count = bisect_right(self._segments, first, key=_by_start) - 1
                gone = self._segments[: max(count, 0)]
                self._segments = self._segments[len(gone) :]
            for segment in gone:
                self._open_files.forget(segment)
                self._unlink(segment)
            if gone:
                self._files.sync_directory(self._directory)
        self.damages.forget(START, self.first)

    def _unlink(self, segment: Segment) -> None:
        with suppress(FileNotFoundError):  # lost before it was deleted
            self._files.unlink(segment.path)

    def truncate(self, at: LogOffset, sound: LogOffset) -> None:
        """Cuts the frames at and behind a log offset, durably. `sound` is a frame's beginning or end at or before it.

        Only before `recover`. A crash leaves a log that ends where it did, at the end of a segment, or at `at`.
        Raises `TruncationRefused` where no frame begins or ends, OSError.
        """
        segments = list(self._segments)
        if not self.first <= at <= segments[-1].end:
            raise TruncationRefused(f"the log reaches from {self.first} to {segments[-1].end}, not to {at}")
        while len(segments) > 1 and segments[-2].end >= at:
            segments.pop()
        last = segments[-1]
        if at not in {sound, last.start, last.end} and not self._is_boundary(at, max(sound, last.start)):
            raise TruncationRefused(f"no frame begins at {at}")
        self.lower_floor(at)
        for gone in reversed(self._segments[len(segments) :]):  # from the end, each for good: never with a gap between
            self._unlink(gone)
            self._files.sync_directory(self._directory)
        self._segments = segments
        self.damages.forget(at, END)
        self._open_files.forget(last)
        if at < last.end:
            last.truncate(at)
        self.end = last.end

    def lower_floor(self, at: LogOffset) -> None:
        """Lets the log be whole though it ends at `at`, durably. Raises OSError."""
        if self._floor is not None:
            self._floor.lower(at)

    def _is_boundary(self, at: LogOffset, sound: LogOffset) -> bool:
        for item in self.scan(sound, self._segments[-1].end):
            if item.end >= at:
                return item.end == at or isinstance(item, BadRange)  # which has no boundaries that are known
        return False

    # ---- reading

    def read(self, log_offset: LogOffset, size: int = 0) -> Frame | None:
        """Returns the frame at a log offset, verified; None when nothing confirmed is there.

        With `size` there is known to be one, of that size: anything else raises `CorruptFrame`. Without, None where
        nothing looks like a frame, and `CorruptFrame` where something does that is none, or where damage is known.
        """
        if not self.first <= log_offset < self.confirmed:
            return None
        segment = self.segment_of(log_offset)
        if segment is None:
            return None
        raw = b""
        if not size:
            try:
                raw = segment.read(log_offset, HEADER.size)
                header = parse_header(raw, log_offset=log_offset)
            except (CorruptFrame, FileNotFoundError) as error:
                suspicious = not any(raw) or looks_like_frame(raw, log_offset)
                if not suspicious and not self.damages.overlapping(log_offset, LogOffset(log_offset + 1)):
                    return None
                sound = self.sound_frame_at(log_offset, "read")
                if sound is None:
                    raise CorruptFrame(log_offset, getattr(error, "why", "the segment's file is missing")) from error
                return self.read(log_offset, sound.end - log_offset) if sound.start == log_offset else None
            if header is None:
                return None
            size = header.size_bytes
        try:
            frame = Frame.parse(segment.read(log_offset, size), log_offset=log_offset)
            if frame is None:
                raise CorruptFrame(log_offset, "cut short")
        except CorruptFrame:
            if log_offset >= self.first:
                self.sound_frame_at(log_offset, "read")
            raise
        except FileNotFoundError as error:
            raise CorruptFrame(log_offset, "the segment's file is gone") from error
        return frame

    def sound_frame_at(self, at: LogOffset, found_by: str) -> SoundFrame | None:
        """Returns the frame that a written log offset is in; None where the log is damaged, which is reported.

        Reads the segment from a frame that is known, at first its beginning: only frames tell where others begin. A
        record may hold the bytes of a frame, and a client, or a replica with another log, may name any place: neither
        must have sound bytes called damaged.
        """
        if self.damages.overlapping(at, LogOffset(at + 1)):
            return None
        if (segment := self.segment_of(at)) is None:  # it was deleted meanwhile
            return SoundFrame(at, at)
        found = self._sound_frames.find(at, segment.start, lambda start: self.scan(start, self.written))
        if isinstance(found, BadRange):
            self.damaged(found, found_by)
            return None
        return found

    def scan(
        self, start: LogOffset, end: LogOffset, *, read_bytes: int = SCAN_BYTES, around: bool = True
    ) -> Iterator[Frame | BadRange]:
        """Yields frames in order from one log offset up to another, and the ranges between them that hold none.

        Sectors that the disk cannot read are such a range; unless it is to be read `around`, it raises OSError.
        """
        start = max(start, self.first)
        segments = self._segments
        for i in range(max(bisect_right(segments, start, key=_by_start) - 1, 0), len(segments)):
            segment = segments[i]
            if segment.start >= end:
                break
            limit = min(end, segment.end)
            if i + 1 < len(segments):
                limit = min(limit, segments[i + 1].start)
            bad = None
            for item in segment.scan(max(start, segment.start), limit, read_bytes=read_bytes, around=around):
                if bad is not None:
                    yield bad
                bad = item if isinstance(item, BadRange) else None
                if bad is None:
                    yield item
            if i + 1 < len(segments) and limit < (following := segments[i + 1].start) and limit < end:
                bad = bad or BadRange(max(limit, start), min(following, end), segment.lack)
                bad = bad._replace(end=min(following, end))  # one range with a frame that is cut off: it ends at frames
            if bad is not None:
                yield bad

    def frames(self, start: LogOffset, end: LogOffset, max_bytes: int) -> list[Frame]:
        """Returns whole frames from a frame's beginning up to `end`, confirmed or not: about `max_bytes`, at least one.

        Raises `CorruptFrame` where one is damaged and none is in front of it.
        """
        found: list[Frame] = []
        size = 0
        for wrong in self.damages.distrusted(start, end)[:1]:
            if wrong.start <= start:
                raise CorruptFrame(start, wrong.why)
            end = wrong.start
        for item in self.scan(start, self.written, read_bytes=min(max(max_bytes, HEADER.size), SCAN_BYTES)):
            size += item.end - item.start
            if item.end > end or (found and size > max_bytes):
                break
            if not isinstance(item, Frame):
                if found:
                    break
                sound = self.sound_frame_at(item.start, "replication")
                inside = sound is not None and sound.start < item.start
                raise CorruptFrame(item.start, "no frame begins there" if inside else item.why)
            found.append(item)
        return found

    def sound(self, start: LogOffset, end: LogOffset, max_bytes: int) -> tuple[LogOffset, bytes]:
        """Returns the first sound frames at or behind `start` that end at `end` at the latest, and where they begin.

        Back to back, about `max_bytes`, at least one, unless there is none. Damage is skipped, and not reported.
        """
        found: list[Frame] = []
        size = 0
        for wrong in self.damages.distrusted(start, end):
            if start < wrong.start:
                at, frames = self.sound(start, wrong.start, max_bytes)
                if frames:
                    return at, frames
            start = min(wrong.end, end)
        for item in self.scan(start, end, read_bytes=min(max(max_bytes, HEADER.size), SCAN_BYTES)):
            if isinstance(item, Frame):
                size += item.end - item.start
                if found and size > max_bytes:
                    break
                found.append(item)
            elif found:
                break
        return found[0].start if found else end, b"".join([frame.data for frame in found])

    def segment_of(self, log_offset: LogOffset) -> Segment | None:
        """Returns the segment that a log offset is in; the last one for any behind."""
        segments = self._segments  # replaced, never changed, so that it holds still here
        i = bisect_right(segments, log_offset, key=_by_start)
        return segments[i - 1] if i else None

    # ---- recovery

    def recover(
        self,
        start: LogOffset,
        *,
        replica: bool = False,
        confirmed: LogOffset | None = None,
        durable: LogOffset = START,
        on_damage: Callable[[BadRange], None] = lambda _bad: None,
    ) -> Iterator[Frame]:
        """Yields the valid frames from a frame boundary on, then cuts the torn tail: the log may be used.

        Readers see the frames in front of `confirmed`, or all of them.

        Yielded frames are on disk. The tail begins at the first bad range of the last segment that may not have been
        synced: pages are written in any order, so there may be valid frames behind it that were never acknowledged. A
        bad range in front of a frame that knows better is damage: it is reported, kept in `corruptions` and left as it
        is. So is one in front of `durable`, which is known to have been on disk and to lie between frames.
        """
        last = self._segments[-1]
        durable = max(durable, self.floor)
        # A failed sync may have left pages in memory only, which the next one takes for written (fsync(2)).
        last.rewrite(max(start, last.start))
        sound = start  # from here on all is
        for found in self.scan(start, last.end, around=replica):  # views that skip it would never come back
            if isinstance(found, Frame):
                yield found
                continue
            self.damages.verified(sound, found.start)
            sound = found.end
            torn = found.start >= last.start and (replica or found.start >= self._known_synced(found.end))
            damage, tail = split_at(found, durable) if torn else (found, None)
            if torn and replica and found.end == last.end:
                tail = found  # the master sends it again
            if damage is not None:
                self.damaged(damage, "recovery")
                self.corruptions.append(damage)
                on_damage(damage)
            if tail is not None:
                logger.warning(
                    "a torn tail was cut off the log",
                    extra={"log_offset": tail.start, "bytes": last.end - tail.start, "why": tail.why},
                )
                last.truncate(tail.start)
                break
        if sound < last.end:
            self.damages.verified(sound, last.end)
        self.end = self.written = self.flushed = last.end
        self.confirmed = self.end if confirmed is None else min(confirmed, self.end)
        if self.end < durable:
            self.look_for_missing(self.end, durable, "recovery")
            self._lacking = self.end, durable
        elif self._floor is not None:
            self._floor.raise_to(self.end)

    def _known_synced(self, at: LogOffset) -> LogOffset:
        """Returns how much of the log was on disk, as far as the valid frames at and behind a log offset tell.

        Returns 0 where they tell nothing.
        """
        frames = (found for found in self.scan(at, self._segments[-1].end) if isinstance(found, Frame))
        return max((LogOffset(frame.start - frame.header.unsynced) for frame in frames), default=LogOffset(0))
