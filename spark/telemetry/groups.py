"""Rows of a table by group: one integer a key, so that every sum over groups is one pass of numpy."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Indices: TypeAlias = npt.NDArray[np.int64]
_KEY_MAX = 1 << 62
_WHOLE_BYTES = 256 << 20  # of a table that is copied at once; the texts of an array may have 2 GiB
_PIECE_ROWS = 65_536


class Groups(NamedTuple):
    """The rows of a table, group by group."""

    order: Indices  # the rows' numbers, sorted by key; rows of one group stay in their order
    starts: Indices  # where in `order` each group begins
    sizes: Indices

    @property
    def heads(self) -> Indices:
        """The first row of each group."""
        return self.order[self.starts]


def codes(values: pa.ChunkedArray | pa.Array) -> tuple[Indices, int]:
    """Returns an integer for each value, in the values' order, and how many there are. A null is a value, the last."""
    if isinstance(values, pa.ChunkedArray):
        if values.nbytes >= _WHOLE_BYTES:
            return _codes_of_chunks(values)
        values = values.combine_chunks()
    encoded = values.dictionary_encode(null_encoding="encode")
    rank = np.empty(len(encoded.dictionary), np.int64)
    rank[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(len(rank))
    return rank[np.asarray(encoded.indices)], len(rank)


def _codes_of_chunks(values: pa.ChunkedArray) -> tuple[Indices, int]:
    """Returns the same of texts that are too many for one array."""
    chunks = values.dictionary_encode(null_encoding="encode").chunks  # of one dictionary
    rank = np.empty(len(chunks[0].dictionary), np.int64)
    rank[np.asarray(pc.sort_indices(chunks[0].dictionary))] = np.arange(len(rank))
    return rank[np.concatenate([np.asarray(chunk.indices) for chunk in chunks])], len(rank)


def rows_at(table: pa.Table, at: Indices) -> pa.Table:
    """Returns the rows of a table at some places, each at most once: piece by piece where its texts are too many."""
    if table.nbytes < _WHOLE_BYTES:
        return table.take(pa.array(at))
    batches = table.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    pieces = [_gathered(batches, starts, at[low : low + _PIECE_ROWS]) for low in range(0, len(at), _PIECE_ROWS)]
    return pa.concat_tables([table.schema.empty_table(), *pieces])


def _gathered(batches: Sequence[pa.RecordBatch], starts: Indices, at: Indices) -> pa.Table:
    order = np.argsort(at, kind="stable")
    bounds = np.searchsorted(at[order], starts)
    found = [
        batch.take(pa.array(at[order[low:high]] - start))
        for batch, start, low, high in zip(batches, starts[:-1], bounds[:-1], bounds[1:], strict=True)
        if high > low
    ]
    back = np.empty(len(at), np.int64)
    back[order] = np.arange(len(at))
    return pa.Table.from_batches(found).take(pa.array(back))


def group(keys: Sequence[tuple[Indices, int]]) -> Groups:
    """Groups rows by several columns of integers, each with its upper bound (exclusive); sorted by the first, then on.

    The bounds' product must stay below 2^62.
    """
    key, bound = keys[0]
    for more, size in keys[1:]:
        bound *= max(1, size)
        assert bound < _KEY_MAX
        key = key * size + more
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(key) else _none()
    return Groups(order, starts, np.diff(np.append(starts, len(key))))


def column(table: pa.Table, name: str, dtype: Any = None) -> npt.NDArray[Any]:
    """Returns a column without nulls as a numpy array; instants as microseconds since 1970."""
    values = table[name]
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    found = values.to_numpy()
    plain: npt.NDArray[Any] = found if dtype is None else found.astype(dtype, copy=False)
    return plain


def flatten(table: pa.Table, name: str) -> tuple[Indices, npt.NDArray[np.float64]]:
    """Returns a column of lists as the lists' lengths and their values back to back."""
    values = table[name]
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0)).astype(np.int64)
    return lengths, np.asarray(array.flatten())


def lists(lengths: Indices, values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Returns the inverse of `flatten`."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind.value_type), type=kind)


def _none() -> Indices:
    return np.empty(0, np.int64)
