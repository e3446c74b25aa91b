"""Records that repeat an earlier one: the same device, address, time and samples, as a client sends again what was not
acknowledged.

Of each device the last `KEPT_COUNT` records are known, by their time and a fingerprint of what they say: a repeat is
found in the same batch however far it is, and in later batches behind no more other records than that. The times are
those that the device says, of the record or of each sample. A record without any has the time at which it arrived: two
copies of it are two records.
"""

from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import Indices

KEPT_COUNT: Final = 8  # of a device: a client has few messages under way
NOTHING: Final = -1  # the time of a place that no record has yet
TIMED: Final = 0  # the time of a record whose samples all have their own, which its fingerprint holds
PLACES: Final = pa.list_(pa.int64(), KEPT_COUNT)

Places = npt.NDArray[np.int64]  # a row for each device, the newest record last
_Hashes = npt.NDArray[np.uint64]

_FACTORS = [
    np.uint64(one)
    for one in (
        *(0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9),
        *(0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB),
    )
]
_HALF = np.uint64(32)


def fingerprints(records: pa.Table) -> tuple[Indices, npt.NDArray[np.bool_]]:
    """Returns a number for what each record says, and which records have samples that all have a time of their own.

    It is made of the address, the samples in any order, and the bytes that could not be decoded.
    """
    lists = records["samples"].combine_chunks()
    owners = np.asarray(pc.list_parent_indices(lists))
    flat = pc.list_flatten(lists)
    told = {field.name: pc.struct_field(flat, field.name) for field in flat.type}
    said = [_of_texts(told[name]) for name in ("metric", "text", "unit")]
    said.append(np.asarray(pc.fill_null(told["value"], np.nan)).view(np.uint64))
    said += [_of_integers(told[name]) for name in ("alias", "time")]
    found = _mixed(_of_texts(records["address"].combine_chunks()), _FACTORS[0])
    of_samples = np.zeros(len(owners), np.uint64)
    for part, factor in zip(said, _FACTORS, strict=True):
        of_samples = _mixed(of_samples ^ part, factor)
    np.add.at(found, owners, of_samples)
    rejected = records["rejected"].combine_chunks()
    for n in np.flatnonzero(np.asarray(pc.is_valid(rejected))).tolist():
        found[n] += np.uint64(crc32(rejected[n].as_py()) + 1)
    samples = np.bincount(owners, minlength=len(found))
    timed = np.bincount(owners, np.asarray(pc.is_valid(told["time"])), minlength=len(found))
    return found.view(np.int64), (samples > 0) & (timed == samples)


def find(
    owner: Indices, time: Indices, said: Indices, times: Places, fingers: Places
) -> tuple[npt.NDArray[np.bool_], Places, Places]:
    """Returns which records repeat another, and the places of each device behind them.

    `owner` is the device of each record, in ascending order, and the row of its places; a device's records are in the
    order in which they came.
    """
    devices, held = len(times), np.flatnonzero(times.ravel() != NOTHING)
    owners = np.concatenate([held // KEPT_COUNT, owner])
    all_times, all_said = (np.concatenate([a.ravel()[held], b]) for a, b in ((times, time), (fingers, said)))
    order = np.lexsort((all_said, all_times, owners))  # stable: of equal ones the first stays first
    same = np.zeros(len(order), np.bool_)
    keys = [part[order] for part in (owners, all_times, all_said)]
    same[1:] = np.logical_and.reduce([part[1:] == part[:-1] for part in keys])
    repeats = np.empty(len(order), np.bool_)
    repeats[order] = same
    found = repeats[len(held) :]

    new = np.flatnonzero(~found)
    mine = owner[new]
    ends = np.cumsum(np.bincount(mine, minlength=devices))
    from_end = ends[mine] - 1 - np.arange(len(new))  # how many of the device's new records come later
    last = from_end < KEPT_COUNT
    row, place = mine[last], KEPT_COUNT - 1 - from_end[last]
    moved = np.minimum(np.diff(np.concatenate([[0], ends])), KEPT_COUNT)
    kept = np.arange(KEPT_COUNT)[None, :] + moved[:, None]
    stays = kept < KEPT_COUNT
    after = []
    for before, fresh in ((times, time), (fingers, said)):
        places = np.where(stays, np.take_along_axis(before, np.minimum(kept, KEPT_COUNT - 1), axis=1), NOTHING)
        places[row, place] = fresh[new[last]]
        after.append(places)
    return found, after[0], after[1]


def _mixed(values: _Hashes, factor: np.uint64) -> _Hashes:
    mixed: _Hashes = (values ^ (values >> _HALF)) * factor
    return mixed ^ (mixed >> _HALF)


def _of_integers(values: pa.Array) -> _Hashes:
    """Returns integers and instants as they are."""
    return np.asarray(pc.fill_null(values.cast(pa.int64()), NOTHING)).astype(np.int64).view(np.uint64)


def _of_texts(texts: pa.Array) -> _Hashes:
    """Returns a number for each text, 0 for none; there are few different ones."""
    encoded = texts.dictionary_encode()
    numbers = np.array([crc32(text.encode()) + 1 for text in encoded.dictionary.to_pylist()] + [0], np.uint64)
    at = np.asarray(pc.fill_null(encoded.indices, len(numbers) - 1))
    found: _Hashes = numbers[at]
    return found


def places_of(column: Any, rows: int) -> Places:
    """Returns a column of `PLACES` as numbers."""
    flat = np.asarray(column.combine_chunks().flatten() if isinstance(column, pa.ChunkedArray) else column.flatten())
    return flat.astype(np.int64).reshape(rows, KEPT_COUNT)


def column_of(places: Places) -> pa.Array:
    """Returns the inverse of `places_of`."""
    return pa.FixedSizeListArray.from_arrays(pa.array(places.ravel()), KEPT_COUNT)
