"""The effect of each record of the key-value store, decided in log order and the same wherever it is decided.

The view applies records to LMDB (`store.views.kv`), and the event loop's thread applies them to the slots ahead of the
view (`store.recent.kv_recent`). Both are a `KeyState`, and both are changed by `apply` alone. The time that decides
whether a key has expired is the frame's `stored_at_ms`: there is no clock here, so replicas and rebuilds decide alike.

A key lives in a namespace. Both together are a slot: namespace length u8 | namespace | key, in UTF-8, so that slots of
one namespace lie together and are ordered as their keys are. The namespace "" is the gateway's own.

A revision is the log offset of the change's frame plus its row plus one: unique, and it only grows. All changes of
one record have one revision; their number in the record tells them apart (`ordinal`).
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from store.api.keys import EXISTS, Change, Entry, Transacted
from store.base.errors import KeyTooLong, NamespaceFull, RevisionConflict, StoreError
from store.format.frame import Position
from store.format.records import KvDelete, KvExpired, KvLimits, KvPut, KvTransaction

KEY_BYTES_MAX = 480
NAMESPACE_BYTES_MAX = 28  # with a key and a length it stays below LMDB's limit of 511
OPERATIONS_COUNT_MAX = 1_024  # in one transaction; as many compares

KvRecord: TypeAlias = KvPut | KvDelete | KvExpired | KvTransaction | KvLimits
KV_RECORDS: Final = (KvPut, KvDelete, KvExpired, KvTransaction, KvLimits)

_HELD = struct.Struct(">QQQQH")
_SPACE = struct.Struct(">QQQQ")


class SlotContent(NamedTuple):
    """The content of a slot. `expires_at_ms` 0: never. Bytes: revision u64 | created u64 | expires u64 | version u64
    | ordinal u16 | value, big-endian.
    """

    revision: int
    created: int
    expires_at_ms: int
    version: int
    ordinal: int
    value: bytes

    def pack(self) -> bytes:
        """Encodes the slot as the view keeps it."""
        return _HELD.pack(self.revision, self.created, self.expires_at_ms, self.version, self.ordinal) + self.value

    @classmethod
    def unpack(cls, data: bytes) -> "SlotContent":
        """Decodes what `pack` has encoded."""
        number, created, expires_at_ms, version, ordinal = _HELD.unpack_from(data)
        return cls(number, created, expires_at_ms, version, ordinal, data[_HELD.size :])

    def live(self, now_ms: int) -> bool:
        """Returns whether the slot holds a value that has not expired."""
        return self.revision != 0 and not 0 < self.expires_at_ms <= now_ms

    def entry(self, at: bytes) -> Entry:
        """Returns the slot `at` as readers see it."""
        namespace, key = split(at)
        return Entry(key, self.value, self.revision, self.created, self.version, self.expires_at_ms or None, namespace)


GONE: Final = SlotContent(0, 0, 0, 0, 0, b"")


class KeySpace(NamedTuple):
    """The use of a namespace, expired keys included until they are swept, and its limits (0: no limit)."""

    keys: int = 0
    size_bytes: int = 0  # of keys and values
    keys_max: int = 0
    size_bytes_max: int = 0

    def pack(self) -> bytes:
        """Encodes the namespace as the view keeps it: four u64, big-endian."""
        return _SPACE.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> "KeySpace":
        """Decodes what `pack` has encoded."""
        return cls(*_SPACE.unpack(data))

    def grown(self, keys: int, size_bytes: int) -> "KeySpace":
        """Returns the space with so many more, or fewer, keys and bytes."""
        return KeySpace(self.keys + keys, self.size_bytes + size_bytes, self.keys_max, self.size_bytes_max)

    def over(self, before: "KeySpace") -> bool:
        """Returns whether the keys or the bytes have grown since `before`, and are beyond their limit."""
        return (self.keys > before.keys and 0 < self.keys_max < self.keys) or (
            self.size_bytes > before.size_bytes and 0 < self.size_bytes_max < self.size_bytes
        )


class KeyState(Protocol):
    """The state that records are applied to."""

    def get(self, at: bytes) -> SlotContent | None:
        """Returns the content of a slot, expired or not."""

    def put(self, at: bytes, held: SlotContent, before: SlotContent | None) -> None:
        """Puts a slot's new content in the place of `before`."""

    def remove(self, at: bytes, before: SlotContent) -> None:
        """Empties a slot."""

    def space(self, namespace: str) -> KeySpace:
        """Returns the use and the limits of a namespace."""

    def set_space(self, namespace: str, space: KeySpace) -> None:
        """Sets the use and the limits of a namespace."""


class Verdict(NamedTuple):
    """The outcome of a record, and which of its operations changed nothing.

    `void` is None when all of them did something, b"" when none did, else a bit for each, lowest first, set where it
    did nothing.
    """

    outcome: int | bool | Transacted | StoreError | None
    void: bytes | None


