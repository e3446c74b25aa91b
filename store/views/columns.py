"""Sealing many entries of one size: the loops over them are in C.

An entry takes 0.2 us, its checksum 0.06 of that; sealed one after the other in Python it took 0.5 us, a tenth of the
time of storing a small frame.
"""

from collections.abc import Iterator
from itertools import chain, repeat
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from google_crc32c import extend

from store.integrity.tables import CRC_BYTES
from store.views.sealed import PUTS, SealedItems

_FEW = 16  # up to here Python is cheaper than NumPy's fixed cost


class Columns(NamedTuple):
    """Entries whose keys have one size and whose values have another: each key with its value, back to back."""

    rows: bytes
    key_size: int
    value_size: int

    @classmethod
    def of(cls, keys: npt.NDArray[Any], values: npt.NDArray[Any]) -> "Columns":
        """Joins `keys` and `values`, arrays of one dimension whose items are a key and a value each."""
        count, key_size, value_size = len(keys), keys.dtype.itemsize, values.dtype.itemsize
        rows = np.empty((count, key_size + value_size), np.uint8)
        rows[:, :key_size] = np.ascontiguousarray(keys).view(np.uint8).reshape(count, key_size)
        rows[:, key_size:] = np.ascontiguousarray(values).view(np.uint8).reshape(count, value_size)
        return cls(rows.tobytes(), key_size, value_size)

    def sealed(self, salt: int) -> Iterator[tuple[SealedItems, int]]:
        """Yields the entries with their checksums, `PUTS` at a time, and the sum of these checksums."""
        size = self.key_size + self.value_size
        one = Struct(f"{size}s")
        for at in range(0, len(self.rows), PUTS * size):
            some = self.rows[at : at + PUTS * size]
            rows = chain.from_iterable(one.iter_unpack(some))
            if len(some) <= _FEW * size:
                yield self._few(list(rows), salt)
                continue
            count = len(some) // size
            crcs = np.fromiter(map(extend, repeat(salt), rows), np.dtype("<u4"), count)
            whole = np.empty((count, size + CRC_BYTES), np.uint8)
            whole[:, :size] = np.frombuffer(some, np.uint8).reshape(count, size)
            whole[:, size:] = crcs.view(np.uint8).reshape(count, CRC_BYTES)
            pair = Struct(f"{self.key_size}s{self.value_size + CRC_BYTES}s")
            yield list(pair.iter_unpack(whole.tobytes())), int(crcs.sum(dtype=np.uint64))

    def _few(self, rows: list[bytes], salt: int) -> tuple[SealedItems, int]:
        key_size = self.key_size
        crcs = [extend(salt, row) for row in rows]
        items = [
            (row[:key_size], row[key_size:] + crc.to_bytes(CRC_BYTES, "little"))
            for row, crc in zip(rows, crcs, strict=True)
        ]
        return items, sum(crcs)
