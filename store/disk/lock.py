"""The lock that keeps a data directory to one process."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final

from store.base.errors import DataDirLocked
from store.disk.files import FILE_MODE

NOT_WRITABLE: Final = {errno.EACCES, errno.EPERM, errno.EROFS}


class DataDirLock:
    """An flock on `LOCK` in a data directory. The kernel drops it with its process, however that ends."""

    def __init__(self, data_dir: Path) -> None:
        """Takes the lock; raises `DataDirLocked`."""
        path = data_dir / "LOCK"
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._fd)
            self.release()
            raise _locked(data_dir, holder) from None
        with contextlib.suppress(OSError):  # a full disk: only who waits for the directory is told less
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Gives the lock back; again does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class ReadersLock:
    """A shared flock on the `LOCK` of a data directory that cannot be written, where it is there and can be read.

    It keeps stores of this machine away. Of a store on another machine, or behind another mount, it may know nothing.
    """

    def __init__(self, data_dir: Path) -> None:
        """Takes the lock; raises `DataDirLocked` where a store is seen to hold it."""
        self._fd: int | None = None
        with contextlib.suppress(FileNotFoundError, PermissionError):
            self._fd = os.open(data_dir / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
        if self._fd is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(self._fd)
            self.release()
            raise _locked(data_dir, holder) from None

    def release(self) -> None:
        """Gives the lock back; again does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _holder(fd: int) -> str:
    """Returns the process that the file names."""
    return os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"


def _locked(data_dir: Path, holder: str) -> DataDirLocked:
    return DataDirLocked(f"{data_dir} is in use by process {holder}: stop it, or name another directory")
