"""Aliases of Sparkplug's metrics: numbers that a device's BIRTH gave names, and its DATA uses alone.

They are kept for each device. A row with an unknown alias keeps its metric `alias/17`.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import codes, group

ALIASES = pa.schema([("device", pa.string()), ("alias", pa.int64()), ("metric", pa.string())])
_UNNAMED = "alias/"


def learn(known: pa.Table, device: pa.Array, metric: pa.Array, alias: pa.Array) -> pa.Table:
    """Returns the names known after some rows: of a device and alias the newest."""
    named = pc.and_(pc.is_valid(alias), pc.invert(pc.starts_with(metric, _UNNAMED)))
    if not pc.any(named).as_py():
        return known
    told = pa.table([device, alias, metric], schema=ALIASES).filter(named)
    both = pa.concat_tables([known, told])
    groups = group([codes(both["device"]), codes(both["alias"])])
    after = both.take(pa.array(groups.order[groups.starts + groups.sizes - 1]))
    return known if after.equals(known) else after


def resolve(known: pa.Table, device: pa.Array, metric: pa.Array, alias: pa.Array) -> pa.Array:
    """Returns the metrics, those that are aliases by their names where these are known."""
    unnamed = np.flatnonzero(np.asarray(pc.and_(pc.is_valid(alias), pc.starts_with(metric, _UNNAMED))))
    if not len(unnamed) or not known.num_rows:
        return metric
    at = pa.array(unnamed)
    devices, aliases = device.take(at).to_pylist(), alias.take(at).to_pylist()
    wanted = pc.is_in(known["device"], pa.array(sorted(set(devices))))
    some = known.filter(wanted).to_pydict()
    names = dict(zip(zip(some["device"], some["alias"], strict=True), some["metric"], strict=True))
    found = metric.to_numpy(zero_copy_only=False).astype(object)
    for n, key in zip(unnamed.tolist(), zip(devices, aliases, strict=True), strict=True):
        found[n] = names.get(key, found[n])
    return pa.array(found, pa.string())
