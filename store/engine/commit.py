"""The write path: two threads, so that the next commit batch is written while the one before is being synced.

The commit thread takes the frames appended since its last write, places them and writes them. The sync thread syncs
written frames to disk and only then lets readers and senders know. Frames marked `FRAME_ASYNC` are answered when they
are written; their sync follows within an interval, and readers see them after it, like any other.

Where both are idle, `commit_here` does the work of both on the thread that calls it: the event loop's, when the disk is
fast (`store.engine.loop_commits`). One lock says who writes.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from typing import NamedTuple, Protocol, TypeAlias

from store.api.log import Appended, OnAppended
from store.base.errors import AppendOutcomeUnknown, SequenceOutOfOrder, StoreError, StoreFailed, StoreFull
from store.disk.space import NO_ROOM, Space
from store.engine.compaction import RowWatch
from store.engine.loop_commits import LoopCommits
from store.format.frame import FRAME_ASYNC, FRAME_GUARDED, UnplacedFrame
from store.format.placed import Placed
from store.guards.table import Admitted, GuardTable
from store.log.log import CommitLog
from store.log.producers import ProducerTable
from store.log.run import FrameRun, RunBuilder

logger = logging.getLogger(__name__)

BATCH_BYTES_MAX = 8 << 20  # in one write: later frames need not wait for more than that
UNSYNCED_BYTES_MAX = 64 << 20  # written and not on disk: beyond, nothing more is written until it is
FLUSH_INTERVAL_MS = 20  # acknowledged frames without a sync are on disk after this and the time of a sync

Late: TypeAlias = Callable[[], UnplacedFrame]  # makes a frame when nothing can come before it in the log any more


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit batch: the outcome of each append, in order, and the frames that readers may see from now on."""

    outcomes: list[tuple[OnAppended, Appended | StoreError]]
    size_bytes: int  # of all frames answered for, as their appends counted them
    run: FrameRun | None = None


class _Append(NamedTuple):
    frame: UnplacedFrame | Late
    done: OnAppended
    size: int  # counted as pending
    essential: bool  # stored even when the disk is nearly full


@dataclass(slots=True)
class _Batch:
    """The appends that are written with one call, on their way from one thread to the other."""

    outcomes: list[tuple[OnAppended, Appended | StoreError]] = field(default_factory=list)
    size: int = 0
    placed: list[Placed] = field(default_factory=list)
    run: FrameRun | None = None
    must_sync: bool = False  # no append is answered before a sync
    urgent: bool = False  # and a reader waits for it
    passed: Event | None = None  # set when all before and this are dealt with


class _Fail(Protocol):
    def __call__(self, error: Exception) -> None: ...


