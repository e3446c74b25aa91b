"""The file layer: the few operations the log needs, so that tests can put a failing disk in their place."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from store.disk.cold import ColdReads

FILE_MODE = 0o600  # messages, and the key that handles are signed with: no other user reads them
DIRECTORY_MODE = 0o700
_UNUSABLE: Final = {  # errors that another path does not have; a full or failing disk is reported elsewhere
    errno.EACCES,
    errno.EEXIST,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}


class File(Protocol):
    """One open file, written and read by position. Methods raise OSError."""

    def pwritev(self, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """Writes parts back to back at an offset; returns how many bytes were, which may be fewer than given."""

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to `size` bytes at an offset; fewer at the end of the file.

        Bytes that are not in the page cache are not kept there, so that reads of old data do not push out pages in use.
        """

    def size(self) -> int:
        """Returns the file's size, in bytes."""

    def truncate(self, size: int) -> None:
        """Cuts the file."""

    def sync(self) -> None:
        """Returns when everything written is on disk (fdatasync)."""

    def close(self) -> None:
        """Gives the file back."""


class Files(Protocol):
    """The directory operations. Methods raise OSError."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """Opens a file for reading and writing; with `create` it must not be there yet."""

    def make_directory(self, path: Path) -> None:
        """Creates a directory and its parents where they are missing."""

    def names(self, directory: Path) -> Sequence[str]:
        """Returns the names in a directory, sorted."""

    def rename(self, source: Path, target: Path) -> None:
        """Renames a file, in one step."""

    def unlink(self, path: Path) -> None:
        """Removes a file."""

    def sync_directory(self, path: Path) -> None:
        """Returns when names created in or removed from a directory are on disk."""

    def free_bytes(self, path: Path) -> int:
        """Returns the bytes that the file system of a path has room for, for a user without privileges."""


class OsFile:
    """A file of the operating system."""

    __slots__ = ("__weakref__", "_cold", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._cold = ColdReads(fd)

    def __del__(self) -> None:
        self.close()  # a file that was deleted while it was read closes with the last reader

    def pwritev(self, parts: Sequence[bytes | memoryview], offset: int) -> int:
        """See `File`."""
        return os.pwritev(self._fd, parts, offset)

    def pread(self, size: int, offset: int) -> bytes:
        """See `File`."""
        self._cold.before(size, offset)
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts, got = [data], len(data)
        while got < size and (more := os.pread(self._fd, size - got, offset + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def size(self) -> int:
        """See `File`."""
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        """See `File`."""
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        """See `File`."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """See `File`. Again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class OsFiles:
    """The file system."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return OsFile(os.open(path, flags, FILE_MODE))

    def make_directory(self, path: Path) -> None:
        """See `Files`."""
        if not path.parent.exists():
            self.make_directory(path.parent)  # mkdir would give parents a mode of its own
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

    def names(self, directory: Path) -> Sequence[str]:
        """See `Files`."""
        return sorted(entry.name for entry in directory.iterdir())

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """See `Files`."""
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: Path) -> int:
        """See `Files`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize


class ReadOnlyFiles(OsFiles):
    """The file system of who may only read it."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """See `Files`; the file cannot be written."""
        if create:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def sync_directory(self, path: Path) -> None:
        """See `Files`: nothing is created or removed."""


def write_whole(file: File, data: bytes | memoryview, offset: int) -> None:
    """Writes all of some bytes, however many calls that takes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        done = file.pwritev([rest], offset)
        if done <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        rest, offset = rest[done:], offset + done


@contextlib.contextmanager
def said_of_data_dir(path: Path) -> Iterator[None]:
    """Adds a remedy to the error of a data directory that cannot be made or written: an OSError of the same number."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNUSABLE:
            raise
        why = f"the data directory cannot be made or written ({error.strerror}); write another data_dir"
        raise OSError(error.errno, why, str(path)) from error
