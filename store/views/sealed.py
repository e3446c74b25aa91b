"""Transactions whose values carry checksums: the only way in which views read and write LMDB.

An entry is `key -> value | CRC-32C u32, little-endian`. The checksum is of the view's name, the key and the value, so
that neither a flipped bit nor an entry of another view passes. It is checked wherever a value is read.

A checksum does not find an entry that is not there, or that is an older one: a flipped bit in a branch page, or a page
that the disk has never written. So each view's number of entries and the sum of their checksums are kept beside it and
change with it; `store.views.verify` compares them with the result of a walk.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import add
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from google_crc32c import extend, value

from store.base.errors import ViewsDamaged

CRC_BYTES = 4
RESIDUE = value(bytes(CRC_BYTES))  # of any data with its checksum behind it
_POLYNOMIAL = 0x82F63B78  # reflected
PUTS = 512  # in one call: the GIL is held that long
_TRIED_BYTES = 64 << 10  # from the end of a value; takes some 50 ms
_MASK = (1 << 64) - 1
_CRC = struct.Struct("<I")
_SUMS = struct.Struct(">QQ")  # number of entries, sum of their checksums
SUMS_BYTES = _SUMS.size
assert RESIDUE == 0x48674BC7
assert _CRC.size == CRC_BYTES

SealedItems: TypeAlias = Sequence[tuple[bytes, bytes]]  # keys, and values with their checksums


class SealedRows(Protocol):
    """Entries of a fixed size that seal themselves, as `store.views.columns.Columns`."""

    def sealed(self, salt: int, /) -> Iterator[tuple[SealedItems, int]]:
        """Yields the entries with their checksums, at most `PUTS` at a time, and the sum of these checksums."""


class Report(Protocol):
    """Notes damage of a view; returns the error to raise."""

    def __call__(self, view: str, why: str, found_by: str = "read", /) -> ViewsDamaged:
        """Takes a report of damage; `found_by`: "read" or "verification"."""


def seal(salt: int, key: bytes, data: bytes) -> bytes:
    """Returns a value with its checksum; `salt` is the checksum of the view's name."""
    crc: int = extend(salt, key + data)
    return data + crc.to_bytes(CRC_BYTES, "little")


def unseal(salt: int, key: bytes, held: bytes) -> bytes | None:
    """Returns the value; None where it differs from the sealed one."""
    return held[:-CRC_BYTES] if len(held) >= CRC_BYTES and extend(salt, key + held) == RESIDUE else None


def _is_in_value(salt: int, key: bytes, held: bytes) -> bool:
    """Returns whether a single flipped bit of the value explains the wrong checksum: then the key is sound.

    CRC-32C tells all single flips apart; they are tried from the last bit on (Koopman, "32-bit cyclic redundancy
    codes for Internet applications", DSN 2002).
    """
    found, flip = extend(salt, key + held) ^ RESIDUE, _POLYNOMIAL
    for _ in range(8 * min(len(held), _TRIED_BYTES)):
        if flip == found:
            return True
        flip = (flip >> 1) ^ (_POLYNOMIAL if flip & 1 else 0)
    return False


def crc_of(held: bytes) -> int:
    """Returns the checksum that a sealed value carries."""
    return int.from_bytes(held[-CRC_BYTES:], "little")


