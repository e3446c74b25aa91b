"""The settled ranges and the lease policy of each leased queue, for each group.

b"s" + (group, queue u32, first offset u64) -> end u64; b"p" + (group, queue u32) -> policy; b"g" + (queue u32, group)
-> nothing, for the groups with a name, so that a queue's deletion finds them; b"d" + (queue u32) and b"e" + (group) ->
log offset u64, of the last deletion, while the log has it; b"t" -> log offset u64, where the log begins. A group is
its name's length u16 and its name in UTF-8; all numbers are big-endian.

The ranges of a group and queue are disjoint and do not touch, so a set of settled offsets has exactly one form.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from store.api.kv_rules import KEY_BYTES_MAX
from store.format.frame import LogOffset, QueueNumber, QueueOffset
from store.format.policy import DEFAULT, LeasePolicy
from store.format.ranges import Range, RangeSet
from store.format.records import DeadLettered, GroupDeleted, LeasePolicySet, LogTrimmed, QueueDeleted, Record, Settled
from store.log.run import FrameRun

_QUEUE = struct.Struct(">I")
_OFFSET = struct.Struct(">Q")
_SETTLED, _POLICY, _GROUP = b"s", b"p", b"g"
DELETED_COUNT_MAX = 65_536  # notes of deleted queues kept for timers
_QUEUE_DELETED, _GROUP_DELETED, _TRIMMED = b"d", b"e", b"t"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LeasePolicy).decode


class SettledView:
    """Settled offsets and policies by group and queue.

    `has_timers` says whether timers are pending, which may fire into queues that are gone.
    """

    def __init__(self, db: Any, has_timers: Callable[[Any], bool]) -> None:
        self._db = db
        self._has_timers = has_timers

    # ---- writing

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Adds the settlements of some runs; a deleted queue, or group, loses everything."""
        added: dict[tuple[str, int], RangeSet] = {}
        for run in runs:
            for at, record in run.records:
                self._apply(txn, at.frame, record, added)
        for (group, queue), ranges in added.items():
            self._know(txn, group, queue)
            prefix = _SETTLED + _key(group, queue)
            with txn.cursor(db=self._db) as cursor:
                for start, end in ranges:
                    _merge(cursor, prefix, start, end)

    def _apply(self, txn: Any, frame: LogOffset, record: Record, added: dict[tuple[str, int], RangeSet]) -> None:
        """Makes the change of one record, and gathers settled ranges, which are the same in any order."""
        match record:
            case Settled(queue=queue, ranges=ranges, group=group, known=known) if (
                _fits(group) and self._deleted(txn, queue, group) < known
            ):
                gathered = added.setdefault((group, queue), RangeSet())
                for start, end in ranges:
                    gathered.add(start, end)
            case DeadLettered(queue=queue, letters=letters, group=group, known=known) if (
                _fits(group) and self._deleted(txn, queue, group) < known
            ):
                gathered = added.setdefault((group, queue), RangeSet())
                for letter in letters:
                    gathered.add(letter.offset, letter.offset + 1)
            case LeasePolicySet(queue=queue, group=group, policy=policy) if _fits(group):
                self._know(txn, group, queue)
                txn.put(_POLICY + _key(group, queue), _encode(policy), db=self._db)
            case QueueDeleted(queue=queue):
                txn.put(_QUEUE_DELETED + _QUEUE.pack(queue), _OFFSET.pack(frame), db=self._db)
                unwritten = [name for name, its_queue in added if its_queue == queue]
                for group in dict.fromkeys(["", *self._groups(txn, queue), *unwritten]):
                    added.pop((group, queue), None)
                    self._delete(txn, group, queue)
            case GroupDeleted(group=group) if group and _fits(group):
                txn.put(_GROUP_DELETED + _group(group), _OFFSET.pack(frame), db=self._db)
                queues = {_QUEUE.unpack(key[-_QUEUE.size :])[0] for key in self._keys(txn, _POLICY + _group(group))}
                prefix = _SETTLED + _group(group)
                queues |= {_QUEUE.unpack_from(key, len(prefix))[0] for key in self._keys(txn, prefix)}
                queues |= {queue for name, queue in added if name == group}
                for queue in sorted(queues):
                    added.pop((group, queue), None)
                    self._delete(txn, group, queue)
            case LogTrimmed(first=first):
                self._trim(txn, min(first, frame))
            case _:
                pass

    def _trim(self, txn: Any, first: int) -> None:
        """Deletes notes of deletions that retention removed from the log, with the messages leased before them.

        Those of queues stay while timers are pending, unless they are very many.
        """
        if first <= self._number(txn, _TRIMMED):
            return
        txn.put(_TRIMMED, _OFFSET.pack(first), db=self._db)
        queues = list(self._keys(txn, _QUEUE_DELETED))
        if len(queues) <= DELETED_COUNT_MAX and self._has_timers(txn):
            queues = []
        for key in [*queues, *self._keys(txn, _GROUP_DELETED)]:
            if self._number(txn, key) < first:
                txn.delete(key, db=self._db)

    def _number(self, txn: Any, key: bytes) -> int:
        value = txn.get(key, db=self._db)
        return -1 if value is None else int(_OFFSET.unpack(value)[0])

    def _know(self, txn: Any, group: str, queue: int) -> None:
        if group:
            txn.put(_GROUP + _QUEUE.pack(queue) + _group(group), b"", db=self._db)

    def _delete(self, txn: Any, group: str, queue: int) -> None:
        for prefix in (_SETTLED + _key(group, queue), _POLICY + _key(group, queue)):
            for key in self._keys(txn, prefix):
                txn.delete(key, db=self._db)
        txn.delete(_GROUP + _QUEUE.pack(queue) + _group(group), db=self._db)

    def _groups(self, txn: Any, queue: int) -> list[str]:
        prefix = _GROUP + _QUEUE.pack(queue)
        return [key[len(prefix) + 2 :].decode() for key in self._keys(txn, prefix)]

    def _keys(self, txn: Any, prefix: bytes) -> list[bytes]:
        keys: list[bytes] = []
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(prefix)
            while found and (key := cursor.key()).startswith(prefix):
                keys.append(key)
                found = cursor.next()
        return keys

    # ---- reading

    def get(self, txn: Any, queue: QueueNumber, group: str = "") -> list[Range]:
        """Returns the settled ranges of a group and queue, ascending."""
        prefix = _SETTLED + _key(group, queue)
        ranges = []
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(prefix)
            while found and (key := cursor.key()).startswith(prefix):
                ranges.append((_OFFSET.unpack_from(key, len(prefix))[0], _OFFSET.unpack(cursor.value())[0]))
                found = cursor.next()
        return ranges

    def first_unsettled(self, txn: Any, queue: QueueNumber, offset: QueueOffset, group: str = "") -> QueueOffset:
        """Returns the first offset from one on that is not settled."""
        prefix = _SETTLED + _key(group, queue)
        with txn.cursor(db=self._db) as cursor:
            before = cursor.prev() if cursor.set_range(prefix + _OFFSET.pack(offset + 1)) else cursor.last()
            if not before or not cursor.key().startswith(prefix):
                return offset
            return QueueOffset(max(offset, _OFFSET.unpack(cursor.value())[0]))  # ranges do not touch: one is enough

    def deleted_at(self, txn: Any, queue: QueueNumber, group: str = "") -> int:
        """Returns where in the log a queue or group was deleted; -1: never. Leases up to there have ended."""
        return max(self._number(txn, _TRIMMED) - 1, self._deleted(txn, queue, group))

    def queue_deleted_at(self, txn: Any, queue: int) -> int:
        """Returns the last deletion of a queue that the log has, -1: none."""
        return self._number(txn, _QUEUE_DELETED + _QUEUE.pack(queue))

    def _deleted(self, txn: Any, queue: int, group: str) -> int:
        """Returns the last deletion of either that the log has, -1: none."""
        return max(self.queue_deleted_at(txn, queue), self._number(txn, _GROUP_DELETED + _group(group)))

    def policy(self, txn: Any, queue: QueueNumber, group: str = "") -> LeasePolicy:
        """Returns the policy of a group's leases of a queue."""
        value = txn.get(_POLICY + _key(group, queue), db=self._db)
        return DEFAULT if value is None else _decode(value)