class Committer:
    """The only writer of a log.

    `report` is called with each commit batch in log order, on either thread. A batch that is answered early is reported
    a second time, with its run, when it is on disk. `before_batch` may block the commit thread. `fail` is called with
    the first error from a write or a sync, after which nothing more is stored; `error` returns the reason to store
    nothing.

    With other replicas, `written` is called with frames as soon as they are written. Frames on this disk are not
    confirmed by that: the receiver of the report confirms them, and answers. `FRAME_ASYNC` then means nothing: an
    answer waits for the disks of others, so that waiting for this one beside them costs no time.
    """

    def __init__(
        self,
        log: CommitLog,
        builder: RunBuilder,
        producers: ProducerTable,
        guards: GuardTable,
        space: Space,
        *,
        now_ms: Callable[[], int],
        epoch: int,
        stored_at_ms: int,
        flush_interval_ms: int = FLUSH_INTERVAL_MS,
        report: Callable[[Committed], None],
        before_batch: Callable[[], None],
        fail: _Fail,
        watch: RowWatch,
        error: Callable[[], StoreError | None],
        loop_commits: LoopCommits,
        written: Callable[[Sequence[Placed]], None] | None = None,
    ) -> None:
        self._log = log
        self._builder = builder
        self._producers = producers
        self._guards = guards
        self._space = space
        self._now_ms = now_ms
        self._epoch = epoch
        self._stored_at_ms = stored_at_ms  # of the newest frame; never goes back
        self._flush_interval_s = flush_interval_ms / 1000
        self._report = report
        self._before_batch = before_batch
        self._fail = fail
        self._watch = watch
        self._error = error
        self._loop_commits = loop_commits
        self._tell_written = written
        self._broken: Exception | None = None  # from a write or a sync: frames not on disk now are never known to be
        self._appends: deque[_Append] = deque()
        self._wake_queue: SimpleQueue[None] = SimpleQueue()  # wakes the commit thread: it looks at _appends, or ends
        self._woken = False  # an item waits in it; cleared before the commit thread looks at _appends
        self._ended = False
        self._turn = Lock()  # held by the thread that writes: the commit thread, or one that calls `commit_here`
        self._written: SimpleQueue[_Batch | None] = SimpleQueue()
        self._given = 0  # batches put in _written
        self._taken = 0  # of these, the ones the sync thread is done with; <= _given
        self._handed = 0  # batches that are answered after a sync
        self._answered = 0  # of these, the ones that are; <= _handed
        self._committing = Thread(target=self._commit_forever, name="store-commit", daemon=True)
        self._syncing = Thread(target=self._sync_forever, name="store-sync", daemon=True)

    def start(self) -> None:
        """Begins both threads."""
        self._committing.start()
        self._syncing.start()

    def append(
        self, frame: UnplacedFrame | Late, done: OnAppended, *, size: int, essential: bool = False, wakes: bool = True
    ) -> None:
        """Queues a frame; `done` comes back in a `Committed`, which counts it with `size`.

        One that does not wake the commit thread is for `wake` or `commit_here`, which must follow.
        """
        self._appends.append(_Append(frame, done, size, essential))
        if wakes:
            self.wake()

    def wake(self) -> None:
        """Wakes the commit thread."""
        if not self._woken:
            self._woken = True
            self._wake_queue.put(None)

    def end(self) -> None:
        """Stores the appended frames and reports them. A second call does nothing."""
        self._ended = True
        self._wake_queue.put(None)
        self._committing.join()
        self._syncing.join()

    # ---- the caller's thread

    def commit_here(self) -> bool:
        """Writes, syncs and reports appended frames before it returns, where that is simple and both threads are idle.

        That saves two hand-overs between threads. Returns False where the commit thread does it: frames that wait for
        the views, a segment's end or a sync in progress, and those that are answered before a sync.
        """
        if self._turn.acquire(blocking=False):
            try:
                if self._taken == self._given and (appends := self._plain_batch()):
                    for _ in appends:
                        self._appends.popleft()
                    self._commit(appends, sum([item.size for item in appends]))
                    return True
            finally:
                self._turn.release()
        if self._appends:
            self.wake()
        return False

    def _plain_batch(self) -> list[_Append]:
        """Returns all that was appended; nothing where writing it may have to wait for more than one sync."""
        appends, size = list(self._appends), 0
        for frame, _, counted, _ in appends:
            if not isinstance(frame, UnplacedFrame) or frame.flags & (FRAME_ASYNC | FRAME_GUARDED):
                return []
            size += counted
        return appends if self._log.fits(size) else []

    # ---- the commit thread

    def _commit_forever(self) -> None:
        ending = False
        while not ending:
            self._wake_queue.get()
            self._woken = False
            ending = self._ended
            with self._turn:
                while self._appends:
                    self._commit_some()
        self._written.put(None)

    def _commit_some(self) -> None:
        appends: list[_Append] = []
        size = 0
        while self._appends and size < BATCH_BYTES_MAX:
            item = self._appends.popleft()
            appends.append(item)
            size += item.size
        self._before_batch()
        if self._log.written - self._log.flushed > UNSYNCED_BYTES_MAX:
            self._drain()
        self._commit(appends, size)

    def _commit(self, appends: list[_Append], size: int) -> None:
        """Places and writes appends; in several commit batches where a segment ends."""
        failed = self._error()
        if failed is not None:
            self._hand_over(_Batch([(item.done, failed) for item in appends], size))
            return
        self._space.before_write(size)
        self._stored_at_ms = max(self._stored_at_ms, self._now_ms())
        log, batch = self._log, _Batch()
        for frame, done, counted, essential in appends:
            try:
                made = frame if isinstance(frame, UnplacedFrame) else frame()
                if not log.fits(made.size_bytes):
                    self._hand_over(batch)
                    batch = _Batch()
                    self._drain()  # so that only the last segment can ever be torn
                outcome = self._place(made, batch, essential=essential)
            except OSError as error:
                outcome = self._placing_failed(error)
            except Exception as error:
                logger.exception("a frame cannot be placed")
                outcome = self._break(error)
            batch.size += counted
            batch.outcomes.append((done, outcome))
        self._hand_over(batch)

    def _place(self, frame: UnplacedFrame, batch: _Batch, *, essential: bool) -> Appended | StoreError:
        if self._broken is not None:
            return StoreFailed(str(self._broken))
        guarded = frame.flags & FRAME_GUARDED
        admitted: Admitted | None = None
        if frame.producer_id:
            try:
                known = self._producers.find(frame.producer_id, frame.sequence)
            except SequenceOutOfOrder as refused:
                return refused
            if known is not None:
                failed = self._guards.failed(frame, known, self._stored_at_ms) if guarded else ()
                return Appended(known, duplicate=True, failed=failed)
        if self._space.refusal is not None and not essential:
            return self._space.refusal
        if guarded:
            admitted = self._guards.admit(frame, self._stored_at_ms)
            frame = admitted.frame
        at = self._log.place(frame, epoch=self._epoch, stored_at_ms=self._stored_at_ms)
        batch.placed.append(at)
        self._watch.saw(frame.rows)
        if frame.producer_id:
            self._producers.add(frame.producer_id, frame.sequence, at.start)
        if admitted is not None:
            self._guards.add(admitted.holding, at.start)
        if not frame.flags & FRAME_ASYNC or self._tell_written is not None:
            batch.must_sync = True
        return Appended(at.start) if admitted is None else Appended(at.start, failed=admitted.failed)

    def _placing_failed(self, error: OSError) -> StoreError:
        """Returns the refusal where a new segment could not be created; nothing of the frame is in the log."""
        return self._space.ran_out(str(error.strerror)) if error.errno in NO_ROOM else self._break(error)

    def _hand_over(self, batch: _Batch) -> None:
        """Writes a batch and lets the sync thread have it; answers it now if all of it may be."""
        if batch.placed:
            try:
                began_s = monotonic()
                self._log.write()
                self._loop_commits.wrote(batch.size, (now_s := monotonic()) - began_s, now_s)
                self._producers.keep()
                self._guards.keep()
                if self._tell_written is not None:
                    self._tell_written(batch.placed)
                batch.run = self._builder.build(batch.placed)
            except OSError as error:
                self._writing_failed(batch, error)
            except Exception as error:
                logger.exception("a commit batch cannot be indexed")
                self._break(error)
        if batch.outcomes and not batch.must_sync and self._answered == self._handed and self._broken is None:
            self._report(Committed(batch.outcomes, batch.size))
            batch.outcomes, batch.size = [], 0
        if batch.outcomes or batch.run is not None:
            self._pass_on(batch)

    def _pass_on(self, batch: _Batch) -> None:
        """Lets the sync thread have a batch; or syncs here when it is idle and nothing waits to be written meanwhile.

        That saves a hand-over between threads, some 50 us, when there is little to do (docs/decisions/0005).
        """
        if batch.outcomes:
            self._handed += 1
            batch.urgent = True
            if self._taken == self._given and not self._appends:
                self._sync([batch])
                return
        self._given += 1
        self._written.put(batch)

    def _writing_failed(self, batch: _Batch, error: OSError) -> None:
        """Takes a batch back that the disk had no room for; anything else breaks the log."""
        if error.errno not in NO_ROOM:
            self._break(error)
            return
        start = batch.placed[0].start
        try:
            self._log.take_back()
        except OSError as worse:
            self._break(worse)
            return
        full = self._space.ran_out(str(error.strerror))
        self._watch.took_back()
        self._producers.take_back()
        self._guards.take_back()
        batch.outcomes = [
            (done, full if isinstance(outcome, Appended) and outcome.frame >= start else outcome)
            for done, outcome in batch.outcomes
        ]
        batch.placed = []
        batch.must_sync = True  # after a crash the part that was written must not come back

    def _drain(self) -> None:
        """Waits until all written frames are on disk, or never will be."""
        passed = Event()
        self._given += 1
        self._written.put(_Batch(must_sync=self._log.flushed < self._log.written, urgent=True, passed=passed))
        passed.wait()

    # ---- the sync thread

    def _sync_forever(self) -> None:
        stopping = False
        while not stopping:
            batch = self._written.get()
            batches: list[_Batch] = []
            urgent = False
            deadline = monotonic() + self._flush_interval_s
            while batch is not None:
                batches.append(batch)
                urgent = urgent or batch.urgent
                try:
                    batch = self._written.get(not urgent, max(deadline - monotonic(), 0))
                except Empty:
                    break
            stopping = batch is None
            if batches:
                self._sync(batches)
                self._taken += len(batches)

    def _sync(self, batches: list[_Batch]) -> None:
        """Syncs, and then lets readers and senders know: the order is the promise."""
        if self._broken is None and any(batch.must_sync or batch.run is not None for batch in batches):
            began_s = monotonic()
            try:
                self._log.sync()
            except Exception as error:
                logger.exception("a sync has failed")
                self._break(error)
            self._loop_commits.synced((now_s := monotonic()) - began_s, now_s)
        for batch in batches:
            outcomes, run = batch.outcomes, batch.run
            if self._broken is not None and not (run is not None and run.end <= self._log.flushed):
                outcomes, run = self._unknown(batch), None
            if run is not None and self._tell_written is None:
                self._log.confirm(run.end)
            if outcomes or run is not None:
                self._report(Committed(outcomes, batch.size, run))
            if outcomes:
                self._answered += 1  # after the report: from here on the commit thread may answer ahead
            if batch.passed is not None:
                batch.passed.set()

    def _unknown(self, batch: _Batch) -> list[tuple[OnAppended, Appended | StoreError]]:
        """Returns the outcomes of a batch that may be on disk; a refusal for want of room may not be undone either."""
        unknown = AppendOutcomeUnknown("the store's disk failed while it was written")
        certain = self._log.flushed
        return [
            (
                done,
                unknown
                if (isinstance(outcome, Appended) and outcome.frame >= certain)
                or (isinstance(outcome, StoreFull) and batch.must_sync)
                else outcome,
            )
            for done, outcome in batch.outcomes
        ]

    # ---- both

    def _break(self, error: Exception) -> StoreFailed:
        """Stores nothing any more: after a failed sync the disk's content is unknown, so it is never tried again."""
        if self._broken is None:
            self._broken = error
        self._fail(error)
        return StoreFailed(str(error))
