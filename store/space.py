"""Room on the disk: writing is refused while some is left, so that what must be written still can be."""

import logging
from pathlib import Path

from store.errors import StoreFull
from store.files import Files

__all__ = ["DISK_RESERVE_BYTES", "LOOK_S", "Space"]

logger = logging.getLogger(__name__)

DISK_RESERVE_BYTES = 256 << 20  # for the views, which follow, and for the records that retention writes to make room
LOOK_S = 1.0  # between looks while nothing is written
_LOOKS = 8  # while the reserve's size is written: so often is looked again
_LOOK_BYTES_MIN = 1 << 20
_MARGIN = 8  # a refusal ends when an eighth more than the reserve is free, so that it does not flutter


class Space:
    """Decides whether there is room to write. The commit thread asks; any thread may `look` or read `refusal`."""

    def __init__(self, files: Files, path: Path, reserve_bytes: int = DISK_RESERVE_BYTES) -> None:
        """Room on the file system of `path`; looks at once."""
        self._files = files
        self._path = path
        self._reserve_bytes = reserve_bytes
        self._allowed = 0  # bytes that may be written before the next look
        self.refusal: StoreFull | None = None  # why nothing may be written now
        self.look()

    def before_write(self, size: int) -> StoreFull | None:
        """Why that many bytes may not be written. Costs a subtraction, and now and then a look."""
        self._allowed -= size
        if self._allowed < 0:
            self.look()
        return self.refusal

    def look(self) -> None:
        """Ask the file system, and refuse or allow from now on."""
        try:
            free = self._files.free_bytes(self._path)
        except OSError:
            logger.exception("the free space is not known")
            return
        reserve = self._reserve_bytes
        if self.refusal is not None:
            if free < reserve + reserve // _MARGIN:
                return
            logger.warning("the disk has room again", extra={"free_bytes": free, "reserve_bytes": reserve})
            self.refusal = None
        elif free < reserve:
            self._refuse(f"{free} bytes are free on the disk and {reserve} are kept in reserve")
        self._allowed = max(min(free - reserve, reserve // _LOOKS), _LOOK_BYTES_MIN)

    def ran_out(self, error: OSError) -> StoreFull:
        """A write met a full disk, whatever the last look said."""
        return self._refuse(f"the disk is full: {error.strerror}")

    def _refuse(self, why: str) -> StoreFull:
        if self.refusal is None:
            logger.error("writing is refused until the disk has room", extra={"why": why})
        self.refusal = refusal = StoreFull(why)
        return refusal
