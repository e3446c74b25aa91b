"""A disk in memory that loses what was not synced when the power fails, and fails when told to.

What is written is seen by readers at once and is on disk after `sync`; names likewise after `sync_directory`. When the
power fails each unsynced page of 4 KiB is kept, dropped or torn on its own, whatever the order of the writes; so is
each unsynced truncation, and each name that was created, renamed or removed.
"""

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = 4096
SECTOR_BYTES = 512
_NO_LIMIT = 1 << 62


class _Write(NamedTuple):
    """A piece of a page."""

    offset: int
    data: bytes


class _Truncate(NamedTuple):
    size: int


class _Inode:
    def __init__(self) -> None:
        self.data = bytearray()  # as readers see it
        self.durable = bytearray()
        self.pending: list[_Write | _Truncate] = []  # between the two, in order

    def write(self, data: bytes, offset: int) -> None:
        _put(self.data, offset, data)
        while data:
            size = PAGE_BYTES - offset % PAGE_BYTES
            self.pending.append(_Write(offset, data[:size]))
            data, offset = data[size:], offset + size

    def truncate(self, size: int) -> None:
        _cut(self.data, size)
        self.pending.append(_Truncate(size))

    def sync(self) -> None:
        # Changes that a failed sync has dropped are not dirty any more and are not written now either.
        for change in self.pending:
            _apply(self.durable, change)
        self.pending = []

    def lose(self, chance: random.Random) -> None:
        """Decides what becomes of everything unsynced."""
        pending, self.pending = self.pending, []
        how = chance.choice(["none", "all", "first", "any", "any", "torn"])
        until = chance.randint(0, len(pending))
        reached = 0
        for i, change in enumerate(pending):
            if isinstance(change, _Write):
                reached = max(reached, change.offset + len(change.data))
            if how == "none" or (how in {"first", "torn"} and i > until) or (how == "any" and chance.random() < 0.5):
                continue
            torn = (how == "torn" and i == until) or (how == "any" and chance.random() < 0.2)
            _apply(self.durable, _tear(change, chance) if torn and isinstance(change, _Write) else change)
        if len(self.durable) < reached and chance.random() < 0.4:
            # The new size was written and the pages were not: there is what was there before.
            missing = chance.randint(1, reached - len(self.durable))
            self.durable += chance.choice([bytes(missing), chance.randbytes(missing)])

    def fall_back(self) -> None:
        self.data = bytearray(self.durable)


def _put(data: bytearray, offset: int, new: bytes) -> None:
    if len(data) < offset:
        data += bytes(offset - len(data))
    data[offset : offset + len(new)] = new


def _cut(data: bytearray, size: int) -> None:
    if size <= len(data):
        del data[size:]
    else:
        data += bytes(size - len(data))


def _apply(data: bytearray, change: _Write | _Truncate) -> None:
    if isinstance(change, _Write):
        _put(data, change.offset, change.data)
    else:
        _cut(data, change.size)


def _tear(write: _Write, chance: random.Random) -> _Write:
    """Returns a write of some sectors of a page, from its start."""
    ends = range(-write.offset % SECTOR_BYTES, len(write.data), SECTOR_BYTES)
    at = chance.choice([*ends, chance.randint(0, len(write.data))])
    return _Write(write.offset, write.data[:at])


class _Directory:
    def __init__(self) -> None:
        self.names: dict[str, _Inode | _Directory] = {}
        self.durable: dict[str, _Inode | _Directory] = {}
        self.pending: list[dict[str, _Inode | _Directory | None]] = []  # changes, each done as a whole; None: removed

    def change(self, change: "dict[str, _Inode | _Directory | None]") -> None:
        _rename(self.names, change)
        self.pending.append(change)

    def sync(self) -> None:
        for change in self.pending:
            _rename(self.durable, change)
        self.pending = []

    def lose(self, chance: random.Random) -> None:
        kept = chance.random()
        pending, self.pending = self.pending, []
        for change in pending:
            if chance.random() < kept:
                _rename(self.durable, change)
        for inode in self.durable.values():
            inode.lose(chance)

    def fall_back(self) -> None:
        self.names = dict(self.durable)
        for inode in self.names.values():
            inode.fall_back()


def _rename(names, change) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class _File:
    def __init__(self, disk: "Disk", inode: _Inode) -> None:
        self._disk, self._inode = disk, inode

    def pwritev(self, parts: Sequence[bytes | memoryview], offset: int) -> int:
        disk, inode, data = self._disk, self._inode, b"".join(parts)
        try:
            disk.before("write")
        except OSError:
            inode.write(data[: disk.chance.randint(0, len(data))], offset)
            raise
        if data and disk.chance.random() < disk.short_chance:
            data = data[: disk.chance.randint(1, len(data))]
        if disk.room is not None:
            grown = offset + len(data) - len(inode.data)
            if grown > disk.room:
                data = data[: max(len(data) - (grown - disk.room), 0)]
                if not data:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            disk.room -= max(offset + len(data) - len(inode.data), 0)
        inode.write(data, offset)
        disk.after("write")
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        self._disk.before("read")
        return bytes(self._inode.data[offset : offset + size])

    def size(self) -> int:
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        self._disk.before("truncate")
        if self._disk.room is not None:
            self._disk.room += max(len(self._inode.data) - size, 0)
        self._inode.truncate(size)
        self._disk.after("truncate")

    def sync(self) -> None:
        synced = len(self._inode.pending)  # writes meanwhile may be on disk or not
        try:
            self._disk.before("sync")
        except OSError:
            self._inode.lose(self._disk.chance)  # and the kernel says so only once
            raise
        late, self._inode.pending = self._inode.pending[synced:], self._inode.pending[:synced]
        self._inode.sync()
        self._inode.pending = late
        self._disk.after("sync")

    def close(self) -> None:
        pass


