"""Findings of samples that were reported and may be found again: a finding is in its table once.

A finding is identified by device, metric, kind and time. The same one is found again when a device resends samples, or
when two samples of one time are both strange. A sample is judged only until its window is settled, so a finding is kept
until then and no longer.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import Indices, codes
from spark.telemetry.windows import INSTANT, WINDOW_MS

REPORTED = pa.schema([("device", pa.string()), ("metric", pa.string()), ("kind", pa.string()), ("time", INSTANT)])
REPORTED_MAX = 100_000  # findings of one bucket that are kept: those with the newest times


def unreported(
    reported: pa.Table, found: pa.Table, settled_ms: int, *, reported_max: int = REPORTED_MAX
) -> tuple[pa.Table, pa.Table]:
    """Returns the findings that were not reported before, each once, and the reported ones with these.

    `found` has rows of `EVENTS`. `settled_ms` is the watermark: windows that end at or before it are settled.
    """
    if not found.num_rows:
        return found, reported
    still_judged = pa.scalar((settled_ms - settled_ms % WINDOW_MS) * 1000, INSTANT)
    kept = reported.filter(pc.greater_equal(reported["time"], still_judged))
    both = pa.concat_tables([kept, found.select(REPORTED.names)])
    _, first = np.unique(_keys(both), return_index=True)
    first.sort()
    after = both.take(pa.array(first))
    if after.num_rows > reported_max:
        after = after.sort_by([("time", "descending")]).slice(0, reported_max)
    new = first[first >= kept.num_rows] - kept.num_rows
    return (found if len(new) == found.num_rows else found.take(pa.array(new))), after


def _keys(rows: pa.Table) -> Indices:
    """Returns an integer for each row, the same for equal rows."""
    keys = np.zeros(rows.num_rows, np.int64)
    for name in rows.column_names:
        code, bound = codes(rows[name])
        keys = np.unique(keys * bound + code, return_inverse=True)[1].ravel()
    return keys
