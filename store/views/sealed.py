"""Transactions whose values carry checksums: the only way in which views read and write LMDB.

An entry is `key -> value | CRC-32C u32, little-endian`. The checksum is of the view's name, the key and the value, so
that neither a flipped bit nor an entry of another view passes. It is checked wherever a value is read.

Flipped bits in keys, those of branch pages included, lead a search astray, and a key that is there seems to be missing.
So nothing counts as missing, and no range as complete, before the entries on both sides have passed: a search ends
between two entries that lie next to each other, and if their keys are those that were written, and the one sought
would be between them, it is not there. A cursor checks each entry that it comes to, and that keys ascend; so the entry
behind the end of a range is checked, too. A new entry is checked to lie where it belongs (`Table.guarded`).

None of this finds an entry that is an older one, or that a page no longer names: a flipped bit in a page's header, or a
page that the disk has never written. So each view's number of entries and the sum of their checksums are kept beside it
and change with it; `store.views.verify` compares them with the result of a walk.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from operator import add
from struct import Struct
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from google_crc32c import extend

from store.base.errors import ViewsDamaged
from store.integrity.tables import CRC_BYTES, RESIDUE, Table, crc_of, seal, unseal

PUTS = 512  # in one call: the GIL is held that long
_BEFORE = 2  # entries that are checked in front of the place where a search ends: one, and its order with another
_CRC = Struct("<I")
assert _CRC.size == CRC_BYTES

SealedItems: TypeAlias = Sequence[tuple[bytes, bytes]]  # keys, and values with their checksums


class SealedRows(Protocol):
    """Entries of a fixed size that seal themselves, as `store.views.columns.Columns`."""

    def sealed(self, salt: int, /) -> Iterator[tuple[SealedItems, int]]:
        """Yields the entries with their checksums, at most `PUTS` at a time, and the sum of these checksums."""


class _Cursor:
    """An LMDB cursor that checks each entry that it comes to, and that keys ascend. Methods are LMDB's.

    Each move raises `ViewsDamaged` where a key may not be the one that was written. A damaged value alone is only
    refused by `value`.
    """

    __slots__ = ("_cursor", "_error", "_held", "_key", "_table")

    def __init__(self, cursor: Any, table: Table) -> None:
        self._cursor = cursor
        self._table = table
        self._key = self._held = b""  # of the entry that it is at; empty: none
        self._error: ViewsDamaged | None = None  # of that entry's value

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._cursor.close()

    def first(self) -> bool:
        """Moves to the first entry; returns whether there is one."""
        return self._settle(self._cursor.first(), b"")

    def last(self) -> bool:
        """Moves to the last entry; returns whether there is one."""
        return self._settle(self._cursor.last(), b"")

    def set_range(self, key: bytes) -> bool:
        """Moves to the first entry from a key on; returns whether there is one."""
        return self._settle(self._cursor.set_range(key), key)

    def next(self) -> bool:
        """Moves to the next entry; returns whether there is one."""
        before = self._key
        if not self._cursor.next():
            return self._leave()
        if self._take() <= before:
            self._met(self._table.note_disorder(self._key))
        return True

    def prev(self) -> bool:
        """Moves to the entry before; returns whether there is one."""
        behind = self._key
        if not self._cursor.prev():
            return self._leave()
        if self._take() >= behind > b"":
            self._met(self._table.note_disorder(self._key))
        return True

    def _leave(self) -> bool:
        self._key = self._held = b""
        self._error = None
        return False

    def _take(self) -> bytes:
        """Checks the entry that the cursor is at, and returns its key."""
        key: bytes
        key, held = self._key, self._held = self._cursor.item()
        if len(held) < CRC_BYTES or extend(self._table.salt, key + held) != RESIDUE:
            self._error = self._met(self._table.note_damage(key, held))
        else:
            self._error = None
        return key

    def _settle(self, found: bool, sought: bytes) -> bool:
        """Checks the entries around the place where a search for a key has ended, and returns whether one is there.

        Without a key the search was for an end of the table.
        """
        cursor = self._cursor
        if not found and not (sought and cursor.last()):
            return self._leave()
        back = 0
        while back < _BEFORE and cursor.prev():
            back += 1
        if back < _BEFORE:
            cursor.first()
        before, key = b"", self._take()
        for _ in range(back):
            cursor.next()
            before, key = key, self._take()
            if before >= key:
                self._met(self._table.note_disorder(key))
        if not found:
            if key >= sought:
                self._met(self._table.note_disorder(sought))
            return self._leave()
        if sought and not before < sought <= key:
            self._met(self._table.note_disorder(sought))
        if not cursor.next():
            return cursor.last()  # type: ignore[no-any-return]
        held, error = self._held, self._error
        if self._take() <= key:
            self._met(self._table.note_disorder(key))
        cursor.prev()
        self._key, self._held, self._error = key, held, error
        return True

    def _met(self, error: ViewsDamaged) -> ViewsDamaged:
        """Raises an error that was met, or returns it where the keys are known to be sound."""
        if self._table.broken:
            raise error
        return error

    def key(self) -> bytes:
        """Returns the key at the cursor; empty: it is at no entry."""
        return self._key

    def value(self) -> bytes:
        """Returns the value at the cursor. Raises `ViewsDamaged`."""
        if self._error is not None:
            raise self._error
        return self._held[:-CRC_BYTES]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values from the cursor on, or from the first entry on. Raises `ViewsDamaged`."""
        found = bool(self._key) or self.first()
        while found:
            yield self._key, self.value()
            found = self.next()

    def each_key(self) -> Iterator[bytes]:
        """Yields keys from the cursor on, unchecked: for counting them."""
        found: Iterator[bytes] = self._cursor.iternext(keys=True, values=False)
        return found


