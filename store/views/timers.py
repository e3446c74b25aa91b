"""Pending timers, in the order in which they are due.

b"t" + (due u64, log offset of the frame that set it u64, row u32) -> size of the rows u32, the rows, the payload;
b"held" -> how many are pending u64, and their bytes u64; missing when there are none. Big-endian.

The view holds the messages themselves and not their places in the log: a timer set months ahead outlives the segment it
came in, and keeping old segments for the sake of a few timers would keep everything else in them too.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any

from store.api.timers import TimersHeld
from store.base.errors import ViewsDamaged
from store.format.frame import FIRST_QUEUE, ROW, LogOffset, QueueNumber
from store.format.records import KV_QUEUE, TimerCancelled, TimerSet, TimersFired
from store.format.timer_key import TIMER_KEY, TimerKey, unpack_keys
from store.log.run import FrameRun

_SIZE = struct.Struct(">I")
_HELD = struct.Struct(">QQ")
_PREFIX, _HELD_KEY = b"t", b"held"


def is_sound(record: TimerSet) -> bool:
    """Returns whether a timer's message can be appended; a timer that cannot be has no effect.

    Its rows point into its payload and go to queues of messages, or to the KV for a retained one.
    """
    rows, size = record.rows, len(record.payload)
    if not rows or len(rows) % ROW.size:
        return False
    return all(
        pos + length <= size and (queue >= FIRST_QUEUE or queue == KV_QUEUE)
        for queue, pos, length, *_ in ROW.iter_unpack(rows)
    )


def size_of(record: TimerSet) -> int:
    """Returns the bytes that a timer counts for in `TimersHeld`."""
    return len(record.rows) + len(record.payload)


class TimersView:
    """Timers that are neither fired nor cancelled."""

    def __init__(self, db: Any) -> None:
        self._db = db

    # ---- writing

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Makes the changes that some runs hold."""
        count = size = 0
        for run in runs:
            for at, record in run.records:
                if isinstance(record, TimerSet):
                    if is_sound(record):
                        value = b"".join((_SIZE.pack(len(record.rows)), record.rows, record.payload))
                        txn.put(
                            _PREFIX + TIMER_KEY.pack(*TimerKey(record.due_ms, at.frame, at.row)), value, db=self._db
                        )
                        count += 1
                        size += size_of(record)
                    continue
                if isinstance(record, TimerCancelled):
                    gone = [TimerKey(record.due_ms, LogOffset(record.frame), record.row)]
                elif isinstance(record, TimersFired):
                    gone = unpack_keys(record.keys)
                else:
                    continue
                for key in gone:
                    value = txn.pop(_PREFIX + TIMER_KEY.pack(*key), db=self._db)
                    if value is not None:
                        count -= 1
                        size -= len(value) - _SIZE.size
        if count or size:
            held = self.held(txn)
            count, size = held.timers + count, held.size_bytes + size
            if count:
                txn.put(_HELD_KEY, _HELD.pack(count, size), db=self._db)
            else:  # as if there had never been one: runs may be cut anywhere
                txn.delete(_HELD_KEY, db=self._db)

    # ---- reading

    def held(self, txn: Any) -> TimersHeld:
        """Returns how many timers are pending, and the bytes that they hold."""
        value = txn.get(_HELD_KEY, db=self._db)
        return TimersHeld(0, 0) if value is None else TimersHeld(*_HELD.unpack(value))

    def size_bytes(self, txn: Any, key: TimerKey) -> int | None:
        """Returns the bytes that a pending timer counts for; None when it is not pending."""
        value = txn.get(_PREFIX + TIMER_KEY.pack(*key), db=self._db)
        return None if value is None else len(value) - _SIZE.size

    def due(
        self,
        txn: Any,
        start: TimerKey,
        *,
        until_ms: int,
        count: int,
        size_bytes: int,
        skip: Callable[[TimerKey], bool],
    ) -> tuple[list[tuple[TimerKey, TimerSet]], int | None]:
        """Returns the timers from a key on that are due by a time, without `skip`, and when the next one is due.

        They end at `count` of them, or when they hold `size_bytes`; there is at least one if there is any. Those with a
        damaged value are left out, and reported: they are due when the views have been made anew.
        """
        timers: list[tuple[TimerKey, TimerSet]] = []
        size = 0
        for key, read in self._pending(txn, start, skip):
            try:
                value = read()
            except ViewsDamaged:
                continue
            size += len(value)
            if key.due_ms > until_ms or len(timers) >= count or (timers and size > size_bytes):
                return timers, key.due_ms
            rows_end = _SIZE.size + _SIZE.unpack_from(value)[0]
            timers.append((key, TimerSet(key.due_ms, value[_SIZE.size : rows_end], value[rows_end:])))
        return timers, None

    def sizes(
        self, txn: Any, start: TimerKey | None, *, count: int, skip: Callable[[TimerKey], bool]
    ) -> list[tuple[TimerKey, int]]:
        """Returns the bytes that pending timers count for, from a key on, without those that `skip` names."""
        pending = self._pending(txn, start, skip)
        return [(key, len(read()) - _SIZE.size) for key, read in islice(pending, count)]

    def awaited(
        self, txn: Any, start: TimerKey | None, queues: Collection[int], *, count: int, size_bytes: int
    ) -> tuple[dict[int, TimerKey], int, TimerKey | None]:
        """Looks at the timers from a key on: at `count` of them, or as many as hold `size_bytes`.

        Returns the last timer with a row for each of some queues, how many it has looked at, and where to go on.
        """
        last: dict[int, TimerKey] = {}
        seen = size = 0
        for key, read in self._pending(txn, start, lambda _: False):
            if seen >= count or size >= size_bytes:
                return last, seen, key
            value = read()
            seen += 1
            size += len(value)
            rows = value[_SIZE.size : _SIZE.size + _SIZE.unpack_from(value)[0]]
            last.update((row[0], key) for row in ROW.iter_unpack(rows) if row[0] in queues)
        return last, seen, None

    def _pending(
        self, txn: Any, start: TimerKey | None, skip: Callable[[TimerKey], bool]
    ) -> Iterator[tuple[TimerKey, Callable[[], bytes]]]:
        """Yields the keys of pending timers; with each, what reads its value until the next one is asked for."""
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(_PREFIX if start is None else _PREFIX + TIMER_KEY.pack(*start))
            while found and (raw := cursor.key()).startswith(_PREFIX):
                due_ms, frame, row = TIMER_KEY.unpack_from(raw, 1)
                key = TimerKey(due_ms, LogOffset(frame), row)
                if not skip(key):
                    yield key, cursor.value
                found = cursor.next()


def queues_of(record: TimerSet) -> list[QueueNumber]:
    """Returns the queues of messages that a timer puts something in."""
    return [QueueNumber(queue) for queue, *_ in ROW.iter_unpack(record.rows) if queue >= FIRST_QUEUE]


def without(record: TimerSet, queues: Collection[int]) -> TimerSet:
    """Returns a timer without the rows for some queues."""
    if queues:
        rows = [row for row in ROW.iter_unpack(record.rows) if row[0] not in queues]
        record = TimerSet(record.due_ms, b"".join(ROW.pack(*row) for row in rows), record.payload if rows else b"")
    return record
