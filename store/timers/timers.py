"""Timers: rows and records that are appended when their time has come.

Setting, cancelling and firing are records, so a replay of the log knows the pending timers. A timer's rows are appended
in one frame with the record that it has fired: either both are in the log or neither is, so a timer fires exactly once
however often the store crashes. Only the process that appends decides when: nothing in applying a record looks at a
clock.

A timer never fires before its time by the wall clock; a clock set back lets it wait again. Timers that became due while
the store was down fire at its start, in the order in which they were due.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from store.api.log import Appended, OnAppended
from store.api.timers import TimerEntry, TimersHeld
from store.base.errors import FrameTooLarge, NoSuchTimer, StoreError, TimersFull, TimerTooFar
from store.format.frame import FRAME_BYTES_MAX, ROW, ROWS_DTYPE, LogOffset, Position, QueueNumber, UnplacedFrame
from store.format.records import TIMERS_QUEUE, Record, TimerCancelled, TimerSet, TimersFired, encode
from store.format.timer_key import TimerKey, pack_keys, unpack_keys
from store.views import Views
from store.views.timers import is_sound, queues_of, size_of, without

logger = logging.getLogger(__name__)

DAY_MS = 24 * 3600 * 1000
TIMERS_COUNT_MAX = 10_000_000
TIMERS_BYTES_MAX = 8 << 30  # the views hold pending timers, so that much of the disk
HORIZON_MS = 400 * DAY_MS
TIMER_BYTES_MAX = FRAME_BYTES_MAX // 2  # of one: it has to fit in a frame with the record that it has fired
FIRED_COUNT_MAX = 2_048  # in one frame
FIRED_BYTES_MAX = 1 << 20  # in one frame, unless a single timer holds more
FRAMES_PER_TICK = 8  # then others get their turn
DUE_SLACK = 1_024  # keys that mean nothing any more, with fewer of which there is nothing to tidy up
RETRY_MS = 100  # after the store has refused to append due messages


class TimerLimits(NamedTuple):
    """The limits of pending timers, and of how far ahead they are. Timers on their way at a limit may still pass it."""

    timers: int = TIMERS_COUNT_MAX
    size_bytes: int = TIMERS_BYTES_MAX
    horizon_ms: int = HORIZON_MS


class TimerOverlay:
    """The changes of timers that the view may lack; a part of `store.recent.recent.Recent`."""

    def __init__(self) -> None:
        self.held = TimersHeld(0, 0)  # of everything confirmed, the view's part included
        self.stored_size: Callable[[TimerKey], int | None] = lambda key: None  # returns the size of a timer in the view
        self.floor = TimerKey(0, LogOffset(0), 0)  # earlier timers of the view have fired, though it may not know yet
        self.firing: dict[TimerKey, int] = {}  # sizes of the timers being fired, so that they need not be looked up
        self._changes: dict[TimerKey, tuple[LogOffset, TimerSet | None]] = {}  # None: fired or cancelled
        self._order: deque[tuple[LogOffset, TimerKey]] = deque()
        self._due: list[TimerKey] = []  # a heap of those set; some of them are gone or in the view meanwhile
        self._pins = 0  # reads of the view in progress: nothing is let go until they end
        self._trim_to = LogOffset(0)

    # ---- following the log

    def follow(self, at: Position, record: TimerSet | TimerCancelled | TimersFired) -> bool | None:
        """Applies changes of timers; of a cancelled one whether it was pending."""
        match record:
            case TimerSet():
                self._set(at, record)
            case TimerCancelled(due_ms=due_ms, frame=frame, row=row):
                return self._remove(at.frame, TimerKey(due_ms, LogOffset(frame), row))
            case TimersFired(keys=keys):
                for key in unpack_keys(keys):
                    self._remove(at.frame, key)
        return None

    def _set(self, at: Position, record: TimerSet) -> None:
        if not is_sound(record):
            return
        key = TimerKey(record.due_ms, at.frame, at.row)
        self._put(at.frame, key, record)
        heappush(self._due, key)
        self.floor = min(self.floor, key)
        self.held = TimersHeld(self.held.timers + 1, self.held.size_bytes + size_of(record))

    def _remove(self, frame: LogOffset, key: TimerKey) -> bool:
        size = self.firing.get(key)
        if size is None or self.is_gone(key):
            size = self.size_bytes(key)
        if size is None:
            return False
        self._put(frame, key, None)
        self.held = TimersHeld(self.held.timers - 1, self.held.size_bytes - size)
        return True

    def _put(self, frame: LogOffset, key: TimerKey, record: TimerSet | None) -> None:
        self._changes[key] = (frame, record)
        self._order.append((frame, key))

    def trim(self, below: LogOffset) -> None:
        """Frees the timers that the view has now."""
        self._trim_to = max(self._trim_to, below)
        changes, order = self._changes, self._order
        while not self._pins and order and order[0][0] < self._trim_to:
            frame, key = order.popleft()
            found = changes.get(key)
            if found is not None and found[0] == frame:
                del changes[key]
        if not self._pins and len(self._due) > 2 * len(changes) + DUE_SLACK:
            self._due = [key for key, (_, record) in changes.items() if record is not None and key not in self.firing]
            heapify(self._due)

    def raise_floor(self, key: TimerKey) -> None:
        """Moves the floor to a key: timers before it have fired in the view, and not those on their way to the view."""
        self.floor = min(key, self._due[0]) if self._due else key

    # ---- reading

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keeps all entries while the view is read: those that the read may have missed are still here when it ends."""
        self._pins += 1
        try:
            yield
        finally:
            self._pins -= 1
            self.trim(self._trim_to)

    def is_gone(self, key: TimerKey) -> bool:
        """Returns whether a timer has fired or was cancelled, and the view may not know yet. Any thread may ask."""
        found = self._changes.get(key)
        return found is not None and found[1] is None

    def get(self, key: TimerKey) -> TimerSet | None:
        """Returns a timer that was set and may be missing in the view."""
        found = self._changes.get(key)
        return found[1] if found is not None else None

    def size_bytes(self, key: TimerKey) -> int | None:
        """Returns the bytes that a pending timer counts for; None when it is not pending."""
        found = self._changes.get(key)
        if found is not None:
            return None if found[1] is None else size_of(found[1])
        return self.stored_size(key)

    def all(self) -> list[tuple[TimerKey, TimerSet]]:
        """Returns all set timers that the view may lack, in the order of their due times."""
        return sorted((key, record) for key, (_, record) in self._changes.items() if record is not None)

    def next_due_ms(self) -> int | None:
        """Returns the earliest due time of the timers that the view lacks; None without any."""
        while self._due and self.get(self._due[0]) is None:
            heappop(self._due)
        return self._due[0].due_ms if self._due else None

    def take_due(self, now_ms: int, count: int) -> list[tuple[TimerKey, TimerSet]]:
        """Takes the first `count` timers that are due. `give_back` returns those that do not fire."""
        taken: list[tuple[TimerKey, TimerSet]] = []
        while len(taken) < count and self._due and self._due[0].due_ms <= now_ms:
            key = heappop(self._due)
            record = self.get(key)
            if record is not None:
                taken.append((key, record))
        return taken

    def give_back(self, keys: Iterable[TimerKey]) -> None:
        """Returns unfired timers to the queue."""
        for key in keys:
            self.floor = min(self.floor, key)
            if self.get(key) is not None:
                heappush(self._due, key)


