"""The seal of a Raft node's directory: how far its state had come, kept beside LMDB, so that it is never read as older.

LMDB has two meta pages and takes the one that says that it is newer; neither has a checksum. A flipped bit there, or in
a page that a branch points to, may show the state before a vote was given. So each transaction's number is among its
records (`lmdb_records`), and the file `raft.seal` has two slots of 512 bytes, of which each `save` writes the one that
is older, before any message goes out:

    CRC32C u32 of the rest | length u32 | msgpack of `Seal`

It is not synced: after a power failure it may be older than LMDB, never newer. LMDB's state is then compared with
values that can only grow.
"""

import os
import struct
from pathlib import Path

import msgspec
from google_crc32c import value

from controller.raft.errors import StorageDamaged, StorageFailed
from controller.raft.lmdb_records import StoredSummary

SEAL = "raft.seal"
_SLOT_BYTES = 512
_HEAD = struct.Struct(">II")
_encode = msgspec.msgpack.Encoder().encode


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """The trace a transaction leaves: its number, and a summary of the contents."""

    transaction: int
    term: int
    vote: int
    commit: int
    base_index: int
    last_index: int
    last_term: int

    @classmethod
    def of(cls, transaction: int, held: StoredSummary) -> "Seal":
        """Returns the seal of the contents after a transaction."""
        hard, last = held.hard, (held.last_index, held.last_term)
        return cls(transaction, hard.term, hard.vote or 0, hard.commit, held.base_index, *last)


_decoder = msgspec.msgpack.Decoder(Seal)


class SealFile:
    """The file, open. One thread writes."""

    def __init__(self, directory: Path) -> None:
        """Opens the file, if there is one. Raises `StorageDamaged` where it is there and says nothing, OSError."""
        self._path = directory / SEAL
        self._fd: int | None = None
        self.newest: Seal | None = None  # None: the directory is of an older version, or new
        self._slot = 0  # that is written next
        if not self._path.exists():
            return
        data = self._path.read_bytes()
        found = [(seal, slot) for slot in (0, 1) if (seal := _parse(data[slot * _SLOT_BYTES :])) is not None]
        if not found:
            raise StorageDamaged(f"{self._path} is damaged: it is unknown whether the state beside it is the newest")
        self.newest, slot = max(found, key=lambda one: one[0].transaction)
        self._slot = 1 - slot

    def check(self, transaction: int, held: StoredSummary) -> None:
        """Compares LMDB's contents with the seal. Raises `StorageDamaged` where it is older, or another."""
        seal, hard = self.newest, held.hard
        if seal is None:
            return
        now = Seal.of(transaction, held)
        lost = (
            now.transaction < seal.transaction
            or (now.transaction == seal.transaction and now != seal)
            or hard.term < seal.term
            or (hard.term == seal.term and seal.vote not in {0, now.vote})
            or min(hard.commit, held.last_index) < seal.commit
        )
        if lost:
            raise StorageDamaged(f"{self._path.parent} holds an older state than it had, or another: {now}, {seal}")

    def write(self, transaction: int, held: StoredSummary) -> None:
        """Seals the records. Raises `StorageFailed`."""
        seal = Seal.of(transaction, held)
        data = _encode(seal)
        body = len(data).to_bytes(4, "big") + data
        slot = (value(body).to_bytes(4, "big") + body).ljust(_SLOT_BYTES, b"\0")
        try:
            if self._fd is None:
                self._fd = self._opened(slot)
            os.pwrite(self._fd, slot, self._slot * _SLOT_BYTES)
        except OSError as error:
            raise StorageFailed(f"{self._path}: {error}") from error
        self.newest, self._slot = seal, 1 - self._slot

    def _opened(self, slot: bytes) -> int:
        """Opens the file to write; a new one is on disk, with both its slots, before it has its name."""
        if not self._path.exists():
            new = self._path.with_suffix(".new")
            fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, 2 * slot, 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            new.rename(self._path)
        return os.open(self._path, os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        """Gives the file back."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _parse(slot: bytes) -> Seal | None:
    """Returns the seal in a slot; None where there is no valid one."""
    if len(slot) < _HEAD.size:
        return None
    crc, size = _HEAD.unpack_from(slot)
    if size > _SLOT_BYTES - _HEAD.size or crc != value(slot[4 : _HEAD.size + size]):
        return None
    try:
        return _decoder.decode(slot[_HEAD.size : _HEAD.size + size])
    except msgspec.MsgspecError:
        return None