_NOTHING: Final = Verdict(None, b"")


# ---- keys


def check_key(key: str) -> str:
    """Returns the key itself. Raises `KeyTooLong`."""
    if len(key.encode()) > KEY_BYTES_MAX:
        raise KeyTooLong(f"a key has at most {KEY_BYTES_MAX} bytes")
    return key


def slot(namespace: str, key: str) -> bytes:
    """Returns the slot of a key, whatever its length."""
    name = namespace.encode()
    return bytes((min(len(name), 255),)) + name + key.encode()


def check_slot(namespace: str, key: str) -> bytes:
    """Returns the slot of a key. Raises `KeyTooLong`."""
    name, raw = namespace.encode(), key.encode()
    if len(name) > NAMESPACE_BYTES_MAX:
        raise KeyTooLong(f"a namespace has at most {NAMESPACE_BYTES_MAX} bytes")
    if len(raw) > KEY_BYTES_MAX:
        raise KeyTooLong(f"a key has at most {KEY_BYTES_MAX} bytes")
    return bytes((len(name),)) + name + raw


def slot_range(namespace: str, start: str, end: str | None) -> tuple[bytes, bytes]:
    """Returns the first slot of a range of keys, and the first behind it. Raises `KeyTooLong` for `start`."""
    first = check_slot(namespace, start)
    return first, _successor(slot(namespace, "")) if end is None else slot(namespace, end)


def end_of_prefix(prefix: str) -> str | None:
    """Returns the first key behind all those that begin with `prefix`; None when there is none."""
    for i in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[i])
        if point < 0x10FFFF:
            point += 1 if point != 0xD7FF else 0x801  # surrogates are no characters
            return prefix[:i] + chr(point)
    return None


