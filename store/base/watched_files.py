"""Files that are read again when they change."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

_Stamp: TypeAlias = tuple[int, ...]
_NO_FILE: Final[_Stamp] = ()


class WatchedFiles:
    """Notices changes of files. A user of files asks `changed` first, and reads them again where it is true.

    The files count as read when this is made, unless they are `unread`.
    """

    def __init__(self, files: Iterable[Path | None], *, interval_ms: int = 0, unread: bool = False) -> None:
        self._files = [file for file in files if file is not None]
        self._interval_ms = interval_ms
        self._looked_ms: int | None = None
        self._read: list[_Stamp] | None = None if unread else self._stamps()

    def changed(self) -> bool:
        """Returns whether a file has changed since it was read. From now on it counts as read."""
        stamps = self._stamps()
        if stamps == self._read:
            return False
        self._read = stamps
        return True

    def changed_by(self, now_ms: int) -> bool:
        """Returns the same, but looks once in an interval only."""
        if self._looked_ms is not None and 0 <= now_ms - self._looked_ms < self._interval_ms:  # < 0: the clock was set
            return False
        self._looked_ms = now_ms
        return self.changed()

    def read_again(self) -> None:
        """Makes `changed` true the next time, as the files could not be read."""
        self._read = None

    def _stamps(self) -> list[_Stamp]:
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> _Stamp:
    """Returns a stamp of a file, which differs once the file is another one."""
    try:
        found = file.stat()
    except OSError:
        return _NO_FILE
    return found.st_mtime_ns, found.st_size, found.st_ino
