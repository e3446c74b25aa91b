"""Arithmetic on one-minute windows and latest values, as Arrow tables; no Spark, no files.

A window's row is a sum: two rows of one (device, metric, start) make one, in any order and any grouping, so what a
batch adds is merged into what was there, and how the log was cut into batches does not show.

`last` is the value with the greatest (time, offset, queue): the newest by the device's clock, and among equals the one
stored last.
"""

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["LATEST", "PARTIALS", "WINDOWS", "WINDOW_MS", "absorb", "latest_of", "presented", "settled_before"]

WINDOW_MS = 60_000
_INSTANT = pa.timestamp("us", "UTC")

_KEYS = [("device", pa.string()), ("metric", pa.string())]
_LAST = [
    ("last", pa.float64()),
    ("last_time", _INSTANT),
    ("last_offset", pa.int64()),
    ("last_queue", pa.int32()),
    ("last_position", pa.string()),
]
_SUMS = [("count", pa.int64()), ("min", pa.float64()), ("max", pa.float64()), ("sum", pa.float64())]

PARTIALS = pa.schema([*_KEYS, ("start", _INSTANT), *_SUMS, *_LAST])  # what is merged
WINDOWS = pa.schema(  # what is shown
    [*_KEYS, ("start", _INSTANT), ("count", pa.int64())]
    + [(name, pa.float64()) for name in ("min", "max", "mean", "last", "sum")]
    + [("last_time", _INSTANT), ("last_position", pa.string())]
)
LATEST = pa.schema(
    [
        *(*_KEYS, ("value", pa.float64()), ("time", _INSTANT), ("position", pa.string())),
        *(("offset", pa.int64()), ("queue", pa.int32())),
    ]
)

_NEWEST_LAST = [("last_time", "ascending"), ("last_offset", "ascending"), ("last_queue", "ascending")]


def absorb(windows: pa.Table, more: pa.Table) -> pa.Table:
    """Two tables of `PARTIALS` as one with a single row for each device, metric and start, sorted by them."""
    keys = ["device", "metric", "start"]
    both = pa.concat_tables([windows, more]).sort_by([(key, "ascending") for key in keys] + _NEWEST_LAST)
    merged = both.group_by(keys, use_threads=False).aggregate(
        [("count", "sum"), ("min", "min"), ("max", "max"), ("sum", "sum")] + [(name, "last") for name, _ in _LAST]
    )
    return pa.table(
        [merged[name] for name in keys]
        + [merged[name] for name in ("count_sum", "min_min", "max_max", "sum_sum")]
        + [merged[f"{name}_last"] for name, _ in _LAST],
        schema=PARTIALS,
    )


def settled_before(windows: pa.Table, end_ms: int) -> tuple[pa.Table, pa.Table]:
    """`windows` in two: those that end at or before `end_ms` (ms since 1970), and those still open."""
    settled = pc.less_equal(windows["start"], pa.scalar((end_ms - WINDOW_MS) * 1000, _INSTANT))
    return windows.filter(settled), windows.filter(pc.invert(settled))


def latest_of(latest: pa.Table, partials: pa.Table) -> pa.Table:
    """`latest` with whatever of `partials` is newer, one row for each device and metric, sorted by them."""
    names = {"last": "value", "last_time": "time", "last_position": "position", "last_offset": "offset"}
    news = pa.table(
        [partials[name] for name in ("device", "metric", *names, "last_queue")],
        schema=LATEST,
    )
    keys = ["device", "metric"]
    order = [(name, "ascending") for name in (*keys, "time", "offset", "queue")]
    both = pa.concat_tables([latest, news]).sort_by(order)
    rest = LATEST.names[len(keys) :]
    merged = both.group_by(keys, use_threads=False).aggregate([(name, "last") for name in rest])
    return pa.table([merged[name] for name in keys] + [merged[f"{name}_last"] for name in rest], schema=LATEST)


def presented(windows: pa.Table) -> pa.Table:
    """A table of `PARTIALS` as the columns of `WINDOWS`."""
    mean = pc.divide(windows["sum"], pc.cast(windows["count"], pa.float64()))
    return pa.table([mean if name == "mean" else windows[name] for name in WINDOWS.names], schema=WINDOWS)
