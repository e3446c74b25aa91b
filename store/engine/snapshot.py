"""Snapshots of the views, for a replica whose log ends where its master's does not begin yet.

A snapshot is a directory with a copy of the views and the file `snapshot`, which describes the copied log. A replica
that installs one begins its log where the master's began, so that it comes to hold everything that the master holds;
its views are ahead of its log until that has been filled up to where the snapshot was taken. The file `filling` says
so.

Installing is one rename: of the directory `incoming`, in which the new views lie, to `installed`. Steps cut short
before it have no effect, and the steps behind it are done again when the data directory is opened next.
"""

import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic

import lmdb
import msgspec

from store.base.errors import NotRebuildable, SnapshotUnusable, ViewsDamaged
from store.disk.files import Files, OsFiles, write_whole
from store.disk.lmdb_file import is_cut_short
from store.disk.lock import DataDirLock
from store.disk.small_file import read_small_file, write_small_file
from store.format.frame import LogOffset, group_of, origin_of
from store.integrity.floor import FLOOR_FILE, Floor
from store.integrity.ledger import DAMAGES_FILE
from store.integrity.seals import SEALS_FILE
from store.integrity.views import ViewsHealth
from store.log.log import CommitLog
from store.replication.epoch_file import EPOCH_FILES
from store.views import Views
from store.views.old import old_path

logger = logging.getLogger(__name__)

SNAPSHOT_S_MAX = 600.0  # for one copy: while it is made, the views cannot reuse changed pages
_PIPE_BYTES = 1 << 20
SNAPSHOT_VIEWS = "data.mdb"
_INFO, _FILLING = "snapshot", "filling"
_OF_THE_LOG = (DAMAGES_FILE, FLOOR_FILE, SEALS_FILE, "scrub")
_INCOMING, _INSTALLED = "incoming", "installed"
SNAPSHOT_SENT, SNAPSHOT_FETCHED = "snapshot.sent", "snapshot.fetched"  # in the data directory of a replica
VERIFIED = ".verified-"  # how the names of directories begin in which views are made to be compared


class SnapshotInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a snapshot: the views up to `dispatched`, of a log that has all from `first` on."""

    group: int
    first: int
    dispatched: int
    size_bytes: int  # of the copy of the views


# ---- taking


def take_snapshot(
    log: CommitLog,
    views: Views,
    directory: Path,
    *,
    abandoned: Callable[[], bool] = lambda: False,
    lacking: Callable[[int], str | None] = lambda _: None,
) -> SnapshotInfo:
    """Copies the views, while they are in use, into a new directory; may take long.

    `lacking` returns why so many bytes more would have writes refused. Raises `SnapshotUnusable` for that, when it is
    `abandoned`, takes longer than `SNAPSHOT_S_MAX`, or is in the way of the views' growth, OSError.
    """
    if (why := lacking(0)) is not None:  # how large a copy without free pages is shows when it is made
        raise SnapshotUnusable(f"the views cannot be copied: {why}")
    files = OsFiles()
    files.make_directory(directory)
    path = directory / SNAPSHOT_VIEWS
    size = _copy(views, path, abandoned, lacking)
    dispatched, first = _dispatched(path), log.first  # after the copy: frames deleted meanwhile cannot be fetched
    if first > dispatched:
        raise SnapshotUnusable(f"the log begins at {first} by now, behind the copy of the views at {dispatched}")
    info = SnapshotInfo(group=group_of(first), first=first, dispatched=dispatched, size_bytes=size)
    describe_snapshot(directory, info)
    logger.info("a snapshot of the views was taken", extra=msgspec.structs.asdict(info))
    return info


def describe_snapshot(directory: Path, info: SnapshotInfo) -> None:
    """Writes the description of the copy of the views in a directory: from now on it is a snapshot. Raises OSError."""
    write_small_file(OsFiles(), directory / _INFO, info)


def _copy(views: Views, path: Path, abandoned: Callable[[], bool], lacking: Callable[[int], str | None]) -> int:
    """Copies LMDB into a pipe: closing that ends the copy, which nothing else could."""
    deadline = monotonic() + SNAPSHOT_S_MAX
    read_fd, write_fd = os.pipe()
    size = 0

    def copied() -> None:
        try:
            views.write_copy(write_fd)
        finally:
            os.close(write_fd)

    with ThreadPoolExecutor(1, "store-snapshot") as thread, closing(OsFiles().open(path, create=True)) as file:
        copying = thread.submit(copied)
        try:
            while data := os.read(read_fd, _PIPE_BYTES):
                write_whole(file, data, size)
                size += len(data)
                if abandoned() or views.growing or monotonic() > deadline:
                    raise SnapshotUnusable(f"the copy of the views was given up after {size} bytes")
                if (why := lacking(0)) is not None:
                    raise SnapshotUnusable(f"the copy of the views was given up after {size} bytes: {why}")
        finally:
            os.close(read_fd)
        try:
            copying.result()
        except lmdb.Error as error:
            raise SnapshotUnusable(f"the views cannot be copied: {error}") from error
        file.sync()
    return size


def _dispatched(path: Path) -> LogOffset:
    """Returns how far the views in a file are. Raises `SnapshotUnusable`."""
    try:
        if is_cut_short(path):
            raise SnapshotUnusable(f"{path} is cut short")
        return Views.dispatched_of(path)
    except lmdb.Error as error:
        raise SnapshotUnusable(f"{path} cannot be read: {error}") from error


# ---- installing


def snapshot_info(directory: Path) -> SnapshotInfo:
    """Returns the description of a snapshot. Raises `SnapshotUnusable`."""
    info = read_small_file(OsFiles(), directory / _INFO, SnapshotInfo) if directory.is_dir() else None
    if info is None:
        raise SnapshotUnusable(f"{directory} holds no snapshot")
    return info


def install_snapshot(data_dir: Path, snapshot: Path, *, lost_end: LogOffset | None = None) -> SnapshotInfo:
    """Replaces the contents of a data directory that is not open by a snapshot.

    Files of epochs that the snapshot has with it take the place of the log's, in the same step. A log that has lost
    its end up to `lost_end` goes on lacking it until it has grown so far again. The snapshot's directory is used up.
    Raises `SnapshotUnusable`, `DataDirLocked`, OSError.
    """
    info = snapshot_info(snapshot)
    path = snapshot / SNAPSHOT_VIEWS
    if not path.is_file() or path.stat().st_size != info.size_bytes or _dispatched(path) != info.dispatched:
        raise SnapshotUnusable(f"{path} differs from its description in {snapshot / _INFO}")
    if not origin_of(info.group) <= info.first <= info.dispatched < origin_of(info.group + 1):
        raise SnapshotUnusable(f"{snapshot / _INFO} contradicts itself")
    files = OsFiles()
    files.make_directory(data_dir)
    lock = DataDirLock(data_dir)
    try:
        finish_install(data_dir)
        incoming = data_dir / _INCOMING
        shutil.rmtree(incoming, ignore_errors=True)
        files.make_directory(incoming / "views")
        shutil.move(path, incoming / "views" / SNAPSHOT_VIEWS)
        with (incoming / "views" / SNAPSHOT_VIEWS).open("rb") as file:
            os.fsync(file.fileno())
        files.sync_directory(incoming / "views")
        _verify(incoming / "views", info)
        for name in EPOCH_FILES:
            if (snapshot / name).is_file():
                (snapshot / name).rename(incoming / name)
        if lost_end is not None:
            with closing(Floor(files, incoming / FLOOR_FILE)) as floor:
                floor.begin(lost_end)
        write_small_file(files, incoming / _FILLING, info)
        incoming.rename(data_dir / _INSTALLED)
        files.sync_directory(data_dir)
        finish_install(data_dir)
    finally:
        lock.release()
    shutil.rmtree(snapshot, ignore_errors=True)
    logger.info("a snapshot of the views was installed", extra=msgspec.structs.asdict(info))
    return info


def _verify(path: Path, info: SnapshotInfo) -> None:
    """Looks at every entry of the views that came: its log cannot make them anew. Raises `SnapshotUnusable`."""
    try:
        with closing(Views(path, rebuildable=False, origin=origin_of(info.group))) as views:
            while not views.health.is_damaged and not views.walk.passes:
                views.walk.run(1.0)
            if views.health.is_damaged:
                raise SnapshotUnusable(f"the views that came are damaged: {views.health.damages[0]}")
    except (NotRebuildable, ViewsDamaged) as error:
        raise SnapshotUnusable(f"the views that came cannot be read: {error}") from error


def remove_left_over(data_dir: Path) -> None:
    """Removes copies of views, and files not whole, of processes that were killed; the lock is held."""
    for path in data_dir.iterdir():
        if path.name in {SNAPSHOT_SENT, SNAPSHOT_FETCHED, _INCOMING} or path.name.startswith(VERIFIED):
            shutil.rmtree(path, ignore_errors=True)
    for path in (data_dir / "log").glob("*.new"):
        path.unlink(missing_ok=True)


def finish_install(data_dir: Path) -> None:
    """Replaces the former files by the installed ones. Each step can be done again; the lock is held."""
    installed = data_dir / _INSTALLED
    if not installed.is_dir():
        return
    files = OsFiles()
    if (installed / "views").is_dir():  # afterwards there is nothing of the former log, but perhaps the new floor
        epochs = EPOCH_FILES if any((installed / name).is_file() for name in EPOCH_FILES) else ()
        for name in (*_OF_THE_LOG, *epochs):  # they speak of the log that goes
            (data_dir / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            shutil.rmtree(data_dir / "log")
        with suppress(FileNotFoundError):
            shutil.rmtree(data_dir / "views")
        shutil.rmtree(old_path(data_dir / "views"), ignore_errors=True)
        ViewsHealth(data_dir).renewed()
        files.sync_directory(data_dir)  # the rename says that all of this is done
        (installed / "views").rename(data_dir / "views")
    for name in (*EPOCH_FILES, FLOOR_FILE, _FILLING):
        if (installed / name).is_file():
            (installed / name).rename(data_dir / name)
    files.sync_directory(data_dir)
    shutil.rmtree(installed)
    files.sync_directory(data_dir)


def filling(data_dir: Path, files: Files | None = None) -> SnapshotInfo | None:
    """Returns the snapshot that a data directory was begun with, if any."""
    if not (data_dir / _FILLING).is_file():
        return None
    return read_small_file(files or OsFiles(), data_dir / _FILLING, SnapshotInfo)
