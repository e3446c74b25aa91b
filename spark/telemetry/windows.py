"""Arithmetic on windows and latest values, as Arrow tables.

A window's row is a sum: two rows of one (device, metric, start) make one, in any order and any grouping, so a batch's
rows are merged into the rows before, and how the log was cut into batches does not show; percentiles of windows with
more than `digest.EXACT_MAX` samples are the exception, within the digest's error.

`first` and `last` are the values with the least and the greatest (time, offset, queue): by the device's clock, and
among equals by the order in the log. `m2` is the sum of squared differences from the mean, merged as in Chan, Golub and
LeVeque (1979), so that a standard deviation survives large means.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry import digest
from spark.telemetry.groups import Groups, codes, column, flatten, group, lists, rows_at

WINDOW_MS = 60_000
OPEN_MAX = 1_000_000  # windows of one bucket and width that wait for more late samples
INSTANT = pa.timestamp("us", "UTC")
CENTROIDS = pa.list_(pa.float64())

_KEYS = [("device", pa.string()), ("metric", pa.string())]
_PLACE = [("offset", pa.int64()), ("queue", pa.int32()), ("position", pa.string()), ("address", pa.string())]
SAMPLES = pa.schema(  # one number that a device reported
    [*_KEYS, ("value", pa.float64()), ("unit", pa.string()), ("time", INSTANT), ("stored_at", INSTANT), *_PLACE]
)
STATES = pa.schema([*SAMPLES, ("text", pa.string())])  # one number or state
PARTIALS = pa.schema(
    [*_KEYS, ("start", INSTANT), ("count", pa.int64())]
    + [(name, pa.float64()) for name in ("min", "max", "sum", "m2")]
    + [("first", pa.float64()), ("first_time", INSTANT), ("first_offset", pa.int64()), ("first_queue", pa.int32())]
    + [("last", pa.float64()), ("last_time", INSTANT), ("last_offset", pa.int64()), ("last_queue", pa.int32())]
    + [("last_position", pa.string()), ("address", pa.string()), ("unit", pa.string())]
    + [("stored_at", INSTANT), ("revision", pa.int32()), ("means", CENTROIDS), ("weights", CENTROIDS)]
)
LATEST = pa.schema(
    [
        *(*_KEYS, ("value", pa.float64()), ("text", pa.string()), ("unit", pa.string())),
        *(("time", INSTANT), ("stored_at", INSTANT), *_PLACE),
    ]
)

_ORDER = ("queue", "offset", "time")  # of samples, the most significant last
_FIRST = ("first", "first_time", "first_offset", "first_queue")
_LAST = ("last", "last_time", "last_offset", "last_queue", "last_position", "address", "unit")


def partials_of(samples: pa.Table, window_ms: int = WINDOW_MS) -> pa.Table:
    """Returns the windows of some `SAMPLES`."""
    time_us, value = column(samples, "time"), samples["value"]
    ones = np.ones(samples.num_rows)
    width = window_ms * 1000
    made = {
        "device": samples["device"],
        "metric": samples["metric"],
        "start": pa.array(time_us - time_us % width, INSTANT),
        "count": pa.array(ones.astype(np.int64)),
        **dict.fromkeys(("min", "max", "sum", "first", "last"), value),
        "m2": pa.array(np.zeros(samples.num_rows)),
        **dict.fromkeys(("first_time", "last_time"), samples["time"]),
        **dict.fromkeys(("first_offset", "last_offset"), samples["offset"]),
        **dict.fromkeys(("first_queue", "last_queue"), samples["queue"]),
        "last_position": samples["position"],
        "address": samples["address"],
        "unit": samples["unit"],
        "stored_at": samples["stored_at"],
        "revision": pa.array(ones.astype(np.int32) - 1),
        "means": lists(ones.astype(np.int64), column(samples, "value"), CENTROIDS),
        "weights": lists(ones.astype(np.int64), ones, CENTROIDS),
    }
    return _merged(pa.table([made[name] for name in PARTIALS.names], schema=PARTIALS))


def coarser(windows: pa.Table, window_ms: int) -> pa.Table:
    """Returns the same samples in longer windows; each holds a whole number of the shorter."""
    start = column(windows, "start")
    at = windows.schema.get_field_index("start")
    wide = windows.set_column(at, PARTIALS.field("start"), pa.array(start - start % (window_ms * 1000), INSTANT))
    return _merged(wide)


def absorb(windows: pa.Table, more: pa.Table) -> pa.Table:
    """Returns two tables of `PARTIALS` as one with a single row for each device, metric and start, sorted by them."""
    return _merged(pa.concat_tables([windows, more]))


def settled_before(
    windows: pa.Table, watermark_ms: int, window_ms: int = WINDOW_MS, *, open_max: int = OPEN_MAX
) -> tuple[pa.Table, pa.Table]:
    """Splits windows into those that are settled at a watermark (ms since 1970), and those that are still open.

    A window is settled when it ended at or before the watermark, and has no sample that was stored after the watermark:
    late samples of one window, which come one by one, then make one correction. Where more than `open_max` windows
    would stay open, all that have ended are settled.
    """
    ended = pc.less_equal(windows["start"], pa.scalar((watermark_ms - window_ms) * 1000, INSTANT))
    quiet = pc.less_equal(windows["stored_at"], pa.scalar(watermark_ms * 1000, INSTANT))
    settled = pc.and_(ended, quiet)
    if windows.num_rows - (pc.sum(settled).as_py() or 0) > open_max:
        settled = ended
    return windows.filter(settled), windows.filter(pc.invert(settled))


def latest_of(latest: pa.Table, more: pa.Table) -> pa.Table:
    """Returns two tables of `LATEST` as one with the newest row of each device and metric, sorted by them."""
    both = pa.concat_tables([latest, more])
    groups = group([codes(both["device"]), codes(both["metric"])])
    by = [column(both, name) for name in _ORDER]
    return rows_at(both, _extremes(groups, by, last=True))


def _merged(rows: pa.Table) -> pa.Table:
    if not rows.num_rows:
        return rows
    start = column(rows, "start") // (WINDOW_MS * 1000)
    least = int(start.min())
    span = int(start.max()) - least + 1
    groups = group([codes(rows["device"]), codes(rows["metric"]), (start - least, span)])
    if len(groups.starts) == rows.num_rows:
        return rows_at(rows, groups.order)
    several = groups.sizes > 1
    single = rows_at(rows, groups.heads[~several])
    within = np.repeat(several, groups.sizes)
    sizes = groups.sizes[several]
    starts = np.cumsum(sizes) - sizes
    merged = _sums(rows, Groups(groups.order[within], starts, sizes))
    both = pa.concat_tables([single, merged])
    at = np.empty(len(groups.starts), np.int64)
    at[np.concatenate([np.flatnonzero(~several), np.flatnonzero(several)])] = np.arange(len(at))
    return rows_at(both, at)


def _sums(rows: pa.Table, groups: Groups) -> pa.Table:
    """Returns one row a group; every group has two rows or more."""
    order, starts = groups.order, groups.starts
    count, total, m2 = (column(rows, name)[order] for name in ("count", "sum", "m2"))
    counts, totals = np.add.reduceat(count, starts), np.add.reduceat(total, starts)
    mean = totals / counts
    spread = m2 + count * (total / count - np.repeat(mean, groups.sizes)) ** 2
    first = _extremes(groups, [column(rows, f"first_{name}") for name in _ORDER], last=False)
    last = _extremes(groups, [column(rows, f"last_{name}") for name in _ORDER], last=True)
    picked_first, picked_last = rows_at(rows.select(_FIRST), first), rows_at(rows.select(_LAST), last)
    heads = rows_at(rows.select(["device", "metric", "start"]), groups.heads)
    lengths, means = flatten(rows, "means")
    merged = _digests(rows, groups, digest.Digests(lengths, means, flatten(rows, "weights")[1]))
    made = {
        **{name: heads[name] for name in heads.column_names},
        "count": pa.array(counts),
        "min": pa.array(np.minimum.reduceat(column(rows, "min")[order], starts)),
        "max": pa.array(np.maximum.reduceat(column(rows, "max")[order], starts)),
        "sum": pa.array(totals),
        "m2": pa.array(np.add.reduceat(spread, starts)),
        **{name: picked_first[name] for name in _FIRST},
        **{name: picked_last[name] for name in _LAST},
        "stored_at": pa.array(np.maximum.reduceat(column(rows, "stored_at")[order], starts), INSTANT),
        "revision": pa.array(np.maximum.reduceat(column(rows, "revision")[order], starts), pa.int32()),
        "means": lists(merged.lengths, merged.means, CENTROIDS),
        "weights": lists(merged.lengths, merged.weights, CENTROIDS),
    }
    return pa.table([made[name] for name in PARTIALS.names], schema=PARTIALS)


def _digests(rows: pa.Table, groups: Groups, digests: digest.Digests) -> digest.Digests:
    owner = np.full(rows.num_rows, -1, np.int64)
    owner[groups.order] = np.repeat(np.arange(len(groups.starts)), groups.sizes)
    concerned = owner >= 0
    inside = np.repeat(concerned, digests.lengths)
    some = digest.Digests(digests.lengths[concerned], digests.means[inside], digests.weights[inside])
    return digest.merge(some, owner[concerned], len(groups.starts))


def _extremes(groups: Groups, by: list[npt.NDArray[np.int64]], *, last: bool) -> npt.NDArray[np.int64]:
    """Returns each group's first or last row in the order of some columns, the most significant last."""
    owner = np.repeat(np.arange(len(groups.starts)), groups.sizes)
    ordered = np.lexsort([*(values[groups.order] for values in by), owner])
    at = groups.starts + groups.sizes - 1 if last else groups.starts
    return groups.order[ordered[at]]
