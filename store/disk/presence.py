"""Checks that an open data directory is still there: a process goes on writing to files that were removed.

Its writes are then on no disk after its end, and every sync succeeds. So the names are looked at again and again: they
have to lead to the files that are open. A look that fails, as no file can be opened or the disk does not answer, tells
nothing: the next one may.
"""

import os
from collections.abc import Callable
from pathlib import Path

from store.disk.files import Files

PRESENCE_LOOK_S = 1.0  # between two looks: writes acknowledged in between, without replicas, may be lost
LOCK, LOG, VIEWS = "LOCK", "log", Path("views") / "data.mdb"

Identity = tuple[int, int] | None  # device and inode; None: there is no such file


class DirectoryWatch:
    """The names of an open data directory, as they were when it was opened. Any one thread may look."""

    def __init__(self, files: Files, data_dir: Path, newest: Callable[[], Path]) -> None:
        """Watches a directory; `newest` is the log's file that is written to."""
        self._files = files
        self._data_dir = data_dir
        self._newest = newest
        self._opened = {path: identity_of(path) for path in (data_dir / LOCK, data_dir / VIEWS)}

    def look(self) -> str | None:
        """Returns why writes would be lost now, None while all files are in place."""
        for path, opened in self._opened.items():
            if not is_in_place(path, opened):
                return self._removed_text(path)
        path = self._newest()
        try:
            names = self._files.names(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            return self._removed_text(path.parent)
        except OSError:
            return None
        if path.name in names or path != self._newest():  # another file was begun meanwhile
            return None
        return self._removed_text(path)

    def _removed_text(self, path: Path) -> str:
        if path == self._data_dir / VIEWS:
            remedy = "Restart: the views are made anew from the log"
        elif path.parent == self._data_dir / LOG or path == self._data_dir / LOG:
            remedy = "Put it back, or restart: what it held is then repaired from other replicas, or listed as lost"
        else:
            remedy = "Put the directory back, or restart with an empty one"
        return (
            f"{path} was removed or replaced while the store had it open (store.data_dir = {self._data_dir}): nothing "
            f"that is written to it now would be there after a restart. {remedy}"
        )


def identity_of(path: Path) -> Identity:
    """Returns which file a name leads to now. Raises OSError where that cannot be told."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of whatever the name leads to now
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def is_in_place(path: Path, opened: Identity) -> bool:
    """Returns whether a name leads to the file that was opened, as far as that can be told."""
    try:
        return identity_of(path) == opened
    except OSError:
        return True
