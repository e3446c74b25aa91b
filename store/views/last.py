"""The newest record of every address: address hash u64 -> (log offset u64, row u32), big-endian."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from store.format.frame import LogOffset, Position
from store.log.run import FrameRun
from store.views.columns import Columns

_VALUE = struct.Struct(">QI")
_VALUE_DTYPE = np.dtype([("frame", ">u8"), ("row", ">u4")])
assert _VALUE.size == _VALUE_DTYPE.itemsize


class LastView:
    """The position of the newest record of each address."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Puts the last position of every address in some runs. Costs a put an address, not a row."""
        hashes, starts, rows = [], [], []
        for run in runs:
            kept = run.counted()
            if not len(kept):
                continue
            frame = np.searchsorted(run.ends, kept, side="right")
            begins = np.concatenate(([0], run.ends[:-1]))
            hashes.append(run.rows["address_hash"][kept])
            starts.append(np.array([p.start for p in run.placed], np.uint64)[frame])
            rows.append(kept - begins[frame])
        if not hashes:
            return
        found, newest = np.unique(np.concatenate(hashes)[::-1], return_index=True)
        values = np.empty(len(found), _VALUE_DTYPE)
        values["frame"] = np.concatenate(starts)[::-1][newest]
        values["row"] = np.concatenate(rows)[::-1][newest]
        with txn.cursor(db=self._db) as cursor:
            cursor.put_columns(Columns.of(found.astype(">u8"), values))

    def get(self, txn: Any, address_hash: int) -> Position | None:
        """Returns the position, None for an address that has no record."""
        value = txn.get(address_hash.to_bytes(8, "big"), db=self._db)
        if value is None:
            return None
        frame, row = _VALUE.unpack(value)
        return Position(LogOffset(frame), row)