class Table:
    """One sub-database: its handle, and the number and sum of the entries that it should hold.

    One thread writes. `walked_to` is how far a walk has come, exclusive; changes before it change the counts of the
    walk too.
    """

    __slots__ = (
        "_new",
        "_walked_new",
        "broken",
        "count",
        "handle",
        "name",
        "report",
        "salt",
        "summed",
        "total",
        "walked_count",
        "walked_to",
        "walked_total",
    )

    def __init__(self, name: str, handle: Any, report: Report, *, summed: bool = True) -> None:
        self.name = name
        self.summed = summed  # else only the number is known, not the sum: 0
        self.handle = handle
        self.salt: int = value(name.encode())
        self.report = report
        self.broken = ""  # why nothing of it can be served: unknown entries are missing
        self.count = self.total = 0  # committed
        self._new = (0, 0)  # count and total that the open transaction adds
        self.walked_to = b""
        self.walked_count = self.walked_total = 0
        self._walked_new = (0, 0)

    def changed(self, key: bytes, count: int, total: int) -> None:
        """Counts so many entries more in the open transaction, at this key, and so much more in the sum."""
        if not self.summed:
            total = 0
        before = self._new
        self._new = (before[0] + count, before[1] + total)
        if key < self.walked_to:
            before = self._walked_new
            self._walked_new = (before[0] + count, before[1] + total)

    def note_damage(self, key: bytes, held: bytes, found_by: str = "read") -> ViewsDamaged:
        """Notes a damaged entry, and returns the error to raise. If its key may be damaged, the table serves nothing.

        Another key than the one that was written is not found by a search for that.
        """
        if not _is_in_value(self.salt, key, held):
            self.broken = (
                f"an entry, found at key {key[:64].hex()}, differs from the one written, as perhaps does its key"
            )
            return self.report(self.name, self.broken, found_by)
        return self.report(self.name, f"the value of key {key[:64].hex()} differs from the one written", found_by)

    def sums(self) -> bytes:
        """Returns number and sum, the open transaction's changes included."""
        return _SUMS.pack(self.count + self._new[0], (self.total + self._new[1]) & _MASK)

    def load(self, sums: bytes) -> None:
        """Begins with the sums that `sums` returned."""
        self.count, self.total = _SUMS.unpack(sums)

    def commit(self) -> None:
        """Takes over the counts of the open transaction, which is committed."""
        self.count, self.total = self.count + self._new[0], (self.total + self._new[1]) & _MASK
        self.walked_count += self._walked_new[0]
        self.walked_total += self._walked_new[1]
        self._new = self._walked_new = (0, 0)

    def abort(self) -> None:
        """Forgets the counts of the open transaction, which is given up."""
        self._new = self._walked_new = (0, 0)


class _Cursor:
    """An LMDB cursor whose values are checked. Methods are LMDB's."""

    __slots__ = ("_cursor", "_table", "first", "key", "last", "next", "prev", "set_range")

    def __init__(self, cursor: Any, table: Table) -> None:
        self._cursor = cursor
        self._table = table
        self.first, self.last, self.next, self.prev = cursor.first, cursor.last, cursor.next, cursor.prev
        self.key, self.set_range = cursor.key, cursor.set_range

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._cursor.close()

    def value(self) -> bytes:
        """Returns the value at the cursor. Raises `ViewsDamaged`."""
        key, held = self._cursor.item()
        if not key:  # behind the last entry
            return b""
        table = self._table
        if len(held) < CRC_BYTES or extend(table.salt, key + held) != RESIDUE:
            raise table.note_damage(key, held)
        data: bytes = held[:-CRC_BYTES]
        return data

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values from the cursor on. Raises `ViewsDamaged`."""
        table = self._table
        for key, held in self._cursor:
            data = unseal(table.salt, key, held)
            if data is None:
                raise table.note_damage(key, held)
            yield key, data

    def each_key(self) -> Iterator[bytes]:
        """Yields keys from the cursor on."""
        found: Iterator[bytes] = self._cursor.iternext(keys=True, values=False)
        return found


class _WriteCursor(_Cursor):
    """One that also writes, and keeps count."""

    __slots__ = ("_txn",)

    def __init__(self, cursor: Any, table: Table, txn: "ReadTxn") -> None:
        super().__init__(cursor, table)
        self._txn = txn

    def put(self, key: bytes, data: bytes) -> None:
        """Puts an entry, over an existing one."""
        table = self._table
        held = seal(table.salt, key, data)
        before = self._cursor.replace(key, held)
        _replaced(table, key, held, before)

    def delete(self) -> bool:
        """Deletes the entry at the cursor, which then is at the next one."""
        key, held = self._cursor.item()
        done: bool = self._cursor.delete()
        if done:
            self._table.changed(key, -1, -crc_of(held))
        return done

    def put_columns(self, columns: SealedRows) -> None:
        """Puts entries of different keys, sealed, over existing ones.

        Present entries are not looked up, which took as long as the puts: the table is not summed, but counted by LMDB.
        """
        table, cursor = self._table, self._cursor
        assert not table.summed
        walked = table.walked_to
        for items, _ in columns.sealed(table.salt):
            inside = [key for key, _ in items if key < walked] if walked else []
            new_inside = len(inside) - len(cursor.getmulti(inside)) if inside else 0
            before = self._txn.entries(table)
            cursor.putmulti(items)
            table.changed(b"", new_inside, 0)
            table.changed(walked, self._txn.entries(table) - before - new_inside, 0)

    def putnew_columns(self, columns: SealedRows) -> None:
        """Puts entries whose keys are not there, sealed; costs no look-up. Raises `ViewsDamaged` where one is."""
        for items, total in columns.sealed(self._table.salt):
            self._putnew(items, total)

    def putnew(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Puts entries of any size whose keys are not there. Raises `ViewsDamaged` where one is."""
        if not items:
            return
        keys, values = zip(*items, strict=True)
        crcs = list(map(extend, map(extend, repeat(self._table.salt), keys), values))
        self._putnew(list(zip(keys, map(add, values, map(_CRC.pack, crcs)), strict=True)), sum(crcs))

    def _putnew(self, sealed: SealedItems, total: int) -> None:
        table = self._table
        _, added = self._cursor.putmulti(sealed, overwrite=False)
        if added != len(sealed):
            raise table.report(table.name, f"{len(sealed) - added} entries are there before they are made")
        walked = table.walked_to
        inside = [crc_of(held) for key, held in sealed if key < walked] if walked else []
        table.changed(b"", len(inside), sum(inside))
        table.changed(walked, len(sealed) - len(inside), total - sum(inside))


