"""The data directory of a replica: its store, open in one role at a time, and the files of its epochs."""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from store.base.errors import CorruptFrame, ForeignLog, NotRebuildable, StoreError, StoreFull, ViewsDamaged
from store.disk.files import Files, OsFiles
from store.disk.space import NO_ROOM
from store.engine.identity import log_id, name_log
from store.engine.replication_hooks import StoreListener
from store.format.frame import HEADER, Header, LogOffset, origin_of, parse_header
from store.format.ranges import RangeSet
from store.local.local import LocalStore
from store.replication.epoch_file import EpochFile
from store.replication.epochs import EpochList
from store.replication.errors import BadEpochs
from store.replication.unclean_file import load_unclean, save_unclean

logger = logging.getLogger(__name__)

SCAN_BYTES = 8 << 20  # of the log at a time, where the epochs have to be found in it


class Disk:
    """Opens and closes; the store's events go to the `listener` of that moment.

    `epochs` and `promised` are on disk: the log's epochs, and the newest known one. `options` are those of
    `LocalStore.open` that both roles have. `log` is the id of the log, as far as it was looked at.
    """

    def __init__(self, data_dir: Path, group: int, options: Mapping[str, Any]) -> None:
        self.data_dir = data_dir
        self.group = group
        self._listener: StoreListener | None = None
        self.lost_ranges = RangeSet()  # damages that no replica can repair; replaced, as any thread may look
        self.passed = RangeSet()  # damages that the views of this master do without; likewise
        self.store: LocalStore | None = None
        self.epochs = EpochList()
        self.promised = 0
        self.unclean = 0  # the epoch of the newest unclean election that the log has followed
        self.log = ""
        self.guessed = False  # where the oldest epoch begins, as its file was damaged and retention has deleted that
        self._failure: StoreError | None = None  # why nothing more is taken until the process is started again
        self.unusable: StoreError | None = None  # why the store cannot be opened: which of its files are damaged
        self._no_room = False  # to open it
        self._was_full = self._was_low = False  # when the store was open last
        self._unsaved = False  # for want of room: files beside the log are out of date
        self._saving: asyncio.Future[None] | None = None  # the newest save of epochs that was begun
        self._in_doubt = False  # the list on disk may be the one of the newest save, or the one before
        self._told_no_room = False
        self.files: Files = options.get("files") or OsFiles()
        self._options = options
        self._closing: asyncio.Future[None] | None = None  # the newest one that was begun
        self._file = EpochFile(self.files, data_dir)

    # ---- opening and closing

    async def open_replica(
        self, truncate_to: LogOffset | None = None, *, give_up_from: LogOffset | None = None
    ) -> LocalStore:
        """Opens as a replica, having cut the log, or given up its lost end; then the epochs are known.

        Raises the errors of `LocalStore.open`, `NotRebuildable` also where the epochs cannot be known.
        """
        ends = {"truncate_to": truncate_to, "give_up_from": give_up_from}
        store: LocalStore = await self._open(LocalStore, role="replica", **ends)
        self.store, self.passed = store, RangeSet()
        self.unclean = await asyncio.to_thread(load_unclean, self.files, self.data_dir)
        damaged = False
        await self.saved()
        try:
            found, self.guessed = await asyncio.to_thread(self._file.load), False
        except BadEpochs as error:
            logger.error(
                "the files `epochs` and `epochs.copy` are damaged: the epochs are read from the log", exc_info=error
            )
            found, damaged = None, True
        saved = found is not None
        if found is None:
            try:
                epochs = await _epochs_of(store)
            except CorruptFrame as error:
                await self.close()
                raise NotRebuildable(
                    f"the file {self._file.path} is damaged, and so is the log that it could be made from: {error}"
                ) from error
            found = epochs, epochs.newest
            self.guessed = store.replication.first > origin_of(self.group)
        epochs, promised = found[0], max(found[1], self.promised)
        if damaged and epochs and not self.guessed:
            await self._save_found(epochs, promised, "the log")
        elif saved and not self._file.whole:
            await self._save_found(epochs, promised, "the one that was saved last")
        self.epochs, self.promised, self.unusable = epochs, promised, None
        return store

    async def _save_found(self, epochs: EpochList, promised: int, source: str) -> None:
        """Writes the files of epochs anew, where they differ or are damaged. Raises OSError.

        A full disk is no reason not to open: then the source is read again at the next start.
        """
        try:
            await self._save(epochs, promised)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            await asyncio.to_thread(self.files.sync_directory, self.data_dir)  # one of them may be new, and is believed
            level = logging.DEBUG if self._told_no_room else logging.WARNING
            logger.log(level, "`epochs` and `epochs.copy` are not written anew until the disk has room: %s", error)
            self._told_no_room = True
        else:
            self._told_no_room = False
            logger.info("`epochs` and `epochs.copy` are written anew from %s", source)

    async def open_usable(self) -> None:
        """Opens as a replica. If damage forbids that, the store stays closed and `unusable` is the reason.

        Raises the other errors of `LocalStore.open`.
        """
        for _ in range(2):  # views that are damaged are made anew by the second attempt, where the log can
            try:
                await self.open_replica()
            except (NotRebuildable, ViewsDamaged) as error:
                self.unusable = error
            else:
                return
        self._was_full = self._was_low = False  # it stays closed, so its disk is not known to be full any more

    async def open_master(self, epoch: int, confirmed: LogOffset) -> LocalStore:
        """Opens as the master of an epoch, with so much known as confirmed. Raises the errors of `LocalStore.open`."""
        store: LocalStore = await self._open(LocalStore, role="master", epoch=epoch, confirmed=confirmed)
        self.store = store
        return store

    async def _open(self, kind: Any, **role: Any) -> Any:
        assert self.store is None
        before = {"disk_was_full": self._was_full, "disk_was_low": self._was_low}
        opening = asyncio.ensure_future(
            kind.open(self.data_dir, group=self.group, replication=self, **before, **role, **self._options)
        )
        try:
            opened = await asyncio.shield(opening)
        except (StoreError, OSError) as error:
            self._no_room = isinstance(error, StoreFull)
            raise
        except asyncio.CancelledError:  # it is opened all the same, and has to be closed
            self._closing = asyncio.ensure_future(_close_late(opening))
            raise
        self._no_room = False
        return opened

    async def close(self, *, step_down: bool = False) -> None:
        """Closes the store. `step_down`: a former master does not wait for unconfirmed frames."""
        store, self.store = self.store, None
        if store is not None:
            self._was_full, self._was_low = store.full is not None, store.low
            self._closing = asyncio.ensure_future(store.step_down() if step_down else store.close())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def save(self, epochs: EpochList, promised: int) -> None:
        """Keeps epochs, and the newest known one. Raises `StoreFull`: the earlier ones stay in force, OSError."""
        await self.saved()
        if self._in_doubt or (epochs, promised) != (self.epochs, self.promised):
            assert promised >= self.promised
            with self.needing_room("the epochs are"):
                await self._save(epochs, promised)
            self.epochs, self.promised = epochs, promised

    async def _save(self, epochs: EpochList, promised: int) -> None:
        """Writes the files. Raises OSError: then, and when this is cancelled, it is in doubt which list is on disk."""
        self._in_doubt = True
        self._saving = asyncio.ensure_future(asyncio.to_thread(self._file.save, epochs, promised))
        self._saving.add_done_callback(_forgive)
        await asyncio.shield(self._saving)
        self._in_doubt = False

    async def saved(self) -> None:
        """Waits for a save that was cancelled: its thread goes on."""
        if self._saving is not None:
            await asyncio.wait([self._saving])

    async def follow_unclean(self, epoch: int) -> None:
        """Keeps that the log follows an unclean election. Raises `StoreFull`, OSError."""
        if epoch > self.unclean:
            with self.needing_room("an unclean election is"):
                await asyncio.to_thread(save_unclean, self.files, self.data_dir, epoch)
            self.unclean = epoch

    @contextmanager
    def needing_room(self, what: str) -> Iterator[None]:
        """Raises `StoreFull` where the disk is full for a file beside the log; then this one is `full`."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._unsaved = True
            raise StoreFull(f"{what} not saved in {self.data_dir}: {error}") from error
        self._unsaved = False

    async def belong(self, log: str) -> None:
        """Lets the log be the group's, whose id is `log` (empty: it has none yet), from before its first frame on.

        Raises `ForeignLog`: it is another one, and is left as it is. `StoreFull`, OSError.
        """
        if log in {"", self.log}:
            return
        known = await asyncio.to_thread(log_id, self.files, self.data_dir)
        if (
            known not in {"", log}
            and self.store is not None
            and self.store.replication.end > self.store.replication.first
        ):
            raise ForeignLog(f"{self.data_dir} has log {known}, and that of store group {self.group} is {log}")
        if known != log:
            with self.needing_room("the name of the log is"):
                await asyncio.to_thread(name_log, self.files, self.data_dir, self.group, log)
        self.log = log

    @property
    def epoch_saves(self) -> int:
        """Returns how often the epochs were saved: `EpochFile.saves`."""
        return self._file.saves

    @property
    def free_bytes(self) -> int:
        """Returns the disk's free space; 0 where that is not known."""
        try:
            return self.files.free_bytes(self.data_dir)
        except OSError:
            return 0

    @property
    def full(self) -> bool:
        """Returns whether nothing more is to be written here for now; as it was last while the store is closed."""
        full = self._was_full if self.store is None else self.store.full is not None
        return self._no_room or self._unsaved or full

    @property
    def low(self) -> bool:
        """Returns whether writes may be refused soon, as the disk has little room."""
        return self.full or (self._was_low if self.store is None else self.store.low)

    # ---- events of the store

    @property
    def failed_for_good(self) -> bool:
        """Returns whether the store takes nothing more until the process is started again."""
        return self._failure is not None

    @property
    def listener(self) -> StoreListener | None:
        """The role that the events go to; one that begins is told of a failure since the one before."""
        return self._listener

    @listener.setter
    def listener(self, listener: StoreListener | None) -> None:
        self._listener = listener
        if listener is not None and self._failure is not None:
            listener.failed(self._failure)

    def written(self, end: LogOffset) -> None:
        """See `ReplicationHooks`."""
        if self._listener is not None:
            self._listener.written(end)

    def flushed(self, end: LogOffset) -> None:
        """See `ReplicationHooks`."""
        if self._listener is not None:
            self._listener.flushed(end)

    def damaged(self) -> None:
        """See `ReplicationHooks`."""
        store = self.store
        if self._listener is not None:
            self._listener.damaged()
            if (
                store is not None
                and store.replication.role == "replica"
                and store.view_damages
                and store.views_rebuildable
            ):
                self._listener.failed(
                    ViewsDamaged(f"views are damaged: {store.view_damages[0]}")
                )  # made anew when opened

    def lost(self, at: LogOffset) -> bool:
        """See `ReplicationHooks`."""
        return at in self.lost_ranges or at in self.passed

    def failed(self, error: StoreError) -> None:
        """See `ReplicationHooks`."""
        if not isinstance(error, ViewsDamaged):
            self._failure = self._failure or error
        if self._listener is not None:
            self._listener.failed(error)


async def _epochs_of(store: LocalStore) -> EpochList:
    """Returns the epochs that the frames of a log tell. Raises `CorruptFrame`."""
    headers: list[Header] = []
    at = store.replication.first
    while data := await store.replication.read_log(at, SCAN_BYTES):
        skip = 0
        while skip < len(data):
            header = parse_header(data[skip : skip + HEADER.size], log_offset=at)
            assert header is not None, "whole frames were read"
            if not headers or header.epoch != headers[-1].epoch:
                headers.append(header)
            skip += header.size_bytes
            at = LogOffset(at + header.size_bytes)
    return EpochList.of_frames(headers)


def _forgive(saving: "asyncio.Future[None]") -> None:
    """Takes the error of a save that nobody waits for any more: the list is saved again."""
    if not saving.cancelled():
        saving.exception()


async def _close_late(opening: "asyncio.Future[Any]") -> None:
    with suppress(StoreError, OSError):
        await (await opening).close()
