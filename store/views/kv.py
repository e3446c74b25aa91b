"""The key-value view: b"k" + key in UTF-8 -> revision u64, big-endian, + value.

A revision is the log offset of the change's frame plus its row plus one: unique, and it only grows. Whether a
compare-and-set holds is decided when its record is applied, in log order, so every replica decides alike.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from store.client import Entry
from store.errors import KeyTooLong, RevisionConflict
from store.format import Position
from store.records import KvDelete, KvPut
from store.run import Run

__all__ = ["KEY_BYTES_MAX", "KvView", "check_key", "conflict", "revision"]

KEY_BYTES_MAX = 480  # LMDB's own limit is 511
_PREFIX = b"k"  # LMDB has no empty keys


def check_key(key: str) -> str:
    """The key itself; raises `KeyTooLong`."""
    if len(key.encode()) > KEY_BYTES_MAX:
        raise KeyTooLong(f"a key has at most {KEY_BYTES_MAX} bytes")
    return key


def revision(at: Position) -> int:
    """The revision of the change at a position."""
    return at.frame + at.row + 1


def conflict(record: KvPut | KvDelete, actual: int) -> RevisionConflict | None:
    """Why a change may not be made to a key at revision `actual` (0: not there)."""
    if record.expected is None or record.expected == actual:
        return None
    return RevisionConflict(record.key, record.expected, actual)


class KvView:
    """Keys and values."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[Run]) -> None:
        """Make the changes that some runs hold."""
        for run in runs:
            for at, record in run.records:
                if not isinstance(record, KvPut | KvDelete):
                    continue
                key = _PREFIX + record.key.encode()
                if len(record.key.encode()) > KEY_BYTES_MAX or conflict(record, self._revision(txn, key)):
                    continue
                if isinstance(record, KvPut):
                    txn.put(key, revision(at).to_bytes(8, "big") + record.value, db=self._db)
                else:
                    txn.delete(key, db=self._db)

    def _revision(self, txn: Any, key: bytes) -> int:
        value = txn.get(key, b"", db=self._db)
        return int.from_bytes(value[:8], "big")

    def revision(self, txn: Any, key: str) -> int:
        """A key's revision, 0 when it is not there."""
        return self._revision(txn, _PREFIX + key.encode())

    def get(self, txn: Any, key: str) -> Entry | None:
        """One entry."""
        value = txn.get(_PREFIX + key.encode(), db=self._db)
        return None if value is None else Entry(key, value[8:], int.from_bytes(value[:8], "big"))

    def prefix(self, txn: Any, prefix: str, after: str) -> Iterator[Entry]:
        """Entries whose key begins with `prefix` and is greater than `after`, by key."""
        start, skip = _PREFIX + prefix.encode(), _PREFIX + after.encode()
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(max(start, skip))
            if found and after and cursor.key() == skip:
                found = cursor.next()
            while found and (key := cursor.key()).startswith(start):
                value = cursor.value()
                yield Entry(key[1:].decode(), value[8:], int.from_bytes(value[:8], "big"))
                found = cursor.next()
