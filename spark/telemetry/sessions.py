"""Sessions of activity: from when to when a device was heard without a longer pause, by the store's clock.

A session's row is a sum: rows of one device whose spans are no further apart than the pause make one, in any order and
any grouping, so how the log was cut into batches does not show. By the store's clock no record comes late: once every
queue has been read to a time that is more than the pause behind a session's end, nothing can be added to it.

`address` is that of the newest record, by the store's clock; of records stored in the same ms the greatest.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark.telemetry.groups import codes, column
from spark.telemetry.windows import INSTANT

OPEN_MAX = 1_000_000  # sessions of one bucket that wait for more records
NEVER_MS = 1 << 40  # a pause that no session ends by

SESSIONS = pa.schema(
    [
        *(("device", pa.string()), ("first_seen", INSTANT), ("last_seen", INSTANT), ("records", pa.int64())),
        *(("first_time", INSTANT), ("last_time", INSTANT)),  # by the device's own clock
        ("address", pa.string()),  # null: nothing came since an older version, which kept none
    ]
)


def absorb(sessions: pa.Table, records: pa.Table, pause_ms: int) -> pa.Table:
    """Returns sessions with some records added, sorted by device and time."""
    ones = pa.array(np.ones(records.num_rows, np.int64))
    stored, time = records["stored_at"], records["time"]
    columns = [records["device"], stored, stored, ones, time, time, records["address"]]
    both = pa.concat_tables([sessions, pa.table(columns, schema=SESSIONS)])
    device = codes(both["device"])[0]
    order = np.lexsort((column(both, "first_seen"), device))
    owner = device[order]
    first, last = column(both, "first_seen")[order], column(both, "last_seen")[order]
    heads = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    begins = np.concatenate([[True], first[1:] - _newest(owner, last)[:-1] > pause_ms * 1000])
    begins[heads] = True
    starts = np.flatnonzero(begins)
    newest = np.maximum.reduceat(last, starts)
    rank = _ranks(both["address"])[order]
    at_newest = last == np.repeat(newest, np.diff(np.append(starts, len(order))))
    row_of = np.zeros(len(order) + 1, np.int64)  # by rank: a row with that address
    row_of[rank] = order
    made = {
        "device": both["device"].take(pa.array(order[starts])),
        "first_seen": pa.array(first[starts], INSTANT),
        "last_seen": pa.array(newest, INSTANT),
        "records": pa.array(np.add.reduceat(column(both, "records")[order], starts)),
        "first_time": pa.array(np.minimum.reduceat(column(both, "first_time")[order], starts), INSTANT),
        "last_time": pa.array(np.maximum.reduceat(column(both, "last_time")[order], starts), INSTANT),
        "address": both["address"].take(pa.array(row_of[np.maximum.reduceat(rank * at_newest, starts)])),
    }
    return pa.table([made[name] for name in SESSIONS.names], schema=SESSIONS)


def closed_before(
    sessions: pa.Table, now_ms: int, pause_ms: int, *, open_max: int = OPEN_MAX
) -> tuple[pa.Table, pa.Table]:
    """Returns the sessions that nothing can be added to, and the others.

    Now is the time, by the store's clock, up to which every queue has been read. Where more than `open_max` would stay
    open, those of them that ended first are closed too, and later records for them begin another session.
    """
    last = column(sessions, "last_seen")
    closed = last < (now_ms - pause_ms) * 1000
    over = len(last) - int(closed.sum()) - open_max
    if over > 0:
        waiting = np.flatnonzero(~closed)
        closed[waiting[np.argsort(last[waiting], kind="stable")[:over]]] = True
    return sessions.filter(pa.array(closed)), sessions.filter(pa.array(~closed))


def _ranks(addresses: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Returns the place of each address in their order, from 1 on; a null is before all others, at 0."""
    known = np.asarray(pc.is_valid(addresses))
    return np.where(known, codes(addresses)[0] + 1, 0)


def _newest(owner: npt.NDArray[np.int64], last: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns the greatest of `last` up to each row, within each owner; owners are sorted."""
    distinct, rank = np.unique(last, return_inverse=True)
    width = len(distinct)
    running = np.maximum.accumulate(rank.ravel() + owner * width)
    newest: npt.NDArray[np.int64] = distinct[running - owner * width]
    return newest
