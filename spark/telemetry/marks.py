"""Marks: up to where the windows of each series (device and metric) are settled.

A sample that falls into a window which is neither open nor behind its series' mark begins a new window. One behind the
mark may belong to a window that is settled already, which has to be opened again.

Marks of series that are forgotten are dropped. A row without a metric, the floor, then stands for all of them: a sample
of an unknown series at or before it may belong to a window that is settled.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import codes, column, group, rows_at
from spark.telemetry.windows import INSTANT

MARKS = pa.schema([("device", pa.string()), ("metric", pa.string()), ("until", INSTANT)])  # the newest settled start


def advance(marks: pa.Table, settled: pa.Table) -> pa.Table:
    """Returns the marks after some windows were settled."""
    if not settled.num_rows:
        return marks
    more = pa.table([settled[name] for name in ("device", "metric", "start")], schema=MARKS)
    both = pa.concat_tables([marks, more])
    groups = group([codes(both["device"]), codes(both["metric"])])
    until = np.maximum.reduceat(column(both, "until")[groups.order], groups.starts)
    heads = rows_at(both, groups.heads)
    return heads.set_column(2, MARKS.field("until"), pa.array(until, INSTANT))


def prune(marks: pa.Table, kept: npt.NDArray[np.bool_]) -> pa.Table:
    """Returns the marks that are kept, and the floor for all others."""
    kept = kept & ~np.asarray(pc.is_null(marks["metric"]))
    dropped = column(marks, "until")[~kept]
    if not len(dropped):
        return marks
    floor = pa.table([[""], pa.nulls(1, pa.string()), pa.array([int(dropped.max())], INSTANT)], schema=MARKS)
    return pa.concat_tables([marks.filter(pa.array(kept)), floor])


def behind(windows: pa.Table, still_open: pa.Table, marks: pa.Table) -> npt.NDArray[np.bool_]:
    """Returns for each row of `windows` whether it may be settled: at or before its series' mark, and not open."""
    found = np.zeros(windows.num_rows, np.bool_)
    if not windows.num_rows or not marks.num_rows:
        return found
    candidates = np.flatnonzero(np.asarray(pc.less_equal(windows["start"], pc.max(marks["until"]))))
    if not len(candidates):
        return found
    some = rows_at(windows.select(["device", "metric", "start"]), candidates)
    names = pa.concat_arrays([c for t in (some, still_open, marks) for c in t["device"].chunks])
    metrics = pa.concat_arrays([c for t in (some, still_open, marks) for c in t["metric"].chunks])
    (device, _), (metric, bound) = codes(names), codes(metrics)
    series = device * bound + metric
    mine, opened, marked = np.split(series, [some.num_rows, some.num_rows + still_open.num_rows])
    order = np.argsort(marked)
    at = np.searchsorted(marked[order], mine)
    place = order[np.minimum(at, len(order) - 1)]
    known = marked[place] == mine
    floor = column(marks.filter(pc.is_null(marks["metric"])), "until")
    until = np.where(known, column(marks, "until")[place], floor.max(initial=np.iinfo(np.int64).min))
    start = column(some, "start")
    is_open = np.zeros(len(mine), np.bool_)
    concerned = np.isin(opened, mine)
    if concerned.any():
        pairs = set(zip(opened[concerned].tolist(), column(still_open, "start")[concerned].tolist(), strict=True))
        is_open = np.array([pair in pairs for pair in zip(mine.tolist(), start.tolist(), strict=True)])
    found[candidates] = (start <= until) & ~is_open
    return found
