"""The lock that keeps a data directory to one process."""

import contextlib
import fcntl
import os
from pathlib import Path

from store.base.errors import DataDirLocked
from store.disk.files import FILE_MODE


class DataDirLock:
    """An flock on `LOCK` in a data directory. The kernel drops it with its process, however that ends."""

    def __init__(self, data_dir: Path) -> None:
        """Takes the lock; raises `DataDirLocked`."""
        path = data_dir / "LOCK"
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise DataDirLocked(
                f"{data_dir} is in use by process {holder}: stop it, or name another directory"
            ) from None
        with contextlib.suppress(OSError):  # a full disk: only who waits for the directory is told less
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Gives the lock back; again does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
