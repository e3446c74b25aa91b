"""Fan-out: what is confirmed in the log reaches the connections that subscribed to it.

A subscriber is live or behind. Live ones are handed each batch as the log's tail brings it. One that takes less than
it is offered, or whose peer does not read, falls behind: it keeps only its cursor, and a task of its own reads the log
from there once it can take more, until it has caught up. So a slow subscriber costs a cursor and no buffer.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gateway import logs
from gateway.batch import Batch
from gateway.filters import FilterTrie
from gateway.port import Deliveries, SubscriptionId
from gateway.sifting import sift
from gateway.sql92 import Where, compile_where
from store.client import StoreClient
from store.errors import StoreError
from store.format import Frame, LogOffset, Position, QueueNumber

__all__ = ["Fanout", "Receiver", "Subscriber"]

PLANS_MAX = 1 << 16  # addresses whose matches are remembered; beyond, all are forgotten and found again
REMEMBERED_LENGTH_MAX = 256  # longer addresses are matched each time: the table is bounded in bytes too
CATCH_UP_BYTES = 256 << 10  # read from the log at a time, for one subscriber, before others have their turn
BATCHES_KEPT = 64  # decoded frames shared by subscribers that catch up together
RETRY_MIN_S, RETRY_MAX_S = 0.1, 5.0  # between attempts to read a log that does not answer

log = logs.get(__name__)


class Receiver(Protocol):
    """A connection, as its subscriber sees it."""

    def deliver(self, deliveries: Deliveries) -> int:
        """How many it took; fewer than offered means: not now."""


class Subscriber:
    """One connection's subscriptions, and how far it has been served."""

    __slots__ = ("behind", "conditions", "cursor", "patterns", "receiver", "running", "since")

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.patterns: dict[SubscriptionId, str] = {}
        self.since: dict[SubscriptionId, Position] = {}  # messages before it are not for this subscription
        self.conditions: dict[SubscriptionId, Where] = {}  # what messages have to pass, of subscriptions that ask it
        self.behind = False
        self.running = False  # a task is reading the log for it
        self.cursor = Position(LogOffset(0), 0)  # the next record to look at; of a live one, no later than the tail


# Whom an address goes to, with which of their subscriptions. Equal plans are one object.
_Plan = tuple[tuple[Subscriber, tuple[SubscriptionId, ...]], ...]


