"""The records of a bucket in slices, so that neither their samples nor their texts need more memory than there is.

A sample takes some 660 bytes while it is worked on, and has the texts of its record, so a batch is worked through in
slices; few batches have more than one. They follow from the records alone, and so a repeated pass has the same ones.
A slice has the records that were stored next, as if the log had been cut into more batches there.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import Indices, column

SAMPLES_MAX = 1_000_000  # of a slice, and names of aliases
BYTES_MAX = 256 << 20  # of a slice's texts, those of a record once for each of its samples
TEXT_CHARS_MAX = 1_024  # of an address or a content type in the tables; the rest is cut off
_CUT = ("address", "content_type")
_COPIED = ("device", "address", "position")  # for each sample
_LISTS = ("samples", "aliases")


def with_short_texts(records: pa.Table) -> pa.Table:
    """Returns the records, with texts that are too long for the tables cut."""
    for name in _CUT:
        texts = records[name]
        if (pc.max(pc.binary_length(texts)).as_py() or 0) > TEXT_CHARS_MAX:
            short = pc.utf8_slice_codeunits(texts, 0, TEXT_CHARS_MAX)
            records = records.set_column(records.schema.get_field_index(name), records.schema.field(name), short)
    return records


def log_order(records: pa.Table) -> Indices:
    """Returns the records in the log's order, by queue and offset."""
    order: Indices = np.lexsort((column(records, "offset"), column(records, "queue")))
    return order


def slices(records: pa.Table, order: Indices) -> list[Indices]:
    """Returns the slices of some records, as places in `order`, which has the records in the log's order.

    Within a slice they are in that order, too.
    """
    counts = sum((_lengths(pc.list_value_length(records[name])) for name in _LISTS), np.zeros(1, np.int64))[order]
    copied = sum((_lengths(pc.binary_length(records[name])) for name in _COPIED), np.zeros(1, np.int64))[order]
    copied *= np.maximum(counts, 1)
    if counts.sum() <= SAMPLES_MAX and records.nbytes + copied.sum() <= BYTES_MAX:
        return [np.arange(len(order))]
    came = _as_stored(records, order)
    samples = np.cumsum(counts[came])
    texts = np.cumsum((copied + _own_bytes(records)[order])[came])
    found, begin = [], 0
    while begin < len(came):
        before = (samples[begin - 1], texts[begin - 1]) if begin else (0, 0)
        upto = min(
            int(np.searchsorted(samples, before[0] + SAMPLES_MAX, "right")),
            int(np.searchsorted(texts, before[1] + BYTES_MAX, "right")),
        )
        upto = max(upto, begin + 1)
        found.append(np.sort(came[begin:upto]))
        begin = upto
    return found


def _as_stored(records: pa.Table, order: Indices) -> Indices:
    """Returns the places in `order` as the records were stored; in a queue none before an earlier one."""
    stored, queue = (column(records, name)[order] for name in ("stored_at", "queue"))
    for part in np.split(np.arange(len(order)), np.flatnonzero(np.diff(queue)) + 1):
        stored[part] = np.maximum.accumulate(stored[part])
    came: Indices = np.argsort(stored, kind="stable")
    return came


def _own_bytes(records: pa.Table) -> Indices:
    """Returns the bytes of each record's own texts: of its samples, its names, and what cannot be decoded."""
    found = _lengths(pc.binary_length(records["rejected"]))
    for name, texts in (("samples", ("metric", "text", "unit")), ("aliases", ("metric",))):
        at = 0
        for lists in records[name].chunks:
            flat = pc.list_flatten(lists)
            sizes = sum(
                (_lengths(pc.binary_length(pc.struct_field(flat, text))) for text in texts), np.zeros(1, np.int64)
            )
            upto = np.concatenate([[0], np.cumsum(sizes)])
            ends = np.cumsum(_lengths(pc.list_value_length(lists)))
            found[at : at + len(lists)] += np.diff(upto[np.concatenate([[0], ends])])
            at += len(lists)
    return found


def _lengths(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(values, 0)).astype(np.int64)