def _successor(prefix: bytes) -> bytes:
    """Returns the first slot behind all those of one namespace. Its last byte is never 0xFF: no UTF-8 has it."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def split(at: bytes) -> tuple[str, str]:
    """Returns namespace and key of a slot."""
    end = 1 + at[0]
    return at[1:end].decode(), at[end:].decode()


def _slot_within(namespace: str, key: str) -> bytes | None:
    """Returns the slot that a record names, None for one that the view could not hold: the operation does nothing."""
    if len(namespace.encode()) > NAMESPACE_BYTES_MAX or len(key.encode()) > KEY_BYTES_MAX:
        return None
    return slot(namespace, key)


# ---- records


def revision(at: Position) -> int:
    """Returns the revision of the changes of the record at a position."""
    return at.frame + at.row + 1


def apply(state: KeyState, at: int, record: KvRecord, now_ms: int) -> Verdict:
    """Applies a record, at revision `at`; `now_ms` is when its frame was stored."""
    return _RULES[type(record)](state, at, record, now_ms)


def _live_revision(held: SlotContent | None, now_ms: int) -> int:
    return held.revision if held is not None and held.live(now_ms) else 0


def _holds(expected: int | None, actual: int) -> bool:
    return expected is None or expected == actual or (expected == EXISTS and actual != 0)


def _conflict(record: KvPut | KvDelete, actual: int) -> Verdict | None:
    """Returns the refusal of a change whose key is at another revision than it expects; None where it may be done."""
    if record.expected is None or _holds(record.expected, actual):
        return None
    return Verdict(RevisionConflict(record.key, record.expected, actual), b"")


def _put(state: KeyState, at: int, record: KvPut, now_ms: int) -> Verdict:
    where = _slot_within(record.namespace, record.key)
    if where is None:
        return _NOTHING
    before = state.get(where)
    actual = _live_revision(before, now_ms)
    if (conflict := _conflict(record, actual)) is not None:
        return conflict
    space = state.space(record.namespace)
    grown = space.grown(*_growth(where, record.value, before))
    if grown.over(space):
        return Verdict(_full(record.namespace, space), b"")
    _store(state, where, before, record.value, record.expires_at_ms, at=at, ordinal=0, now_ms=now_ms)
    state.set_space(record.namespace, grown)
    return Verdict(at, None)


def _delete(state: KeyState, at: int, record: KvDelete, now_ms: int) -> Verdict:
    where = _slot_within(record.namespace, record.key)
    if where is None:
        return _NOTHING
    before = state.get(where)
    actual = _live_revision(before, now_ms)
    if (conflict := _conflict(record, actual)) is not None:
        return conflict
    if before is None or not actual:
        return Verdict(False, b"")
    state.remove(where, before)
    state.set_space(record.namespace, state.space(record.namespace).grown(*_growth(where, None, before)))
    return Verdict(True, None)


def _expire(state: KeyState, at: int, record: KvExpired, now_ms: int) -> Verdict:
    void: list[bool] = []
    for namespace, key, expected in record.keys:
        where = _slot_within(namespace, key)
        before = None if where is None else state.get(where)
        if where is None or before is None or before.revision != expected or before.live(now_ms):
            void.append(True)  # replaced or removed meanwhile
            continue
        void.append(False)
        state.remove(where, before)
        state.set_space(namespace, state.space(namespace).grown(*_growth(where, None, before)))
    return Verdict(void.count(False), _bits(void))


def _transact(state: KeyState, at: int, record: KvTransaction, now_ms: int) -> Verdict:
    """Applies all or nothing: the compares, then the limits, then every operation."""
    for key, expected in record.compares:
        where = _slot_within(record.namespace, key)
        actual = 0 if where is None else _live_revision(state.get(where), now_ms)
        if not _holds(expected, actual):
            return Verdict(RevisionConflict(key, expected, actual), b"")
    slots = [_slot_within(record.namespace, key) for key, _, _ in record.operations]
    if None in slots or len(set(slots)) < len(slots):
        return _NOTHING
    space = grown = state.space(record.namespace)
    steps: list[tuple[bytes, SlotContent | None, bool]] = []
    for where, (_, value, _) in zip(slots, record.operations, strict=True):
        assert where is not None
        before = state.get(where)
        there = before is not None and before.live(now_ms)
        if value is not None or there:
            grown = grown.grown(*_growth(where, value, before))
        steps.append((where, before, there))
    if grown.over(space):
        return Verdict(_full(record.namespace, space), b"")
    void: list[bool] = []
    for ordinal, ((where, before, there), (_, value, expires)) in enumerate(zip(steps, record.operations, strict=True)):
        void.append(value is None and not there)
        if value is not None:
            _store(state, where, before, value, expires, at=at, ordinal=ordinal, now_ms=now_ms)
        elif before is not None and there:
            state.remove(where, before)
    if grown != space:
        state.set_space(record.namespace, grown)
    return Verdict(Transacted(at, tuple(there for _, _, there in steps)), _bits(void))


def _limit(state: KeyState, at: int, record: KvLimits, now_ms: int) -> Verdict:
    if len(record.namespace.encode()) <= NAMESPACE_BYTES_MAX:
        space = state.space(record.namespace)
        state.set_space(
            record.namespace, KeySpace(space.keys, space.size_bytes, record.keys_max, record.size_bytes_max)
        )
    return _NOTHING


_RULES: dict[type, Callable[[KeyState, int, Any, int], Verdict]] = {
    KvPut: _put,
    KvDelete: _delete,
    KvExpired: _expire,
    KvTransaction: _transact,
    KvLimits: _limit,
}


def _store(
    state: KeyState,
    where: bytes,
    before: SlotContent | None,
    value: bytes,
    expires_at_ms: int,
    *,
    at: int,
    ordinal: int,
    now_ms: int,
) -> None:
    """Puts a value; a key that was not there, or has expired, begins again at version 1."""
    if before is not None and before.live(now_ms):
        held = SlotContent(at, before.created, expires_at_ms, before.version + 1, ordinal, value)
    else:
        held = SlotContent(at, at, expires_at_ms, 1, ordinal, value)
    state.put(where, held, before)


def _growth(where: bytes, value: bytes | None, before: SlotContent | None) -> tuple[int, int]:
    """Returns how many keys and bytes a namespace gains when a slot's content changes (negative: it loses them)."""
    size = len(where) - 1 - where[0]
    keys, size_bytes = (0, 0) if value is None else (1, size + len(value))
    return (keys, size_bytes) if before is None else (keys - 1, size_bytes - size - len(before.value))


def _full(namespace: str, space: KeySpace) -> NamespaceFull:
    return NamespaceFull(namespace, keys_max=space.keys_max, size_bytes_max=space.size_bytes_max)


def _bits(void: Sequence[bool]) -> bytes | None:
    """Returns `Verdict.void` of some operations."""
    if not any(void):
        return None
    if all(void):
        return b""
    return sum(1 << i for i, nothing in enumerate(void) if nothing).to_bytes((len(void) + 7) // 8, "little")


# ---- changes


def changes_of(at: int, record: KvRecord, void: bytes | None) -> Iterator[tuple[str, Change]]:
    """Yields a record's changes at revision `at`, each with its namespace, in order; `void` as in `Verdict`."""
    if void == b"":
        return
    nothing = int.from_bytes(void or b"", "little")
    match record:
        case KvPut():
            expires = record.expires_at_ms or None
            yield record.namespace, Change("put", record.key, record.value, at, expires)
        case KvDelete():
            yield record.namespace, Change("delete", record.key, b"", at)
        case KvExpired():
            for i, (namespace, key, _) in enumerate(record.keys):
                if not nothing >> i & 1:
                    yield namespace, Change("expire", key, b"", at)
        case KvTransaction():
            for i, (key, value, expires_at_ms) in enumerate(record.operations):
                if value is not None:
                    yield record.namespace, Change("put", key, value, at, expires_at_ms or None)
                elif not nothing >> i & 1:
                    yield record.namespace, Change("delete", key, b"", at)
        case KvLimits():
            return
