"""The limits of a bucket's state, applied: the limits on devices and series, and the removal of stale ones.

Stale is by the newest record that the job has read. While nothing comes at all nothing is forgotten, and an old log
that is read at once leaves the latest values that it ends with.
"""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark.decode.values import NAMES_MAX
from spark.tables.reports import PassPlan
from spark.tables.state import BucketState
from spark.telemetry import marks
from spark.telemetry.forgetting import crowded_out, has_series, stale, trimmed_aliases

MARKS_SPARE = 10_000  # marks of a table that are kept beside those of known series, before they are pruned


class KeptState(NamedTuple):
    """A state within its limits, and how much of it was forgotten."""

    state: BucketState
    devices: int = 0
    series: int = 0


def make_room(plan: PassPlan, state: BucketState, names: pa.ChunkedArray) -> KeptState:
    """Forgets devices where the records of `names` bring more than there may be."""
    gone = crowded_out(state.devices, names, plan.capacity, plan.newest_ms)
    return _without(state, gone) if len(gone) else KeptState(state)


def drop_stale(plan: PassPlan, state: BucketState) -> KeptState:
    """Forgets devices and series without messages for long, and marks of unknown series."""
    devices = series = 0
    old = stale(state.devices, "last_seen", plan.newest_ms, plan.capacity)
    if old is not None:
        state, devices, series = _without(state, state.devices["device"].filter(pa.array(old)))
    old = stale(state.latest, "stored_at", plan.newest_ms, plan.capacity)
    if old is not None:
        state = state._replace(latest=state.latest.filter(pa.array(~old)))
        state = state._replace(series=state.series.filter(pa.array(has_series(state.series, state.latest))))
        series += int(old.sum())
    named_max = max(plan.capacity.metrics, NAMES_MAX)  # no less than one BIRTH gives
    if state.aliases.num_rows > named_max:
        names = trimmed_aliases(state.aliases, named_max, max(plan.capacity.series, NAMES_MAX))
        state = state._replace(aliases=names)
    return KeptState(_pruned(state, all_spare=bool(devices or series)), devices, series)


def _without(state: BucketState, names: pa.Array | pa.ChunkedArray) -> KeptState:
    """Returns the state without some devices. Their open windows stay until they are settled."""
    found = {}
    for part in ("devices", "latest", "series", "aliases"):
        rows = getattr(state, part)
        found[part] = rows.filter(pc.invert(pc.is_in(rows["device"], names)))
    series = state.latest.num_rows - found["latest"].num_rows
    return KeptState(state._replace(**found), state.devices.num_rows - found["devices"].num_rows, series)


def _pruned(state: BucketState, *, all_spare: bool) -> BucketState:
    kept = {}
    for table, held in state.marks.items():
        spare = 0 if all_spare else state.latest.num_rows + MARKS_SPARE
        if held.num_rows > state.latest.num_rows + spare:
            kept[table] = marks.prune(held, has_series(held, state.latest))
    return state._replace(marks={**state.marks, **kept}) if kept else state