class ReadTxn:
    """An LMDB transaction that reads, whose values are checked. Methods are LMDB's; `db` is a `Table`."""

    __slots__ = ("_txn",)

    def __init__(self, txn: Any) -> None:
        self._txn = txn

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """Returns a value, None where there is none. Raises `ViewsDamaged`."""
        if db.broken:
            raise db.report(db.name, db.broken)
        held = self._txn.get(key, db=db.handle)
        if held is None:
            return None
        if len(held) < CRC_BYTES or extend(db.salt, key + held) != RESIDUE:
            raise db.note_damage(key, held)
        data: bytes = held[:-CRC_BYTES]
        return data

    def cursor(self, *, db: Table) -> _Cursor:
        """Returns a cursor. Raises `ViewsDamaged`."""
        if db.broken:
            raise db.report(db.name, db.broken)
        return _Cursor(self._txn.cursor(db=db.handle), db)

    def abort(self) -> None:
        """Gives the transaction back."""
        self._txn.abort()

    def entries(self, db: Table) -> int:
        """Returns how many entries there are."""
        return int(self._txn.stat(db.handle)["entries"])

    def held(self, db: Table, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values as they lie there, unchecked, from a key on: for searches for damage."""
        cursor = self._txn.cursor(db=db.handle)
        found: Iterator[tuple[bytes, bytes]] = cursor.iternext() if cursor.set_range(start) else iter(())
        return found


class WriteTxn(ReadTxn):
    """One that also writes, and keeps count. It goes on in a broken view: a rebuild will come."""

    __slots__ = ()

    def get(self, key: bytes, *, db: Table) -> bytes | None:
        """Returns a value, None where there is none. Raises `ViewsDamaged`."""
        held = self._txn.get(key, db=db.handle)
        if held is None:
            return None
        data = unseal(db.salt, key, held)
        if data is None:
            raise db.note_damage(key, held)
        return data

    def cursor(self, *, db: Table) -> _WriteCursor:
        """Returns a cursor."""
        return _WriteCursor(self._txn.cursor(db=db.handle), db, self)

    def put(self, key: bytes, data: bytes, *, db: Table, overwrite: bool = True) -> bool:
        """Puts an entry. Returns False, and puts nothing, if there is one and it may not `overwrite`."""
        held = seal(db.salt, key, data)
        if overwrite:
            _replaced(db, key, held, self._txn.replace(key, held, db=db.handle))
            return True
        done: bool = self._txn.put(key, held, overwrite=False, db=db.handle)
        if done:
            db.changed(key, 1, crc_of(held))
        return done

    @property
    def unsealed(self) -> Any:
        """LMDB's own transaction, for the migration that seals values."""
        return self._txn

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Deletes an entry; returns whether there was one."""
        held = self._txn.pop(key, db=db.handle)
        if held is None:
            return False
        db.changed(key, -1, -crc_of(held))
        return True

    def pop(self, key: bytes, *, db: Table) -> bytes | None:
        """Deletes an entry; returns its value. Raises `ViewsDamaged`."""
        held = self._txn.pop(key, db=db.handle)
        if held is None:
            return None
        data = unseal(db.salt, key, held)
        if data is None:
            raise db.note_damage(key, held)
        db.changed(key, -1, -crc_of(held))
        return data


def _replaced(table: Table, key: bytes, held: bytes, before: bytes | None) -> None:
    if before is None:
        table.changed(key, 1, crc_of(held))
    else:
        table.changed(key, 0, crc_of(held) - crc_of(before))
