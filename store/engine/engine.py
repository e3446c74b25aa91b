"""The engine: the threads around the log and the views.

On a master the committer's threads write, sync and report appended frames (`store.engine.commit`), on a replica the
receiver's threads those that come from the master (`store.engine.receiver`). The dispatcher's follows behind with the
views (`store.engine.dispatcher`). Readers use the log and the views directly.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Literal, TypeAlias

from store.api.kv_rules import KeySpace, SlotContent
from store.api.log import OnAppended
from store.base.errors import NotMaster, ReplicaIncomplete, StoreError, StoreFailed, StoreFull, ViewsDamaged
from store.disk.files import Files, OsFiles
from store.disk.housekeeper import Chore, Housekeeper
from store.disk.presence import PRESENCE_LOOK_S, DirectoryWatch
from store.disk.space import DISK_RESERVE_BYTES, LOOK_S, Space, no_room_is_full
from store.engine.commit import FLUSH_INTERVAL_MS, Committed, Committer, Late
from store.engine.compaction import RowWatch
from store.engine.dispatcher import LINGER_S, Dispatcher
from store.engine.loop_commits import LoopCommits
from store.engine.opening import DataDir, open_data_dir
from store.engine.receiver import ReplicaReceiver
from store.engine.recovery import OnProgress, cut_off, give_up, recover, settle
from store.engine.trimming import RETENTION_INTERVAL_S, Trimmer
from store.format.chunks import QueueEnd
from store.format.frame import LogOffset, QueueNumber, UnplacedFrame
from store.format.placed import Placed
from store.guards.table import GuardTable, ViewQueries
from store.log.log import SEGMENT_SIZE_BYTES
from store.log.producers import ProducerTable
from store.log.retention import UNLIMITED, RetentionLimits
from store.log.run import FrameRun, RunBuilder
from store.log.scrub import SCRUB_BYTES_PER_S, STEP_S, Scrub
from store.log.sealer import Sealer
from store.log.tail import LogTail
from store.views import MAP_SIZE_BYTES

logger = logging.getLogger(__name__)

Role: TypeAlias = Literal["master", "replica"]


class Engine:
    """One open data directory.

    `on_committed` reports each commit batch, and `on_dispatched` how far the views have come, in log order and on the
    engine's threads. The views follow only as far as the runs reported were given back to `dispatch`. `on_failed` is
    called once, when `error` has been set. None of them may block or raise.

    With `on_written` there are other replicas. A master tells how far the log is written, and only the owner confirms
    frames on its disk. A replica tells how far its log is on disk, by `on_flushed`.

    `on_damaged` is called when the log, or a view, is damaged where that was not known before, and once where it is
    when opened, `on_repaired` when a range was repaired; `lost` says whether no replica has the data that is damaged at
    a log offset.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        now_ms: Callable[[], int],
        on_committed: Callable[[Committed], None],
        on_dispatched: Callable[[LogOffset], None],
        on_failed: Callable[[], None] = lambda: None,
        on_written: Callable[[LogOffset], None] | None = None,
        on_flushed: Callable[[LogOffset], None] = lambda _end: None,
        on_damaged: Callable[[], None] = lambda: None,
        on_repaired: Callable[[], None] = lambda: None,
        lost: Callable[[LogOffset], bool] = lambda _at: True,
        files: Files | None = None,
        group: int = 0,
        role: Role = "master",
        epoch: int = 1,
        confirmed: LogOffset | None = None,
        truncate_to: LogOffset | None = None,
        give_up_from: LogOffset | None = None,
        segment_size_bytes: int = SEGMENT_SIZE_BYTES,
        map_size_bytes: int = MAP_SIZE_BYTES,
        linger_s: float = LINGER_S,
        flush_interval_ms: int = FLUSH_INTERVAL_MS,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        disk_was_full: bool = False,
        disk_was_low: bool = False,
        retention: RetentionLimits = UNLIMITED,
        retention_interval_s: float = RETENTION_INTERVAL_S,
        scrub_bytes_per_s: int = SCRUB_BYTES_PER_S,
        on_recovering: OnProgress = lambda _at, _end: None,
    ) -> None:
        """Opens and recovers a data directory; takes as long as the views are behind.

        The owner calls `take_unconfirmed` for the frames that a master of several replicas has behind `confirmed`
        (None: nothing). A replica's log is cut at `truncate_to`, and frames that it has lost behind that need not come
        again; it gives up the frames that it has lost from `give_up_from` on. `disk_was_full`, `disk_was_low`: this was
        so, and logged, when the directory was open last. Raises `DataDirLocked`, `WrongGroup`,
        `NotRebuildable`, `ReplicaIncomplete`, `TruncationRefused`, `StoreFull`, OSError; `CorruptFrame`: the views of a
        master have not followed the damaged range, and it is not `lost`.
        """
        assert (truncate_to is None and give_up_from is None) or role == "replica"
        assert confirmed is None or on_written is not None
        files = files if files is not None else OsFiles()
        self.group = group
        self.role = role
        self.refusal: StoreError | None = NotMaster("this replica is not the master") if role == "replica" else None
        self._on_failed = on_failed
        self._error: Exception | None = None  # set once; from then on nothing more is stored
        self._failing = Lock()
        self._ending = Event()
        with no_room_is_full(data_dir), ExitStack() as opened:
            self._directory = directory = open_data_dir(
                files,
                data_dir,
                opened,
                group=group,
                alone=role == "master" and on_written is None,
                segment_size_bytes=segment_size_bytes,
                map_size_bytes=map_size_bytes,
            )
            self.log, self.views, self.seals = directory.log, directory.views, directory.seals
            self.builder = RunBuilder(self._stored_end, lambda: self.views.dispatched)
            self._unconfirmed = self._recover(
                directory, confirmed, truncate_to, give_up_from, on_progress=on_recovering, lost=lost
            )
            self._views_at = self.views.dispatched  # when it was opened
            self.scrub = Scrub(
                self.log,
                files=files,
                path=data_dir / "scrub",
                now_ms=now_ms,
                bytes_per_s=scrub_bytes_per_s,
                seals=self.seals,
                at_start=True,
            )
            producers = ProducerTable()
            with self.views.reading() as txn:
                self.views.producers.restore(txn, producers)
            unconfirmed = [placed for run in self._unconfirmed for placed in run.placed]
            guards = GuardTable(ViewQueries(self._held, self._key_space, lambda: self.views.dispatched))
            for at in unconfirmed:
                guards.follow(at.frame, at.start)
                if at.frame.producer_id:
                    producers.follow(at.frame.producer_id, at.frame.sequence, at.start)
            self.space = Space(
                files,
                data_dir,
                disk_reserve_bytes,
                owed=lambda: self._dispatcher.owed_bytes,
                was_full=disk_was_full,
                was_low=disk_was_low,
            )
            self._dispatcher = Dispatcher(
                self.views,
                self.space,
                linger_s=linger_s,
                ahead=lambda: self._ahead,
                applied=on_dispatched,
                fail=self.fail,
            )
            self.space.look()
            self._opened = opened.pop_all()
        watch = RowWatch()
        self.loop_commits = LoopCommits()
        self.tail = LogTail()

        def written(placed: Sequence[Placed]) -> None:
            assert on_written is not None
            self.tail.add(placed)
            on_written(placed[-1].end)

        self._writer: Committer | ReplicaReceiver
        if role == "master":
            self._writer = self._committer = Committer(
                self.log,
                self.builder,
                producers,
                guards,
                self.space,
                now_ms=now_ms,
                epoch=epoch,
                stored_at_ms=max([self.views.stored_at_ms, *(at.stored_at_ms for at in unconfirmed[-1:])]),
                flush_interval_ms=flush_interval_ms,
                report=on_committed,
                before_batch=self._wait_for_views,
                fail=self.fail,
                watch=watch,
                error=lambda: self.error or self.refusal,
                loop_commits=self.loop_commits,
                written=written if on_written is not None else None,
            )
        else:
            self._writer = self.receiver = ReplicaReceiver(
                self.log,
                self.builder,
                self.tail,
                self.space,
                applied=self.views.dispatched,
                flushed=on_flushed,
                report=on_committed,
                before_run=self._wait_for_views,
                fail=self.fail,
                error=lambda: self.error,
            )
        self.trimmer = Trimmer(
            self.log,
            self.views,
            watch,
            default=retention,
            now_ms=now_ms,
            append=self.append_own,
            apply_views=self.apply_views,
            gone=lambda: self._keeper.stopped or self._error is not None,
            lost=lost,
        )
        self.presence = DirectoryWatch(files, data_dir, lambda: self.log.segments[-1].path)
        self.sealer = Sealer(self.log, self.seals)
        self._keeper = Housekeeper(
            [
                Chore(LOOK_S, self.space.look),
                Chore(STEP_S, self.sealer.step),
                Chore(PRESENCE_LOOK_S, self._look_for_files),
                Chore(STEP_S, self.scrub.step),
                *([Chore(STEP_S, lambda: self.views.walk.step(now_ms()))] if scrub_bytes_per_s else []),
                # A replica trims its log by its master's records.
                Chore(retention_interval_s, self.trimmer.run if role == "master" else self.trimmer.delete),
            ]
        )
        self._report_damage(on_damaged, on_repaired)
        self._writer.start()
        self._dispatcher.start()
        self._keeper.start()

    def _report_damage(self, on_damaged: Callable[[], None], on_repaired: Callable[[], None]) -> None:
        self.log.damages.on_damage = self.views.health.on_damage = on_damaged
        self.log.damages.on_repair = partial(self._repaired, on_repaired)
        if self.log.damages.count or self.views.health.is_damaged:
            on_damaged()

    def _recover(
        self,
        directory: DataDir,
        confirmed: LogOffset | None,
        truncate_to: LogOffset | None,
        give_up_from: LogOffset | None,
        *,
        on_progress: OnProgress,
        lost: Callable[[LogOffset], bool],
    ) -> Sequence[FrameRun]:
        if self.role == "replica":
            if give_up_from is not None:
                give_up(self.log, self.views, directory.seals, give_up_from, truncate_to)
            elif truncate_to is not None:
                cut_off(self.log, self.views, directory.seals, truncate_to)
            settle(self.log, self.views, directory.whole_at)
            return ()
        if not directory.is_whole:
            raise ReplicaIncomplete(f"the log ends at {self.log.end}, before the views at {directory.whole_at}")
        return recover(
            self.log, self.views, self.builder, confirmed=confirmed, on_progress=on_progress, may_pass_over=lost
        )

    def take_unconfirmed(self) -> Sequence[FrameRun]:
        """Removes and returns the unconfirmed runs of a new master's log, which come before all that is reported."""
        unconfirmed, self._unconfirmed = self._unconfirmed, ()
        return unconfirmed

    @property
    def error(self) -> StoreError | None:
        """Returns why nothing is stored any more, None while all is well."""
        if self._error is None or isinstance(self._error, ViewsDamaged):
            return self._error
        return StoreFailed(str(self._error))

    @property
    def full(self) -> StoreFull | None:
        """Returns why nothing is stored while the disk has no room, None while it has."""
        return self.space.refusal

    @property
    def low(self) -> bool:
        """Returns whether the disk has little room, or none: writes may be refused soon."""
        return self.space.low or self.space.refusal is not None

    @property
    def filling(self) -> ReplicaIncomplete | None:
        """Returns why nothing can be read yet on a replica that began with a snapshot.

        None as soon as its log has caught up.
        """
        at, whole_at = self.log.confirmed, self._directory.whole_at
        if self.role == "replica":
            whole_at = max(whole_at, self._views_at)  # a log that has lost its end
        return None if at >= whole_at else ReplicaIncomplete(f"the log has come to {at} on its way to {whole_at}")

    @property
    def dropped(self) -> StoreFull | None:
        """Returns why a replica has dropped its master's frames, and takes none until it is reopened; or None."""
        return self.receiver.dropped if self.role == "replica" else None

    def _repaired(self, on_repaired: Callable[[], None]) -> None:
        if self.role == "replica":
            self.receiver.repaired()
        on_repaired()

    def refuse(self, why: StoreError | None) -> None:
        """Stores nothing that is not written yet, and answers so; None: as usual again."""
        self.refusal = why
        self._dispatcher.wake()

    def receive(self, placed: Sequence[Placed]) -> None:
        """Stores frames of a replica's master, verified, the first of which is the log's next."""
        self.receiver.receive(placed)

    def confirm(self, end: LogOffset) -> None:
        """Notes, on a replica, that the master has confirmed all before a log offset."""
        self.receiver.confirm(end)

    def append(self, frame: UnplacedFrame, done: OnAppended, *, wakes: bool = True) -> None:
        """Queues a frame; `done` comes back in a `Committed`. Not after `end_appends`.

        One that does not wake the commit thread is written by `commit_here`, which must follow.
        """
        self._committer.append(frame, done, size=frame.size_bytes, wakes=wakes)

    def wake(self) -> None:
        """Wakes the commit thread."""
        self._committer.wake()

    def commit_here(self) -> bool:
        """Stores and reports the appended frames before it returns; False where that is left to the commit thread."""
        if self._dispatcher.is_near():
            return self._committer.commit_here()
        self._committer.wake()
        return False

    def append_own(self, frame: Late, done: OnAppended) -> None:
        """Queues a frame of the store's own, made when its place is certain, which goes in though room is short."""
        self._committer.append(frame, done, size=0, essential=True)

    def dispatch(self, run: FrameRun) -> None:
        """Lets the views have the run of a `Committed`, in order: they are never ahead of those told of it."""
        self._dispatcher.give(run)

    def apply_views(self, until: LogOffset) -> None:
        """Brings the views soon up to a log offset that a caller waits for."""
        self._dispatcher.apply_views(until)

    def end_appends(self) -> None:
        """Stores the appended frames and reports them. A second call does nothing."""
        self._keeper.stop()
        self.scrub.save()
        self._ending.set()
        self._dispatcher.wake()
        self._writer.end()

    def end_dispatch(self) -> None:
        """Brings the views up to the last run given to `dispatch`; reading goes on. Again does nothing."""
        self._dispatcher.end()

    def close(self) -> None:
        """Ends all threads and closes. A second call does nothing. There must be no readers."""
        self.end_appends()
        self.end_dispatch()
        self._opened.close()

    def _stored_end(self, queue: QueueNumber) -> QueueEnd:
        with self.views.reading() as txn:
            return self.views.queues.end(txn, queue)

    def _held(self, slot: bytes) -> SlotContent | None:
        with self.views.reading() as txn:
            return self.views.kv.held(txn, slot)

    def _key_space(self, namespace: str) -> KeySpace:
        with self.views.reading() as txn:
            return self.views.kv.state(txn).space(namespace)

    # ---- the writer's threads

    def _wait_for_views(self) -> None:
        self._dispatcher.wait_until_near(unless=self._cannot_wait)

    def _cannot_wait(self) -> bool:
        if self._error is not None:
            return True
        if self.role == "replica":
            return self._ending.is_set()
        return self.refusal is not None or self.space.refusal is not None  # the log takes no writes anyway

    @property
    def _ahead(self) -> LogOffset:
        """Returns how far the views could have come, or will: on a replica unconfirmed frames do not count."""
        return self.log.confirmed if self.role == "replica" else self.log.end

    def _look_for_files(self) -> None:
        """Checks that written files still have names: removed files are lost with a restart."""
        gone = None if self._error is not None else self.presence.look()
        if gone is not None:
            logger.critical(gone)
            self.fail(StoreFailed(gone))

    def fail(self, error: Exception) -> None:
        """Stores nothing any more: after a failed sync the disk's content is unknown, so it is never tried again."""
        with self._failing:
            first = self._error is None
            self._error = self._error or error
        if first:
            logger.critical("a write or a sync has failed: the store refuses writes until it is restarted: %s", error)
            self._on_failed()
        self._dispatcher.wake()