class _WriteCursor(_Cursor):
    """One that also writes, and keeps count. It goes on where keys are damaged, of which the table then knows."""

    __slots__ = ("_txn",)

    def __init__(self, cursor: Any, table: Table, txn: "ReadTxn") -> None:
        super().__init__(cursor, table)
        self._txn = txn

    def _met(self, error: ViewsDamaged) -> ViewsDamaged:
        return error

    def set_range(self, key: bytes) -> bool:
        """Moves to the first entry from a key on; returns whether there is one."""
        found = super().set_range(key)
        if self._key != key:
            self._table.absent.add(key)
        return found

    def put(self, key: bytes, data: bytes) -> None:
        """Puts an entry, over an existing one."""
        self.put_sealed(key, seal(self._table.salt, key, data))

    def put_sealed(self, key: bytes, held: bytes) -> None:
        """Puts an entry with its checksum, over an existing one; a new one is checked to lie where it belongs."""
        table, cursor = self._table, self._cursor
        before = cursor.replace(key, held)
        self._key, self._held, self._error = key, held, None
        if before is not None:
            table.changed(key, 0, crc_of(held) - crc_of(before))
            if unseal(table.salt, key, before) is None:
                table.note_damage(key, before)
            return
        table.changed(key, 1, crc_of(held))
        if table.guarded and key not in table.absent:  # from where it is: another search might find a second one
            self._settle(cursor.key() == key, key)

    def delete(self) -> bool:
        """Deletes the entry at the cursor, which then is at the next one; returns whether there is one."""
        key, held = self._cursor.item()
        done: bool = self._cursor.delete()
        if done:
            self._table.changed(key, -1, -crc_of(held))
        if not self._cursor.key():
            self._leave()
        elif self._take() <= key:
            self._table.note_disorder(key)
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
        self._check_new([key for key, _ in sealed])

    def _check_new(self, keys: Sequence[bytes]) -> None:
        """Checks that new entries lie where they belong; those that lie one behind the other cost one search."""
        table, at = self._table, 0
        while table.guarded and not table.broken and at < len(keys):
            if keys[at] in table.absent:
                at += 1
                continue
            if not super().set_range(keys[at]) or self._key != keys[at]:
                table.note_disorder(keys[at])
                return
            for key in self._cursor.iternext(keys=True, values=False):
                if at == len(keys) or key != keys[at]:
                    if self._take() <= keys[at - 1]:  # the one behind them
                        table.note_disorder(keys[at - 1])
                    break
                at += 1


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
            self._missing(key, db)
            return None
        if len(held) < CRC_BYTES or extend(db.salt, key + held) != RESIDUE:
            raise db.note_damage(key, held)
        data: bytes = held[:-CRC_BYTES]
        return data

    def _missing(self, key: bytes, db: Table) -> None:
        """Checks that a key that was not found is not there. Raises `ViewsDamaged`."""
        with _Cursor(self._txn.cursor(db=db.handle), db) as cursor:
            if cursor.set_range(key) and cursor.key() == key:
                raise db.note_disorder(key)

    def cursor(self, *, db: Table) -> _Cursor:
        """Returns a cursor. Raises `ViewsDamaged`."""
        if db.broken:
            raise db.report(db.name, db.broken)
        return _Cursor(self._txn.cursor(db=db.handle), db)

    def close(self) -> None:
        """Gives the transaction back. Nothing can be read by it any more.

        LMDB's slot for a reader is free with the last reference to its transaction, and the traceback of an error that
        was raised meanwhile refers to this object until garbage is collected: so this object lets go of it.
        """
        txn, self._txn = self._txn, None
        txn.abort()

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
            self._missing(key, db)
            return None
        data = unseal(db.salt, key, held)
        if data is None:
            raise db.note_damage(key, held)
        return data

    def _missing(self, key: bytes, db: Table) -> None:
        if not db.broken:
            super()._missing(key, db)
            db.absent.add(key)

    def cursor(self, *, db: Table) -> _WriteCursor:
        """Returns a cursor."""
        return _WriteCursor(self._txn.cursor(db=db.handle), db, self)

    def put(self, key: bytes, data: bytes, *, db: Table, overwrite: bool = True) -> bool:
        """Puts an entry. Returns False, and puts nothing, if there is one and it may not `overwrite`."""
        held = seal(db.salt, key, data)
        if not overwrite and self._txn.get(key, db=db.handle) is not None:
            return False
        with self.cursor(db=db) as cursor:
            cursor.put_sealed(key, held)
        return True

    @property
    def unsealed(self) -> Any:
        """LMDB's own transaction, for the migration that seals values."""
        return self._txn

    def delete(self, key: bytes, *, db: Table) -> bool:
        """Deletes an entry; returns whether there was one."""
        held = self._txn.pop(key, db=db.handle)
        if held is None:
            with suppress(ViewsDamaged):  # the table knows
                self._missing(key, db)
            return False
        db.changed(key, -1, -crc_of(held))
        if unseal(db.salt, key, held) is None:
            db.note_damage(key, held)
        return True

    def pop(self, key: bytes, *, db: Table) -> bytes | None:
        """Deletes an entry; returns its value. Raises `ViewsDamaged`."""
        held = self._txn.pop(key, db=db.handle)
        if held is None:
            self._missing(key, db)
            return None
        data = unseal(db.salt, key, held)
        if data is None:
            raise db.note_damage(key, held)
        db.changed(key, -1, -crc_of(held))
        return data
