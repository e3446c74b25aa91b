"""Aliases of Sparkplug's metrics: numbers that a device's BIRTH gave names, and its DATA uses alone.

They are kept for each device, with the place of the BIRTH: by the store's clock, in one queue by offset. A row has the
name that the newest BIRTH at or before it gave, so of one queue how the log was cut into batches does not show; one
with an unknown alias keeps its metric `alias/17`.

Of each alias the newest name alone is kept, and since when it has it. So a queue that is read behind another one
changes no name that a newer BIRTH gave; its rows of before that name keep `alias/17`. A name that another queue gives
at an earlier time, as by a clock that is behind, counts for the records of its own batch alone.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import Indices, codes, column
from spark.telemetry.windows import INSTANT

NAMED = pa.schema(  # a name that a record gave; or a row, by its record
    [
        *(("device", pa.string()), ("alias", pa.int64()), ("metric", pa.string())),
        *(("stored_at", INSTANT), ("queue", pa.int32()), ("offset", pa.int64())),
    ]
)
ALIASES = pa.schema([*NAMED, ("since", INSTANT)])
_UNNAMED = "alias/"
_NOWHERE = -1  # the queue of what is of none: the time since which a name is known, a name of an older version


def resolve(known: pa.Table, told: pa.Table, rows: pa.Table) -> tuple[pa.ChunkedArray, pa.Table]:
    """Returns the metrics of some rows, aliases by their names where these are known, and the names known then.

    `told` are names that records gave, and both they and the rows are `NAMED`. A record's names count for its own rows.
    """
    metric = rows["metric"]
    unnamed = np.flatnonzero(np.asarray(pc.and_(pc.is_valid(rows["alias"]), pc.starts_with(metric, _UNNAMED))))
    if not told.num_rows and (not len(unnamed) or not known.num_rows):
        return metric, known
    asking = rows.take(pa.array(unnamed))
    held = known if told.num_rows else known.filter(pc.is_in(known["device"], pc.unique(asking["device"])))
    names = pa.concat_tables([*_held(held), told])
    every = pa.concat_tables([names, asking])
    (of_device, _), (of_alias, bound) = codes(every["device"]), codes(every["alias"])
    series = of_device * bound + of_alias
    stored, queue, offset = _places(every)
    order = np.lexsort((offset, queue, stored, series))  # stable: of one record names come before rows
    is_name = order < names.num_rows
    newest = np.maximum.accumulate(np.where(is_name, np.arange(len(order)), -1))
    source = order[np.maximum(newest, 0)]
    has = (newest >= 0) & (series[source] == series[order])
    asks = has & ~is_name
    found = metric.to_numpy(zero_copy_only=False).astype(object)
    found[unnamed[order[asks] - names.num_rows]] = names["metric"].take(pa.array(source[asks])).to_numpy()
    resolved = pa.chunked_array([pa.array(found, pa.string())])
    if not told.num_rows:
        return resolved, known
    last = np.flatnonzero(np.append(series[order][1:] != series[order][:-1], True))
    kept = source[last[has[last]]]
    since = _since(order[is_name], series, codes(names["metric"])[0], stored)
    after = names.take(pa.array(kept))
    after = after.set_column(after.schema.get_field_index("stored_at"), "stored_at", pa.array(stored[kept], INSTANT))
    after = after.append_column(ALIASES.field("since"), pa.array(since[kept], INSTANT))
    return resolved, known if after.equals(known) else after


def placed(known: pa.Table) -> pa.Table:
    """Returns known names, those of an older version, which have no places, as given before all others."""
    if not known["queue"].null_count:
        return known
    missing = {"stored_at": 0, "since": 0, "queue": _NOWHERE, "offset": _NOWHERE}
    columns = [
        pc.fill_null(known[field.name], pa.scalar(missing[field.name], field.type)) if field.name in missing
        else known[field.name]
        for field in ALIASES
    ]  # fmt: skip
    return pa.table(columns, schema=ALIASES)


def _held(known: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Returns known names twice, as `NAMED`: since when each is known, and where it was given last."""
    nowhere = pa.array(np.full(known.num_rows, _NOWHERE))
    made = {"stored_at": known["since"], "queue": nowhere.cast(pa.int32()), "offset": nowhere}
    first = pa.table([made.get(name, known[name]) for name in NAMED.names], schema=NAMED)
    return first, known.select(NAMED.names)


def _places(every: pa.Table) -> tuple[Indices, Indices, Indices]:
    """Returns time, queue and offset of each row. In a queue none is earlier than one before: clocks are set back."""
    stored, queue, offset = column(every, "stored_at").copy(), column(every, "queue"), column(every, "offset")
    order = np.lexsort((offset, queue))
    for part in np.split(order, np.flatnonzero(np.diff(queue[order])) + 1):
        if len(part) and queue[part[0]] != _NOWHERE:
            stored[part] = np.maximum.accumulate(stored[part])
    return stored, queue, offset


def _since(order: Indices, series: Indices, metric: Indices, stored: Indices) -> Indices:
    """Returns of each name the time of the first of the equal ones before it; `order` has the names in theirs."""
    of, named = series[order], metric[order]
    begins = np.concatenate([[True], (of[1:] != of[:-1]) | (named[1:] != named[:-1])])
    since = np.empty(len(order), np.int64)
    since[order] = stored[order][np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]
    return since