class Timers:
    """`TimerCalls` of one group in this process: fires timers and answers for them.

    Belongs to the thread of the event loop. `blocking` runs work that may wait for a disk off the loop. `record` stores
    a record and returns its outcome. `fired` is called with the queues that got messages. `deleted_at` says where in
    the log queues were deleted. `check_open` raises when nothing can be asked.
    """

    def __init__(
        self,
        overlay: TimerOverlay,
        *,
        views: Views,
        blocking: Callable[..., Awaitable[Any]],
        append: Callable[[UnplacedFrame, OnAppended], None],
        record: Callable[[Record], "asyncio.Future[Any]"],
        fired: Callable[[Sequence[QueueNumber]], None],
        deleted_at: Callable[[Collection[QueueNumber]], Mapping[QueueNumber, int]],
        now_ms: Callable[[], int],
        limits: TimerLimits | None = None,
        check_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._overlay = overlay
        self._check_open = check_open
        self._views = views
        self.blocking = blocking
        self._append = append
        self._record = record
        self._fired = fired
        self._deleted_at = deleted_at
        self._now_ms = now_ms
        self._limits = limits or TimerLimits()
        overlay.stored_size = self._stored_size
        with views.reading() as txn:
            overlay.held = views.timers.held(txn)
        self._cancelling: set[TimerKey] = set()  # not fired until that has ended
        self._firing: asyncio.Future[None] | None = None  # ends with the frame in flight
        self._failure: type[StoreError] | None = None  # why the last frame was refused

    @property
    def held(self) -> TimersHeld:
        """Returns how many timers are pending, and the bytes that they hold."""
        return self._overlay.held

    def admit(self, due_ms: int, size_bytes: int) -> None:
        """See `TimerCalls.admit`. Raises `TimersFull`, `TimerTooFar`, `FrameTooLarge`."""
        held, limits = self._overlay.held, self._limits
        if held.timers >= limits.timers:
            raise TimersFull(f"{held.timers} timers are pending already")
        if held.size_bytes + size_bytes > limits.size_bytes:
            raise TimersFull(f"the pending timers hold {held.size_bytes} bytes of {limits.size_bytes} already")
        if size_bytes > TIMER_BYTES_MAX:
            raise FrameTooLarge(f"{size_bytes} bytes in one timer, which may have {TIMER_BYTES_MAX}")
        if due_ms - self._now_ms() > limits.horizon_ms:
            raise TimerTooFar(f"a timer is due in {limits.horizon_ms // DAY_MS} days at most")

    # ---- firing

    async def tick(self, now_ms: int) -> int | None:
        """Fires a few frames of timers that are due, and returns when to come again: at once, if there are more."""
        for _ in range(FRAMES_PER_TICK):
            batch, following = await self._gather(now_ms)
            if not batch:
                return following
            if not await self._fire(batch):
                return now_ms + RETRY_MS
        return now_ms

    async def _gather(self, now_ms: int) -> tuple[list[tuple[TimerKey, TimerSet]], int | None]:
        """Returns the due timers that go into one frame, and otherwise when the next one is due."""
        overlay = self._overlay
        new = overlay.take_due(now_ms, FIRED_COUNT_MAX)
        kept: dict[TimerKey, TimerSet] = {}
        try:
            with overlay.pinned():
                stored, following = await self.blocking(self._stored_due, now_ms)
                found = dict(stored)
                found.update(new)
                # Where one of the two sources was cut, no entry of the other may overtake the entries it left out.
                cut = [stored[-1][0]] if stored and following is not None and following <= now_ms else []
                cut += [new[-1][0]] if len(new) == FIRED_COUNT_MAX else []
                size = 0
                for key in sorted(found):
                    if cut and key > min(cut):
                        break
                    if key in self._cancelling or overlay.is_gone(key):  # since the read began
                        continue
                    size += size_of(found[key])
                    if kept and (size > FIRED_BYTES_MAX or len(kept) >= FIRED_COUNT_MAX):
                        break
                    kept[key] = found[key]
                # The view still has the timers that fire now; the floor keeps them from being looked at again.
                left = (key for key, _ in stored if key not in kept and not overlay.is_gone(key))
                overlay.raise_floor(min(left, default=stored[-1][0] if stored else overlay.floor))
        finally:
            overlay.give_back(key for key, _ in new if key not in kept)
        times = [ms for ms in (following, overlay.next_due_ms()) if ms is not None]
        if not times:
            return list(kept.items()), None
        return list(kept.items()), max(min(times), now_ms + 1)  # a timer that is due and not kept is being cancelled

    def _stored_due(self, now_ms: int) -> tuple[list[tuple[TimerKey, TimerSet]], int | None]:
        with self._views.reading() as txn:
            return self._views.timers.due(
                txn,
                self._overlay.floor,
                until_ms=now_ms,
                count=FIRED_COUNT_MAX,
                size_bytes=FIRED_BYTES_MAX,
                skip=self._overlay.is_gone,
            )

    def _stored_size(self, key: TimerKey) -> int | None:
        with self._views.reading() as txn:
            return self._views.timers.size_bytes(txn, key)

    async def _fire(self, batch: Sequence[tuple[TimerKey, TimerSet]]) -> bool:
        """Appends the messages of these timers; returns whether that was done."""
        overlay = self._overlay
        sizes = {key: size_of(record) for key, record in batch}
        try:
            batch = self._without_deleted(batch)
        except BaseException:
            overlay.give_back(sizes)
            raise
        fired = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | StoreError) -> None:
            overlay.firing = {}
            self._firing = None
            fired.set_result(None)
            self._note_failure(outcome if isinstance(outcome, StoreError) else None)
            if isinstance(outcome, StoreError):
                overlay.give_back(key for key, _ in batch)
            else:
                self._fired(list(dict.fromkeys(queue for _, record in batch for queue in queues_of(record))))
            outcomes.append(outcome)

        outcomes: list[Appended | StoreError] = []
        overlay.firing = sizes
        self._firing = fired
        self._append(firing_frame(batch, self._now_ms()), done)
        await fired
        return isinstance(outcomes[0], Appended)

    def _note_failure(self, error: StoreError | None) -> None:
        """Logs that timers cannot be fired: as a warning when it begins, or for another kind of reason."""
        before, self._failure = self._failure, None if error is None else type(error)
        if error is not None:
            level = logging.DEBUG if self._failure is before else logging.WARNING
            logger.log(level, "timers that are due could not be fired", extra={"why": str(error)})

    def _without_deleted(self, batch: Sequence[tuple[TimerKey, TimerSet]]) -> list[tuple[TimerKey, TimerSet]]:
        """Leaves out rows for queues that were deleted after the timer was set: nothing would ever delete those."""
        deleted_at = self._deleted_at({queue for _, record in batch for queue in queues_of(record)})
        if max(deleted_at.values(), default=-1) < 0:
            return list(batch)
        return [
            (key, without(record, {queue for queue, at in deleted_at.items() if at > key.frame}))
            for key, record in batch
        ]

    # ---- for others

    async def cancel(self, timer: str) -> bool:
        """See `TimerCalls.cancel`. Raises `NoSuchTimer` for a text that cannot be a timer's id."""
        self._check_open()
        try:
            key = TimerKey.parse(timer)
        except ValueError as error:
            raise NoSuchTimer(timer) from error
        while key in self._overlay.firing and self._firing is not None:
            await asyncio.shield(self._firing)
        if key in self._cancelling or self._overlay.size_bytes(key) is None:
            return False
        self._cancelling.add(key)
        try:
            ending = self._record(TimerCancelled(key.due_ms, key.frame, key.row))
        except BaseException:
            self._cancelling.discard(key)
            raise
        ending.add_done_callback(lambda _: self._cancelled(key))
        return bool(await asyncio.shield(ending))  # a caller that goes away does not stop it

    def _cancelled(self, key: TimerKey) -> None:
        self._cancelling.discard(key)
        self._overlay.give_back((key,))  # if that has failed it is to fire

    async def entries(self, *, after: str = "", limit: int = 1000) -> list[TimerEntry]:
        """See `TimerCalls.entries`. Raises `NoSuchTimer`."""
        start: TimerKey | None = None
        if after:
            try:
                key = TimerKey.parse(after)
            except ValueError as error:
                raise NoSuchTimer(after) from error
            start = TimerKey(key.due_ms, key.frame, key.row + 1)
        overlay = self._overlay
        with overlay.pinned():
            stored = await self.blocking(self._stored_sizes, start, limit)
            found = {key: size for key, size in stored if not overlay.is_gone(key)}
            newer = ((key, record) for key, record in overlay.all() if start is None or key >= start)
            found.update((key, size_of(record)) for key, record in islice(newer, limit))
        return [TimerEntry(str(key), key.due_ms, found[key]) for key in sorted(found)[:limit]]

    def _stored_sizes(self, start: TimerKey | None, limit: int) -> list[tuple[TimerKey, int]]:
        with self._views.reading() as txn:
            return self._views.timers.sizes(txn, start, count=limit, skip=self._overlay.is_gone)


def firing_frame(batch: Sequence[tuple[TimerKey, TimerSet]], now_ms: int) -> UnplacedFrame:
    """Returns one frame with the messages of timers and the record that they have fired."""
    fired = encode(TimersFired(pack_keys([key for key, _ in batch])))
    rows = np.frombuffer(b"".join([record.rows for _, record in batch]), ROWS_DTYPE).copy()
    sizes = np.array([len(record.payload) for _, record in batch], np.int64)
    begins = np.cumsum(sizes) - sizes
    rows["pos"] += np.repeat(begins, [len(record.rows) // ROW.size for _, record in batch]).astype(np.uint32)
    payload = b"".join([record.payload for _, record in batch])
    last = ROW.pack(TIMERS_QUEUE, len(payload), len(fired), 0, 0, 0, 0, now_ms)
    return UnplacedFrame.build(rows.tobytes() + last, payload + fired)
