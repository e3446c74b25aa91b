"""The records of a Raft node's LMDB, read and written inside a transaction.

    "N"            version u8 | node id u64
    "I"            the incarnation (see `MemoryIdentity`)
    "H"            the hard state
    "B"            index u64 | term u64 of the entry before the first
    "S"            the snapshot without its data
    "D"            the snapshot's data
    "T"            the number u64 of the newest transaction; missing until a version that knows it has written
    "E" index u64  an entry

Integers are big-endian, the rest is msgpack, and every value begins with the CRC32C of its key and itself. A
transaction is on disk whole or not at all, so damage is never a torn write: where anything is missing or changed,
nothing is opened.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lmdb
import msgspec
from google_crc32c import extend, value

from controller.raft.errors import StorageDamaged, StorageFailed
from controller.raft.file_mark import FileMark
from controller.raft.messages import Entry, HardState, Index, Snapshot, Term
from controller.raft.ready import Ready

VERSION = 1

_NODE, _IDENTITY, _HARD, _BASE, _SNAPSHOT, _DATA, _ENTRY = b"N", b"I", b"H", b"B", b"S", b"D", b"E"
_TRANSACTION = b"T"
_NUMBER = struct.Struct(">Q")
_OWNER = struct.Struct(">BQ")
_AT = struct.Struct(">QQ")
_CRC = struct.Struct(">I")
_INDEX_MAX = (1 << 64) - 1

_encode = msgspec.msgpack.Encoder().encode
_hard_decoder = msgspec.msgpack.Decoder(HardState)
_entry_decoder = msgspec.msgpack.Decoder(Entry)
_snapshot_decoder = msgspec.msgpack.Decoder(Snapshot)


class MemoryIdentity(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The identity of a node's memory. `file` marks the file it was written to: a copy of that is another memory."""

    incarnation: str
    legacy: bool = False  # it was given to a directory that held something already
    file: FileMark = (0, 0)


_identity_decoder = msgspec.msgpack.Decoder(MemoryIdentity)


class StoredSummary(NamedTuple):
    """A summary of the state on disk. Replaced as a whole, so that readers in other threads see the old or the new."""

    hard: HardState
    base_index: Index  # of the entry before the first
    base_term: Term
    last_index: Index
    last_term: Term


def read_snapshot(txn: lmdb.Transaction) -> Snapshot:
    """Returns the newest snapshot. Raises `StorageDamaged`, `msgspec.MsgspecError`."""
    return msgspec.structs.replace(_snapshot_decoder.decode(_get(txn, _SNAPSHOT)), data=_get(txn, _DATA))


def read_entries(txn: lmdb.Transaction, low: Index, high: Index) -> Iterator[Entry]:
    """Yields entries from `low` to before `high`, as there are. Raises `StorageDamaged`, `msgspec.MsgspecError`."""
    with txn.cursor() as cursor:
        there = cursor.set_range(_key(low))
        while there and low < high:
            key, held = cursor.item()
            if key != _key(low):
                return
            yield _entry_decoder.decode(_checked(bytes(key), bytes(held)))
            low += 1
            there = cursor.next()


def begin(txn: lmdb.Transaction, node_id: int, identity: MemoryIdentity, first: Snapshot) -> None:
    """Writes a new node's first records."""
    _put(txn, _NODE, _OWNER.pack(VERSION, node_id))
    put_identity(txn, identity)
    _put(txn, _BASE, _AT.pack(first.index, first.term))
    _put_snapshot(txn, first)
    _put(txn, _HARD, _encode(HardState(term=first.term, commit=first.index)))


def read_identity(txn: lmdb.Transaction) -> MemoryIdentity | None:
    """Returns the memory's identity; None: its version did not keep one. Raises `StorageDamaged`, `MsgspecError`."""
    return None if txn.get(_IDENTITY) is None else _identity_decoder.decode(_get(txn, _IDENTITY))


def put_identity(txn: lmdb.Transaction, identity: MemoryIdentity) -> None:
    """Writes which memory this is."""
    _put(txn, _IDENTITY, _encode(identity))


def number(txn: lmdb.Transaction) -> None:
    """Writes which transaction this is."""
    _put(txn, _TRANSACTION, _NUMBER.pack(txn.id()))


def check_number(txn: lmdb.Transaction, path: Path, *, sealed: bool) -> int:
    """Returns the number of the newest transaction. Raises `StorageDamaged` where its records say another.

    A directory that is `sealed` says it; one of an older version does not.
    """
    if sealed or txn.get(_TRANSACTION) is not None:
        (said,) = _NUMBER.unpack(_get(txn, _TRANSACTION))
        if said != txn.id():
            raise StorageDamaged(f"{path} says it is of transaction {txn.id()}, and its records are of {said}")
    return int(txn.id())


