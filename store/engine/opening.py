"""Opening a data directory: whose it is, its log and its views, before either is recovered."""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from store.base.errors import NotRebuildable
from store.disk.files import Files, said_of_data_dir
from store.disk.lock import DataDirLock
from store.engine.identity import belong_to
from store.engine.snapshot import filling, finish_install, remove_left_over
from store.format.frame import LogOffset, origin_of
from store.integrity.floor import FLOOR_FILE, Floor
from store.integrity.ledger import DAMAGES_FILE, DamageLedger
from store.integrity.seals import SEALS_FILE, SealFile
from store.integrity.views import ViewsHealth
from store.log.log import CommitLog
from store.log.sealer import hold_against_seals
from store.views import Views
from store.views.old import set_aside


class DataDir(NamedTuple):
    """An open data directory. Up to `whole_at` the views may be ahead of the log, which is being filled."""

    log: CommitLog
    views: Views
    seals: SealFile
    whole_at: LogOffset

    @property
    def is_whole(self) -> bool:
        """Returns whether the log holds all frames that the views are made of."""
        return self.log.end >= self.whole_at


def open_data_dir(
    files: Files,
    path: Path,
    opened: ExitStack,
    *,
    group: int,
    alone: bool,
    segment_size_bytes: int,
    map_size_bytes: int,
) -> DataDir:
    """Locks and opens a data directory, or makes one; `opened` closes it. `alone`: it has no replicas.

    Raises `DataDirLocked`, `WrongGroup`, `NotRebuildable`, `StoreFull`, OSError.
    """
    with said_of_data_dir(path):
        files.make_directory(path)
        opened.callback(DataDirLock(path).release)
    finish_install(path)
    remove_left_over(path)
    belong_to(files, path, group, alone=alone)
    begun = filling(path)
    floor = Floor(files, path / FLOOR_FILE)
    opened.callback(floor.close)
    seals = SealFile(files, path / SEALS_FILE)
    log = CommitLog(
        files,
        path / "log",
        segment_size_bytes=segment_size_bytes,
        begin=origin_of(group) if begun is None else LogOffset(begun.first),
        damages=DamageLedger(files, path / DAMAGES_FILE),
        floor=floor,
    )
    opened.callback(log.close)
    files.sync_directory(path)
    files.sync_directory(path.resolve().parent)
    if log.end > log.first and not (path / "views" / "data.mdb").exists():
        set_aside(path / "views")  # they are gone, and records that new ones lack are to be asked for
    health = ViewsHealth(path)
    opened.callback(health.close)
    views = Views(
        path / "views",
        map_size_bytes=map_size_bytes,
        rebuildable=log.first == log.origin,
        origin=log.origin,
        health=health,
    )
    opened.callback(views.close)
    if views.dispatched < log.first:
        raise NotRebuildable(f"{path / 'views'} ends where the log does not begin yet: {log.first}")
    from_snapshot = begun is not None and views.dispatched == begun.dispatched
    # Alone, the lost end of the log keeps its place: no log offset, and none of a queue, is used twice.
    reached = max(views.dispatched, log.floor) if alone and not from_snapshot else log.end
    first = max(views.first, log.origin, 0 if begun is None else begun.first)
    hold_against_seals(log, seals, LogOffset(first), reached)
    return DataDir(log, views, seals, views.dispatched if from_snapshot else log.first)
