"""The log of a `LocalStore`: appends in, acknowledgements out, the tail, and finding records."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from store.api.log import IndexKind, OnAppended, TailListener
from store.base.errors import (
    AppendOutcomeUnknown,
    BadArgument,
    FrameTooLarge,
    StoreClosed,
    StoreError,
    StoreOverloaded,
    ViewsDamaged,
)
from store.base.listeners import Listeners
from store.engine.commit import Committed
from store.format.frame import FRAME_BYTES_MAX, ROW, Frame, LogOffset, Position, QueueNumber, UnplacedFrame
from store.format.records import AddressesSeen
from store.local.cache import FrameCache, NewFrames
from store.local.core import Core
from store.local.finder import find_addresses, find_positions, find_unlisted
from store.local.reader import NotInMemory
from store.log.places import NoFrameThere, frame_at, is_suspicious
from store.log.run import FrameRun
from store.log.sound_frames import SoundFrame
from store.recent.arrivals import Arrivals
from store.recent.kv_recent import Lookups
from store.recent.recent import Outcome
from store.views.index import IndexQuery

logger = logging.getLogger(__name__)

PENDING_BYTES_MAX = 64 << 20
_UNSIGNED = 1 << 64
_NO_OUTCOMES: dict[Position, Outcome] = {}


def _check_hash(hash_: int) -> None:
    if not 0 <= hash_ < _UNSIGNED:
        raise BadArgument(f"{hash_} is no hash of 64 bits")


class LocalLog:
    """`LogCalls` of one group in this process. `wake_by` is called with the time when a timer of a new frame is due."""

    def __init__(
        self,
        core: Core,
        cache: FrameCache,
        arrivals: Arrivals,
        *,
        wake_by: Callable[[int], None],
        pending_bytes_max: int,
        commits_here: bool = False,
    ) -> None:
        """Begins the log; with `commits_here` the loop may commit small batches: no other replica has to have them."""
        self._core = core
        self._cache = cache
        self._arrivals = arrivals
        self._wake_by = wake_by
        self._pending_bytes_max = pending_bytes_max
        self.pending_bytes = 0  # handed to the engine and not yet answered
        self._commits_here = commits_here
        self._gathered_bytes = 0  # appended in this turn of the loop, for a commit of its own
        self._gathering = False  # appends of this turn of the loop are gathered; the next turn commits them
        self._committing = False  # the loop's thread writes, or tries to
        self._looking = asyncio.Lock()  # at a place where no sound frame begins
        self._undecided = False  # a run could not be taken in, so none behind it is
        self._reports: deque[Committed] = deque()  # of the engine, not taken yet, in log order
        self._listeners = Listeners[NewFrames]("the log's tail")

    # ---- in

    def append(self, frame: UnplacedFrame, done: OnAppended) -> None:
        """See `LogCalls.append`. A refusal comes on the next turn of the loop, ahead of earlier frames."""
        size = frame.size_bytes
        refused = self._refusal(size)
        if len(frame.rows) != frame.row_count * ROW.size:  # it would stop the store; checksums are readers' to check
            refused = BadArgument(f"{len(frame.rows)} bytes are not {frame.row_count} rows")
        if refused is not None:
            self._core.loop.call_soon(done, refused)
            return
        self.pending_bytes += size
        self._append(frame, done, size)
        self._core.recorder.appended()

    def _append(self, frame: UnplacedFrame, done: OnAppended, size: int) -> None:
        engine = self._core.engine
        if not self._commits_here:
            engine.append(frame, done)
            return
        here = engine.loop_commits.allows(self._gathered_bytes + size, monotonic())
        engine.append(frame, done, wakes=not here)
        if here:
            self._gathered_bytes += size
            if not self._gathering:
                self._gathering = True
                self._core.loop.call_soon(self._commit)

    def _commit(self) -> None:
        """Commits the frames appended in the last turn of the loop, unless the commit thread has to."""
        size, self._gathered_bytes, self._gathering = self._gathered_bytes, 0, False
        engine = self._core.engine
        if not engine.loop_commits.allows(size, monotonic()):  # any more
            engine.wake()
            return
        self._committing = True
        try:
            engine.commit_here()
        finally:
            self._committing = False
            self._take_reports()  # those of a thread, too, that has written while this attempt failed

    def _refusal(self, size: int) -> StoreError | None:
        core = self._core
        engine = core.engine
        if engine.refusal is not None:
            return engine.refusal
        if core.closing is not None:
            return StoreClosed("the store is shut down")
        if engine.error is not None:
            return engine.error
        if engine.full is not None:
            return engine.full
        if size > FRAME_BYTES_MAX:
            return FrameTooLarge(f"{size} bytes in one frame, which may have {FRAME_BYTES_MAX}")
        if self.pending_bytes and self.pending_bytes + size > self._pending_bytes_max:
            return StoreOverloaded(f"{self.pending_bytes} bytes wait to be written")
        return None

    # ---- out

    def report(self, committed: Committed) -> None:
        """Takes the engine's report, on the thread that has committed."""
        self._reports.append(committed)
        if not self._committing:  # else it is taken as soon as that is over
            self._core.post(self._take_reports)

    def _take_reports(self) -> None:
        while self._reports:
            self.committed(self._reports.popleft())

    def committed(self, committed: Committed) -> None:
        """Answers for a commit batch that is durable, or has failed: to reads first, then senders, then listeners."""
        self.pending_bytes -= committed.size_bytes
        core = self._core
        run = committed.run
        outcomes: dict[Position, Outcome] = {}
        if run is not None:
            self._cache.put(*run.placed)
            decided = self._decide(run)
            if decided is None:
                unknown = AppendOutcomeUnknown(
                    "it is in the log, and damaged or unreadable views cannot decide its effect"
                )
                for done, _ in committed.outcomes:
                    done(unknown)
                return
            outcomes = decided
            core.engine.dispatch(run)  # only now: the revisions looked up were those before the run
            self._arrivals.arrived(run)
            if run.records and (due_ms := core.recent.timers.next_due_ms()) is not None:
                self._wake_by(due_ms)
        core.recorder.report(outcomes)
        for done, outcome in committed.outcomes:
            try:
                done(outcome)
            except Exception:
                logger.exception("an append's callback has failed")
        if run is not None and self._listeners:
            self._listeners.tell(NewFrames(self._cache, run.placed))

    def _decide(self, run: FrameRun) -> dict[Position, Outcome] | None:
        """Takes a run in, and returns the outcomes of its records; None from the first that the views cannot decide."""
        engine = self._core.engine
        if self._undecided or isinstance(engine.error, ViewsDamaged):
            return None
        if not run.records:  # of messages alone: nothing is looked up
            self._core.recent.follow(run)
            return _NO_OUTCOMES
        try:
            with Lookups(engine.views) as stored:
                return self._core.recent.add(run, stored)
        except Exception as error:  # the views must not go on behind a run that they lack
            if not isinstance(error, ViewsDamaged):
                logger.exception("the effect of records cannot be decided")
            self._undecided = True
            engine.fail(error)
            return None

    @property
    def confirmed(self) -> LogOffset:
        """See `LogCalls.confirmed`."""
        return min(self._core.recent.confirmed, self._core.engine.log.confirmed)

    def tail(self, listener: TailListener) -> Callable[[], None]:
        """See `LogCalls.tail`."""
        return self._listeners.add(listener)

    # ---- reading

    async def scan(
        self, start: Position, queues: Sequence[QueueNumber] | None, *, max_bytes: int
    ) -> tuple[Sequence[Frame], LogOffset]:
        """See `LogCalls.scan`."""
        core = self._core
        core.check_open()
        end = core.recent.confirmed
        if queues is None:
            return await self._scan(start.frame, end, max_bytes)
        for queue in queues:
            await core.check_queue(queue)
        recent = {queue: core.recent.chunks(queue) for queue in queues}
        end = core.recent.confirmed
        return await core.read(
            core.reader.scan_queues,
            start.frame,
            end,
            recent,
            core.recent.start,
            max_bytes=max_bytes,
            kept={queue: core.kept(queue) for queue in queues},
        )

    async def _scan(self, start: LogOffset, end: LogOffset, max_bytes: int) -> tuple[Sequence[Frame], LogOffset]:
        scan = self._core.reader.scan
        try:
            return await self._core.read(scan, start, end, max_bytes=max_bytes)
        except NoFrameThere as error:
            at = error.at
        sound = await self._look(at)
        start = sound.end if sound is not None and sound.start < at else at
        return await self._core.read(scan, start, end, max_bytes=max_bytes, looked=True)

    async def _look(self, at: LogOffset) -> SoundFrame | None:
        """Returns the frame that a log offset is in; None where the log is damaged.

        One at a time: clients may name any number, and may be gone before a thread is done with theirs.
        """
        core, looking = self._core, self._looking
        await looking.acquire()
        try:
            core.check_open()
            work = core.pool.submit(core.engine.log.sound_frame_at, at, "read")
        except BaseException:
            looking.release()
            raise
        work.add_done_callback(lambda _: core.post(looking.release))
        return await asyncio.wrap_future(work)

    async def read(self, position: Position) -> bytes | None:
        """See `LogCalls.read`. Raises `CorruptFrame` when the record's frame is damaged."""
        core = self._core
        core.check_open()
        if not core.recent.first <= position.frame < core.recent.confirmed:
            return None
        frame = await self._frame(position.frame)
        if frame is None or not 0 <= position.row < frame.header.row_count:
            return None
        return frame.record(position.row)

    async def _frame(self, at: LogOffset) -> Frame | None:
        try:
            return await self._core.read(self._named, at)
        except NoFrameThere:
            sound = await self._look(at)
        within = sound is not None and sound.start < at
        return None if within else await self._core.read(self._core.reader.frame, at)

    def _named(self, at: LogOffset, *, in_memory: bool = False) -> Frame | None:
        """Returns the frame at a log offset that a client may have made up; None where nothing looks like one.

        Raises `NoFrameThere` where a damaged one may begin.
        """
        found = self._cache.get(at)
        if found is None:
            if in_memory:
                raise NotInMemory
            log = self._core.engine.log
            if not log.first <= at < log.confirmed:
                return None
            try:
                found = frame_at(log, at)
            except NoFrameThere:
                if is_suspicious(log, at):
                    raise
            else:
                self._cache.put(found)
        return found

    async def last(self, address_hash: int, queues: Sequence[QueueNumber] | None = None) -> Position | None:
        """See `LogCalls.last`."""
        core = self._core
        core.check_open()
        _check_hash(address_hash)
        found = core.recent.last(address_hash)
        if found is not None:
            return found
        views = core.engine.views
        with views.reading() as txn:  # a lookup takes 5 us, a thread 50 to 100 us
            return views.last.get(txn, address_hash)

    async def find(
        self,
        kind: IndexKind,
        hash_: int,
        *,
        from_ms: int = 0,
        until_ms: int = 1 << 63,
        below: Position | None = None,
        limit: int = 100,
        queues: Sequence[QueueNumber] | None = None,
    ) -> Sequence[Position]:
        """See `LogCalls.find`."""
        _check_hash(hash_)
        wanted = IndexQuery.of(kind, hash_, from_ms=from_ms, until_ms=until_ms, below=below)
        core = self._core
        return await core.blocking(find_positions, core.engine, wanted, core.recent.runs(), limit)

    async def addresses(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[str]:
        """See `LogCalls.addresses`."""
        core = self._core
        recent = core.recent.addresses(prefix, after)
        return await core.blocking(find_addresses, core.engine.views, prefix, after, recent, limit)

    async def note_addresses(self, addresses: Sequence[str]) -> None:
        """See `LogCalls.note_addresses`. Those too long for the view's keys are skipped."""
        core = self._core
        unknown = core.recent.unlisted(addresses)
        new = await core.blocking(find_unlisted, core.engine.views, unknown) if unknown else ()
        if new:
            await core.recorder.record(AddressesSeen(tuple(new)))
