"""The key-value view, in four sub-databases; all numbers big-endian.

    kv         slot (`store.api.kv_rules`)                     -> what it holds (`SlotContent`)
    kv_expiry  expires_at_ms u64 | revision u64 | ordinal u16       -> slot
    kv_spaces  b"n" + namespace                                     -> what it holds and may hold (`KeySpace`)
    kv_void    revision u64 -> which operations of the record changed nothing (`Verdict.void`)

The last one is what makes the log's records a history: the record alone does not tell whether a compare-and-set held.
It has entries for the exceptions only, each smaller than its record, and loses them with the log when that is trimmed:
so it is bounded by the kept part of the log.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from store.api.keys import Entry
from store.api.kv_rules import KV_RECORDS, KeySpace, SlotContent, apply, revision, slot
from store.format.records import LogTrimmed
from store.log.run import FrameRun

_EXPIRY_BYTES = 18
_NO_SPACE = KeySpace()


class KvView:
    """Keys and values. Methods take the transaction they are to read or write in."""

    def __init__(self, entries: Any, expiry: Any, spaces: Any, void: Any) -> None:
        self._entries = entries
        self._expiry = expiry
        self._spaces = spaces
        self._void = void

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Makes the changes that some runs hold."""
        state = StoredState(txn, self._entries, self._expiry, self._spaces)
        for run in runs:
            for at, record in run.records:
                if isinstance(record, LogTrimmed):
                    self.forget_voids(txn, min(record.first, at.frame))
                if not isinstance(record, KV_RECORDS):
                    continue
                number = revision(at)
                void = apply(state, number, record, run.frame_stored_at_ms(at.frame)).void
                if void is not None:
                    txn.put(_u64(number), void, db=self._void)
        state.finish()

    def state(self, txn: Any) -> "StoredState":
        """Returns the stored state, for looking up."""
        return StoredState(txn, self._entries, self._expiry, self._spaces)

    def held(self, txn: Any, at: bytes) -> SlotContent | None:
        """Returns a slot's content."""
        data = txn.get(at, db=self._entries)
        return None if data is None else SlotContent.unpack(data)

    def get(self, txn: Any, key: str, namespace: str = "") -> Entry | None:
        """Returns one entry, expired or not."""
        at = slot(namespace, key)
        held = self.held(txn, at)
        return None if held is None else held.entry(at)

    def slots(self, txn: Any, first: bytes, end: bytes) -> Iterator[tuple[bytes, SlotContent]]:
        """Yields the slots from `first` to `end` (exclusive) with their content, in order."""
        with txn.cursor(db=self._entries) as cursor:
            found = cursor.set_range(first)
            while found and (at := cursor.key()) < end:
                yield at, SlotContent.unpack(cursor.value())
                found = cursor.next()

    def due(self, txn: Any, now_ms: int) -> Iterator[tuple[bytes, int]]:
        """Yields slot and revision of the entries that expire up to a time, earliest first."""
        with txn.cursor(db=self._expiry) as cursor:
            found = cursor.first()
            while found:
                key = cursor.key()
                if int.from_bytes(key[:8], "big") > now_ms:
                    return
                yield cursor.value(), int.from_bytes(key[8:16], "big")
                found = cursor.next()

    def next_due_ms(self, txn: Any) -> int | None:
        """Returns when the first key expires."""
        with txn.cursor(db=self._expiry) as cursor:
            return int.from_bytes(cursor.key()[:8], "big") if cursor.first() else None

    def voids(self, txn: Any, first: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yields the records of some revisions that did less than they say: revision and `Verdict.void`."""
        with txn.cursor(db=self._void) as cursor:
            found = cursor.set_range(_u64(first))
            while found and (at := int.from_bytes(cursor.key(), "big")) < end:
                yield at, cursor.value()
                found = cursor.next()

    def forget_voids(self, txn: Any, below: int) -> None:
        """Removes the entries of records that the log no longer has: those below a revision."""
        with txn.cursor(db=self._void) as cursor:
            found = cursor.first()
            while found and int.from_bytes(cursor.key(), "big") < below:
                found = cursor.delete()

    def spaces(self, txn: Any) -> Iterator[tuple[str, KeySpace]]:
        """Yields all namespaces."""
        with txn.cursor(db=self._spaces) as cursor:
            for name, data in cursor:
                yield name[1:].decode(), KeySpace.unpack(data)


class StoredState:
    """The view as a `store.api.kv_rules.KeyState`, in one transaction. `finish` writes the totals of namespaces."""

    def __init__(self, txn: Any, entries: Any, expiry: Any, spaces: Any) -> None:
        self._txn = txn
        self._entries = entries
        self._expiry = expiry
        self._spaces = spaces
        self._changed: dict[str, KeySpace] = {}

    def get(self, at: bytes) -> SlotContent | None:
        """Returns a slot's content."""
        data = self._txn.get(at, db=self._entries)
        return None if data is None else SlotContent.unpack(data)

    def put(self, at: bytes, held: SlotContent, before: SlotContent | None) -> None:
        """Replaces it."""
        if before is not None:
            self._forget_expiry(before)
        self._txn.put(at, held.pack(), db=self._entries)
        if held.expires_at_ms:
            self._txn.put(_expiry_key(held), at, db=self._expiry)

    def remove(self, at: bytes, before: SlotContent) -> None:
        """Removes it."""
        self._forget_expiry(before)
        self._txn.delete(at, db=self._entries)

    def _forget_expiry(self, before: SlotContent) -> None:
        if before.expires_at_ms:
            self._txn.delete(_expiry_key(before), db=self._expiry)

    def space(self, namespace: str) -> KeySpace:
        """Returns a namespace's size and limits."""
        space = self._changed.get(namespace)
        if space is None:
            data = self._txn.get(_space_key(namespace), db=self._spaces)
            space = _NO_SPACE if data is None else KeySpace.unpack(data)
        return space

    def set_space(self, namespace: str, space: KeySpace) -> None:
        """Keeps the use and the limits of a namespace until `finish`."""
        self._changed[namespace] = space

    def finish(self) -> None:
        """Writes the namespaces' sizes; one that is empty and without limits is forgotten."""
        for namespace, space in self._changed.items():
            if space == _NO_SPACE:
                self._txn.delete(_space_key(namespace), db=self._spaces)
            else:
                self._txn.put(_space_key(namespace), space.pack(), db=self._spaces)


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _expiry_key(held: SlotContent) -> bytes:
    key = _u64(held.expires_at_ms) + _u64(held.revision) + held.ordinal.to_bytes(2, "big")
    assert len(key) == _EXPIRY_BYTES
    return key


def _space_key(namespace: str) -> bytes:
    return b"n" + namespace.encode()
