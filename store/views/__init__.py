"""The views: what is derived from the log, in one LMDB environment, and can be rebuilt from the log.

The dispatcher applies runs of frames in one transaction together with the log offset behind them, so after any crash
the views are a prefix of the log. What a view holds depends on the frames alone, not on how they were cut into runs:
a rebuilt view is the same byte for byte.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, RLock, local
from typing import Any

import lmdb

from controller.lmdb_file import is_cut_short
from store.chunks import Chunk
from store.errors import NotRebuildable, StoreFull
from store.files import FILE_MODE, OsFiles
from store.format import LogOffset, QueueNumber
from store.records import LogTrimmed
from store.run import Run
from store.views.addresses import AddressesView
from store.views.compact import CompactView
from store.views.configs import ConfigsView
from store.views.consume_queue import ConsumeQueueView
from store.views.groups import GroupsView
from store.views.index import IndexView
from store.views.kv import KvView
from store.views.last import LastView
from store.views.leases import SettledView
from store.views.old import FORMAT, Entry, OldViews, entries, old_path, set_aside
from store.views.producers import ProducersView
from store.views.snapshots import Snapshot
from store.views.timers import TimersView

__all__ = ["MAP_SIZE_BYTES", "Views"]

logger = logging.getLogger(__name__)

MAP_SIZE_BYTES = 64 << 30  # address space, not disk: the file grows as it is used
_READERS_MAX = 126
_SPARE_READERS = 8  # read transactions kept for the next reader
_MARGIN = 8  # the map grows when less than an eighth of it is left
START = LogOffset(0)
_ROOM_BYTES_MIN = 1 << 20  # for what LMDB writes through a map: without room for that a signal kills the process
_SHORT_BYTES = 16 << 20  # LMDB says of a write that was cut short EIO; with less than this it was for want of room
_NO_ROOM = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))  # py-lmdb keeps the text alone


class _Reading:
    """A read transaction while it is entered. A generator for it took longer than the look-up that it is for."""

    __slots__ = ("_begin", "_end", "_txn")

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], None]) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> Any:
        self._txn = self._begin()
        return self._txn

    def __exit__(self, *_: object) -> None:
        self._end(self._txn)


class Views:
    """All views and how far they have followed the log. One thread applies; any reads."""

    def __init__(
        self,
        path: Path,
        *,
        map_size_bytes: int = MAP_SIZE_BYTES,
        rebuildable: bool = True,
        origin: LogOffset = START,
    ) -> None:
        """Open or create the environment, of a log that began at `origin`.

        One that is damaged or of another format is begun anew, empty; where the log cannot give it all again,
        `NotRebuildable` is raised instead, and `StoreFull` where the disk has no room for a new one.
        """
        self._path = path
        self._origin = origin
        self._rebuildable = rebuildable
        self._readers = 0
        self._mine = local()  # `depth`: of the readings that this thread is in
        self._lock = RLock()  # the gate's; without its condition it is taken at once
        self._gate = Condition(self._lock)
        self._snapshots: set[Snapshot] = set()
        self._resizing = False
        try:
            if is_cut_short(path / "data.mdb"):  # LMDB would find out by a signal that kills the process
                raise lmdb.CorruptedError(f"{path / 'data.mdb'} has lost its end")
            self._open(map_size_bytes)
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError):
            logger.exception("the views are damaged")
            self.reset(map_size_bytes=map_size_bytes)
        except lmdb.Error as error:
            if self._is_for_want_of_room(error):
                raise StoreFull(f"the views cannot be opened: {error}") from error
            raise

    @staticmethod
    def dispatched_of(path: Path) -> LogOffset:
        """How far the views in a copied file are; changes nothing. Raises `lmdb.Error`, also for another format."""
        with lmdb.open(str(path), subdir=False, readonly=True, create=False, lock=False, max_dbs=1) as env:
            meta = env.open_db(b"meta", create=False)
            with env.begin() as txn:
                if txn.get(b"format", db=meta) != FORMAT:
                    raise lmdb.VersionMismatchError("the views are of another format")
                found = txn.get(b"dispatched", db=meta)
        if found is None:
            raise lmdb.InvalidError("the views are empty")
        return LogOffset(int.from_bytes(found, "big"))

    def _open(self, map_size_bytes: int) -> None:
        OsFiles().make_directory(self._path)
        if not (self._path / "lock.mdb").exists() and (free := OsFiles().free_bytes(self._path)) < _ROOM_BYTES_MIN:
            raise StoreFull(f"the views need {_ROOM_BYTES_MIN} bytes to begin with, and {free} are free")
        # metasync off: a crash may take back the newest transaction, which the log then gives again, but never
        # leaves a torn one; one sync a transaction instead of two.
        self._env = lmdb.open(
            str(self._path),
            map_size=map_size_bytes,
            max_dbs=32,
            max_readers=_READERS_MAX,
            max_spare_txns=_SPARE_READERS,
            metasync=False,
            meminit=False,
            mode=FILE_MODE,
        )
        self._page_bytes: int = self._env.stat()["psize"]
        self._meta = self._env.open_db(b"meta")
        self.queues = ConsumeQueueView(self._env.open_db(b"queues"), self._env.open_db(b"queue_ends"))
        self.configs = ConfigsView(self._env.open_db(b"configs"))
        self.compact = CompactView(self._env.open_db(b"compact"))
        self.last = LastView(self._env.open_db(b"last"))
        self.kv = KvView(*(self._env.open_db(name) for name in (b"kv", b"kv_expiry", b"kv_spaces", b"kv_void")))
        self.groups = GroupsView(self._env.open_db(b"groups"))
        self.settled = SettledView(self._env.open_db(b"settled"))
        self.producers = ProducersView(self._env.open_db(b"producers"))
        self.index = IndexView(self._env.open_db(b"index"), self._origin)
        self.addresses = AddressesView(self._env.open_db(b"addresses"))
        self.timers = TimersView(self._env.open_db(b"timers"))
        self._all = (
            self.timers,
            self.queues,
            self.configs,
            self.compact,
            self.last,
            self.kv,
            self.groups,
            self.settled,
            self.producers,
            self.index,
            self.addresses,
        )
        with self._env.begin() as txn:
            found = txn.get(b"format", db=self._meta)
            self.dispatched = self._offset(txn, b"dispatched")
            self.stored_at_ms = int.from_bytes(txn.get(b"stored_at_ms", b"", db=self._meta), "big")
            self.first = self._offset(txn, b"first")
        if found is None:
            with self._writing() as txn:
                txn.put(b"format", FORMAT, db=self._meta)
        elif found != FORMAT:
            logger.warning("the views are of another format")
            try:
                self.reset(map_size_bytes=map_size_bytes)
            except NotRebuildable:
                self._env.close()
                raise

    def _offset(self, txn: Any, name: bytes) -> LogOffset:
        found = txn.get(name, db=self._meta)
        return self._origin if found is None else LogOffset(int.from_bytes(found, "big"))

    def reset(self, *, map_size_bytes: int = MAP_SIZE_BYTES) -> None:
        """Set everything aside and begin where the log began. Nobody may be reading. Raises `NotRebuildable`."""
        if not self._rebuildable:
            raise NotRebuildable(f"the log does not have all of what {self._path} is made from any more")
        env = getattr(self, "_env", None)
        if env is not None:
            env.close()
        logger.warning("the views are rebuilt from the log")
        set_aside(self._path)
        self._open(map_size_bytes)

    def apply(self, runs: Sequence[Run]) -> None:
        """Apply consecutive runs, the first of which begins at `dispatched`, in one durable transaction.

        Raises `StoreFull` where the disk has no room for it, and `lmdb.Error`; then nothing has changed.
        """
        assert runs[0].start >= self.dispatched
        newest = runs[-1].placed[-1]
        trims = [min(rec.first, at.frame) for run in runs for at, rec in run.records if isinstance(rec, LogTrimmed)]
        first = LogOffset(max([self.first, *trims]))
        if self._is_nearly_full():  # a transaction that meets the end of the map waits for whoever copies (py-lmdb)
            self._grow()
        while True:
            try:
                with self._writing() as txn:
                    for view in self._all:
                        view.apply(txn, runs)
                    txn.put(b"dispatched", newest.end.to_bytes(8, "big"), db=self._meta)
                    txn.put(b"stored_at_ms", newest.stored_at_ms.to_bytes(8, "big"), db=self._meta)
                    if first > self.first:
                        txn.put(b"first", first.to_bytes(8, "big"), db=self._meta)
            except lmdb.MapFullError:
                self._grow()
            else:
                self.dispatched, self.stored_at_ms, self.first = newest.end, newest.stored_at_ms, first
                return

    def pass_over(self, chunks: Sequence[tuple[QueueNumber, Chunk]], end: LogOffset) -> None:
        """Hold chunks of frames that cannot be read, and go on at `end`. Raises as `apply` does."""
        with self._writing() as txn:
            self.queues.put(txn, chunks)
            txn.put(b"dispatched", end.to_bytes(8, "big"), db=self._meta)
        self.dispatched = end

    def old(self) -> OldViews | None:
        """Those that were here before, while these are made anew; None when they are not, or hold as much by now."""
        path = old_path(self._path)
        if not path.is_dir():
            return None
        old = OldViews(path)
        if self.dispatched > self._origin and self.dispatched >= old.dispatched > 0:
            old.discard()
            return None
        return old

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        try:
            with self._env.begin(write=True) as txn:
                yield txn
        except lmdb.Error as error:
            if self._is_for_want_of_room(error):
                raise StoreFull(f"the views cannot be written: {error}") from error
            raise

    def _is_for_want_of_room(self, error: lmdb.Error) -> bool:
        said = str(error)
        if isinstance(error, lmdb.DiskError) or any(reason in said for reason in _NO_ROOM):
            return True
        return os.strerror(errno.EIO) in said and OsFiles().free_bytes(self._path) < _SHORT_BYTES

    def _is_nearly_full(self) -> bool:
        info = self._env.info()
        used: int = info["last_pgno"] * self._page_bytes
        return used > info["map_size"] - info["map_size"] // _MARGIN

    @property
    def growing(self) -> bool:
        """Whether the map waits to grow, and everybody for that, until nobody reads: who reads for long should stop."""
        return self._resizing

    def _grow(self) -> None:
        """Double the map, with no transaction open (LMDB, mdb_env_set_mapsize)."""
        with self._gate:
            self._resizing = True
            self._gate.wait_for(lambda: self._readers == 0)
            for snapshot in list(self._snapshots):
                snapshot.take_back()
            try:
                size = self._env.info()["map_size"] * 2
                logger.info("the views' map grows", extra={"bytes": size})
                self._env.set_mapsize(size)
            finally:
                self._resizing = False
                self._gate.notify_all()

    def reading(self) -> "_Reading":
        """A read transaction, by `with`: everything applied before, nothing applied later."""
        return _Reading(self._begin, self._end)

    def _begin(self) -> Any:
        mine = self._mine
        depth = getattr(mine, "depth", 0)
        with self._lock:
            if self._resizing and not depth:  # with a depth the map waits for this very thread
                self._gate.wait_for(lambda: not self._resizing)
            self._readers += 1
        mine.depth = depth + 1
        try:
            return self._env.begin()
        except BaseException:
            self._leave()
            raise

    def _end(self, txn: Any) -> None:
        try:
            txn.commit()  # it has written nothing
        finally:
            self._leave()

    def _leave(self) -> None:
        self._mine.depth -= 1
        with self._lock:
            self._readers -= 1
            if self._resizing:
                self._gate.notify_all()

    def snapshot(self) -> Snapshot:
        """A read transaction for longer than a call; to be closed."""
        with self._gate:
            self._gate.wait_for(lambda: not self._resizing)
            snapshot = Snapshot(self._env.begin(), self._gate, self._snapshots.discard)
            self._snapshots.add(snapshot)
            return snapshot

    def entries(self) -> Iterator[Entry]:
        """Every entry of every view as (view, key, value): for comparing two environments."""
        return entries(self._env)

    def copy(self, path: Path) -> None:
        """A consistent copy of the environment, while it is in use, into an existing empty directory."""
        self._env.copy(str(path))

    def write_copy(self, fd: int) -> None:
        """The same, without what is free in it, into an open file or pipe; the map does not grow meanwhile.

        Raises `lmdb.Error` when writing fails.
        """
        with self.reading():
            self._env.copyfd(fd, compact=True)

    def close(self) -> None:
        """Sync and close. Nobody may be reading."""
        self._env.sync(True)
        self._env.close()
