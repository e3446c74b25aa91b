"""One file of the commit log."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from store.base.errors import CorruptFrame
from store.disk.files import File, Files, write_whole
from store.format.frame import HEADER, MAGIC, Buffer, Frame, LogOffset, parse_header
from store.integrity.sectors import pieces, read_around

_IOV_MAX = 1024  # parts in one pwritev (POSIX sysconf _SC_IOV_MAX on Linux)
_WRITE_BYTES = 1 << 20  # in one pwritev: several times as much was several times as dear a byte (decision 5)
SCAN_BYTES = 4 << 20  # read at once when scanning
_OPEN_COUNT_MAX = 128  # files of sealed segments: a log may have more of them than a process may have open
_MAGIC = MAGIC.to_bytes(4, "little")
_SUFFIX = ".log"


class BadRange(NamedTuple):
    """Bytes of the log that hold no valid frame."""

    start: LogOffset
    end: LogOffset
    why: str


def split_at(bad: BadRange, at: LogOffset) -> tuple[BadRange | None, BadRange | None]:
    """Returns the parts of a bad range in front of a log offset and from there on."""
    if at <= bad.start:
        return None, bad
    if at >= bad.end:
        return bad, None
    return bad._replace(end=at), bad._replace(start=at)


def segment_name(start: LogOffset) -> str:
    """Returns the file name of the segment whose first byte is at `start`: its log offset in 20 digits."""
    return f"{start:020d}{_SUFFIX}"


def segment_start(name: str) -> LogOffset | None:
    """Returns the inverse of `segment_name`; None for a name that is no segment's."""
    stem = name.removesuffix(_SUFFIX)
    return LogOffset(int(stem)) if stem != name and len(stem) == 20 and stem.isascii() and stem.isdigit() else None


