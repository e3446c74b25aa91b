"""The operations on a data directory that is not open: verify it, look into it, rebuild its views.

Everything here takes the lock that a running store holds, so it raises `DataDirLocked` while one runs. Only
`rebuild_views` changes anything; the rest works in a directory that cannot be written, too.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple, TypeAlias

import lmdb

from store.base.errors import NotRebuildable, StoreError, ViewsDamaged
from store.disk.files import Files, OsFiles, ReadOnlyFiles
from store.disk.lock import NOT_WRITABLE, DataDirLock, ReadersLock
from store.engine.recovery import OnProgress, keep_offsets, recover, replay
from store.engine.snapshot import VERIFIED, filling
from store.format.chunks import QueueEnd
from store.format.frame import Frame, LogOffset, QueueNumber
from store.integrity.floor import FLOOR_FILE, read_floor
from store.integrity.ledger import BY_SEAL, Damage
from store.integrity.seals import SEALS_FILE, Seal, read_seals
from store.integrity.views import ViewsHealth
from store.log.log import CommitLog
from store.log.run import RunBuilder
from store.log.sealer import SealCheck, restore_segments
from store.log.segment import BadRange, segment_start, split_at
from store.replication.epoch_file import EPOCH_FILES
from store.views import Views
from store.views.layout import Entry, entries, marks_in, opened_to_read, read_marks
from store.views.old import OldViews, old_path, set_aside

_BY_VERIFY = "verify"

OnBytes: TypeAlias = Callable[[LogOffset], None]  # how far a reader of the log is


class NoDataDir(StoreError):
    """The directory holds no store."""


class VerifiedLog(NamedTuple):
    """The result of reading a log. `torn` are bytes that a crash has left at its end; the next start cuts them off."""

    frames: int
    records: int
    sound_bytes: int
    damages: list[Damage]
    torn: BadRange | None
    longer: Sequence[str] = ()  # segments that are longer than they were sealed; the next start cuts them

    @property
    def is_sound(self) -> bool:
        """Returns whether nothing is wrong except a torn end left by a crash."""
        return not self.damages and not self.longer


class ViewsVerified(NamedTuple):
    """The comparison of views with a rebuild from the log: entries that are the same, and by view those that differ.

    With a `problem` they could not be compared.
    """

    same: int
    different: dict[str, int]
    problem: str | None = None

    @property
    def is_sound(self) -> bool:
        """Returns whether they equal views made anew."""
        return not self.different and self.problem is None


class ViewStats(NamedTuple):
    """One view: how many entries it has, and the bytes of the pages that hold them."""

    name: str
    entries: int
    size_bytes: int


class Stats(NamedTuple):
    """The content of a data directory, without reading its log. `views` is empty where they cannot be opened."""

    first: LogOffset
    end: LogOffset
    segments: int
    log_bytes: int
    dispatched: LogOffset
    views_bytes: int
    views: list[ViewStats]


class StoppedStore:
    """A data directory, locked. A context manager. Raises `DataDirLocked`, `NoDataDir`, OSError.

    A directory that is only `read` need not be writable: `unlocked` is the reason then, and a store may be running
    on it that is not seen from here.
    """

    def __init__(self, data_dir: Path, *, read: bool = False) -> None:
        self._data_dir = data_dir
        self._files: Files = OsFiles()
        self.unlocked: str | None = None
        directory = data_dir / "log"
        if not directory.is_dir() or not any(segment_start(path.name) is not None for path in directory.iterdir()):
            raise NoDataDir(f"{data_dir} holds no store: {directory} has no segments")
        with ExitStack() as opened:
            opened.callback(self._lock(read=read).release)
            self._log = CommitLog(self._files, directory)
            opened.callback(self._log.close)
            self._opened = opened.pop_all()

    def _lock(self, *, read: bool) -> DataDirLock | ReadersLock:
        try:
            return DataDirLock(self._data_dir)
        except OSError as error:
            if not read or error.errno not in NOT_WRITABLE:
                raise
            self._files, self.unlocked = ReadOnlyFiles(), error.strerror
            return ReadersLock(self._data_dir)

    def __enter__(self) -> "StoppedStore":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._opened.close()

    @property
    def first(self) -> LogOffset:
        """Returns where the log begins."""
        return self._log.first

    @property
    def end(self) -> LogOffset:
        """Returns where the log's last file ends."""
        return self._log.end

    @property
    def _views_path(self) -> Path:
        return self._data_dir / "views"

    def items(self, start: LogOffset | None = None, end: LogOffset | None = None) -> Iterator[Frame | BadRange]:
        """Yields frames in log order, verified, and the ranges between that hold none.

        From the frame that `start` is in, and without those that begin at or behind `end`. The segment of `start` is
        read from its beginning: only frames tell where others begin.
        """
        start = self.first if start is None else max(start, self.first)
        end = self.end if end is None else min(end, self.end)
        segment = self._log.segment_of(start)
        for item in self._log.scan(start if segment is None else segment.start, self.end):
            if item.start >= end:
                break
            if item.end > start:
                yield item if isinstance(item, Frame) else item._replace(end=min(item.end, end))

    def _look_for_missing(self) -> None:
        marks = read_marks(self._views_path)
        if marks is None:
            return
        begun = filling(self._data_dir, self._files)
        reached = self.end if begun is not None and begun.dispatched == marks.dispatched else marks.dispatched
        floor = read_floor(self._files, self._data_dir / FLOOR_FILE)
        first = marks.first if begun is None else LogOffset(max(marks.first, begun.first))
        self._log.look_for_missing(first, max(reached, floor), _BY_VERIFY)

    @property
    def _durable(self) -> LogOffset:
        """Returns how far the log is known to have been on disk."""
        found = [read_marks(path) for path in (self._views_path, old_path(self._views_path))]
        floor = read_floor(self._files, self._data_dir / FLOOR_FILE)
        return max([floor, *(marks.dispatched for marks in found if marks is not None)], default=self.first)

    # ---- verify

    def verify(self, on_bytes: OnBytes = lambda _at: None) -> VerifiedLog:
        """Reads the whole log and checks both checksums of every frame.

        All frames that the views have followed were on disk: if these differ or are missing, no crash has left them so.
        """
        frames = records = size = 0
        torn = None
        durable = self._durable
        seals = self._sealed()
        check = SealCheck(self._log, seals.get)
        for item in self.items():
            if (other := check.take(item)) is not None:
                self._log.damaged(other, BY_SEAL)
            if isinstance(item, Frame):
                frames, records, size = frames + 1, records + item.header.row_count, size + item.header.size_bytes
            else:
                last = item.end == self.end and item.start >= self._log.sealed
                damage, torn = split_at(item, durable) if last else (item, None)
                if damage is not None:
                    self._log.damaged(damage, _BY_VERIFY)
            on_bytes(item.end)
        self._look_for_missing()
        return VerifiedLog(frames, records, size, self._log.damages.open(), torn, self._longer(seals))

    def _sealed(self) -> dict[LogOffset, Seal]:
        """Returns the seals by their segments' beginnings. Bytes that these lack are damaged, not deleted."""
        marks = read_marks(self._views_path)
        first = self.first if marks is None else LogOffset(max(marks.first, self._log.origin))
        begun = filling(self._data_dir, self._files)
        first = first if begun is None else LogOffset(max(first, begun.first))
        seals = [one for one in read_seals(self._files, self._data_dir / SEALS_FILE) if one.end > first]
        return {one.start: one for one in seals} if restore_segments(self._log, seals, first) else {}

    def _longer(self, seals: Mapping[LogOffset, Seal]) -> list[str]:
        """Returns the segments whose files are longer than they were sealed; the next start cuts them."""
        segments = [one for one in self._log.segments if one.start in seals]
        return [one.path.name for one in segments if one.end > seals[one.start].end]

    def verify_views(self, on_progress: OnProgress = lambda _at, _end: None) -> ViewsVerified:
        """Compares the views with a rebuild from the log, up to where they have followed it; changes nothing.

        Takes as much room again meanwhile: in the data directory, or in that of temporary files where the data
        directory cannot be written. Raises `NotRebuildable`.
        """
        self._check_rebuildable()
        marks = read_marks(self._views_path)
        if marks is None:
            missing = not (self._views_path / "data.mdb").exists()
            return ViewsVerified(0, {}, "the views are missing" if missing else "the views cannot be read")
        if marks.dispatched <= self._log.origin < self.end:
            return ViewsVerified(0, {}, "the views are empty")
        if not marks.is_current:
            return ViewsVerified(0, {}, "the views are of another format")
        with TemporaryDirectory(dir=self._data_dir if self.unlocked is None else None, prefix=VERIFIED) as directory:
            try:
                with (
                    closing(self._replayed(Path(directory) / "views", marks.dispatched, on_progress)) as rebuilt,
                    opened_to_read(self._views_path) as there,  # last: a process opens them once at a time
                ):
                    return _compared(entries(there), rebuilt.entries())
            except (lmdb.Error, ViewsDamaged) as error:
                return ViewsVerified(0, {}, f"the views cannot be read: {error}")

    def _replayed(self, path: Path, end: LogOffset, on_progress: OnProgress) -> Views:
        """Returns views made from the log up to a log offset."""
        views = Views(path, origin=self._log.origin)
        old, builder = OldViews(self._views_path), _builder(views)
        replay(
            self.items(end=end),
            views,
            builder,
            lambda: on_progress(views.dispatched, end),
            lambda bad: keep_offsets(bad, old, views, builder, force=True),
        )
        return views

    # ---- rebuild

    def rebuild_views(self, on_progress: OnProgress = lambda _at, _end: None, *, force: bool = False) -> LogOffset:
        """Makes the views anew, and returns how far they have come. After an interruption the next start goes on.

        Takes the room of the old ones again meanwhile: they are kept until it is done. Cuts a torn tail off the log, as
        every start does. Raises `NotRebuildable`, and leaves the views as they were, where the log has lost its
        beginning, and with it keys, group offsets and settlements of that time, or where it is damaged and the old
        views do not know the missing records; not with `force`.

        Those of a replica are only set aside: how much of its log is confirmed is for the group to say, and its views
        follow that when it is started.
        """
        if not force:
            self._check_rebuildable()
        set_aside(self._views_path)
        ViewsHealth(self._data_dir).renewed()
        if any((self._data_dir / name).exists() for name in EPOCH_FILES):
            return self.first
        try:
            with closing(Views(self._views_path, origin=self._log.origin)) as views:
                floor = read_floor(self._files, self._data_dir / FLOOR_FILE)
                recover(self._log, views, _builder(views), on_progress=on_progress, force=force, floor=floor)
                return views.dispatched
        except NotRebuildable:
            self._put_back()
            raise

    def _put_back(self) -> None:
        """Restores the old views."""
        shutil.rmtree(self._views_path)
        old_path(self._views_path).rename(self._views_path)

    def _check_rebuildable(self) -> None:
        if self.first > self._log.origin:
            raise NotRebuildable(
                f"the log begins at {self.first}: the views' data of the time before cannot be made from it"
            )

    # ---- stats

    def stats(self) -> Stats:
        """Returns sizes and counts."""
        segments = [path for path in (self._data_dir / "log").iterdir() if segment_start(path.name) is not None]
        log_bytes = sum(path.stat().st_size for path in segments)
        dispatched, views = self._view_stats()
        size = sum(path.stat().st_blocks * 512 for path in self._views_path.glob("*")) if views else 0
        return Stats(self.first, self.end, len(segments), log_bytes, dispatched, size, views)

    def _view_stats(self) -> tuple[LogOffset, list[ViewStats]]:
        try:
            with opened_to_read(self._views_path) as env, env.begin() as txn:
                views = []
                for name in [key for key, _ in txn.cursor()]:
                    stat = txn.stat(env.open_db(name, txn=txn, create=False))
                    pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
                    views.append(ViewStats(name.decode(), stat["entries"], pages * stat["psize"]))
                marks = marks_in(env, txn)
        except lmdb.Error:
            return self._log.origin, []
        return self._log.origin if marks is None else marks.dispatched, views


def _builder(views: Views) -> RunBuilder:
    def end(queue: QueueNumber) -> QueueEnd:
        with views.reading() as txn:
            return views.queues.end(txn, queue)

    return RunBuilder(end)


def _compared(left: Iterator[Entry], right: Iterator[Entry]) -> ViewsVerified:
    """Compares entry by entry; both come in the order of view and key."""
    same, different = 0, Counter[str]()
    ours, theirs = next(left, None), next(right, None)
    while ours is not None or theirs is not None:
        first = min(entry[:2] for entry in (ours, theirs) if entry is not None)
        in_one, in_other = ours is not None and ours[:2] == first, theirs is not None and theirs[:2] == first
        if in_one and in_other and ours == theirs:
            same += 1
        else:
            different[first[0].decode()] += 1
        ours = next(left, None) if in_one else ours
        theirs = next(right, None) if in_other else theirs
    return ViewsVerified(same, dict(different))