class Fanout:
    """All subscribers of this process. It belongs to the event loop.

    `queues_of` names the queues that addresses of a filter can be in (None: any); `spawn` runs a coroutine as a
    supervised task.
    """

    def __init__(
        self,
        store: StoreClient,
        *,
        queues_of: Callable[[str], Sequence[QueueNumber] | None],
        spawn: Callable[..., object],
    ) -> None:
        self._store = store
        self._queues_of = queues_of
        self._spawn = spawn
        self._trie: FilterTrie[tuple[Subscriber, SubscriptionId]] = FilterTrie()
        self._patterns: dict[str, int] = {}  # how many subscriptions have each pattern
        self._plans: dict[str, _Plan] = {}
        self._same: dict[_Plan, _Plan] = {}
        self._batches: OrderedDict[LogOffset, Batch] = OrderedDict()
        self._stop: Callable[[], None] | None = None
        self._wanted: npt.NDArray[np.uint32] | None = None  # the queues that any subscription can match
        self._wanted_known = False
        self.position = store.confirmed  # the log offset behind the last frame handed to the live ones
        self.subscriber_count = 0
        self.behind_count = 0

    # ---- what connections ask for

    def subscribe(
        self,
        subscriber: Subscriber,
        sub: SubscriptionId,
        pattern: str,
        start: Position | None,
        *,
        where: str | None = None,
    ) -> None:
        """Add a subscription, or replace the one of that id. A start beyond the log's end, of another log, is now.

        Raises `Refusal` for a `where` that is no condition.
        """
        condition = compile_where(where) if where is not None else None
        self._listen()
        self._remove(subscriber, sub)
        now = Position(self.position, 0)
        if not subscriber.patterns:
            self.subscriber_count += 1
        if not subscriber.patterns and not subscriber.running:
            self._mark(subscriber, behind=False)
            subscriber.cursor = now
        if start is not None and start < subscriber.cursor:
            subscriber.cursor = start
        subscriber.patterns[sub] = pattern
        if condition is not None:
            subscriber.conditions[sub] = condition
        subscriber.since[sub] = now if start is None else min(start, now)
        self._trie.add(pattern, (subscriber, sub))
        self._patterns[pattern] = self._patterns.get(pattern, 0) + 1
        self.changed()
        if subscriber.cursor < now and not subscriber.behind:
            self._mark(subscriber, behind=True)
            self.wake(subscriber)

    def unsubscribe(self, subscriber: Subscriber, sub: SubscriptionId) -> None:
        """End a subscription."""
        self._remove(subscriber, sub)
        self.changed()

    def leave(self, subscriber: Subscriber) -> None:
        """End all of a connection's subscriptions."""
        if not subscriber.patterns:
            return
        for sub in list(subscriber.patterns):
            self._remove(subscriber, sub)
        self._mark(subscriber, behind=False)
        self.changed()

    def changed(self) -> None:
        """Subscriptions or topics are not what they were."""
        self._forget_plans()
        self._wanted_known = False
        if not len(self._trie) and self._stop is not None:
            self._stop()
            self._stop = None

    def wake(self, subscriber: Subscriber) -> None:
        """It may be able to take more now."""
        if subscriber.behind and not subscriber.running and subscriber.patterns:
            subscriber.running = True
            self._spawn(self._catch_up(subscriber))

    def reached(self, subscriber: Subscriber) -> Position:
        """The first position that has not been handed to a subscriber."""
        return subscriber.cursor if subscriber.behind else max(subscriber.cursor, Position(self.position, 0))

    # ---- the tail

    def _listen(self) -> None:
        if self._stop is None:
            self._stop = self._store.tail(self._on_frames)
            self.position = self._store.confirmed

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            if frame.start < self.position:
                continue
            self.position = frame.end
            if not self._concerns_anybody(frame):
                continue
            batch = Batch.of(frame)
            if batch.messages:
                self._offer(batch)

    def _concerns_anybody(self, frame: Frame) -> bool:
        """Whether a subscription can match something of a frame: seen from its rows, before anything is decoded."""
        if not self._wanted_known:
            found = [self._queues_of(pattern) for pattern in self._patterns]
            numbers = {queue for queues in found if queues is not None for queue in queues}
            self._wanted = None if None in found else np.array(sorted(numbers), np.uint32)
            self._wanted_known = True
        return self._wanted is None or bool(np.isin(frame.rows["queue"], self._wanted).any())

    def _offer(self, batch: Batch) -> None:
        """Hand a batch to every live subscriber it concerns."""
        # Once a message: one look-up. Batches of one plan, the common case, are not taken apart.
        plans = self._plans
        messages = batch.messages
        found = [plans.get(m.address) for m in messages]
        if None in found:
            found = [
                plan if plan is not None else self._plan(m.address) for plan, m in zip(found, messages, strict=True)
            ]
        first = found[0]
        assert first is not None
        if found.count(first) == len(found):
            count = len(messages)
            for subscriber, ids in first:
                if not subscriber.behind:
                    self._hand(subscriber, batch, range(count), [ids] * count)
            return
        picked: dict[Subscriber, tuple[list[int], list[tuple[SubscriptionId, ...]]]] = {}
        for index, plan in enumerate(found):
            for subscriber, ids in plan or ():
                entry = picked.get(subscriber)
                if entry is None:
                    entry = picked[subscriber] = ([], [])
                entry[0].append(index)
                entry[1].append(ids)
        for subscriber, (picks, subs) in picked.items():
            if not subscriber.behind:
                self._hand(subscriber, batch, picks, subs)

    def _hand(
        self,
        subscriber: Subscriber,
        batch: Batch,
        picks: Sequence[int],
        subs: Sequence[tuple[SubscriptionId, ...]],
    ) -> None:
        cursor = subscriber.cursor
        if cursor.frame >= batch.frame and cursor > batch.position(picks[0]):
            kept = [n for n, index in enumerate(picks) if batch.position(index) >= cursor]
            picks, subs = [picks[n] for n in kept], [subs[n] for n in kept]
            if not picks:
                return
        if subscriber.conditions:
            picks, subs = sift(batch, picks, subs, subscriber.conditions)
            if not picks:
                return
        taken = subscriber.receiver.deliver(Deliveries(batch, picks, subs))
        if taken < len(picks):
            subscriber.cursor = batch.position(picks[taken])
            self._mark(subscriber, behind=True)

    def _plan(self, address: str) -> _Plan:
        plan = self._plans.get(address)
        if plan is None:
            grouped: dict[Subscriber, list[SubscriptionId]] = {}
            for subscriber, sub in self._trie.match(address):
                grouped.setdefault(subscriber, []).append(sub)
            plan = tuple((subscriber, tuple(sorted(ids))) for subscriber, ids in grouped.items())
            plan = self._same.setdefault(plan, plan)
            if len(self._plans) >= PLANS_MAX:
                self._forget_plans()
            if len(address) <= REMEMBERED_LENGTH_MAX:
                self._plans[address] = plan
        return plan

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._same.clear()

    # ---- catching up

    async def _catch_up(self, subscriber: Subscriber) -> None:
        """Read the log for a subscriber until it is live, takes no more, or has left."""
        retry_s = RETRY_MIN_S
        try:
            while subscriber.behind and subscriber.patterns:
                try:
                    if not await self._read_on(subscriber):
                        return
                    retry_s = RETRY_MIN_S
                except (StoreError, OSError) as error:
                    log.warning("a subscriber cannot catch up yet", error=str(error), retry_s=retry_s)
                    await asyncio.sleep(retry_s)
                    retry_s = min(retry_s * 2, RETRY_MAX_S)
        finally:
            subscriber.running = False

    async def _read_on(self, subscriber: Subscriber) -> bool:
        """Deliver the next part of the log; False when the subscriber takes no more for now."""
        # Nothing beyond the horizon counts: a topic made while the scan works is not among its queues.
        horizon = self._store.confirmed
        frames, following = await self._store.scan(
            subscriber.cursor, self._queues(subscriber), max_bytes=CATCH_UP_BYTES
        )
        await asyncio.sleep(0)  # a scan of what is in memory does not wait; others have their turn all the same
        following = min(following, horizon)
        for frame in frames:
            if frame.start >= horizon or not subscriber.patterns:
                break
            if not self._replay(subscriber, frame):
                return False
        subscriber.cursor = max(subscriber.cursor, Position(following, 0))
        if following >= self.position:
            self._mark(subscriber, behind=False)
        return True

    def _replay(self, subscriber: Subscriber, frame: Frame) -> bool:
        """Deliver one frame of the past; False when the subscriber takes no more for now."""
        batch = self._decoded(frame)
        cursor = subscriber.cursor
        picks: list[int] = []
        subs: list[tuple[SubscriptionId, ...]] = []
        for index, message in enumerate(batch.messages):
            for who, ids in self._plan(message.address):
                if who is not subscriber:
                    continue
                at = batch.position(index)
                wanted = tuple(sub for sub in ids if subscriber.since[sub] <= at)
                if wanted and at >= cursor:
                    picks.append(index)
                    subs.append(wanted)
        if picks and subscriber.conditions:
            picks, subs = sift(batch, picks, subs, subscriber.conditions)
        if picks:
            taken = subscriber.receiver.deliver(Deliveries(batch, picks, subs))
            if taken < len(picks):
                subscriber.cursor = batch.position(picks[taken])
                return False
        subscriber.cursor = Position(frame.end, 0)
        return True

    def _decoded(self, frame: Frame) -> Batch:
        batch = self._batches.get(frame.start)
        if batch is None:
            batch = self._batches[frame.start] = Batch.of(frame)
            if len(self._batches) > BATCHES_KEPT:
                self._batches.popitem(last=False)
        return batch

    def _queues(self, subscriber: Subscriber) -> Sequence[QueueNumber] | None:
        queues: dict[QueueNumber, None] = {}
        for pattern in subscriber.patterns.values():
            of = self._queues_of(pattern)
            if of is None:
                return None
            queues.update(dict.fromkeys(of))
        return list(queues)

    def _remove(self, subscriber: Subscriber, sub: SubscriptionId) -> None:
        pattern = subscriber.patterns.pop(sub, None)
        if pattern is not None:
            del subscriber.since[sub]
            subscriber.conditions.pop(sub, None)
            self.subscriber_count -= not subscriber.patterns
            self._patterns[pattern] -= 1
            if not self._patterns[pattern]:
                del self._patterns[pattern]
            self._trie.discard(pattern, (subscriber, sub))

    def _mark(self, subscriber: Subscriber, *, behind: bool) -> None:
        if subscriber.behind is not behind:
            subscriber.behind = behind
            self.behind_count += 1 if behind else -1