def is_new(txn: lmdb.Transaction) -> bool:
    """Returns whether nothing has ever been written."""
    return int(txn.stat()["entries"]) == 0


def recover(txn: lmdb.Transaction, path: Path, node_id: int) -> StoredSummary:
    """Reads and checks everything. Raises `StorageDamaged`, `StorageFailed`, `msgspec.MsgspecError`."""
    version, owner = _OWNER.unpack(_get(txn, _NODE))
    if version != VERSION:
        raise StorageFailed(f"{path} is of version {version}, and this is version {VERSION}")
    if owner != node_id:
        raise StorageFailed(
            f"{path} is the directory of controller {owner}, and this is controller {node_id} (controller.id)"
        )
    hard = _hard_decoder.decode(_get(txn, _HARD))
    base_index, base_term = _AT.unpack(_get(txn, _BASE))
    snapshot = read_snapshot(txn)
    index, term = base_index, base_term
    for entry in read_entries(txn, base_index + 1, _INDEX_MAX):
        index += 1
        if entry.index != index or not term <= entry.term <= hard.term:
            raise StorageDamaged(f"{path}: entry {index} says it is {entry.index}, of term {entry.term}")
        term = entry.term
    with txn.cursor() as cursor:
        held = sum(bytes(key).startswith(_ENTRY) for key in cursor.iternext(values=False))
    if held != index - base_index:
        raise StorageDamaged(f"{path} has lost entries: {held} are there, and {index - base_index} follow each other")
    if not base_index <= snapshot.index <= index or hard.commit > index:
        raise StorageDamaged(
            f"{path}: entries {base_index + 1} to {index}, commit {hard.commit}, snapshot {snapshot.index}"
        )
    return StoredSummary(hard, base_index, base_term, index, term)


def write(txn: lmdb.Transaction, held: StoredSummary, ready: Ready, hard: HardState) -> StoredSummary:
    """Writes the state of a `Ready`, in the order of `Storage.save`, and returns a summary of the records."""
    base, last = (held.base_index, held.base_term), (held.last_index, held.last_term)
    if ready.snapshot is not None:
        _put_snapshot(txn, ready.snapshot)
        _delete(txn, 0, _INDEX_MAX)
        base = last = (ready.snapshot.index, ready.snapshot.term)
    elif ready.compaction is not None:
        _put_snapshot(txn, ready.compaction.snapshot)
        before = ready.compaction.first_index - 1
        if before > base[0]:
            base = (before, next(read_entries(txn, before, before + 1)).term)
            _delete(txn, 0, before + 1)
    if base != (held.base_index, held.base_term):
        _put(txn, _BASE, _AT.pack(*base))
    if ready.entries:
        assert base[0] < ready.entries[0].index <= last[0] + 1, "a gap in the log"
        if ready.entries[0].index <= last[0]:
            _delete(txn, ready.entries[0].index, _INDEX_MAX)
        with txn.cursor() as cursor:
            cursor.putmulti([_sealed(_key(entry.index), _encode(entry)) for entry in ready.entries])
        last = (ready.entries[-1].index, ready.entries[-1].term)
    if hard != held.hard:
        _put(txn, _HARD, _encode(hard))
    return StoredSummary(hard, *base, *last)


def _key(index: Index) -> bytes:
    return _ENTRY + index.to_bytes(8, "big")


def _sealed(key: bytes, data: bytes) -> tuple[bytes, bytes]:
    return key, _CRC.pack(extend(value(key), data)) + data


def _checked(key: bytes, held: bytes | None) -> bytes:
    """Returns the value behind its checksum. Raises `StorageDamaged`."""
    if held is None or len(held) < _CRC.size or _CRC.unpack_from(held)[0] != extend(value(key), held[_CRC.size :]):
        raise StorageDamaged(f"record {key!r} is {'not there' if held is None else 'damaged'}")
    return held[_CRC.size :]


def _get(txn: lmdb.Transaction, key: bytes) -> bytes:
    held = txn.get(key)
    return _checked(key, None if held is None else bytes(held))


def _put(txn: lmdb.Transaction, key: bytes, data: bytes) -> None:
    txn.put(*_sealed(key, data))


def _put_snapshot(txn: lmdb.Transaction, snapshot: Snapshot) -> None:
    _put(txn, _SNAPSHOT, _encode(msgspec.structs.replace(snapshot, data=b"")))
    _put(txn, _DATA, snapshot.data)


def _delete(txn: lmdb.Transaction, low: Index, high: Index) -> None:
    """Deletes the entries from `low` to before `high`."""
    end = _key(high)
    with txn.cursor() as cursor:
        there = cursor.set_range(_key(low))
        while there and bytes(cursor.key()) < end:
            there = cursor.delete()
