"""Room on the disk: writing is refused while some is left, so that essential writes still succeed.

The log's records have to go into the views too, so the room that they will take is counted as gone already.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from store.base.errors import StoreFull
from store.disk.files import Files, OsFiles

logger = logging.getLogger(__name__)

DISK_RESERVE_BYTES = 256 << 20  # for the views, which follow, and for the records that retention writes to make room
# Errors that pass by themselves and do not mean a bad disk: no space left, no file descriptor to open a file with.
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT}) | NO_FILES
LOOK_S = 1.0  # between looks while nothing is written
_LOOKS = 8  # while the reserve's size is written: so often is looked again
_LOOK_BYTES_MIN = 1 << 20
_VIEWS_FACTOR = 12  # bytes of the views for a byte of the log, at most: for the smallest records
LOW_FACTOR = 2  # times the reserve: with less free, room is short, and clients are asked to write less
_SHORT_BYTES = 16 << 20  # LMDB says of a write that was cut short EIO; with less than this it was for want of room
_NO_ROOM_TEXTS = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))  # py-lmdb keeps the text alone
_MARGIN = 8  # a refusal ends when an eighth more than the reserve is free, so that it does not flutter


@contextmanager
def no_room_is_full(path: Path) -> Iterator[None]:
    """Raises `StoreFull` where opening `path` meets a full disk, or has no file descriptors."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StoreFull(f"{path} cannot be opened: {error}") from error
        raise


def is_for_want_of_room(error: lmdb.Error, path: Path) -> bool:
    """Returns whether LMDB could not write because the disk of the environment at `path` has no room."""
    said = str(error)
    if isinstance(error, lmdb.DiskError) or any(reason in said for reason in _NO_ROOM_TEXTS):
        return True
    return os.strerror(errno.EIO) in said and OsFiles().free_bytes(path) < _SHORT_BYTES


class Space:
    """Decides whether there is room to write. The commit thread asks; any thread may `look` or read `refusal`."""

    def __init__(
        self,
        files: Files,
        path: Path,
        reserve_bytes: int = DISK_RESERVE_BYTES,
        *,
        owed: Callable[[], int] = lambda: 0,
        was_full: bool = False,
        was_low: bool = False,
    ) -> None:
        """Measures room on the file system of `path`, from the first `look` on.

        `owed`: bytes that the views will take for the part of the log that they lack. `was_full`, `was_low`: it has
        been logged already that the disk has no room, or little.
        """
        self._files = files
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._owed = owed
        self._allowed = 0  # bytes that may be written before the next look
        self.refusal: StoreFull | None = None  # why nothing may be written now
        self.low = was_low  # room is short: writing goes on, and may be refused soon
        self._logged_full = was_full
        self._known = True  # the free space, when it was looked at last: a failure is logged once

    def before_write(self, size: int) -> StoreFull | None:
        """Returns why that many bytes may not be written. Costs a subtraction, and now and then a look."""
        self._allowed -= size
        if self._allowed < 0:
            self.look()
        return self.refusal

    def look(self) -> None:
        """Asks the file system, and refuses or allows from now on."""
        free = self.free_bytes
        if free < 0:
            return
        reserve, owed = self._reserve_bytes, self._owed()
        self._note_low(free, reserve, owed)
        if self.refusal is not None:
            if free < reserve + reserve // _MARGIN + owed:
                return
            self.refusal = None
        elif free < reserve + owed:
            views = f", and {owed} for the views, which are behind" if owed else ""
            self._refuse(f"{free} bytes are free on the disk and {reserve} are kept in reserve{views}")
        if self._logged_full and self.refusal is None:
            logger.warning("the disk has room again", extra={"free_bytes": free, "reserve_bytes": reserve})
            self._logged_full = False
        self._allowed = max(min((free - reserve - owed) // (1 + _VIEWS_FACTOR), reserve // _LOOKS), _LOOK_BYTES_MIN)

    def _note_low(self, free: int, reserve: int, owed: int) -> None:
        margin = reserve // _MARGIN if self.low else 0
        low = free < LOW_FACTOR * reserve + margin + owed
        if low is not self.low:
            said = "the disk has little room" if low else "the disk has enough room"
            logger.warning(said, extra={"free_bytes": free, "reserve_bytes": reserve})
            self.low = low

    @property
    def free_bytes(self) -> int:
        """Returns the file system's free bytes; -1 when it does not say."""
        try:
            free = self._files.free_bytes(self._path)
        except OSError as error:
            if self._known:
                logger.warning("the free space of %s is not known: %s", self._path, error)
            self._known = False
            return -1
        self._known = True
        return free

    def lacking(self, size: int) -> str | None:
        """Returns why so many bytes beside the log would have writes refused; None where they would not."""
        free, needed = self.free_bytes, size + self._reserve_bytes + self._owed()
        if 0 <= free < needed:
            return (
                f"{free} bytes are free on the disk, and it needs {needed} with the reserve (store.disk_reserve_bytes)"
            )
        return None

    def ran_out(self, why: str) -> StoreFull:
        """Returns the refusal after a write met a full disk, or could open no file, whatever the last look said."""
        return self._refuse(f"there is no room: {why}")

    def _refuse(self, why: str) -> StoreFull:
        if not self._logged_full:
            logger.error("writing is refused until the disk has room", extra={"why": why})
            self._logged_full = True
        self.refusal = refusal = StoreFull(why)
        return refusal
