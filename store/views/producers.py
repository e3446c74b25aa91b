"""Idempotent producers: id u64 -> newest sequence u64, then its newest frames' log offsets u64 each, oldest first.

Big-endian. At most `SEQUENCES_KEPT` frames of a producer, and the `PRODUCERS_MAX` producers that wrote last.
"""

import struct
from collections.abc import Sequence
from typing import Any

from store.format import LogOffset
from store.log import Placed
from store.producers import PRODUCERS_MAX, SEQUENCES_KEPT, ProducerTable
from store.run import Run

__all__ = ["ProducersView"]

_U64 = struct.Struct(">Q")


class ProducersView:
    """What a `ProducerTable` is restored from."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[Run]) -> None:
        """Add the frames of idempotent producers."""
        new: dict[int, list[Placed]] = {}
        for run in runs:
            for placed in run.placed:
                if placed.frame.producer_id:
                    new.setdefault(placed.frame.producer_id, []).append(placed)
        for producer_id, frames in new.items():
            key = _U64.pack(producer_id)
            older = txn.get(key, _U64.pack(0), db=self._db)
            last, kept = _U64.unpack_from(older)[0], older[_U64.size :]
            for placed in frames:
                if placed.frame.sequence != last + 1:  # forgotten meanwhile, and begun again
                    kept = b""
                last = placed.frame.sequence
                kept += _U64.pack(placed.start)
            txn.put(key, _U64.pack(last) + kept[-SEQUENCES_KEPT * _U64.size :], db=self._db)
        if new:
            self._evict(txn)

    def _evict(self, txn: Any) -> None:
        """Forget the producers that have not written for longest."""
        surplus = txn.stat(self._db)["entries"] - PRODUCERS_MAX
        if surplus > 0:
            with txn.cursor(db=self._db) as cursor:
                by_age = sorted((value[-_U64.size :], key) for key, value in cursor)
            for _, key in by_age[:surplus]:
                txn.delete(key, db=self._db)

    def restore(self, txn: Any, table: ProducerTable) -> None:
        """Fill a table, so that the producer that wrote last is the one used last."""
        with txn.cursor(db=self._db) as cursor:
            entries = sorted((value[-_U64.size :], key, value) for key, value in cursor)
        for _, key, value in entries:
            last, *frames = (n for (n,) in _U64.iter_unpack(value))
            table.restore(_U64.unpack(key)[0], last, [LogOffset(n) for n in frames])
