"""The calls that replication's driver makes to a store: a master streams its log, a replica takes one in."""

from collections.abc import Sequence
from pathlib import Path

from store.base.errors import CorruptFrame, NotMaster, OffsetOutOfRange, StoreError, StoreFull, StoreOverloaded
from store.engine.engine import Role
from store.engine.gate import Gate
from store.engine.replication_hooks import ReplicationHooks
from store.engine.snapshot import SnapshotInfo, take_snapshot
from store.format.frame import LogOffset
from store.integrity.ledger import BY_SEAL
from store.local.calls.core import Calls
from store.log.log import Placed
from store.log.mending import mend
from store.log.segment import BadRange

__all__ = ["RECEIVED_BYTES_MAX", "ReplicaCalls"]

RECEIVED_BYTES_MAX = 64 << 20  # taken from the master and not on disk: beyond, it has to wait


class ReplicaCalls(Calls):
    """A replica of the store group."""

    _gate: Gate | None  # on a master with other replicas
    _hooks: ReplicationHooks | None
    _received: LogOffset  # how far a replica has taken the log from its master

    @property
    def role(self) -> Role:
        """Master or replica; changed by closing and opening again."""
        return self._engine.role

    @property
    def first(self) -> LogOffset:
        """The log offset of the first frame that is kept."""
        return self._engine.log.first

    @property
    def end(self) -> LogOffset:
        """The log offset behind the last frame that was placed, durable or not: end >= confirmed."""
        return self._engine.log.end

    @property
    def flushed(self) -> LogOffset:
        """The log offset behind what is on this disk."""
        return self._engine.log.flushed

    @property
    def held(self) -> LogOffset:
        """The log offset up to which all of the log was on this disk once: behind `flushed` where it has lost its end.

        To be asked before anything is taken.
        """
        log = self._engine.log
        return max(log.floor, log.flushed, log.lost_end or LogOffset(0))  # a power failure may have taken the floor

    @property
    def followed(self) -> LogOffset:
        """The log offset up to which the views have followed the log, perhaps further than it reaches."""
        return self._engine.views.dispatched

    @property
    def mendable_end(self) -> LogOffset:
        """The log offset behind what `mend` may be asked for; what lies behind it, `receive` brings."""
        return self._engine.log.mendable_end

    @property
    def lost_end(self) -> LogOffset | None:
        """The log offset up to which this disk once held the log, while it does not again; None: nothing is missing."""
        return self._engine.log.lost_end

    @property
    def writable(self) -> bool:
        """Returns whether appends are taken, but for want of room or too many in flight."""
        return self._closing is None and self._engine.refusal is None and self._engine.error is None

    def confirm(self, end: LogOffset, acknowledged: LogOffset | None = None) -> None:
        """Records that what lies before a log offset, at the end of a frame, is on all disks that must have it.

        It can be read from then on. Of a master: this one's disk has it too; appends are answered as far as
        `acknowledged`, if that is further. Of a replica: its master says so, perhaps of more than it has; it can be
        read when it is on this disk. Never goes back.
        """
        if self._engine.role == "replica":
            self._engine.confirm(end)
        elif self._gate is not None:
            self._gate.confirm(end, end if acknowledged is None else acknowledged)

    # ---- as master

    def refuse_appends(self, why: StoreError | None) -> None:
        """Answer with `why` to all appends that have no place in the log yet; None: take them again.

        The store's own records are refused too: timers and keys that are due wait, and retention does.
        """
        assert self._engine.role == "master"
        self._engine.refuse(why)

    async def step_down(self) -> None:
        """Close at once. What is not confirmed is answered `AppendOutcomeUnknown`, and views do not follow it."""
        if self._closing is None:
            self._give_up()
        await self.close()

    def _give_up(self) -> None:
        if self._gate is not None:
            self._engine.refuse(NotMaster("this replica is not the master any more"))
            self._gate.give_up()

    async def close(self) -> None:
        """See `LocalStore.close`."""
        raise NotImplementedError

    # ---- as replica

    def receive(self, frames: bytes | Sequence[Placed]) -> LogOffset:
        """Take whole frames from the master, the first of which is this log's next; how far it is taken now.

        They are written as they are, and synced, in a thread, while the next ones are taken; then `flushed` is called
        with how far. Bytes are verified; nothing of them is taken when it raises: `CorruptFrame`, also for a frame that
        is not the next, `StoreOverloaded`, `StoreFull` and the store's `error`.
        """
        assert self._engine.role == "replica"
        self._check_receiving()
        found = _parse(frames, self._received) if isinstance(frames, bytes) else frames
        if found:
            if found[0].start != self._received:
                raise CorruptFrame(found[0].start, f"the log goes on at {self._received}")
            self._received = found[-1].end
            self._engine.receive(found)
        return self._received

    @property
    def dropped(self) -> StoreFull | None:
        """Returns why a replica has dropped some of what it took, for want of room; then it has to be opened again.

        `flushed` is called when that happens.
        """
        return self._engine.dropped

    def _check_receiving(self) -> None:
        self._check_running()
        if self._engine.error is not None:
            raise self._engine.error
        if self._engine.dropped is not None:
            raise self._engine.dropped
        if self._engine.full is not None:
            raise self._engine.full
        under_way = self._received - self._engine.log.flushed
        if under_way > RECEIVED_BYTES_MAX:
            raise StoreOverloaded(f"{under_way} bytes are not on disk yet")

    # ---- as either

    async def read_log(self, start: LogOffset, max_bytes: int, *, end: LogOffset | None = None) -> bytes:
        """Whole frames as they are stored, from one on and up to `end` (None: what is written): about `max_bytes`.

        At least one, unless there is none. They may not be confirmed, nor on disk. Raises `OffsetOutOfRange` where the
        log does not reach, `CorruptFrame` where it is damaged.
        """
        log = self._engine.log
        written = log.written
        if not log.first <= start <= written:
            raise OffsetOutOfRange(start, log.first, written)
        end = written if end is None else min(end, written)
        placed = self._engine.tail.frames(start, end, max_bytes)
        if placed or start >= end:
            return b"".join([part for one in placed for part in (one.header, one.frame.rows, one.frame.payload)])
        self._check_running()
        frames = await self._loop.run_in_executor(self._pool, log.frames, start, end, max_bytes)
        if not frames and start < log.first:  # deleted meanwhile
            raise OffsetOutOfRange(start, log.first, written)
        return b"".join([frame.data for frame in frames])

    async def read_sound(self, start: LogOffset, max_bytes: int, *, end: LogOffset) -> tuple[LogOffset, bytes]:
        """The first sound frames at or behind `start` that end at `end` at the latest, and where they begin.

        They are back to back, about `max_bytes`, and at least one, unless there is none. What is damaged in front of
        them is passed over and not reported, as `start` may be another log's. Raises OSError.
        """
        self._check_running()
        return await self._loop.run_in_executor(self._pool, self._engine.log.sound, start, end, max_bytes)

    async def distrust(self, start: LogOffset, end: LogOffset) -> None:
        """Take a closed segment for damaged as a whole, as other replicas have other frames there, and so its seal."""
        self._check_running()
        self._engine.sealer.distrust(start)
        bad = BadRange(start, end, "the other replicas have other frames there")
        await self._loop.run_in_executor(self._pool, self._engine.log.damaged, bad, BY_SEAL)

    async def mend(self, start: LogOffset, frames: bytes) -> None:
        """Write whole frames of another replica in place of the damage that `start` lies in, from there on.

        They are verified, tile what they replace, and are on disk when this returns; `damages` has what is left. Does
        nothing where nothing is damaged any more. A damage at or behind `mendable_end` is for `receive`.
        Raises `CorruptFrame` for frames that do not belong there, OSError.
        """
        self._check_running()
        await self._loop.run_in_executor(self._pool, mend, self._engine.log, start, frames)

    async def snapshot(self, directory: Path) -> SnapshotInfo:
        """Copy the views, and say where the log begins, into a new directory: for
        `store.engine.snapshot.install_snapshot`.

        Raises `SnapshotUnusable` when it takes too long, or the store is closed meanwhile, OSError.
        """
        engine = self._engine
        return await self._blocking(
            take_snapshot, engine.log, engine.views, directory, abandoned=lambda: self._closing is not None
        )


def _parse(data: bytes, start: LogOffset) -> list[Placed]:
    """Frames back to back from a log offset on. Raises `CorruptFrame` unless they are all there and sound."""
    frames: list[Placed] = []
    at, view = start, memoryview(data)
    while at - start < len(view):
        found = Placed.parse(view, at - start, log_offset=at)
        if found is None:
            raise CorruptFrame(at, "cut short")
        frames.append(found[0])
        at = found[0].end
    return frames