def _calls(parts: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """Yields the parts, as many at a time as go into one pwritev."""
    left = iter(parts)
    while some := list(islice(left, _IOV_MAX)):
        if sum(map(len, some)) <= _WRITE_BYTES:
            yield some
            continue
        few: list[memoryview] = []
        room = _WRITE_BYTES
        for part in some:
            rest = memoryview(part)
            while rest:
                few.append(rest[:room])
                room -= len(few[-1])
                rest = rest[len(few[-1]) :]
                if not room:
                    yield few
                    few, room = [], _WRITE_BYTES
        if few:
            yield few


def _write_parts(file: File, parts: Sequence[Buffer], at: int) -> int:
    """Writes parts back to back at a byte of a file; the byte behind them."""
    if len(parts) <= _IOV_MAX and (size := sum(map(len, parts))) <= _WRITE_BYTES:  # as nearly always
        done = file.pwritev(parts, at)
        if done < size:
            write_whole(file, memoryview(b"".join(parts))[done:], at + done)
        return at + size
    for some in _calls(parts):
        size = sum(map(len, some))
        done = file.pwritev(some, at)
        if done < size:
            write_whole(file, memoryview(b"".join(some))[done:], at + done)
        at += size
    return at


class OpenFiles:
    """The sealed segments that have their files open: those that were opened last. Any thread may call."""

    def __init__(self, count_max: int = _OPEN_COUNT_MAX) -> None:
        self._count_max = count_max
        self._segments: deque[Segment] = deque()
        self._changing = Lock()

    def opened(self, segment: "Segment") -> None:
        """Notes that a sealed segment has its file open; closes the file of the one that had it longest."""
        with self._changing:
            self._segments.append(segment)
            while len(self._segments) > self._count_max:
                self._segments.popleft().release()

    def forget(self, segment: "Segment") -> None:
        """Forgets a segment that is deleted. Its readers keep its file."""
        with self._changing:
            self._segments = deque(one for one in self._segments if one is not segment)


class Segment:
    """An append-only file of whole frames. One thread writes; any may read written frames."""

    __slots__ = ("_file", "_files", "_open_files", "path", "size_bytes", "start")

    def __init__(
        self,
        files: Files,
        path: Path,
        start: LogOffset,
        *,
        create: bool = False,
        lost: bool = False,
        open_files: OpenFiles | None = None,
    ) -> None:
        """Opens a file, or makes one. The file of a sealed segment that is `lost` is missing: `mend` makes it again."""
        self._files = files
        self._open_files = open_files if open_files is not None else OpenFiles()
        self._file: File | None = None if lost else files.open(path, create=create)  # None only where sealed
        self.path = path
        self.start = start
        self.size_bytes = 0 if self._file is None else self._file.size()

    @property
    def lack(self) -> str:
        """Returns why the file ends before the next segment begins."""
        return "the segment's file is too short" if self.size_bytes else "the segment's file is missing"

    def seal(self) -> None:
        """Seals the segment: nothing is written any more, and the file need not stay open."""
        self._open_files.opened(self)

    def release(self) -> None:
        """Closes the file, when no reader uses it any more; it is opened again for the next reader."""
        self._file = None

    def _opened(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._files.open(self.path)
            self._open_files.opened(self)
        return file

    @property
    def end(self) -> LogOffset:
        """The log offset behind the last byte."""
        return LogOffset(self.start + self.size_bytes)

    def write(self, parts: Sequence[Buffer]) -> None:
        """Appends parts back to back. Raises OSError, after which some of them may lie behind `size_bytes`."""
        self.size_bytes = _write_parts(self._opened(), parts, self.size_bytes)

    def sync(self) -> None:
        """Returns when all that was written is on disk."""
        self._opened().sync()

    def rewrite(self, start: LogOffset) -> None:
        """Writes the frames from a log offset on once more, and syncs them: read from memory, they may not be on disk.

        Sectors that the disk cannot read stay as they are.
        """
        file = self._opened()
        for at in range(start - self.start, self.size_bytes, SCAN_BYTES):
            for place, data in pieces(file, min(SCAN_BYTES, self.size_bytes - at), at):
                write_whole(file, data, place)
        file.sync()

    def undo(self) -> None:
        """Cuts the remains of a failed `write`. Not durable before the next `sync`."""
        self._opened().truncate(self.size_bytes)

    def truncate(self, end: LogOffset) -> None:
        """Cuts the frames at and behind a log offset, durably."""
        file = self._opened()
        file.truncate(end - self.start)
        file.sync()
        self.size_bytes = end - self.start

    def mend(self, start: LogOffset, parts: Sequence[Buffer], *, sealed: bool) -> None:
        """Writes parts back to back from a log offset on, durably, over damaged or missing bytes.

        Only a `sealed` segment can grow: elsewhere the writer may be at it beside this. Raises OSError.
        """
        assert self.start <= start <= self.end
        if not sealed:  # through the writer's file, this sync could take the error that is the writer's (decision 5)
            with closing(self._files.open(self.path)) as own:
                _write_parts(own, parts, start - self.start)
                own.sync()
            return
        self._file = None  # the one that is open may have been deleted since
        end = _write_parts(file := self._again(), parts, start - self.start)
        file.sync()
        self.size_bytes = max(self.size_bytes, end)

    def _again(self) -> File:
        """Returns the file by its name, made where it is missing."""
        try:
            return self._opened()
        except FileNotFoundError:
            file = self._file = self._files.open(self.path, create=True)
            self._files.sync_directory(self.path.parent)
            self._open_files.opened(self)
            return file

    def write_again(self) -> bool:
        """Writes the file anew, durably, if it is still open; its name is gone. Returns whether it was. Raises OSError.

        Sectors that the disk cannot read are left out.
        """
        file = self._file
        if file is None:
            return False
        written, directory = self.path.with_suffix(".new"), self.path.parent
        if written.name in self._files.names(directory):  # an earlier attempt has failed
            self._files.unlink(written)
        new = self._files.open(written, create=True)
        try:
            for at in range(0, self.size_bytes, SCAN_BYTES):
                for place, data in pieces(file, min(SCAN_BYTES, self.size_bytes - at), at):
                    write_whole(new, data, place)
            new.sync()
        finally:
            new.close()
        self._files.rename(written, self.path)
        self._files.sync_directory(directory)
        self._file = None  # the next reader opens it by its name
        return True

    def read(self, log_offset: LogOffset, size: int) -> bytes:
        """Returns up to `size` bytes from a log offset on, zeros for those that the disk cannot read.

        Raises `FileNotFoundError` where retention was faster, OSError.
        """
        return read_around(self._opened(), size, log_offset - self.start)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def read_exactly(self, log_offset: LogOffset, size: int) -> bytes:
        """Reads like `read`, but raises OSError where the disk cannot read all of it."""
        return self._opened().pread(size, log_offset - self.start)

    def scan(
        self, start: LogOffset, end: LogOffset, *, read_bytes: int = SCAN_BYTES, around: bool = True
    ) -> Iterator[Frame | BadRange]:
        """Yields every valid frame between two log offsets, in order, and the bad ranges between them.

        A bad range is followed by the next frame that is whole and carries its own place, or by nothing. Sectors that
        the disk cannot read are a bad range, too; unless it is to be read `around`, it raises OSError.
        """
        window = _Window(self.read if around else self.read_exactly, end, read_bytes)
        at = start
        try:
            while at < end:
                frame, bad, resume = window.frame(at)
                if frame is not None:
                    at = frame.end
                    yield frame
                else:
                    bad_start, at = at, window.next_frame(resume)
                    yield BadRange(bad_start, at, bad)
        except FileNotFoundError:
            yield BadRange(at, end, "the segment's file is gone")


class _Window:
    """A stretch of a segment in memory, moved along by a scan."""

    def __init__(self, read: Callable[[LogOffset, int], bytes], end: LogOffset, read_bytes: int) -> None:
        self._read = read
        self._read_bytes = read_bytes
        self._end = end
        self._data = b""
        self._start = LogOffset(0)

    def bytes_at(self, at: LogOffset, size: int) -> bytes:
        """Returns `size` bytes at a log offset, fewer at the end."""
        size = min(size, self._end - at)
        skip = at - self._start
        if skip < 0 or skip + size > len(self._data):
            self._data = self._read(at, min(max(size, self._read_bytes), self._end - at))
            self._start, skip = at, 0
        return self._data[skip : skip + size]

    def frame(self, at: LogOffset) -> tuple[Frame | None, str, LogOffset]:
        """Returns the frame at a log offset, or why there is none and from where on to look for the next."""
        resume = LogOffset(at + 1)
        try:
            header = parse_header(self.bytes_at(at, HEADER.size), log_offset=at)
            if header is None:
                return None, "cut short", self._end
            # Where the header is sound its length is too, and the body is not searched: a record could hold the bytes
            # of a frame.
            resume = LogOffset(min(at + header.size_bytes, self._end))
            frame = Frame.parse(self.bytes_at(at, header.size_bytes), log_offset=at)
        except CorruptFrame as error:
            return None, error.why, resume
        return frame, "cut short", resume

    def next_frame(self, at: LogOffset) -> LogOffset:
        """Returns where the next valid frame begins, at or after a log offset; the end when there is none."""
        while at + HEADER.size <= self._end:
            block = self.bytes_at(at, SCAN_BYTES)
            found = block.find(_MAGIC)
            if found < 0:
                at = LogOffset(at + max(len(block) - len(_MAGIC) + 1, 1))
                continue
            at = LogOffset(at + found)
            if self.frame(at)[0] is not None:
                return at
            at = LogOffset(at + 1)
        return self._end
