"""Disks that processes have to themselves, to be filled."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

DISK_BYTES = 1 << 30
CONTROLLER_DISK_BYTES = 96 << 20
LITTLE_ROOM_BYTES = 100 << 20  # less than a store keeps in reserve


class SmallDisk:
    """A file system of its own that can be filled to the last byte, and freed."""

    def __init__(self, directory: Path) -> None:
        self._filler = directory / "filler"

    def fill(self, *, leave: int = 0) -> None:
        """Fills the disk, and leaves others this many bytes at most."""
        found = os.statvfs(self._filler.parent)
        size = found.f_bavail * found.f_frsize - leave
        with self._filler.open("wb") as file, contextlib.suppress(OSError):  # another process took some of it meanwhile
            while size > 0:
                step = min(size, 1 << 20)
                os.posix_fallocate(file.fileno(), file.tell(), step)
                size -= file.seek(step, os.SEEK_CUR) and step

    def free(self) -> None:
        """Frees all that `fill` took."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(directory: Path, size_bytes: int = DISK_BYTES) -> Iterator[SmallDisk | None]:
    """Mounts a small disk at a directory, and yields it; yields None where the process may not mount."""
    directory.mkdir(parents=True, exist_ok=True)
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "headgate-small-disk", str(directory))
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(("umount", "--lazy", str(directory)), capture_output=True, check=False)
