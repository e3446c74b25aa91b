"""The position in the log behind each batch: in Spark's checkpoint, and in the manifest of the tables.

Spark writes it before a batch, and plans a batch anew whose position it does not find: from the end of the one before
it to the log's present end. Tables that have such a batch already would skip the records that came meanwhile.
"""

from pathlib import Path

import msgspec

from spark.errors import OutputMismatch, SparkError
from spark.source import offsets
from spark.tables.files import sync
from spark.tables.manifest import JobProgress


def position_of(checkpoint: Path, batch: int) -> dict[int, int] | None:
    """Returns the next offset of every queue after a batch, by Spark's checkpoint; None when there is no such batch."""
    try:
        lines = (checkpoint / "offsets" / str(batch)).read_text("utf-8").splitlines()
    except FileNotFoundError:
        return None
    try:
        return offsets.decode(msgspec.json.decode(lines[-1], type=dict[str, int]))
    except (ValueError, IndexError) as error:
        raise SparkError(f"{checkpoint}/offsets/{batch} is no position of the log: {error}") from error


def check_position(checkpoint: Path, batch: int, progress: JobProgress) -> None:
    """Raises `OutputMismatch` where a batch would skip records, or count some again, as the checkpoint was set back.

    A batch that the tables have may end no further than they do, and a new one must begin where they end.
    """
    counted = progress.position
    position = position_of(checkpoint, min(batch, progress.batch))
    if counted is None or position is None:
        return
    if batch < progress.batch:
        fits = all(offset <= counted.get(queue, 0) for queue, offset in position.items())
    else:
        fits = position == counted
    if not fits:
        raise OutputMismatch(
            f"{checkpoint} is older than the tables: its batch {min(batch, progress.batch)} ends at other records than "
            f"theirs, of which some would be lost or counted twice: restore the checkpoint as it was after batch "
            f"{progress.batch}, or name another output and checkpoint, and the tables are computed from the log again"
        )


def sync_position(checkpoint: Path, batch: int) -> None:
    """Makes the position behind a batch durable, as Spark does not: no power loss takes it from tables that have it."""
    file = checkpoint / "offsets" / str(batch)
    if file.exists():
        for path in (file, file.parent, checkpoint):
            sync(path)
