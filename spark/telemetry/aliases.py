"""Aliases of Sparkplug's metrics: numbers that a device's BIRTH gave names, and its DATA uses alone.

They are kept for each device. A row has the name that the newest BIRTH at or before it gave, so how the log was cut
into batches does not show; one with an unknown alias keeps its metric `alias/17`.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import Indices, codes

ALIASES = pa.schema([("device", pa.string()), ("alias", pa.int64()), ("metric", pa.string())])
_UNNAMED = "alias/"


def resolve(
    known: pa.Table, told: pa.Table, told_at: Indices, rows: tuple[pa.Array, pa.Array, pa.Array], rows_at: Indices
) -> tuple[pa.Array, pa.Table]:
    """Returns the metrics of some rows, aliases by their names where these are known, and the names known then.

    `told` are names that records gave, as `ALIASES`, and `told_at` are the places of these records; `rows` are the
    devices, metrics and aliases of rows, and `rows_at` the places of theirs. A record's names count for its own rows.
    """
    device, metric, alias = rows
    unnamed = np.flatnonzero(np.asarray(pc.and_(pc.is_valid(alias), pc.starts_with(metric, _UNNAMED))))
    if not told.num_rows and (not len(unnamed) or not known.num_rows):
        return metric, known
    at = pa.array(unnamed)
    asking = pa.table([device.take(at), alias.take(at), metric.take(at)], schema=ALIASES)
    held = known if told.num_rows else known.filter(pc.is_in(known["device"], pc.unique(asking["device"])))
    every = pa.concat_tables([held, told, asking])
    (of_device, _), (of_alias, bound) = codes(every["device"]), codes(every["alias"])
    series = of_device * bound + of_alias
    place = np.concatenate([np.full(held.num_rows, -1), told_at, rows_at[unnamed]])
    order = np.lexsort((place, series))  # stable: of one record names come before rows
    names = held.num_rows + told.num_rows
    newest = np.maximum.accumulate(np.where(order < names, np.arange(len(order)), -1))
    source = order[np.maximum(newest, 0)]
    has = (newest >= 0) & (series[source] == series[order])
    asks = has & (order >= names)
    found = metric.to_numpy(zero_copy_only=False).astype(object)
    found[unnamed[order[asks] - names]] = every["metric"].take(pa.array(source[asks])).to_numpy()
    resolved = pa.array(found, pa.string())
    if not told.num_rows:
        return resolved, known
    last = np.flatnonzero(np.append(series[order][1:] != series[order][:-1], True))
    after = every.take(pa.array(source[last[has[last]]]))
    return resolved, known if after.equals(known) else after
