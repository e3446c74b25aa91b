"""The store of a simulated replica: what `LocalStore` is to a node, with a log in a list and views in a dictionary.

Who may write, what is answered when, and what is read are as there: `Gate`, `ProducerTable` and `GuardTable` are the
store's own. The log survives a process and loses, with the power, some of what was not synced.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import msgspec

from store.api.keys import Entry
from store.api.kv_rules import KeySpace, SlotContent, split
from store.api.log import Appended
from store.api.timers import TimersHeld
from store.base.errors import (
    CorruptFrame,
    NotMaster,
    NotWritable,
    OffsetOutOfRange,
    RevisionConflict,
    SequenceOutOfOrder,
    StoreClosed,
)
from store.engine.commit import Committed
from store.engine.gate import Gate
from store.format.frame import FRAME_GUARDED, HEADER, ROW, Frame, LogOffset, Position, UnplacedFrame, origin_of
from store.guards.table import GuardTable, ViewQueries
from store.log.producers import ProducerTable
from store.node.replica.disk import Disk
from store.replication.epochs import EpochList
from tests.sim.joint.joint_damage import Surface
from tests.sim.joint.joint_log import CountedLog, Views, header_of
from tests.sim.joint.joint_loop import HERE
from tests.sim.store.faulty_files import Disk as Files

KEYS_QUEUE = 1
CONFIRM_WAIT_S = 1.0
SCRUB_S = 1.0  # from one look at all of a log to the next
_EMPTY = TimersHeld(0, 0)


def message_frame(queue: int, record: object, producer: int = 0, sequence: int = 0) -> UnplacedFrame:
    payload = msgspec.msgpack.encode(record)
    row = ROW.pack(queue, 0, len(payload), 0, 0, 0, 0, 0)
    return UnplacedFrame.build(row, payload, producer_id=producer, sequence=sequence)


class Platter:
    """The part of a replica that survives its process."""

    def __init__(self, group: int, chance) -> None:
        self.group = group
        self.chance = chance
        self.origin = origin_of(group)
        self.log = CountedLog(self.origin)
        self.surface = Surface(self.log, chance)
        self.others: list[Platter] = []  # of the group
        self.views = Views(self.origin)
        self.files = Files(chance)
        self.said = self.origin  # the highest offset that any process of it has said to be confirmed
        self.fetched: tuple | None = None  # a snapshot
        self.touched: Callable[[], None] = lambda: None

    def recover(self, truncate_to: LogOffset | None, give_up_from: LogOffset | None = None) -> None:
        """Opens the log as `LocalStore.open` does: it syncs first what is written."""
        if give_up_from is not None:
            self.surface.floor = min(self.surface.floor, give_up_from)
            if self.views.applied > min(self.log.end, truncate_to or self.log.end):
                assert self.log.first == self.origin
                self.views = Views(self.origin)
        if self.views.damages and self.is_rebuildable:
            self.views = Views(self.origin)
        if truncate_to is not None:
            self.log.truncate(min(truncate_to, self.log.end))
            self.surface.cut(truncate_to)
            self.surface.floor = min(self.surface.floor, truncate_to)
        self.log.durable = self.log.end
        self.log.cuts += 1
        self.touched()

    def check_unfollowed(self, lost: Callable[[LogOffset], bool]) -> None:
        """Raises `CorruptFrame`: a master would pass over damage that is not lost."""
        for frame in self.log.between(self.views.applied, self.log.end):
            at = header_of(frame).log_offset
            if not self.surface.is_sound(frame, at) and not lost(at):
                raise CorruptFrame(at, "damaged")

    @property
    def is_rebuildable(self) -> bool:
        """Returns whether the log has all of what the views are made from."""
        return self.log.first == self.origin and not self.surface.spoiled and not self.surface.is_short

    def begin_anew(self, first: LogOffset, views: Views, lost_end: LogOffset | None = None) -> None:
        """Replaces all by a snapshot; what the log has lost is still missing."""
        self.log.reset(first)
        self.surface.begin_anew(lost_end)
        self.said = min(self.said, first)  # in front of it, where it starts over
        self.views, self.fetched = views, None
        self.touched()

    def trim(self) -> None:
        """Deletes the front of the log, as retention does."""
        until = min(self.views.applied, self.log.durable)
        until = min([until, *(start for other in self.others for start in other.surface.spoiled)])  # is wanted here
        if until > self.log.first:
            self.log.trim(self.log.boundary(LogOffset(self.chance.randint(self.log.first, until))))
            self.surface.trim(self.log.first)
            self.touched()

    def lose_end(self, at: LogOffset) -> None:
        """Loses what was synced behind an offset."""
        self.surface.lose_end(at)
        self.said = min(self.said, at)
        self.touched()

    def lose_power(self) -> None:
        self.log.lose_unsynced(self.chance)
        self.files.lose_power()
        self.touched()


class SimDisk(Disk):
    """A node's `Disk`, whose stores are simulated and whose files are in memory."""

    def __init__(self, data_dir, group: int, platter: Platter) -> None:
        super().__init__(data_dir, group, {"files": platter.files})
        self.platter = platter

    def keep(self, epochs: EpochList) -> None:
        """Takes over a snapshot's file of epochs, and keeps what was promised since."""
        self._file.save(epochs, max(self.promised, epochs.newest))

    async def _open(self, _kind, **role):
        return await super()._open(SimpleNamespace(open=self._open_store), **role)

    async def _open_store(self, _data_dir, *, role, truncate_to=None, give_up_from=None, epoch=0, confirmed=None, **_):
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.platter.recover, truncate_to, give_up_from)
        if role == "master":
            self.platter.check_unfollowed(self.lost)
        return JointStore(self.platter, self, role=role, epoch=epoch, confirmed=confirmed)

    @property
    def free_bytes(self) -> int:
        return 0


