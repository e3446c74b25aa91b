"""The views from before a rebuild: the new ones take from them the data that the log does not hold any more.

While views are made anew the old ones lie beside them, in a directory of their own; an empty one where there were none
to keep. They know how far the log was on disk, so that damage there is not taken for a torn end left by a crash; and
how many records of which queue a damaged stretch of it holds, so that the records behind it keep their offsets, and
which of it no views have followed.
"""

import logging
import shutil
from pathlib import Path

import lmdb

from store.base.errors import ViewsDamaged
from store.disk.files import OsFiles
from store.format.chunks import Chunk
from store.format.frame import LogOffset, QueueNumber
from store.format.ranges import Range
from store.views.consume_queue import ConsumeQueueView
from store.views.layout import (
    FORMAT,
    META,
    UNSEALED,
    notes,
    opened_to_read,
    passed_in,
    plain_table,
    read_marks,
)
from store.views.sealed import ReadTxn

logger = logging.getLogger(__name__)


def old_path(path: Path) -> Path:
    """Returns where the old views lie while those at `path` are made anew."""
    return path.with_name(path.name + ".old")


def set_aside(path: Path, *, readable: bool = True) -> None:
    """Makes way for new views. Views already set aside stay: they know more than views half made. Raises OSError.

    Nothing is kept of views that are not `readable`: a process that looks into it would die.
    """
    if not readable:
        for found in (path, old_path(path)):
            shutil.rmtree(found, ignore_errors=True)
    if old_path(path).exists():
        shutil.rmtree(path, ignore_errors=True)
        return
    if path.exists():
        path.rename(old_path(path))
    else:
        OsFiles().make_directory(old_path(path))
    OsFiles().sync_directory(path.parent)


class OldViews:
    """Views in a directory in which they are not written any more."""

    def __init__(self, path: Path) -> None:
        """Opens the views at `path`, which may be unreadable."""
        self._path = path
        self._marks = read_marks(path)

    @property
    def dispatched(self) -> LogOffset:
        """Returns how far they have followed the log, which was on disk so far; 0 where that is not known."""
        return LogOffset(0) if self._marks is None else self._marks.dispatched

    @property
    def is_readable(self) -> bool:
        """Returns whether `chunks` can be asked for."""
        return self._marks is not None and self._marks.format in {FORMAT, UNSEALED}

    def chunks(self, start: LogOffset, end: LogOffset) -> list[tuple[QueueNumber, Chunk]] | None:
        """Returns the chunks of the frames between two log offsets, by queue; None where they are not known.

        Costs some searches a queue.
        """
        if self._marks is None or not self.is_readable or end > self.dispatched:
            return None
        found: list[tuple[QueueNumber, Chunk]] = []
        try:
            with opened_to_read(self._path) as env, env.begin() as raw:
                (txn, queues), (_, ends) = [
                    plain_table(env, raw, name, self._marks.format) for name in ("queues", "queue_ends")
                ]
                view = ConsumeQueueView(queues, ends)
                for queue in view.queues(txn):
                    first = view.search(txn, queue, lambda chunk: chunk.frame >= start)
                    for chunk in view.chunks(txn, queue, first):
                        if chunk.frame >= end:
                            break
                        found.append((queue, chunk))
        except (lmdb.Error, ViewsDamaged):
            logger.exception("the old views cannot be read")
            return None
        return found

    def passed(self, start: LogOffset, end: LogOffset) -> list[Range]:
        """Returns the parts between two log offsets that they have passed over; all of it where that is not known."""
        if self._marks is None or not self.is_readable or end > self.dispatched:
            return [(start, end)]
        if not self._marks.is_current:  # which noted none
            return []
        try:
            with opened_to_read(self._path) as env, env.begin() as txn:
                meta = env.open_db(META.encode(), txn=txn, create=False)
                passed = passed_in(ReadTxn(txn), notes(meta), self.dispatched)
        except lmdb.Error:
            logger.exception("the old views cannot be read")
            return [(start, end)]
        return [(max(a, start), min(b, end)) for a, b in passed if a < end and start < b]

    def discard(self) -> None:
        """Removes them: they have told all they know."""
        shutil.rmtree(self._path, ignore_errors=True)
