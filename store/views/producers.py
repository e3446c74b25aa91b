"""Idempotent producers: id u64 -> newest sequence u64, then its newest frames' log offsets u64 each, oldest first.

Big-endian. At most `SEQUENCES_KEPT` frames of a producer, and the `PRODUCERS_MAX` producers that wrote last; of those
of a single frame, whose ids are the greatest, the last `ONCE_MAX`.
"""

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from store.format.frame import ONCE_PRODUCER, LogOffset
from store.log.producers import ONCE_MAX, PRODUCERS_MAX, SEQUENCES_KEPT, ProducerTable
from store.log.run import FrameRun

_U64 = struct.Struct(">Q")
_FIRST_ONCE = _U64.pack(ONCE_PRODUCER)


class ProducersView:
    """The records from which a `ProducerTable` is restored."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Adds the frames of idempotent producers in log order: that order alone decides which ones are forgotten."""
        many, once = _Newest(txn, self._db, once=False), _Newest(txn, self._db, once=True)
        for producer_id, first, frames in _series(runs):
            newest = once if producer_id & ONCE_PRODUCER else many
            newest.add(producer_id, first, frames)
        many.finish()
        once.finish()

    def restore(self, txn: Any, table: ProducerTable) -> None:
        """Fills a table, so that the producer that wrote last is the one used last."""
        with txn.cursor(db=self._db) as cursor:
            entries = sorted((value[-_U64.size :], key, value) for key, value in cursor)
        for _, key, value in entries:
            last, *frames = (n for (n,) in _U64.iter_unpack(value))
            table.restore(_U64.unpack(key)[0], last, [LogOffset(n) for n in frames])


def _series(runs: Sequence[FrameRun]) -> Iterator[tuple[int, int, list[LogOffset]]]:
    """Yields the frames of idempotent producers in log order, those that follow each other together.

    They come as (producer, sequence of the first frame, where each begins).
    """
    producer_id, first, frames = 0, 0, list[LogOffset]()
    for run in runs:
        for placed in run.placed:
            frame = placed.frame
            if not frame.producer_id:
                continue
            if frame.producer_id != producer_id or frame.sequence != first + len(frames):
                if frames:
                    yield producer_id, first, frames
                producer_id, first, frames = frame.producer_id, frame.sequence, []
            frames.append(placed.start)
    if frames:
        yield producer_id, first, frames


class _Newest:
    """One kind of producers while a transaction changes them: changes are kept here until `finish`."""

    def __init__(self, txn: Any, db: Any, *, once: bool) -> None:
        self._txn = txn
        self._db = db
        self._once = once
        self._changed: dict[bytes, bytes] = {}  # the one that wrote last comes last; all wrote later than those stored
        self._stored: deque[bytes] | None = None  # once one has to go: the producers stored, oldest first
        self._count = -1  # of the producers; not known yet

    def add(self, producer_id: int, first: int, frames: Sequence[LogOffset]) -> None:
        """Adds the next frames, whose sequences follow each other from `first` on."""
        key = _U64.pack(producer_id)
        older = self._changed.pop(key, None) or self._txn.get(key, db=self._db)
        if older is None:
            self._make_room()
            kept = b""
        else:  # a sequence that does not follow: forgotten meanwhile, and begun again
            kept = older[_U64.size :] if first == _U64.unpack_from(older)[0] + 1 else b""
        newest = frames[-SEQUENCES_KEPT:]
        places = kept + struct.pack(f">{len(newest)}Q", *newest)
        self._changed[key] = _U64.pack(first + len(frames) - 1) + places[-SEQUENCES_KEPT * _U64.size :]

    def _make_room(self) -> None:
        """Counts one more, and forgets the producer that has not written for longest when that is one too many."""
        if self._count < 0:
            self._count = self._count_stored()
        if self._count < (ONCE_MAX if self._once else PRODUCERS_MAX):
            self._count += 1
            return
        if self._stored is None:
            self._stored = deque(key for _, key in sorted((value[-_U64.size :], key) for key, value in self._entries()))
        while self._stored:
            key = self._stored.popleft()
            if key not in self._changed:
                self._txn.delete(key, db=self._db)
                return
        key = next(iter(self._changed))
        del self._changed[key]
        self._txn.delete(key, db=self._db)

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(db=self._db) as cursor:
            if self._once and not cursor.set_range(_FIRST_ONCE):
                return
            for key, value in cursor:
                if not self._once and key >= _FIRST_ONCE:
                    return
                yield key, value

    def _count_stored(self) -> int:
        with self._txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(_FIRST_ONCE)
            once = sum(1 for _ in cursor.each_key()) if found else 0
        return once if self._once else int(self._txn.entries(self._db)) - once

    def finish(self) -> None:
        """Writes it down."""
        for key, value in self._changed.items():
            self._txn.put(key, value, db=self._db)
