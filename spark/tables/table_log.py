"""The Delta log of a table: what a commit does to it, and the removal of old versions.

No commit deletes from the log. Delta's own clean-up keeps the newest version and those written within the history:
where a table had rested for longer, that is not the version that the manifest names until a pass is whole, and
which a repeated pass reads.
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.transaction import AddAction, RemoveAction

from spark.tables.files import LAST_CHECKPOINT, Location
from spark.tables.reports import NewFile
from spark.tables.schemas import DAY

COMMITTING: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
QUIET: Final = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)  # it forgets no file
CHECKPOINT_INTERVAL: Final = 50  # commits, from one checkpoint to the next
_LOG: Final = "_delta_log"
_DIGITS: Final = 20  # of the version in a name


def added(file: NewFile, stamp_ms: int) -> AddAction:
    """Returns the action of a file that is added."""
    partition = {} if file.day is None else {DAY.name: file.day}
    return AddAction(file.path, file.size, partition, stamp_ms, True, file.stats)


def removed(path: str, stamp_ms: int) -> RemoveAction:
    """Returns the action of a file that gives way."""
    folder, _, _ = path.rpartition("/")
    return RemoveAction(path, True, stamp_ms, None, {DAY.name: folder.partition("=")[2]} if folder else {})


def forget_versions(place: Location, name: str, named: int, before_ms: int) -> None:
    """Deletes the log of a table as far as nobody needs it, behind a vacuum.

    The versions that were current at `before_ms` or later stay, and those from `named` on. Where a checkpoint is
    overdue, one is made first.
    """
    options = dict(place.options)
    written = place.files(f"{name}/{_LOG}")
    commits = {int(file[:_DIGITS]): ms for file, ms in written.items() if file[_DIGITS:] == ".json"}
    whole = [file for file in written if file.endswith(".parquet")]  # others are what a kill has left of one
    checkpoints = [int(file[:_DIGITS]) for file in whole if file[_DIGITS:].startswith(".checkpoint")]
    if max(commits, default=0) - max(checkpoints, default=0) > CHECKPOINT_INTERVAL:
        # A commit of a vacuum makes none, and may be the one that was due.
        newest = DeltaTable(place.child(name), storage_options=options)
        newest.create_checkpoint()
        place.sync_log(name, newest.version())
    current = min((version for version, ms in commits.items() if ms >= before_ms), default=named + 1) - 1
    kept = min(named, current)
    checkpoint = max((version for version in checkpoints if version <= kept), default=None)
    if checkpoint is None or checkpoint <= min(commits, default=checkpoint):
        return
    table: Any = DeltaTable(place.child(name), version=kept, storage_options=options)
    table.cleanup_metadata()  # of the versions before it, by the table's own history


def drop_damaged_checkpoints(place: Location, name: str) -> bool:
    """Removes the checkpoints of a local table's log that cannot be read; returns whether the log has changed.

    They only gather commits, which are there still: those before a checkpoint are deleted long after it is durable.
    """
    if place.local is None:
        return False
    files = place.files(f"{name}/{_LOG}")
    gone = [file for file in files if file[_DIGITS:] == ".checkpoint.parquet" and not _readable(place, name, file)]
    gone += [file for file in files if file == LAST_CHECKPOINT]  # it names one that is missing, or that is gone now
    for file in gone:
        place.remove(f"{name}/{_LOG}/{file}")
    return bool(gone)


def _readable(place: Location, name: str, file: str) -> bool:
    try:
        with place.open(f"{name}/{_LOG}/{file}") as opened:
            pq.read_table(opened)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # of the system: not of the bytes
            raise
        return False
    return True
