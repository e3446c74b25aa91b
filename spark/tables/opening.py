"""Opens the tables of an output: those that are missing are begun, those of an older version get their new columns."""

import re
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from spark.errors import OutputMismatch, SparkError
from spark.tables.files import Location, reason
from spark.tables.schemas import SPECS
from spark.tables.table_log import CHECKPOINT_INTERVAL, QUIET, drop_damaged_checkpoints

_CONFIGURATION = {"delta.checkpointInterval": str(CHECKPOINT_INTERVAL)}
_UNCLEANED = {"delta.enableExpiredLogCleanup": "false"}  # by commits: see `spark.tables.table_log`
KNOWN_LONGER_H = 3  # beyond the history, in the log of replaced files; for so long a vacuum is good for checkpoints
_HISTORY_H = 6  # of tables that do not say it


def open_table(place: Location, name: str, history_h: int) -> Any:
    """Returns the Delta table of a name, begun when it is not there. Raises `SparkError`."""
    url, options = place.child(name), dict(place.options)
    spec = SPECS[name]
    configuration = {**_CONFIGURATION, **_kept(history_h)}
    try:
        if not DeltaTable.is_deltatable(url, options):
            DeltaTable.create(
                url,
                spec.schema,
                "ignore",
                spec.partition_by,
                name=name,
                configuration=configuration,
                storage_options=options,
            )
            place.sync_log(name, 0)
        return _opened(place, name)
    except (DeltaError, OSError) as error:
        raise SparkError(f"the table {url} cannot be opened: {reason(error)}") from error


def _opened(place: Location, name: str) -> Any:
    """Returns a table, without the checkpoints of its log that a loss of power has cut off."""
    url, options = place.child(name), dict(place.options)
    try:
        return DeltaTable(url, storage_options=options)
    except DeltaError:
        if not drop_damaged_checkpoints(place, name):
            raise
        return DeltaTable(url, storage_options=options)


def retain(place: Location, name: str, table: Any, history_h: int | None) -> None:
    """Gives a table that was begun with another one this history: how long its versions stay readable.

    None: it keeps the one it has. No commit cleans the log any more of a table of an older version.
    """
    wanted = _UNCLEANED if history_h is None else _kept(history_h)
    if wanted.items() <= table.metadata().configuration.items():
        return
    try:
        table.alter.set_table_properties(wanted, post_commithook_properties=QUIET)
        table.update_incremental()
    except (DeltaError, OSError) as error:
        raise SparkError(f"the table {place.child(name)} cannot get another history: {reason(error)}") from error
    place.sync_log(name, table.version())


def history_of(place: Location) -> int:
    """Returns how many hours the tables' replaced rows stay readable, as their job has said. Raises `SparkError`."""
    kept = open_table(place, "latest", _HISTORY_H).metadata().configuration.get("delta.logRetentionDuration", "")
    found = re.fullmatch(r"interval (\d+) hours", kept)
    return int(found[1]) if found else _HISTORY_H


def _kept(history_h: int) -> dict[str, str]:
    """Returns the properties of a history.

    A checkpoint of the log forgets the files that were replaced before the first one: nothing deletes those that are
    forgotten before a vacuum has seen them.
    """
    return {
        **_UNCLEANED,
        "delta.deletedFileRetentionDuration": f"interval {history_h + KNOWN_LONGER_H} hours",
        "delta.logRetentionDuration": f"interval {history_h} hours",
    }


def evolve(place: Location, name: str, table: Any) -> bool:
    """Adds the columns that a table of an older version lacks; rows before have nulls there. Returns whether it did.

    Raises `OutputMismatch` for a column of another type.
    """
    there, wanted = pa.schema(table.schema().to_arrow()), SPECS[name].schema
    for field in wanted:
        if field.name in there.names and not _alike(there.field(field.name).type, field.type):
            raise OutputMismatch(
                f"the column {field.name} of {place.child(name)} is {there.field(field.name).type}, where this version "
                f"has {field.type}: name another output and checkpoint, and the tables are computed from the log again"
            )
    missing = [field for field in wanted if field.name not in there.names]
    if not missing:
        return False
    try:
        table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields, post_commithook_properties=QUIET)
        table.update_incremental()
    except (DeltaError, OSError) as error:
        raise SparkError(f"the table {place.child(name)} cannot get new columns: {reason(error)}") from error
    place.sync_log(name, table.version())
    return True


def _alike(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Returns whether two types are one to Delta Lake, which knows no large texts and names no list's element."""
    if pa.types.is_list(wanted):
        listed = pa.types.is_list(there) or pa.types.is_large_list(there)
        return listed and _alike(there.value_type, wanted.value_type)
    same = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary(), pa.string_view(): pa.string()}
    return bool(same.get(there, there) == same.get(wanted, wanted))
