"""Migrates views of format 4, whose values carry no checksums, to format 5, in place.

A log that has lost its beginning cannot make its views anew, so they are changed, not rebuilt. Each transaction seals
some thousand entries and notes the last one; a crash goes on behind it. From the first one on the format is none that
an older version takes, which would read half of the values with checksums.

The former value is unknown: one that is damaged by then is sealed as it is.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from store.integrity.tables import Table, crc_of, seal
from store.views.layout import FORMAT, SEALING, TABLES
from store.views.sealed import WriteTxn

logger = logging.getLogger(__name__)

_ENTRIES = 4096  # in one transaction
_BYTES = 8 << 20  # the same, of values
_PLACE = b"sealing"

Writing = Callable[[], AbstractContextManager[WriteTxn]]


def seal_all(writing: Writing, tables: Mapping[str, Table], meta: Table, marks: Mapping[bytes, int]) -> None:
    """Seals every value; goes on where it was cut short. `marks` are those of empty views. Raises as writing does."""
    logger.warning("the views are given checksums, once; this takes a moment for each million entries")
    number = 0
    while number < len(TABLES):
        with writing() as txn:
            lmdb_txn = txn.unsealed
            number, after = _place(lmdb_txn, meta)
            if number < len(TABLES):
                number, after = _seal_some(lmdb_txn, tables[TABLES[number]], number, after)
                lmdb_txn.put(_PLACE, bytes((number,)) + after, db=meta.handle)
                lmdb_txn.put(b"format", SEALING, db=meta.handle)
    with writing() as txn:
        lmdb_txn = txn.unsealed
        for name, missing in marks.items():
            data = lmdb_txn.get(name, missing.to_bytes(8, "big"), db=meta.handle)
            lmdb_txn.put(name, seal(meta.salt, name, data), db=meta.handle)
        lmdb_txn.delete(_PLACE, db=meta.handle)
        lmdb_txn.put(b"format", seal(meta.salt, b"format", FORMAT), db=meta.handle)
    logger.info("the views have checksums", extra={"entries": sum(table.count for table in tables.values())})


def _seal_some(txn: Any, table: Table, number: int, after: bytes) -> tuple[int, bytes]:
    """Seals some entries of a table, behind a key, and returns where to go on."""
    last = None
    with txn.cursor(db=table.handle) as cursor:
        for key, data in _some(cursor, after):
            held = seal(table.salt, key, data)
            cursor.put(key, held)
            table.changed(key, 1, crc_of(held))
            last = key
    return (number + 1, b"") if last is None else (number, last)


def _place(txn: Any, meta: Table) -> tuple[int, bytes]:
    """Returns which table is being sealed, and behind which key."""
    found = txn.get(_PLACE, db=meta.handle)
    return (0, b"") if found is None else (found[0], found[1:])


def _some(cursor: Any, after: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries behind a key, as many as one transaction changes; the cursor may be written with meanwhile."""
    found = cursor.set_range(after) if after else cursor.first()
    if found and after and cursor.key() == after:
        found = cursor.next()
    count = size = 0
    while found and count < _ENTRIES and size < _BYTES:
        key, data = cursor.item()
        yield key, data
        count, size = count + 1, size + len(data)
        found = cursor.next()
