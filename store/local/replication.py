"""The calls that replication's driver makes to a `LocalStore`: a master streams its log, a replica takes one in."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from store.base.errors import CorruptFrame, NotMaster, OffsetOutOfRange, StoreError, StoreFull, StoreOverloaded
from store.engine.commit import Committed
from store.engine.engine import Role
from store.engine.gate import Gate
from store.engine.snapshot import SnapshotInfo, take_snapshot
from store.format.frame import LogOffset
from store.format.placed import Placed
from store.integrity.ledger import BY_SEAL
from store.local.core import Core
from store.log.log import CommitLog
from store.log.mending import mend
from store.log.segment import BadRange

VERIFIED_BYTES = 64 << 20  # of the log in one step, so that the store can be closed in between
RECEIVED_BYTES_MAX = 64 << 20  # taken from the master and not on disk: beyond, it has to wait


class LocalReplication:
    """The log as a master streams it to its replicas, and as a replica takes it in.

    `committed` is called with each commit batch that is durable on as many replicas as it has to be.
    """

    def __init__(self, core: Core, committed: Callable[[Committed], None]) -> None:
        self._core = core
        self._committed = committed
        self._received = LogOffset(0)  # how far a replica has taken the log from its master
        self.gate: Gate | None = None  # on a master with other replicas

    def begin(self, *, gated: bool) -> None:
        """Begins where the log ends; as a master with other replicas, with the frames that are not confirmed yet."""
        log = self._core.engine.log
        self._received = log.end
        if gated:
            self.gate = Gate(log.confirmed, self._let_through)
            for run in self._core.engine.take_unconfirmed():
                self.gate.add(Committed([], 0, run))

    def reported(self, committed: Committed) -> None:
        """Takes a commit batch that is on this disk, or has failed, and now waits for the other replicas."""
        assert self.gate is not None
        self.gate.add(committed)
        if committed.run is not None and self._core.hooks is not None:
            self._core.hooks.flushed(committed.run.end)

    def _let_through(self, committed: Committed) -> None:
        if committed.run is not None:
            self._core.engine.log.confirm(committed.run.end)
        self._committed(committed)

    @property
    def role(self) -> Role:
        """Master or replica; changed by closing and opening again."""
        return self._core.engine.role

    @property
    def first(self) -> LogOffset:
        """The log offset of the first frame that is kept."""
        return self._core.engine.log.first

    @property
    def end(self) -> LogOffset:
        """The log offset behind the last frame that was placed, durable or not: end >= confirmed."""
        return self._core.engine.log.end

    @property
    def flushed(self) -> LogOffset:
        """The log offset behind the last frame on this disk."""
        return self._core.engine.log.flushed

    @property
    def held(self) -> LogOffset:
        """The log offset up to which all of the log was on this disk once: behind `flushed` where it has lost its end.

        To be asked before anything is taken.
        """
        log = self._core.engine.log
        return max(log.floor, log.flushed, log.lost_end or LogOffset(0))  # a power failure may have taken the floor

    @property
    def followed(self) -> LogOffset:
        """The log offset up to which the views have followed the log, perhaps further than it reaches."""
        return self._core.engine.views.dispatched

    @property
    def mendable_end(self) -> LogOffset:
        """Returns the end of the range that `mend` may repair. Frames behind it come by `receive`."""
        return self._core.engine.log.mendable_end

    @property
    def lost_end(self) -> LogOffset | None:
        """The log offset up to which this disk once held the log, while it does not again; None: nothing is missing."""
        return self._core.engine.log.lost_end

    @property
    def writable(self) -> bool:
        """Returns whether appends are taken, but for want of room or too many in flight."""
        return self._core.writable

    def confirm(self, end: LogOffset, acknowledged: LogOffset | None = None) -> None:
        """Records that the frames before a log offset, the end of a frame, are on all disks that must have them.

        It can be read from then on. Of a master: this one's disk has it too; appends are answered as far as
        `acknowledged`, if that is further. Of a replica: its master says so, perhaps of more than it has; it can be
        read when it is on this disk. Never goes back.
        """
        if self._core.engine.role == "replica":
            self._core.engine.confirm(end)
        elif self.gate is not None:
            self.gate.confirm(end, end if acknowledged is None else acknowledged)

    # ---- as master

    def refuse_appends(self, why: StoreError | None) -> None:
        """Answers with `why` to all appends that have no place in the log yet; None: take them again.

        The store's own records are refused too: timers and keys that are due wait, and retention does.
        """
        assert self._core.engine.role == "master"
        self._core.engine.refuse(why)

    def give_up(self) -> None:
        """Answers `AppendOutcomeUnknown` for unconfirmed frames, and takes no more."""
        if self.gate is not None:
            self._core.engine.refuse(NotMaster("this replica is not the master any more"))
            self.gate.give_up()

    def ask_first(self, *, agreed: Callable[[], Awaitable[None]], cut_off: Callable[[], bool]) -> None:
        """Makes a master read keys only when it is certain that no other replica is master.

        A master that was superseded and does not know it yet would answer with old records as the newest. So a read
        waits for `agreed`: it asks the replicas in sync whether they follow still (`Master.ask_round`); reads that
        come while that is in flight share the next question, so that under load it costs a round trip and nothing
        else. It raises `NotMaster`, and `NotWritable` where too few replicas answer.

        Messages are leased without asking: settlements are written to the log, which refuses a node that is no longer
        master. But a master that no replica has answered for a second leases nothing (`cut_off`), so that a master that
        was cut off and its successor lease the same messages for a moment at most.
        """
        self._core.agreed, self._core.cut_off = agreed, cut_off

    # ---- as replica

    def receive(self, frames: bytes | Sequence[Placed]) -> LogOffset:
        """Takes whole frames from the master, the first of which is this log's next. Returns the end of those taken.

        They are written as they are, and synced, in a thread, while the next ones are taken; then `flushed` is called
        with how far. Bytes are verified; nothing of them is taken when it raises: `CorruptFrame`, also for a frame that
        is not the next, `StoreOverloaded`, `StoreFull` and the store's `error`.
        """
        assert self._core.engine.role == "replica"
        self._check_receiving()
        found = _parse(frames, self._received) if isinstance(frames, bytes) else frames
        if found:
            if found[0].start != self._received:
                raise CorruptFrame(found[0].start, f"the log goes on at {self._received}")
            self._received = found[-1].end
            self._core.engine.receive(found)
        return self._received

    @property
    def dropped(self) -> StoreFull | None:
        """Returns why a replica has dropped some frames that it took, for want of room; then it has to be opened again.

        `flushed` is called when that happens.
        """
        return self._core.engine.dropped

    def _check_receiving(self) -> None:
        self._core.check_running()
        if self._core.engine.error is not None:
            raise self._core.engine.error
        if self._core.engine.dropped is not None:
            raise self._core.engine.dropped
        if self._core.engine.full is not None:
            raise self._core.engine.full
        under_way = self._received - self._core.engine.log.flushed
        if under_way > RECEIVED_BYTES_MAX:
            raise StoreOverloaded(f"{under_way} bytes are not on disk yet")

    # ---- as either

    async def read_log(self, start: LogOffset, max_bytes: int, *, end: LogOffset | None = None) -> bytes:
        """Returns whole frames as stored, from one on and up to `end` (None: the written end): about `max_bytes`.

        At least one, unless there is none. They may not be confirmed, nor on disk. Raises `OffsetOutOfRange` where the
        log does not reach, `CorruptFrame` where it is damaged.
        """
        log = self._core.engine.log
        written = log.written
        if not log.first <= start <= written:
            raise OffsetOutOfRange(start, log.first, written)
        end = written if end is None else min(end, written)
        placed = self._core.engine.tail.frames(start, end, max_bytes)
        if placed or start >= end:
            return b"".join([part for one in placed for part in (one.header, one.frame.rows, one.frame.payload)])
        self._core.check_running()
        frames = await self._core.loop.run_in_executor(self._core.pool, log.frames, start, end, max_bytes)
        if not frames and start < log.first:  # deleted meanwhile
            raise OffsetOutOfRange(start, log.first, written)
        return b"".join([frame.data for frame in frames])

    async def read_sound(self, start: LogOffset, max_bytes: int, *, end: LogOffset) -> tuple[LogOffset, bytes]:
        """Returns the first sound frames at or behind `start` that end at `end` at the latest, and where they begin.

        They are back to back, about `max_bytes`, and at least one, unless there is none. Damage in front of them is
        skipped and not reported, as `start` may be another log's. Raises OSError.
        """
        self._core.check_running()
        return await self._core.loop.run_in_executor(
            self._core.pool, self._core.engine.log.sound, start, end, max_bytes
        )

    async def verify_unfollowed(self) -> None:
        """Reads the part of the log that the views have not followed, on the disk; its damage is in `damages`.

        Raises `StoreClosed`, OSError.
        """
        log = self._core.engine.log
        at, end = max(self.followed, log.first), log.written
        while at < end:
            self._core.check_running()
            at = await self._core.loop.run_in_executor(self._core.pool, _verify, log, at, end)

    async def distrust(self, start: LogOffset, end: LogOffset) -> None:
        """Takes a closed segment for damaged as a whole, as other replicas have other frames there, and so its seal."""
        self._core.check_running()
        self._core.engine.sealer.distrust(start)
        bad = BadRange(start, end, "the other replicas have other frames there")
        await self._core.loop.run_in_executor(self._core.pool, self._core.engine.log.damaged, bad, BY_SEAL)

    async def mend(self, start: LogOffset, frames: bytes) -> None:
        """Writes whole frames of another replica in place of the damage that `start` lies in, from there on.

        They are verified, tile the range they replace, and are on disk when this returns; `damages` has the rest. Does
        nothing where nothing is damaged any more. A damage at or behind `mendable_end` is for `receive`. Raises
        `CorruptFrame` for frames that do not belong there, OSError.
        """
        self._core.check_running()
        await self._core.loop.run_in_executor(self._core.pool, mend, self._core.engine.log, start, frames)

    async def snapshot(self, directory: Path) -> SnapshotInfo:
        """Copies the views, and says where the log begins, into a new directory: for
        `store.engine.snapshot.install_snapshot`.

        Raises `SnapshotUnusable` when it takes too long, writes would be refused for want of room, or the store is
        closed meanwhile, OSError.
        """
        engine = self._core.engine
        return await self._core.blocking(
            take_snapshot,
            engine.log,
            engine.views,
            directory,
            abandoned=lambda: self._core.closing is not None,
            lacking=engine.space.lacking,
        )


def _verify(log: CommitLog, start: LogOffset, end: LogOffset) -> LogOffset:
    """Reports the damage of a log from a frame's beginning on, and takes sound frames for repaired.

    Returns how far it has read: about `VERIFIED_BYTES`, or to the end. Raises OSError.
    """
    sound = at = start
    for item in log.scan(start, end):
        at = item.end
        if isinstance(item, BadRange):
            log.damages.verified(sound, item.start)
            log.damaged(item, "election")
            sound = item.end
        if at - start >= VERIFIED_BYTES:
            break
    else:
        at = end
    if sound < at:
        log.damages.verified(sound, at)
    return at


def _parse(data: bytes, start: LogOffset) -> list[Placed]:
    """Parses frames back to back from a log offset on. Raises `CorruptFrame` unless all are there and sound."""
    frames: list[Placed] = []
    at, view = start, memoryview(data)
    while at - start < len(view):
        found = Placed.parse(view, at - start, log_offset=at)
        if found is None:
            raise CorruptFrame(at, "cut short")
        frames.append(found[0])
        at = found[0].end
    return frames
