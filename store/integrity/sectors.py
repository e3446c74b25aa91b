"""Reading around sectors that a disk cannot read: a bad sector costs the frames that it holds, and nothing else.

Unreadable bytes come as zeros. No checksum lets those pass, so readers find damage, which is reported and repaired like
any other. `pieces` leaves it out, for callers that write the bytes back.
"""

import errno
import logging
from collections.abc import Iterator

from store.disk.files import File

logger = logging.getLogger(__name__)

PAGE_BYTES = 4096  # the least that is given up
# EIO mostly, and the errors of file systems and block devices for failed checksums and bad media.
UNREADABLE = frozenset(
    {errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO, errno.ETIMEDOUT}
)


def read_around(file: File, size: int, at: int) -> bytes:
    """Returns up to `size` bytes of a file, zeros for those that the disk cannot read. Raises any other OSError."""
    try:
        return file.pread(size, at)
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    end = max(min(at + size, file.size()), at)
    found = bytearray(end - at)
    read = 0
    for start, data in pieces(file, end - at, at):
        found[start - at : start - at + len(data)] = data
        read += len(data)
    if read < len(found):
        logger.error(
            "the disk cannot read %d bytes of the log, of the %d from %d of a file", len(found) - read, size, at
        )
    return bytes(found)


def pieces(file: File, size: int, at: int) -> Iterator[tuple[int, bytes]]:
    """Yields the readable parts of a stretch of a file, in order, each with its place. Raises any other OSError."""
    try:
        yield at, file.pread(size, at)
        return
    except OSError as error:
        if error.errno not in UNREADABLE:
            raise
    end = at + size
    middle = (at + size // 2) // PAGE_BYTES * PAGE_BYTES
    middle = middle if middle > at else (at // PAGE_BYTES + 1) * PAGE_BYTES
    if middle < end:  # else all of it lies in one page
        yield from pieces(file, middle - at, at)
        yield from pieces(file, end - middle, middle)
