"""Maintenance of tables while no job writes to them: merge small files, delete old ones, describe.

A running job does the first two by itself.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark.errors import BadOption, OutputBusy, SparkError
from spark.tables.commits import Commits
from spark.tables.files import Location, now_ms, reason
from spark.tables.manifest import Manifest, no_tables
from spark.tables.schemas import SPECS

_DAY_MS = 86_400_000


class Description(NamedTuple):
    """One table, as it is now."""

    name: str
    version: int
    rows: int
    files: int
    size_bytes: int
    columns: tuple[str, ...]


def compact(place: Location, *, history_h: int | None = None) -> int:
    """Merges the small files of every table; returns how many fewer there are. Raises `SparkError`."""
    before = sum(table.files for table in describe(place))
    commits = _opened(place, history_h)
    try:
        commits.merge_all()
    finally:
        commits.close()
    return before - sum(table.files for table in describe(place))


def vacuum(place: Location, *, history_h: int | None = None) -> int:
    """Deletes files that were replaced longer ago than the job's history, or so many hours; returns how many.

    Those that no commit names, of the same age, too.
    """
    commits = _opened(place, history_h)
    try:
        return commits.vacuum(all_files=True)
    finally:
        commits.close()


def expire(place: Location, *, days: int, history_h: int | None = None) -> int:
    """Takes the rows of days longer ago out of the tables that have days; returns how many files gave way.

    `vacuum` deletes the files once no reader may need them. Raises `BadOption` for days whose windows the job still
    corrects: a late record would be all that a window has. Raises `SparkError`.
    """
    commits = _opened(place, history_h)
    try:
        late_ms = commits.manifest.late_ms
        if late_ms is not None and days * _DAY_MS < late_ms:
            raise BadOption(
                "days",
                f"must be {-(-late_ms // _DAY_MS)} at least: so long the job corrects windows by late records (its "
                "option late)",
            )
        today = datetime.fromtimestamp(now_ms() / 1000, UTC).date()
        return commits.expire(today - timedelta(days=days))
    finally:
        commits.close()


def describe(place: Location) -> list[Description]:
    """Returns every table of an output, a job running or not. Raises `SparkError`."""
    if Manifest.load(place) is None:
        raise no_tables(place)
    found = []
    options = dict(place.options)
    for name in SPECS:
        try:
            if not DeltaTable.is_deltatable(place.child(name), options):
                continue
            table: Any = DeltaTable(place.child(name), storage_options=options)
        except (DeltaError, OSError) as error:
            raise SparkError(f"the table {place.child(name)} cannot be opened: {reason(error)}") from error
        files = pa.table(table.get_add_actions())
        rows, sizes = files["num_records"].to_pylist(), files["size_bytes"].to_pylist()
        columns = tuple(pa.schema(table.schema().to_arrow()).names)
        found.append(Description(name, table.version(), sum(rows), len(rows), sum(sizes), columns))
    return found


def _opened(place: Location, history_h: int | None) -> Commits:
    commits = Commits.maintaining(place, history_h)
    if not commits.whole:
        commits.close()
        raise OutputBusy(f"a batch of {place.url} is half committed: start the job, which finishes it, and stop it")
    return commits
