"""The state of one bucket, which the next pass continues, in one file of several Arrow tables, one after another.

    state/0003-42000000-77c1.arrow

A state is never changed: the next pass writes another, and the manifest names the one that counts.
"""

from typing import NamedTuple

import pyarrow as pa

from spark.errors import OutputBusy, SparkError
from spark.tables.files import Location, now_ms, reason
from spark.tables.manifest import Manifest
from spark.tables.reports import PassPlan
from spark.tables.schemas import WINDOW_TABLES
from spark.telemetry.aliases import ALIASES, placed
from spark.telemetry.anomalies import SERIES
from spark.telemetry.liveness import DEVICES
from spark.telemetry.marks import MARKS
from spark.telemetry.reported import REPORTED
from spark.telemetry.sessions import SESSIONS
from spark.telemetry.windows import LATEST, PARTIALS

STATE = "state"
_ATTEMPT_MS = 6 * 3_600_000  # longer than any pass takes
_OTHERS = 6  # tables that are no windows' and no marks'


class BucketState(NamedTuple):
    """Tables that the bucket's devices have: open windows and marks by the name of their table, latest values."""

    windows: dict[str, pa.Table]  # `PARTIALS`
    marks: dict[str, pa.Table]
    latest: pa.Table
    aliases: pa.Table
    devices: pa.Table
    series: pa.Table
    sessions: pa.Table  # still open
    reported: pa.Table  # findings that may be found again

    @classmethod
    def empty(cls) -> "BucketState":
        """Returns the state of a bucket without records."""
        return cls(
            {name: PARTIALS.empty_table() for name in WINDOW_TABLES},
            {name: MARKS.empty_table() for name in WINDOW_TABLES},
            LATEST.empty_table(),
            ALIASES.empty_table(),
            DEVICES.empty_table(),
            SERIES.empty_table(),
            SESSIONS.empty_table(),
            REPORTED.empty_table(),
        )


def load_state(plan: PassPlan, bucket: int) -> BucketState:
    """Returns the state that a pass continues. Raises `SparkError` when it is gone, `OutputBusy` by another job."""
    path = plan.states.get(bucket)
    if path is None:
        return BucketState.empty()
    try:
        data = plan.place.read(path)  # whole: an object store is asked once, not for each batch of rows
    except OSError as error:
        raise SparkError(f"{plan.place.child(path)} cannot be read: {reason(error)}") from error
    if data is None:
        manifest = Manifest.load(plan.place)
        if manifest is not None and manifest.states.get(bucket) != path:
            raise OutputBusy(f"another job is writing to {plan.place.url}")
        raise SparkError(
            f"{plan.place.child(path)} is gone, which the tables continue: restore it, or name another output and "
            "checkpoint, and the tables are computed from the log again"
        )
    file = pa.BufferReader(data)
    tables = []
    while file.tell() < file.size():
        tables.append(pa.ipc.open_stream(file).read_all())
    names = list(WINDOW_TABLES)
    tables += BucketState.empty()[2 + len(tables) - 2 * len(names) :]  # an older version wrote none of the last ones
    windows, marks = tables[: len(names)], tables[len(names) : 2 * len(names)]
    state = BucketState(
        dict(zip(names, windows, strict=True)), dict(zip(names, marks, strict=True)), *tables[-_OTHERS:]
    )
    return state._replace(sessions=_widened(state.sessions, SESSIONS), aliases=placed(_widened(state.aliases, ALIASES)))


def tidy_states(place: Location, manifest: Manifest, *, alone: bool) -> None:
    """Removes the states of attempts that came to nothing.

    Unless this process is surely alone, those of later passes stay for hours: another job may be about to commit them.
    """
    kept = {path.rpartition("/")[2] for path in manifest.states.values()}
    old_ms = now_ms() - _ATTEMPT_MS
    for name, written_ms in place.files(STATE).items():
        if name not in kept and (alone or _written_in(name) <= manifest.pass_ or written_ms < old_ms):
            place.remove(f"{STATE}/{name}")


def _written_in(name: str) -> int:
    """Returns the pass that wrote a file of state; -1 for another file."""
    parts = name.split("-")
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else -1


def _widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns a table of an older version with the columns of this one; they are null."""
    if table.schema.equals(schema):
        return table
    return pa.concat_tables([schema.empty_table(), table], promote_options="default")


def save_state(plan: PassPlan, bucket: int, state: BucketState) -> str:
    """Writes a state; returns its path."""
    path = f"{STATE}/{bucket:04d}-{plan.pass_}-{plan.attempt}.arrow"  # see `_written_in`
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with plan.place.writing(path) as file:
        for table in (*state.windows.values(), *state.marks.values(), *state[-_OTHERS:]):
            with pa.ipc.new_stream(file, table.schema, options=options) as writer:
                writer.write_table(table)
    return path