class Disk:
    """`store.disk.files.Files` in memory.

    `fail` arms an error for an operation; `room` bounds what can be written; `on_operation` is called around each
    operation and may hand over to another thread. `lose_power` makes of it what would be found after a power failure.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.room: int | None = None  # bytes that can still be written; None: no end to them
        self.short_chance = 0.0  # that a write stores only some of what it is given
        self.on_operation: Callable[[str], None] = lambda operation: None
        self.counts: dict[str, int] = {}
        self.failures = 0
        self._armed: dict[str, tuple[int, int]] = {}  # operation -> how many more go well, errno
        self._root = _Directory()

    # ---- faults

    def fail(self, operation: str, error: int, *, after: int = 0) -> None:
        """Makes one of "write", "read", "sync", "truncate", "open", "unlink", "rename" or "sync_directory" fail
        once.
        """
        self._armed[operation] = after, error

    def heal(self) -> None:
        """Ends all failures, and makes room on the disk."""
        self._armed.clear()
        self.room = None

    def before(self, operation: str) -> None:
        """Begins an operation; raises the error that was planned for it."""
        self.counts[operation] = self.counts.get(operation, 0) + 1
        self.on_operation(operation)
        armed = self._armed.get(operation)
        if armed is not None:
            left, error = armed
            if left:
                self._armed[operation] = left - 1, error
                return
            del self._armed[operation]
            self.failures += 1
            raise OSError(error, os.strerror(error))

    def after(self, operation: str) -> None:
        """Ends an operation, before its caller knows."""
        self.on_operation(operation)

    def lose_power(self) -> None:
        """Loses a part of what is not synced."""
        self._root.lose(self.chance)
        self._root.fall_back()
        self.heal()

    def flip(self, path: Path, at: int, bit: int) -> None:
        """Flips a bit of a file, on the platter and in memory. A second call undoes it."""
        inode = self._inode(path)
        inode.data[at] ^= 1 << bit
        if at < len(inode.durable):
            inode.durable[at] ^= 1 << bit

    def put(self, path: Path, data: bytes) -> None:
        """Puts other bytes in the place of a file's, on the platter and in memory."""
        inode = self._inode(path)
        inode.data, inode.durable, inode.pending = bytearray(data), bytearray(data), []

    def lose(self, path: Path) -> None:
        """Takes a file from the platter and from memory."""
        directory = self._directory(path.parent)
        directory.names.pop(path.name, None)
        directory.durable.pop(path.name, None)
        directory.pending = [change for change in directory.pending if path.name not in change]

    # ---- for looking

    def data(self, path: Path) -> bytes:
        """Returns a file's bytes as a reader would see them."""
        return bytes(self._inode(path).data)

    def durable(self, path: Path) -> bytes:
        """Returns the bytes of a file that are certain to survive: none when its name is not."""
        at: _Directory | _Inode | None = self._root
        for part in path.parts:
            at = at.durable.get(part) if isinstance(at, _Directory) else None
        return bytes(at.durable) if isinstance(at, _Inode) else b""

    def mount(self, path: Path) -> None:
        """Makes a directory that is on disk, as are all above it."""
        self.make_directory(path)
        for above in (*path.parents, path):
            self._directory(above).sync()
        self._root.sync()

    def _directory(self, path: Path) -> _Directory:
        at = self._root
        for part in path.parts:
            found = at.names.get(part)
            if not isinstance(found, _Directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            at = found
        return at

    def _inode(self, path: Path) -> _Inode:
        found = self._directory(path.parent).names.get(path.name)
        if not isinstance(found, _Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return found

    # ---- store.disk.files.Files

    def open(self, path: Path, *, create: bool = False) -> _File:
        """See `Files.open`."""
        self.before("open")
        if create:
            directory = self._directory(path.parent)
            if path.name in directory.names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            directory.change({path.name: _Inode()})
            self.after("open")
        return _File(self, self._inode(path))

    def make_directory(self, path: Path) -> None:
        """See `Files.make_directory`."""
        at = self._root
        for part in path.parts:
            found = at.names.get(part)
            if found is None:
                found = _Directory()
                at.change({part: found})
            if not isinstance(found, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            at = found

    def names(self, directory: Path) -> Sequence[str]:
        """See `Files.names`."""
        return sorted(self._directory(directory).names)

    def rename(self, source: Path, target: Path) -> None:
        """See `Files.rename`. Within one directory."""
        self.before("rename")
        assert source.parent == target.parent
        self._directory(source.parent).change({target.name: self._inode(source), source.name: None})
        self.after("rename")

    def unlink(self, path: Path) -> None:
        """See `Files.unlink`."""
        self.before("unlink")
        inode = self._inode(path)
        self._directory(path.parent).change({path.name: None})
        if self.room is not None:
            self.room += len(inode.data)
        self.after("unlink")

    def sync_directory(self, path: Path) -> None:
        """See `Files.sync_directory`."""
        self.before("sync_directory")
        self._directory(path).sync()
        self.after("sync_directory")

    def free_bytes(self, path: Path) -> int:
        """See `Files.free_bytes`."""
        return _NO_LIMIT if self.room is None else self.room
