"""Guard rows, packed in a row of the key-value queue (`store.format.frame`).

    flags         ROW_FENCE or ROW_ONCE
    key_hash      the first half of the name
    address_hash  its second half
    id_hash       the epoch of a fence; 0 for a key
    time_ms       how many rows in front of this one it covers

The row's record is a `KvPut` like any other. A fence is raised by the record of `fence_record`, whose row is a guard
of the same name: an owner that is late cannot lower it.
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from google_crc32c import extend, value
from msgspec.structs import replace

from store.format.frame import FEW_ROWS, ROW, ROW_FENCE, ROW_ONCE, ROWS_DTYPE, Buffer, UnplacedFrame
from store.format.records import KV_QUEUE, VOID_QUEUE, KvPut, encode

FENCES, ONCES = "$fences", "$once"  # namespaces of the keys that guards depend on; the keys are names in hexadecimal
NAME_BYTES = 16
_HALF = NAME_BYTES // 2
_EPOCH = struct.Struct(">Q")
_GUARDS = ROW_FENCE | ROW_ONCE
_VOID = ROW.pack(VOID_QUEUE, 0, 0, 0, 0, 0, 0, 0)


class Guard(NamedTuple):
    """One guard of a frame: its row, the first row that it covers, and its subject."""

    row: int
    first: int
    name: bytes
    epoch: int
    once: bool

    @property
    def slot(self) -> tuple[str, str]:
        """The namespace and the key that it depends on."""
        return ONCES if self.once else FENCES, self.name.hex()


def guard_row(pos: int, size: int, name: bytes, *, covers: int, epoch: int = 0, once: bool = False) -> bytes:
    """Returns the row of a guard whose record has `size` bytes at `pos` of the payload."""
    low, high = int.from_bytes(name[:_HALF], "big"), int.from_bytes(name[_HALF:], "big")
    return ROW.pack(KV_QUEUE, pos, size, ROW_ONCE if once else ROW_FENCE, low, high, epoch, covers)


def guards_of(rows: Buffer) -> list[Guard]:
    """Returns the guards among some rows, in their order."""
    found: list[Guard] = []
    if len(rows) <= FEW_ROWS * ROW.size:
        some: Iterable[int] = range(len(rows) // ROW.size)
    else:
        table = np.frombuffer(rows, ROWS_DTYPE)
        some = np.flatnonzero((table["queue"] == KV_QUEUE) & (table["flags"] & _GUARDS != 0)).tolist()
    for row in some:
        queue, _, _, flags, low, high, epoch, covers = ROW.unpack_from(rows, row * ROW.size)
        if queue != KV_QUEUE or not flags & _GUARDS:
            continue
        name = low.to_bytes(_HALF, "big") + high.to_bytes(_HALF, "big")
        found.append(Guard(row, max(row - covers, 0), name, epoch, bool(flags & ROW_ONCE)))
    return found


def without(frame: UnplacedFrame, failed: Iterable[Guard]) -> UnplacedFrame:
    """Returns a frame in which the rows that some guards cover mean nothing; all others keep their places."""
    rows = bytearray(frame.rows)
    for guard in failed:
        start, end = guard.first * ROW.size, (guard.row + 1) * ROW.size
        rows[start:end] = _VOID * (guard.row + 1 - guard.first)
    kept = bytes(rows)
    return replace(frame, rows=kept, body_crc32c=extend(value(kept), bytes(frame.payload)))


def fence_record(name: bytes, epoch: int, *, expires_at_ms: int = 0) -> bytes:
    """Returns the record that raises a fence to an epoch. Its row has to be a guard of the same name and epoch."""
    return encode(KvPut(name.hex(), _EPOCH.pack(epoch), namespace=FENCES, expires_at_ms=expires_at_ms))


def epoch_in(kept: bytes) -> int:
    """Returns the epoch in the value of a fence's key."""
    return int(_EPOCH.unpack_from(kept)[0])
