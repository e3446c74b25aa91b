"""The views that were there before: those being made anew are told what the log alone does not say any more.

While views are made anew the old ones lie beside them, in a directory of their own; an empty one where there were none
to keep. They know how far the log was on disk, so that damage there is not taken for what a crash has left; and how
many records of which queue a damaged stretch of it holds, so that what lies behind it keeps its offsets.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import lmdb

from controller.lmdb_file import is_cut_short
from store.chunks import Chunk
from store.files import OsFiles
from store.format import LogOffset, QueueNumber
from store.views.consume_queue import ConsumeQueueView

__all__ = ["FORMAT", "Entry", "Marks", "OldViews", "entries", "old_path", "opened_to_read", "read_marks", "set_aside"]

logger = logging.getLogger(__name__)

FORMAT = b"4"  # of all views together
_MAP_BYTES = 1 << 40  # address space: as large as any views are
_DBS_MAX = 64


Entry: TypeAlias = tuple[bytes, bytes, bytes]  # view, key, value


class Marks(NamedTuple):
    """What views say of themselves: how far they have followed the log, from where on they know it to be kept."""

    dispatched: LogOffset
    first: LogOffset
    is_current: bool  # of this format


@contextmanager
def opened_to_read(path: Path) -> Iterator[Any]:
    """An environment that nobody writes, opened without changing anything. Raises `lmdb.Error`."""
    if is_cut_short(path / "data.mdb"):  # LMDB would find out by a signal that kills the process
        raise lmdb.CorruptedError(f"{path / 'data.mdb'} has lost its end")
    env = lmdb.open(str(path), map_size=_MAP_BYTES, max_dbs=_DBS_MAX, readonly=True, create=False, lock=False)
    with closing(env):
        yield env


def entries(env: Any) -> Iterator[Entry]:
    """Every entry of every view, in the order of view and key."""
    with env.begin() as txn:
        for name in [key for key, _ in txn.cursor()]:
            for key, value in txn.cursor(db=env.open_db(name, txn=txn, create=False)):
                yield name, key, value


def read_marks(path: Path) -> Marks | None:
    """The marks of the views in a directory; None where there are none, or none that can be read."""
    try:
        with opened_to_read(path) as env, env.begin() as txn:
            meta = env.open_db(b"meta", txn=txn, create=False)
            found = {name: txn.get(name, db=meta) for name in (b"format", b"dispatched", b"first")}
    except lmdb.Error:
        return None
    if found[b"dispatched"] is None:
        return None
    first = found[b"first"] or b""
    return Marks(
        LogOffset(int.from_bytes(found[b"dispatched"], "big")),
        LogOffset(int.from_bytes(first, "big")),
        found[b"format"] == FORMAT,
    )


def old_path(path: Path) -> Path:
    """Where the old views lie while those at `path` are made anew."""
    return path.with_name(path.name + ".old")


def set_aside(path: Path) -> None:
    """Make way for new views. What was already set aside stays: it knows more than views half made. Raises OSError."""
    if old_path(path).exists():
        shutil.rmtree(path, ignore_errors=True)
        return
    if path.exists():
        path.rename(old_path(path))
    else:
        OsFiles().make_directory(old_path(path))
    OsFiles().sync_directory(path.parent)


class OldViews:
    """Views in a directory where nobody writes them."""

    def __init__(self, path: Path) -> None:
        """Those at `path`, which may be unreadable."""
        self._path = path
        self._marks = read_marks(path)

    @property
    def dispatched(self) -> LogOffset:
        """How far they have followed the log, which was on disk so far; 0 where that is not known."""
        return LogOffset(0) if self._marks is None else self._marks.dispatched

    @property
    def is_readable(self) -> bool:
        """Whether `chunks` can be asked for."""
        return self._marks is not None and self._marks.is_current

    def chunks(self, start: LogOffset, end: LogOffset) -> list[tuple[QueueNumber, Chunk]] | None:
        """What the frames between two log offsets hold, by queue; None where that is not known.

        Costs some searches a queue.
        """
        if not self.is_readable or end > self.dispatched:
            return None
        found: list[tuple[QueueNumber, Chunk]] = []
        try:
            with opened_to_read(self._path) as env, env.begin() as txn:
                dbs = [env.open_db(name, txn=txn, create=False) for name in (b"queues", b"queue_ends")]
                view = ConsumeQueueView(*dbs)
                for queue in view.queues(txn):
                    first = view.search(txn, queue, lambda chunk: chunk.frame >= start)
                    for chunk in view.chunks(txn, queue, first):
                        if chunk.frame >= end:
                            break
                        found.append((queue, chunk))
        except lmdb.Error:
            logger.exception("the old views cannot be read")
            return None
        return found

    def discard(self) -> None:
        """Remove them: they have told all they know."""
        shutil.rmtree(self._path, ignore_errors=True)