def _fits(group: str) -> bool:
    return len(group.encode()) <= KEY_BYTES_MAX


def _group(group: str) -> bytes:
    name = group.encode()
    return len(name).to_bytes(2, "big") + name


def _key(group: str, queue: int) -> bytes:
    return _group(group) + _QUEUE.pack(queue)


def _merge(cursor: Any, prefix: bytes, start: int, end: int) -> None:
    """Adds a range and takes in those it overlaps or touches."""
    key = prefix + _OFFSET.pack(start)
    # The one before may reach up to this one.
    before = (cursor.prev() if cursor.set_range(key) else cursor.last()) and cursor.key().startswith(prefix)
    if before:
        its_start, its_end = _OFFSET.unpack_from(cursor.key(), len(prefix))[0], _OFFSET.unpack(cursor.value())[0]
        if its_end >= start:  # as it mostly does: it stays, and is replaced
            end = max(end, its_end)
            key = prefix + _OFFSET.pack(its_start)
    found = cursor.next() if before else cursor.set_range(key)
    while found and cursor.key().startswith(prefix) and _OFFSET.unpack_from(cursor.key(), len(prefix))[0] <= end:
        end = max(end, _OFFSET.unpack(cursor.value())[0])
        found = cursor.delete()
    cursor.put(key, _OFFSET.pack(end))
