"""The floor: the log offset before which everything was on this disk, kept beside the log in the file `floor`.

A log that ends before its floor has lost its end, and a bad range in front of it is damage and no torn tail.

Raised after each sync of the log, without a sync of its own: after a killed process it is exact, after a power failure
it may be older than the log, never newer. Before the log is cut on purpose it is lowered, durably.

Layout, little-endian, twice, so that a torn write leaves the older one: at byte 0 and at byte 512

    24 B  magic u32 | crc32c u32 | write u64 | log_offset u64

`crc32c` covers the bytes behind it. Of two valid slots the one with the higher `write`, a count, is true.
"""

import logging
import struct
from pathlib import Path

from google_crc32c import value

from store.disk.files import Files, write_whole
from store.format.frame import LogOffset, group_of

logger = logging.getLogger(__name__)

FLOOR_FILE = "floor"
_SLOT = struct.Struct("<II16s")
_CONTENT = struct.Struct("<QQ")
_MAGIC = 0x4C464748  # "HGFL"
_SLOT_BYTES = 512  # a sector: written whole or not at all
_UNKNOWN = LogOffset(0)
assert _SLOT.size == 24


def read_floor(files: Files, path: Path) -> LogOffset:
    """Returns the floor that a file holds; 0 where there is none. Raises OSError."""
    return _read(files, path)[1]


def _read(files: Files, path: Path) -> tuple[int, LogOffset]:
    """Returns the count of writes and the floor in a file."""
    if path.name not in files.names(path.parent):
        return 0, _UNKNOWN
    file = files.open(path)
    try:
        data = file.pread(2 * _SLOT_BYTES, 0)
    finally:
        file.close()
    found = [_parse(data[at : at + _SLOT.size]) for at in (0, _SLOT_BYTES)]
    known = [one for one in found if one is not None]
    if not known and any(data):
        logger.error("the file `floor` is damaged: it is unknown how far the log reached", extra={"path": str(path)})
    return max(known, default=(0, _UNKNOWN))


def _parse(data: bytes) -> tuple[int, LogOffset] | None:
    if len(data) < _SLOT.size:
        return None
    magic, crc, content = _SLOT.unpack(data)
    if magic != _MAGIC or crc != value(content):
        return None
    count, at = _CONTENT.unpack(content)
    return count, LogOffset(at)


class Floor:
    """The floor of one log. `raise_to` is for the thread that syncs the log, the rest for the thread that opens it."""

    def __init__(self, files: Files, path: Path) -> None:
        """Opens the file, or makes it. Raises OSError."""
        self._count, self.at = _read(files, path)
        created = path.name not in files.names(path.parent)
        self._file = files.open(path, create=created)
        self._failed = False  # told once
        if self._file.size() < 2 * _SLOT_BYTES:
            write_whole(self._file, bytes(2 * _SLOT_BYTES - self._file.size()), self._file.size())  # its room is taken
            self._file.sync()
        if created:
            files.sync_directory(path.parent)

    def belongs_to(self, first: LogOffset) -> bool:
        """Returns whether it can be of a log that begins at `first`."""
        return self.at >= first and group_of(self.at) == group_of(first)

    def raise_to(self, at: LogOffset) -> None:
        """Notes that all before a log offset is on disk. Takes about 4 us; a failure is logged and stops nothing."""
        if at <= self.at:
            return
        try:
            self._write(at)
        except OSError as error:
            if not self._failed:
                logger.warning("the file `floor` cannot be written", extra={"error": str(error)})
            self._failed = True

    def begin(self, at: LogOffset) -> None:
        """Sets the floor of a log that takes another one's place; durable when this returns. Raises OSError."""
        self._write(at)
        self._write(at)
        self._file.sync()

    def lower(self, at: LogOffset) -> None:
        """Notes that the log is to end at a log offset; durable when this returns. Raises OSError."""
        if at < self.at:
            self.begin(at)

    def _write(self, at: LogOffset) -> None:
        self._count += 1
        content = _CONTENT.pack(self._count, at)
        slot = _SLOT.pack(_MAGIC, value(content), content)
        write_whole(self._file, slot, (self._count & 1) * _SLOT_BYTES)
        self.at = at

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
