"""The views: data derived from the log, in one LMDB environment, which can be rebuilt from the log.

The dispatcher applies runs of frames in one transaction together with the log offset behind them, so after any crash
the views are a prefix of the log. The contents of a view depend on the frames alone, not on how they were cut into
runs: a rebuilt view is the same byte for byte.

Only this package has LMDB transactions: the objects of `reading` and `snapshot` check every value (`sealed`).

Imported by: engine, local, node, recent, timers.
Imports: api, base, disk, format, integrity, log.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Condition, Lock, RLock, local
from typing import Any

import lmdb

from store.base.errors import NotRebuildable, StoreFull, ViewsDamaged
from store.disk.space import is_for_want_of_room
from store.format.chunks import Chunk
from store.format.frame import LogOffset, QueueNumber
from store.format.ranges import Range
from store.format.records import LogTrimmed
from store.integrity.tables import SUMS_BYTES, Table, unseal
from store.integrity.views import ViewsHealth
from store.log.run import FrameRun
from store.views.addresses import AddressesView
from store.views.compact import CompactView
from store.views.configs import ConfigsView
from store.views.consume_queue import ConsumeQueueView
from store.views.environment import DAMAGED, open_environment
from store.views.groups import GroupsView
from store.views.index import IndexView
from store.views.kv import KvView
from store.views.last import LastView
from store.views.layout import (
    FORMAT,
    META,
    PASSED,
    SEALING,
    TABLES,
    UNGUARDED,
    UNSEALED,
    UNSUMMED,
    Entry,
    entries,
    notes,
    passed_in,
    read_marks,
    save_passed,
    with_gaps,
)
from store.views.leases import SettledView
from store.views.migration import seal_all
from store.views.old import OldViews, old_path, set_aside
from store.views.producers import ProducersView
from store.views.sealed import ReadTxn, WriteTxn
from store.views.snapshots import ViewsSnapshot
from store.views.timers import TimersView
from store.views.verify import ViewsWalk

__all__ = ["MAP_SIZE_BYTES", "Views"]

logger = logging.getLogger(__name__)

MAP_SIZE_BYTES = 64 << 30  # address space, not disk: the file grows as it is used
_MARGIN = 8  # the map grows when less than an eighth of it is left
START = LogOffset(0)
_SUMS, _DISPATCHED, _STORED, _FIRST = b"sums", b"dispatched", b"stored_at_ms", b"first"
_OPENING_S = 0.25  # that opening may verify; the scrub does the rest


class _Reading:
    """A read transaction while it is entered. A generator for it took longer than the look-up that it is for."""

    __slots__ = ("_txn", "_views")

    def __init__(self, views: "Views") -> None:
        self._views = views

    def __enter__(self) -> ReadTxn:
        txn = self._txn = ReadTxn(self._views._begin())  # noqa: SLF001 - part of it
        return txn

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._views._end(self._txn)  # noqa: SLF001
        if isinstance(error, DAMAGED):
            raise self._views.health.report("", str(error)) from error


class Views:
    """All views and how far they have followed the log. One thread applies; any reads."""

    def __init__(
        self,
        path: Path,
        *,
        map_size_bytes: int = MAP_SIZE_BYTES,
        rebuildable: bool = True,
        origin: LogOffset = START,
        health: ViewsHealth | None = None,
    ) -> None:
        """Opens or creates the environment, of a log that began at `origin`.

        One that is damaged or of another format is begun anew, empty. Where the log cannot give it all again, one with
        damaged entries is opened, and `health` knows of them; one that cannot be opened raises `NotRebuildable`.
        `StoreFull` is raised where the disk has no room for a new one.
        """
        self.health = health if health is not None else ViewsHealth()
        self.health.rebuildable = rebuildable
        self.path = path
        self._origin = origin
        self._rebuildable = rebuildable
        self._readers = 0
        self._mine = local()  # `depth`: of the readings that this thread is in
        self._lock = RLock()  # the gate's; without its condition it is taken at once
        self._gate = Condition(self._lock)
        self.snapshots: set[ViewsSnapshot] = set()
        self._resizing = False
        self.turn = Lock()  # its holder writes, or verifies
        if self.health.condemned:
            self._condemned()
        try:
            with self.health.at_risk():
                self._open(map_size_bytes)
                self.walk.run(_OPENING_S)
        except (*DAMAGED, ViewsDamaged):
            logger.exception("the views are damaged")
            self._close_env()
            self.reset(map_size_bytes=map_size_bytes)
        except BaseException as error:
            self._close_env()
            if isinstance(error, lmdb.Error) and is_for_want_of_room(error, self.path):
                raise StoreFull(f"the views cannot be opened: {error}") from error
            raise
        if self.health.is_damaged and rebuildable:
            self.reset(map_size_bytes=map_size_bytes)

    def _condemned(self) -> None:
        """Makes way for new views, which an earlier process has asked for. Raises `NotRebuildable`."""
        why, health = self.health.condemned, self.health
        if self._rebuildable:
            logger.error("the views are set aside, and made anew from the log: %s", why)
            set_aside(self.path, readable=not health.may_crash)
            health.renewed()
        elif health.may_crash:
            raise NotRebuildable(
                f"{self.path} is not opened any more: {why}; the log lacks records that it is made from. "
                f"Put a copy in its place, or remove {self.path.with_name('views.watch')} to try again"
            )
        else:
            logger.error("the views stay as they are, as the log does not have all they are made from: %s", why)
            health.remember()

    @staticmethod
    def dispatched_of(path: Path) -> LogOffset:
        """Returns how far a copied file's views are; changes nothing. Raises `lmdb.Error`, also for another format."""
        marks = read_marks(path, subdir=False)
        if marks is None:
            raise lmdb.InvalidError("the views are empty, or damaged")
        if marks.format not in {FORMAT, UNSEALED}:
            raise lmdb.VersionMismatchError("the views are of another format")
        return marks.dispatched

    def _open(self, map_size_bytes: int) -> None:
        self.env = open_environment(self.path, map_size_bytes)
        self._page_bytes: int = self.env.stat()["psize"]
        new = not self.env.info()["last_txnid"]
        report = self.health.report
        self.tables = {
            name: Table(
                name,
                self.env.open_db(name.encode()),
                report,
                summed=name not in UNSUMMED,
                guarded=name not in UNGUARDED,
            )
            for name in TABLES
        }
        self.meta = Table(META, self.env.open_db(META.encode()), report, guarded=False)
        self._notes = notes(self.meta.handle)
        table = self.tables
        self.queues = ConsumeQueueView(table["queues"], table["queue_ends"])
        self.configs = ConfigsView(table["configs"])
        self.compact = CompactView(table["compact"])
        self.last = LastView(table["last"])
        self.kv = KvView(*(table[name] for name in ("kv", "kv_expiry", "kv_spaces", "kv_void")))
        self.groups = GroupsView(table["groups"])
        self.timers = TimersView(table["timers"])
        self.settled = SettledView(table["settled"], self._has_timers)
        self.producers = ProducersView(table["producers"])
        self.index = IndexView(table["index"], self._origin)
        self.addresses = AddressesView(table["addresses"])
        self.walk = ViewsWalk(self.tables, self.health, self.turn, reading=self.reading)
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
        if new:
            with self.writing() as txn:
                txn.put(b"format", FORMAT, db=self.meta)
                for name, number in ((_DISPATCHED, self._origin), (_STORED, 0), (_FIRST, self._origin)):
                    txn.put(name, number.to_bytes(8, "big"), db=self.meta)
        else:
            self._check_format()
        with self.reading() as txn:
            dispatched, self.first = LogOffset(self._mark(txn, _DISPATCHED)), LogOffset(self._mark(txn, _FIRST))
            # Replaced, and always before `dispatched`: any thread may look, up to there.
            self.passed = passed_in(txn, self._notes, dispatched)
            self.dispatched = dispatched
            self.stored_at_ms = self._mark(txn, _STORED)

    def _check_format(self) -> None:
        """Loads the sums, of this format; makes one without checksums this one. Raises `ViewsDamaged`, `lmdb.Error`."""
        meta = self.meta
        with self.env.begin() as raw:
            held = raw.get(b"format", b"", db=meta.handle)
            if held != UNSEALED:
                self._load_sums(ReadTxn(raw))
        found = unseal(meta.salt, b"format", held)
        if found == FORMAT:
            return
        if held not in {UNSEALED, SEALING}:
            raise lmdb.VersionMismatchError(f"the views are of another format than this version knows: {held!r}")
        seal_all(self.writing, self.tables, meta, {_DISPATCHED: self._origin, _STORED: 0, _FIRST: self._origin})

    def _load_sums(self, txn: ReadTxn) -> None:
        sums = txn.get(_SUMS, db=self.meta)
        if sums is None or len(sums) != len(TABLES) * SUMS_BYTES:
            raise self.health.report(META, "the numbers of entries are missing")
        for i, name in enumerate(TABLES):
            self.tables[name].load(sums[i * SUMS_BYTES : (i + 1) * SUMS_BYTES])

    def _mark(self, txn: ReadTxn, name: bytes) -> int:
        found = txn.get(name, db=self.meta)
        if found is None:
            raise self.health.report(META, f"{name.decode()!r} is missing")
        return int.from_bytes(found, "big")

    def reset(self, *, map_size_bytes: int = MAP_SIZE_BYTES) -> None:
        """Sets everything aside and begins where the log began. There must be no readers. Raises `NotRebuildable`."""
        if not self._rebuildable:
            raise NotRebuildable(f"the log no longer has all the records that {self.path} is made from")
        self._close_env()
        logger.warning("the views are rebuilt from the log")
        set_aside(self.path)
        self.health.renewed()
        self._open(map_size_bytes)

    def _close_env(self) -> None:
        env = getattr(self, "env", None)
        if env is not None:
            env.close()

    def apply(self, runs: Sequence[FrameRun]) -> None:
        """Applies runs, the first of which begins at `dispatched`, in one durable transaction.

        What lies between two runs, or in front of the first, could not be read, and is noted as `passed`.

        Raises `StoreFull` where the disk has no room for it, and `lmdb.Error`; then nothing has changed.
        """
        assert runs[0].start >= self.dispatched
        newest = runs[-1].placed[-1]
        trims = [min(rec.first, at.frame) for run in runs for at, rec in run.records if isinstance(rec, LogTrimmed)]
        first = LogOffset(max([self.first, *trims]))
        ends = [self.dispatched, *(run.end for run in runs[:-1])]
        gaps = [(at, run.start) for at, run in zip(ends, runs, strict=True) if at < run.start]
        passed = with_gaps(self.passed, gaps) if gaps else self.passed
        if self._is_nearly_full():  # a transaction that meets the end of the map waits for a copy in progress (py-lmdb)
            self._grow()
        while True:
            try:
                with self.writing() as txn:
                    for view in self._all:
                        view.apply(txn, runs)
                    txn.put(_DISPATCHED, newest.end.to_bytes(8, "big"), db=self.meta)
                    txn.put(_STORED, newest.stored_at_ms.to_bytes(8, "big"), db=self.meta)
                    if first > self.first:
                        txn.put(_FIRST, first.to_bytes(8, "big"), db=self.meta)
                    if gaps:
                        txn.put(PASSED, save_passed(passed), db=self._notes)
            except lmdb.MapFullError:
                self._grow()
            else:
                self.passed = passed
                self.dispatched, self.stored_at_ms, self.first = newest.end, newest.stored_at_ms, first
                return

    def pass_over(self, chunks: Sequence[tuple[QueueNumber, Chunk]], gaps: Sequence[Range], end: LogOffset) -> None:
        """Holds chunks of frames that cannot be read, notes `gaps` as `passed`, and goes on at `end`.

        Raises as `apply` does.
        """
        passed = with_gaps(self.passed, gaps) if gaps else self.passed
        with self.writing() as txn:
            self.queues.put(txn, chunks)
            txn.put(_DISPATCHED, end.to_bytes(8, "big"), db=self.meta)
            if gaps:
                txn.put(PASSED, save_passed(passed), db=self._notes)
        self.passed = passed
        self.dispatched = end

    def old(self) -> OldViews | None:
        """Returns the views from before a rebuild; None without a rebuild, or when the new views hold as much."""
        path = old_path(self.path)
        if not path.is_dir():
            return None
        old = OldViews(path)
        if self.dispatched > self._origin and self.dispatched >= old.dispatched > 0:
            old.discard()
            return None
        return old

    @contextmanager
    def writing(self) -> Iterator[WriteTxn]:
        """Yields the one transaction that writes; it commits at the end."""
        tables = self.tables.values()
        with self.turn:
            try:
                with self.health.writing(), self.env.begin(write=True) as raw:
                    txn = WriteTxn(raw)
                    yield txn
                    txn.put(_SUMS, b"".join([table.sums() for table in tables]), db=self.meta)
            except BaseException as error:
                for table in tables:
                    table.abort()
                if isinstance(error, lmdb.Error) and is_for_want_of_room(error, self.path):
                    raise StoreFull(f"the views cannot be written: {error}") from error
                if isinstance(error, DAMAGED):
                    raise self.health.report("", str(error)) from error
                raise
            for table in tables:
                table.commit()

    def _has_timers(self, txn: ReadTxn) -> bool:
        """Returns whether timers are pending."""
        return self.timers.held(txn).timers > 0

    def _is_nearly_full(self) -> bool:
        info = self.env.info()
        used = info["last_pgno"] * self._page_bytes
        nearly: bool = used > info["map_size"] - info["map_size"] // _MARGIN
        return nearly

    @property
    def rebuildable(self) -> bool:
        """Returns whether opening the views again makes them anew, if they are damaged."""
        return self._rebuildable

    @property
    def growing(self) -> bool:
        """Returns whether the map, and so everybody, waits for the end of all reads to grow: long reads should stop."""
        return self._resizing

    def _grow(self) -> None:
        """Doubles the map, with no transaction open (LMDB, mdb_env_set_mapsize)."""
        with self._gate:
            self._resizing = True
            self._gate.wait_for(lambda: self._readers == 0)
            for snapshot in list(self.snapshots):
                snapshot.take_back()
            try:
                size = self.env.info()["map_size"] * 2
                logger.info("the views' map grows", extra={"bytes": size})
                self.env.set_mapsize(size)
            finally:
                self._resizing = False
                self._gate.notify_all()

    def reading(self) -> "_Reading":
        """Returns a read transaction, by `with`: everything applied before, nothing applied later."""
        return _Reading(self)

    def _begin(self) -> Any:
        mine = self._mine
        depth = getattr(mine, "depth", 0)
        with self._lock:
            if self._resizing and not depth:  # with a depth the map waits for this very thread
                self._gate.wait_for(lambda: not self._resizing)
            self._readers += 1
        mine.depth = depth + 1
        try:
            return self.env.begin()
        except BaseException as error:
            self._leave()
            if isinstance(error, DAMAGED):
                raise self.health.report("", str(error)) from error
            raise

    def _end(self, txn: ReadTxn) -> None:
        try:
            txn.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        self._mine.depth -= 1
        with self._lock:
            self._readers -= 1
            if self._resizing:
                self._gate.notify_all()

    def snapshot(self) -> ViewsSnapshot:
        """Returns a read transaction for longer than a call; to be closed."""
        with self._gate:
            self._gate.wait_for(lambda: not self._resizing)
            snapshot = ViewsSnapshot(ReadTxn(self.env.begin()), self._gate, self.snapshots.discard)
            self.snapshots.add(snapshot)
            return snapshot

    def entries(self) -> Iterator[Entry]:
        """Returns every entry of every view as (view, key, value): for comparing two environments."""
        return entries(self.env)

    def copy(self, path: Path) -> None:
        """Copies the environment, while it is in use, consistently into an existing empty directory."""
        self.env.copy(str(path))

    def write_copy(self, fd: int) -> None:
        """Copies it without its free pages, into an open file or pipe; the map does not grow meanwhile.

        Raises `lmdb.Error` when writing fails.
        """
        with self.reading():
            self.env.copyfd(fd, compact=True)

    def close(self) -> None:
        """Syncs and closes. There must be no readers."""
        self.env.sync(True)
        self.env.close()
