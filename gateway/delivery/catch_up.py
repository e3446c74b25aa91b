"""Catching up: lanes that are behind read the log from their cursor on until they are live again."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from gateway.delivery.lanes import Lane, Subscriber
from gateway.delivery.sifting import sift
from gateway.domain.batch import Batch, LostRange
from gateway.port.adapter import Deliveries, SubscriptionId
from store.base import logs
from store.base.errors import CorruptFrame, StoreError
from store.base.streams import Backoff
from store.format.frame import Frame, LogOffset, Position, QueueNumber

CATCH_UP_BYTES = 256 << 10  # read from a log at a time, for one lane, before others have their turn
BATCHES_KEPT = 64  # decoded frames shared by lanes that catch up together
RETRY_MIN_S, RETRY_MAX_S = 0.1, 5.0  # between attempts to read a log that does not answer

log = logs.get(__name__)


class CatchUp:
    """Reads logs for lanes.

    `ids_of` says which of a subscriber's subscriptions an address matches; `queues_of` names the queues of a group that
    a subscriber's filters can match (None: any). `barrier` returns whether every topic that existed when it was called
    is known by now: until then, and where that cannot be found out, a lane reads everything and not some queues alone.
    `live` is called with a lane that has read up to its tail.
    """

    def __init__(
        self,
        *,
        ids_of: Callable[[Subscriber, str], tuple[SubscriptionId, ...]],
        queues_of: Callable[[Iterable[str], int], Sequence[QueueNumber] | None],
        barrier: Callable[[], Awaitable[bool]],
        live: Callable[[Lane], None],
    ) -> None:
        self._ids_of = ids_of
        self._queues_of = queues_of
        self._barrier = barrier
        self._live = live
        self._batches: OrderedDict[LogOffset, Batch] = OrderedDict()
        self.damages_passed = 0  # lost ranges of the log that lanes skipped

    def forget(self) -> None:
        """Forgets the batches that were read: the logs may not have them any more."""
        self._batches.clear()

    async def run(self, lane: Lane) -> None:
        """Reads the log for a lane until it is live, takes no more, or is not wanted any more."""
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        try:
            while lane.behind and lane.current:
                before = lane.cursor
                try:
                    if not await self._read_on(lane):
                        return
                    backoff.reset()
                    if lane.behind and lane.cursor == before:  # the replica that answered is itself not so far
                        await asyncio.sleep(RETRY_MIN_S)
                except (StoreError, OSError) as error:
                    if lane.cursor < before or self._passed(lane, error):
                        continue
                    wait_s = backoff.next_s()
                    why, group = str(error), lane.tail.group
                    log.warning("a subscriber cannot catch up yet", group=group, error=why, retry_s=round(wait_s, 2))
                    await asyncio.sleep(wait_s)
        finally:
            lane.running = False

    def _passed(self, lane: Lane, error: Exception) -> bool:
        """Continues behind lost frames: a session that stood there forever would lose the rest as well."""
        if not isinstance(error, CorruptFrame) or error.end is None or error.end <= lane.cursor.frame:
            return False
        self.damages_passed += 1
        log.error(
            "messages for a subscriber are lost: the log is damaged and no replica has a sound copy",
            group=lane.tail.group,
            start=error.log_offset,
            end=error.end,
        )
        subscriber, end = lane.subscriber, LogOffset(error.end)
        told = subscriber.patterns.keys() - subscriber.permissions.keys()  # others may not know of all that was there
        if told:
            lost = LostRange(LogOffset(error.log_offset), end, told)
            subscriber.receiver.deliver(Deliveries(batch=lost, picks=(), subs=()))
        lane.cursor = Position(end, 0)
        return True

    async def _read_on(self, lane: Lane) -> bool:
        """Delivers the next part of the log; returns False when the subscriber takes no more for now."""
        # The scan stops at the horizon: a topic made while it works is not among its queues.
        tail, subscriber = lane.tail, lane.subscriber
        horizon, rewinds = tail.known, tail.rewinds
        if lane.cursor.frame >= horizon:
            horizon = tail.log.confirmed
            if await self._barrier():
                tail.known = max(tail.known, horizon)
        queues = self._queues_of(subscriber.patterns.values(), tail.group) if horizon <= tail.known else None
        start, patterns = lane.cursor, None if queues is None else subscriber.patterns.copy()
        frames, following = await tail.log.scan(start, queues, max_bytes=CATCH_UP_BYTES)
        await asyncio.sleep(0)  # a scan of frames in memory does not wait; others have their turn all the same
        if tail.rewinds != rewinds:
            return True  # the frames may not be in the log any more
        if lane.cursor < start:
            return True  # a subscription that has come meanwhile begins further back
        if patterns is not None and subscriber.patterns != patterns:  # one may have other queues: up to where it begins
            new = [sub for sub, pattern in subscriber.patterns.items() if patterns.get(sub) != pattern]
            horizon = min([horizon, *(lane.since.get(sub, start).frame for sub in new)])
        following = min(following, horizon)
        for frame in frames:
            if frame.start >= horizon or not lane.current:
                break
            if not self._replay(lane, frame):
                return False
        lane.cursor = max(lane.cursor, Position(following, 0))
        if following >= tail.position and lane.behind and lane.current:
            self._live(lane)
        return True

    def _replay(self, lane: Lane, frame: Frame) -> bool:
        """Delivers one frame of the past; returns False when the subscriber takes no more for now."""
        batch = self._decoded(frame)
        subscriber, cursor, since = lane.subscriber, lane.cursor, lane.since
        start = Position(LogOffset(0), 0)
        picks: list[int] = []
        subs: list[tuple[SubscriptionId, ...]] = []
        for index, message in enumerate(batch.messages):
            ids = self._ids_of(subscriber, message.address)
            if not ids:
                continue
            at = batch.position(index)
            wanted = tuple(sub for sub in ids if since.get(sub, start) <= at)
            if wanted and at >= cursor:
                picks.append(index)
                subs.append(wanted)
        if picks and subscriber.conditions:
            picks, subs = sift(batch, picks, subs, subscriber.conditions)
        if picks:
            taken = subscriber.receiver.deliver(Deliveries(batch, picks, subs))
            if taken < len(picks):
                lane.cursor = batch.position(picks[taken])
                return False
        lane.cursor = Position(frame.end, 0)
        return True

    def _decoded(self, frame: Frame) -> Batch:
        batch = self._batches.get(frame.start)
        if batch is None:
            batch = self._batches[frame.start] = Batch.of(frame)
            if len(self._batches) > BATCHES_KEPT:
                self._batches.popitem(last=False)
        return batch