class JointStore:
    """As much of `LocalStore` as a node and its clients ask of it."""

    def __init__(self, platter: Platter, hooks, *, role: str, epoch: int, confirmed: LogOffset | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._here = HERE.get()
        self._platter, self._log, self._views = platter, platter.log, platter.views
        self._hooks = hooks
        self.log = self.queues = self.leases = self.replication = self  # its subjects, as far as they go
        self.keys = SimpleNamespace(get=self._get, put=self._put)
        self.timers = SimpleNamespace(held=_EMPTY)
        self.retired: frozenset[int] = frozenset()
        self.role = role
        self.group = platter.group
        self.error = self.dropped = self.full = None
        self.low = False
        self.pending_bytes = 0
        self._surface = platter.surface
        self._agreed = None
        self._epoch = epoch
        self._refused = None
        self._closing: asyncio.Future | None = None
        self._listeners: dict[int, Callable] = {}
        self._numbers = 0
        self._syncing = False
        self._goal = self._confirmed = min(self._views.applied, self._log.end)
        self._appends: list[tuple[UnplacedFrame, Callable]] = []
        self._held: list = []  # groups that are written and not synced
        self._synced = asyncio.Event()
        self._synced.set()
        self._here.later(platter.chance.choice([0.0, 0.0, 0.5, 2.0]), self._scrub)
        if role == "master":
            self._apply(confirmed)
            self._gate = Gate(confirmed, self._let_through)
            self._producers = ProducerTable()
            self._guards = GuardTable(ViewQueries(self._held_key, lambda _: KeySpace(), lambda: self._views.applied))
            for (producer, sequence), (start, _) in self._views.stored.items():
                self._remember(producer, sequence, start)
            for frame in self._log.between(self._views.applied, self._log.end):
                header = header_of(frame)
                self._remember(header.producer_id, header.sequence, header.log_offset)
                self._guards.follow(_unplaced(frame), header.log_offset)
            for frame in self._log.between(confirmed, self._log.end):
                self._gate.add(Committed([], 0, _run([frame])))

    def _remember(self, producer: int, sequence: int, at: LogOffset) -> None:
        if producer:
            self._producers.follow(producer, sequence, at)

    def _held_key(self, at: bytes) -> SlotContent | None:
        found = self._views.keys.get(split(at)[1])
        return None if found is None else SlotContent(found[1], found[1], 0, 1, 0, found[0])

    # ---- where it is

    @property
    def views(self) -> Views:
        return self._views

    @property
    def first(self) -> LogOffset:
        return self._log.first

    @property
    def end(self) -> LogOffset:
        return self._log.end

    @property
    def mendable_end(self) -> LogOffset:
        return self.flushed

    @property
    def held(self) -> LogOffset:
        return max(self._surface.floor, self._log.durable)

    @property
    def followed(self) -> LogOffset:
        return self._views.applied

    @property
    def lost_end(self) -> LogOffset | None:
        return self._surface.floor if self._surface.is_short else None

    @property
    def flushed(self) -> LogOffset:
        return self._log.durable

    @property
    def confirmed(self) -> LogOffset:
        return self._confirmed

    # ---- damage

    @property
    def damages(self):
        return self._surface.damages

    @property
    def view_damages(self):
        return tuple(self._views.damages)

    @property
    def views_rebuildable(self) -> bool:
        return not self._views.damages or self._platter.is_rebuildable

    @property
    def is_damaged(self) -> bool:
        return bool(self._surface.known) or self._surface.is_short

    def seals(self):
        return []

    def _scrub(self) -> None:
        if self._closing is None:
            self._surface.scrub()
            for key in self._views.spoiled:
                self._meet(key)
            self._hooks.damaged()
            self._here.later(SCRUB_S, self._scrub)

    def _meet(self, key: str) -> None:
        """Reports a damaged key of the views."""
        if f"key {key}" not in self._views.damages:
            self._views.damages.append(f"key {key}")
            self._hooks.damaged()

    def _sound(self, start: LogOffset, end: LogOffset) -> list[bytes]:
        """Returns the sound frames in front of the first damaged one, which it reports. Raises `CorruptFrame` where
        that is the first of all.
        """
        found: list[bytes] = []
        for frame in self._log.between(start, end):
            at = header_of(frame).log_offset
            if not self._surface.is_sound(frame, at):
                self._hooks.damaged()
                if not found:
                    raise CorruptFrame(at, "damaged")
                break
            found.append(frame)
        return found

    async def read_sound(self, start: LogOffset, max_bytes: int, *, end: LogOffset):
        if self._closing is not None:
            raise StoreClosed("the store is shut down")
        found: list[bytes] = []
        at = end
        for frame in self._log.between(start, end):
            if header_of(frame).log_offset in self._surface.spoiled:
                if found:
                    break
                continue
            if not found:
                at = header_of(frame).log_offset
            found.append(frame)
            if sum(map(len, found)) > max_bytes:
                break
        return LogOffset(at), b"".join(found)

    async def verify_unfollowed(self) -> None:
        for frame in self._log.between(self._views.applied, self._log.end):
            self._surface.is_sound(frame, header_of(frame).log_offset)
        self._hooks.damaged()

    async def mend(self, start: LogOffset, frames: bytes) -> None:
        if self._closing is not None:
            raise StoreClosed("the store is shut down")
        await self._loop.run_in_executor(None, self._surface.mend, start, frames)
        self._platter.touched()

    # ---- writing

    def _refusal(self):
        return self._refused or (StoreClosed("the store is shut down") if self._closing is not None else None)

    def append(self, frame: UnplacedFrame, done: Callable) -> None:
        refused = self._refusal()
        if refused is not None:
            self._loop.call_soon(done, refused)
            return
        self.pending_bytes += frame.size_bytes
        if not self._appends:
            self._loop.call_soon(self._commit)
        self._appends.append((frame, done))

    def ask_first(self, *, agreed, cut_off) -> None:
        self._agreed = agreed

    def refuse_appends(self, why) -> None:
        self._refused = why

    def _commit(self) -> None:
        """Places and writes all that was appended; its sync follows the one before."""
        group, self._appends = self._appends, []
        outcomes, placed = [], []
        for frame, done in group:
            outcomes.append((done, self._place(frame, placed)))
        self._held.append((outcomes, placed, self._log.end, sum(frame.size_bytes for frame, _ in group)))
        if placed:
            self._hooks.written(self._log.end)
        self._sync()

    def _place(self, frame: UnplacedFrame, placed: list[bytes]):
        if self._refused is not None:
            return self._refused
        if frame.producer_id:
            try:
                known = self._producers.find(frame.producer_id, frame.sequence)
            except SequenceOutOfOrder as refused:
                return refused
            if known is not None:
                failed = self._guards.failed(frame, known, self._loop.now_ms) if frame.flags & FRAME_GUARDED else ()
                return Appended(known, duplicate=True, failed=failed)
        admitted = self._guards.admit(frame, self._loop.now_ms) if frame.flags & FRAME_GUARDED else None
        if admitted is not None:
            frame = admitted.frame
        at = self._log.end
        self._log.place(frame, epoch=self._epoch, now_ms=self._loop.now_ms)
        placed.append(self._log.frames[-1])
        if frame.producer_id:
            self._producers.add(frame.producer_id, frame.sequence, at)
            self._producers.keep()
        if admitted is None:
            return Appended(at)
        self._guards.add(admitted.holding, at)
        self._guards.keep()
        return Appended(at, failed=admitted.failed)

    def _sync(self) -> None:
        if self._syncing:
            return
        if self._log.durable == self._log.end and not self._held:
            self._synced.set()
            return
        self._syncing = True
        self._synced.clear()
        held, self._held = self._held, []
        self._here.later(self._here.disk_s(), self._on_disk, self._log.end, self._log.cuts, held)

    def _on_disk(self, until: LogOffset, cuts: int, held: list) -> None:
        assert self._log.cuts == cuts, "cut while it was open"
        self._syncing = False
        self._log.durable = until
        self._platter.touched()
        for outcomes, placed, _, size in held:
            self._gate.add(Committed(outcomes, size, _run(placed) if placed else None))
        self._hooks.flushed(until)
        self._follow()
        self._sync()

    # ---- as replica

    def receive(self, frames) -> None:
        for frame in frames:
            self._log.append(frame.data)
        self._sync()

    # ---- what is confirmed

    def confirm(self, end: LogOffset, acknowledged: LogOffset | None = None) -> None:
        if self.role == "master":
            self._gate.confirm(end, end if acknowledged is None else acknowledged)
        else:
            self._goal = max(self._goal, end)
            self._follow()

    def _follow(self) -> None:
        """Gives a replica's readers and views what is confirmed and on this disk."""
        if self.role == "replica" and self._closing is None:
            self._apply(min(self._goal, self._log.durable))

    def _let_through(self, committed: Committed) -> None:
        self.pending_bytes -= committed.size_bytes
        if committed.run is not None:
            self._apply(committed.run.end)
        for done, outcome in committed.outcomes:
            done(outcome)

    def _apply(self, end: LogOffset) -> None:
        if end <= self._confirmed:
            return
        frames = self._log.between(self._confirmed, end)
        for frame in frames:
            if header_of(frame).log_offset >= self._views.applied:
                self._views.apply(frame)
        self._confirmed = end
        self._platter.said = max(self._platter.said, end)
        self._platter.touched()
        if self._listeners:
            whole = [_parsed(frame) for frame in frames]
            for listener in list(self._listeners.values()):
                listener(whole)

    # ---- reading

    async def read_log(self, start: LogOffset, max_bytes: int, *, end: LogOffset | None = None) -> bytes:
        if not self._log.first <= start <= self._log.end:
            raise OffsetOutOfRange(start, self._log.first, self._log.end)
        found, size = [], 0
        for frame in self._sound(start, self._log.end if end is None else end):
            if found and size + len(frame) > max_bytes:
                break
            found.append(frame)
            size += len(frame)
        return b"".join(found)

    async def newest(self) -> int:
        return self._views.newest_queue

    async def scan(self, start: Position, _queues, *, max_bytes: int):
        at = max(start.frame, self._log.first)
        found, size = [], 0
        try:
            sound = self._sound(at, self._confirmed)
        except CorruptFrame as error:  # it is being repaired: the reader asks again
            raise NotWritable(str(error)) from error
        for frame in sound:
            if found and size + len(frame) > max_bytes:
                break
            found.append(_parsed(frame))
            size += len(frame)
        return found, LogOffset(found[-1].end if found else max(at, min(at, self._confirmed)))

    def tail(self, listener: Callable) -> Callable[[], None]:
        self._numbers += 1
        number = self._numbers
        self._listeners[number] = listener
        return lambda: self._listeners.pop(number, None)

    def watch(self, _listener) -> Callable[[], None]:
        return lambda: None

    def release(self, _owner):
        return ()

    # ---- keys

    async def _get(self, key: str, *, namespace: str = "") -> Entry | None:
        await self._agreed()
        if key in self._views.spoiled:
            self._meet(key)
            raise NotWritable(f"the view of keys is damaged: {key}")
        found = self._views.keys.get(key)
        return None if found is None else Entry(key, found[0], found[1], 1, 1)

    async def _put(self, key: str, value: bytes, *, expected_revision: int | None = None, **_) -> int:
        what = ["put", key, value] if expected_revision is None else ["cas", key, expected_revision, value]
        future = self._loop.create_future()
        self.append(message_frame(KEYS_QUEUE, what), partial(_settle, future))
        outcome = await future
        if not isinstance(outcome, Appended):
            raise outcome
        result = self._views.results[outcome.frame]
        if isinstance(result, list):
            raise RevisionConflict(key, expected_revision, result[1])
        return result

    # ---- the end

    async def step_down(self) -> None:
        if self._closing is None and self.role == "master":
            self._give_up()
        await self.close()

    def _give_up(self) -> None:
        self._refused = NotMaster("this replica is not the master any more")
        self._gate.give_up()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.sleep(0)  # the log places appended frames
        giving_up = self._loop.call_later(CONFIRM_WAIT_S, self._give_up) if self.role == "master" else None
        await self._synced.wait()
        if giving_up is not None:
            await self._gate.emptied()
            giving_up.cancel()


def _settle(future: asyncio.Future, outcome) -> None:
    if not future.done():
        future.set_result(outcome)


def _run(frames: list[bytes]):
    """Returns a run, with as much of it as the gate looks at."""
    last = header_of(frames[-1])
    keys = any(ROW.unpack_from(frame, HEADER.size)[0] == KEYS_QUEUE for frame in frames)
    return SimpleNamespace(end=LogOffset(last.log_offset + len(frames[-1])), records=keys)


def _unplaced(frame: bytes) -> UnplacedFrame:
    header = header_of(frame)
    return UnplacedFrame.parse(header, memoryview(frame))


def _parsed(frame: bytes) -> Frame:
    found = Frame.parse(frame, log_offset=header_of(frame).log_offset)
    assert found is not None
    return found
