"""The engine: the threads around the log and the views.

The committer's threads write, sync and report what is appended (`store.commit`). The dispatcher thread follows behind
with the views, off the path of an acknowledgement. Readers use the log and the views directly.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from store.client import OnAppended
from store.commit import FLUSH_INTERVAL_MS, Committed, Committer, Late
from store.compaction import RowWatch
from store.errors import NotRebuildable, StoreFailed, StoreFull
from store.files import Files, OsFiles
from store.format import LogOffset, QueueNumber, UnplacedFrame
from store.keeper import Chore, Keeper
from store.lock import DataDirLock
from store.log import SEGMENT_SIZE_BYTES, CommitLog
from store.producers import ProducerTable
from store.recovery import OnProgress, recover
from store.retention import UNLIMITED, Limits
from store.run import QueueEnd, Run, RunBuilder
from store.scrub import SCRUB_BYTES_PER_S, STEP_S, Scrub
from store.space import DISK_RESERVE_BYTES, LOOK_S, Space
from store.trimming import RETENTION_INTERVAL_S, Trimmer
from store.views import MAP_SIZE_BYTES, Views

__all__ = ["Committed", "Engine"]

logger = logging.getLogger(__name__)

LINGER_S = 0.1  # how long the dispatcher lets runs gather: one transaction, and its sync, for all of them
EAGER_BYTES = 16 << 20  # gathered, it does not wait any longer
LAG_BYTES_MAX = 256 << 20  # the views may be behind before commits wait for them: bounds what memory holds for them


class Engine:
    """One open data directory.

    `on_committed` reports each group, and `on_dispatched` how far the views have come, in log order and on the engine's
    threads. The views follow only as far as the runs reported were given back to `dispatch`. `on_failed` is called
    once, when `error` has been set. None of them may block or raise.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        now_ms: Callable[[], int],
        on_committed: Callable[[Committed], None],
        on_dispatched: Callable[[LogOffset], None],
        on_failed: Callable[[], None] = lambda: None,
        files: Files | None = None,
        epoch: int = 1,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        map_size_bytes: int = MAP_SIZE_BYTES,
        linger_s: float = LINGER_S,
        flush_interval_ms: int = FLUSH_INTERVAL_MS,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        retention: Limits = UNLIMITED,
        retention_interval_s: float = RETENTION_INTERVAL_S,
        scrub_bytes_per_s: int = SCRUB_BYTES_PER_S,
        on_recovering: OnProgress = lambda _at, _end: None,
    ) -> None:
        """Open and recover a data directory; takes as long as the views are behind.

        Raises `DataDirLocked`, `NotRebuildable`, OSError.
        """
        files = files if files is not None else OsFiles()
        files.make_directory(data_dir)
        self._on_dispatched = on_dispatched
        self._on_failed = on_failed
        self._linger_s = linger_s
        self._error: Exception | None = None  # set once; from then on nothing more is stored
        self._views_failed = False  # they stay where they are; the log gives the rest again after a restart
        self._failing = Lock()
        self._runs: SimpleQueue[Run | None] = SimpleQueue()
        self._wanted = LogOffset(0)  # somebody waits until the views are here
        self._kick = Event()  # wakes the dispatcher when _wanted has grown
        self._progress = Event()  # the dispatcher has got on
        with ExitStack() as opened:
            opened.callback(DataDirLock(data_dir).release)
            self.log = CommitLog(files, data_dir / "log", segment_size_bytes=segment_size_bytes)
            opened.callback(self.log.close)
            files.sync_directory(data_dir)
            files.sync_directory(data_dir.resolve().parent)
            whole = self.log.first == 0
            self.views = Views(data_dir / "views", map_size_bytes=map_size_bytes, rebuildable=whole)
            opened.callback(self.views.close)
            if self.views.dispatched < self.log.first:
                raise NotRebuildable(f"{data_dir / 'views'} ends where the log does not begin yet: {self.log.first}")
            self._builder = RunBuilder(self._stored_end, lambda: self.views.dispatched)
            recover(self.log, self.views, self._builder, on_progress=on_recovering)
            self.scrub = Scrub(
                self.log, files=files, path=data_dir / "scrub", now_ms=now_ms, bytes_per_s=scrub_bytes_per_s
            )
            producers = ProducerTable()
            with self.views.reading() as txn:
                self.views.producers.restore(txn, producers)
            self._space = Space(files, data_dir, disk_reserve_bytes)
            self._opened = opened.pop_all()
        watch = RowWatch()
        self._committer = Committer(
            self.log,
            self._builder,
            producers,
            self._space,
            now_ms=now_ms,
            epoch=epoch,
            stored_at_ms=self.views.stored_at_ms,
            flush_interval_ms=flush_interval_ms,
            report=on_committed,
            before_group=self._wait_for_views,
            fail=self._fail,
            watch=watch,
            error=lambda: self.error,
        )
        self._dispatching = Thread(target=self._dispatch_forever, name="store-dispatch", daemon=True)
        self.trimmer = Trimmer(
            self.log,
            self.views,
            watch,
            default=retention,
            now_ms=now_ms,
            append=self.append_own,
            hurry=self.hurry,
            gone=lambda: self._keeper.stopped or self._error is not None,
        )
        self._keeper = Keeper(
            [
                Chore(LOOK_S, self._space.look),
                Chore(STEP_S, self.scrub.step),
                Chore(retention_interval_s, self.trimmer.run),
            ]
        )
        self._committer.start()
        self._dispatching.start()
        self._keeper.start()

    @property
    def error(self) -> StoreFailed | None:
        """Why nothing is stored any more, None while all is well."""
        return None if self._error is None else StoreFailed(str(self._error))

    @property
    def full(self) -> StoreFull | None:
        """Why nothing is stored while the disk has no room, None while it has."""
        return self._space.refusal

    def look_for_space(self) -> None:
        """Look at the disk's free space now, and refuse or allow writing from here on."""
        self._space.look()

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """Queue a frame; `done` comes back in a `Committed`. Not after `end_appends`."""
        self._committer.append(frame, done, size=frame.size_bytes)

    def append_own(self, frame: Late, done: OnAppended) -> None:
        """Queue a frame of the store's own, made when its place is certain, which goes in though room is short."""
        self._committer.append(frame, done, size=0, essential=True)

    def dispatch(self, run: Run) -> None:
        """Let the views have the run of a `Committed`, in order: so they are never ahead of whoever was told of it."""
        self._runs.put(run)

    def hurry(self, until: LogOffset) -> None:
        """Somebody waits for the views to hold what lies before a log offset: do not linger."""
        self._wanted = max(self._wanted, until)
        self._kick.set()

    def end_appends(self) -> None:
        """Store what was appended and report it. Again does nothing."""
        self._keeper.stop()
        self.scrub.save()
        self._committer.end()

    def end_dispatch(self) -> None:
        """Bring the views up to what was given to `dispatch`; reading goes on. Again does nothing."""
        self._runs.put(None)
        self.hurry(self.log.end)
        self._dispatching.join()

    def close(self) -> None:
        """End all threads and close. Again does nothing. Nobody may be reading."""
        self.end_appends()
        self.end_dispatch()
        self._opened.close()

    def _stored_end(self, queue: QueueNumber) -> QueueEnd:
        with self.views.reading() as txn:
            return self.views.queues.end(txn, queue)

    # ---- the commit thread

    def _wait_for_views(self) -> None:
        lag = self.log.end - self.views.dispatched
        if lag > EAGER_BYTES:
            self.hurry(self.log.end)
        while lag > LAG_BYTES_MAX and self._error is None:
            self._progress.wait()
            self._progress.clear()
            lag = self.log.end - self.views.dispatched

    def _fail(self, error: Exception) -> None:
        """Store nothing any more: after a failed sync nobody knows what the disk has, so it is never tried again."""
        with self._failing:
            first = self._error is None
            self._error = self._error or error
        if first:
            logger.critical("the store takes no more until it is restarted")
            self._on_failed()
        self._progress.set()

    # ---- the dispatcher thread

    def _dispatch_forever(self) -> None:
        stopping = False
        while not stopping:
            run = self._runs.get()  # the first of those to gather
            if run is not None and self._wanted <= self.views.dispatched:
                self._kick.wait(self._linger_s)
            self._kick.clear()
            runs: list[Run] = []
            while run is not None:
                runs.append(run)
                try:
                    run = self._runs.get_nowait()
                except Empty:
                    break
            stopping = run is None
            if runs and not self._views_failed:
                self._dispatch(runs)

    def _dispatch(self, runs: list[Run]) -> None:
        try:
            self.views.apply(runs)
        except Exception as error:
            logger.exception("the views cannot be brought up")
            self._views_failed = True
            self._fail(error)
            return
        self._progress.set()
        self._on_dispatched(self.views.dispatched)
