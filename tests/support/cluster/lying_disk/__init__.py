"""A disk that lies, for real processes: errors, syncs that sync nothing, lost and misdirected writes, and
power failures that take what was not synced.

`shim.c` stands before the C library's file calls by LD_PRELOAD, so the process under test is the product as it is. Only
files below one directory are concerned. A kernel with dm-flakey could do some of this for a whole file system; this
needs a C compiler and nothing else, and can be told of single files.
"""

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from enum import IntFlag
from pathlib import Path
from typing import NamedTuple

__all__ = ["LyingDisk", "Mode", "missing"]

SHIM = Path(__file__).with_name("shim.c")
CONTROL = struct.Struct("<II56s")
RECORD = struct.Struct("<IIQQQ")
_WRITE, _SYNC = 1, 2
assert CONTROL.size == 64


class Mode(IntFlag):
    """The kinds of faults. The last two happen to one write, and end with it."""

    NONE = 0
    EIO_READ = 1
    EIO_WRITE = 2
    EIO_SYNC = 4
    LIE_SYNC = 8  # syncs succeed and sync nothing: a power failure takes what was called durable
    MISDIRECT_ONCE = 16
    LOSE_ONCE = 32


class _Old(NamedTuple):
    """The bytes that a write or truncation replaced, their place in the journal, and the file's size before."""

    at: int
    path: Path
    offset: int
    data: bytes
    size: int


def missing() -> str | None:
    """Returns why there can be no such disk here."""
    return None if shutil.which("cc") else "a C compiler (cc) is missing"


class LyingDisk:
    """The disk of one process at a time: everything below `root`. `directory` has what this needs itself."""

    def __init__(self, root: Path, directory: Path) -> None:
        self._root = root
        directory.mkdir(parents=True, exist_ok=True)
        self._shim, self._control_path = directory / "shim.so", directory / "control"
        self._journal = directory / "journal"
        if not self._shim.exists():
            command = ("cc", "-O2", "-shared", "-fPIC", "-o", str(self._shim), str(SHIM), "-ldl", "-lpthread")
            subprocess.run(command, check=True, capture_output=True)
        self._control_path.write_bytes(bytes(CONTROL.size))
        with self._control_path.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), CONTROL.size)

    def close(self) -> None:
        """Closes the control file."""
        self._control.close()

    def under(self) -> Sequence[str]:
        """Returns the command that runs another command on this disk, and becomes it."""
        return (
            "env",
            f"LD_PRELOAD={self._shim}",
            f"HEADGATE_DISK_ROOT={self._root}{os.sep}",
            f"HEADGATE_DISK_CONTROL={self._control_path}",
            f"HEADGATE_DISK_JOURNAL={self._journal}",
        )

    def lie(self, mode: Mode, part: str = "") -> None:
        """Begins this kind of failure, for files whose path contains `part`."""
        self._control[:] = CONTROL.pack(0, self.done, part.encode())
        self._control[:4] = struct.pack("<I", mode)

    @property
    def done(self) -> int:
        """Returns how often something went wrong."""
        return int(CONTROL.unpack(self._control[:])[1])

    def lose_power(self) -> int:
        """Undoes all writes that were not synced, newest first, and returns their number. The process must be dead."""
        taken = 0
        for old in reversed(self._unsynced()):
            if not old.path.exists():
                continue  # removed or renamed since
            with old.path.open("r+b") as file:
                file.seek(old.offset)
                file.write(old.data)
                file.truncate(old.size)
            taken += 1
        self._journal.unlink(missing_ok=True)
        return taken

    def _unsynced(self) -> list[_Old]:
        """Returns the writes that no later sync has covered, oldest first."""
        synced: dict[Path, int] = {}
        olds = []
        for at, kind, path, offset, data, size in self._records():
            if kind == _SYNC:
                synced[path] = max(synced.get(path, 0), offset)
            else:
                olds.append(_Old(at, path, offset, data, size))
        return [old for old in olds if old.at >= synced.get(old.path, 0)]

    def _records(self) -> Iterator[tuple[int, int, Path, int, bytes, int]]:
        raw = self._journal.read_bytes() if self._journal.exists() else b""
        at = 0
        while at + RECORD.size <= len(raw):
            kind, path_length, offset, old_length, size = RECORD.unpack_from(raw, at)
            start = at + RECORD.size
            end = start + path_length + old_length
            if end > len(raw) or kind not in {_WRITE, _SYNC}:
                break  # killed while it was written: then what it is about was not done
            path = Path(os.fsdecode(raw[start : start + path_length]))
            yield at, kind, path, offset, raw[start + path_length : end], size
            at = end
