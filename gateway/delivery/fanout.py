"""Fan-out: confirmed messages of the logs reach the connections that subscribed to them.

In each log a subscriber is live or behind. Live ones are handed each batch as the log's tail brings it. One that
takes less than it is offered, or whose peer does not read, falls behind: it keeps only its cursor, and a task of its
own reads the log from there once it can take more, until it has caught up. So a slow subscriber costs a cursor and no
buffer.

A log that appears while there are subscribers is read by all of them from its beginning: whatever is in it was stored
after they subscribed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from gateway.delivery.catch_up import RETRY_MAX_S, RETRY_MIN_S, CatchUp
from gateway.delivery.interest import Interest
from gateway.delivery.lanes import Lane, Receiver, Subscriber, Tail, rewind
from gateway.delivery.sifting import sift
from gateway.domain.access import OPEN, Permissions
from gateway.domain.batch import Batch
from gateway.domain.cursor import Cursor, beginning_of, by_log, cursor_of, end_of
from gateway.domain.filters import FilterTrie, first_level
from gateway.domain.sql92 import compile_where
from gateway.port.adapter import Deliveries, SubscriptionId
from store.api.client import StoreClient
from store.base import logs
from store.base.errors import StoreError
from store.base.streams import Backoff
from store.format.frame import Frame, LogOffset, Position, QueueNumber

PLANS_MAX = 1 << 16  # addresses whose matches are remembered; beyond, all are forgotten and found again
LONG_COUNT = 8  # subscribers; those of longer plans are found by a table
REMEMBERED_LENGTH_MAX = 256  # longer addresses are matched each time: the table is bounded in bytes too

log = logs.get(__name__)

# The subscribers of an address, each with its subscriptions that match. Equal plans are one object.
_Plan = tuple[tuple[Subscriber, tuple[SubscriptionId, ...]], ...]


async def _always() -> bool:
    return True


def _reach(pattern: str) -> str:
    """Returns the widest filter of the same topics: few have to be looked at, however many subscriptions there are."""
    first = first_level(pattern)
    return "#" if first is None else f"{first}/#"


class Fanout:
    """All subscribers of this process. It belongs to the event loop.

    `queues_of` names the queues that addresses of a filter can be in (None: any); `group_of` says in which group a
    queue lies, None for one that is not known here. `barrier` returns whether every topic that existed when it was
    called is known by now. `spawn` runs a coroutine as a supervised task.
    """

    def __init__(
        self,
        store: StoreClient,
        *,
        queues_of: Callable[[str], Sequence[QueueNumber] | None],
        group_of: Callable[[QueueNumber], int | None],
        spawn: Callable[..., object],
        barrier: Callable[[], Awaitable[bool]] = _always,
    ) -> None:
        self._store = store
        self._queues_of = queues_of
        self._group_of = group_of
        self._spawn = spawn
        self._trie: FilterTrie[tuple[Subscriber, SubscriptionId]] = FilterTrie()
        self._reaches: dict[str, int] = {}  # how many subscriptions there are within each
        self._plans: dict[str, _Plan] = {}
        self._same: dict[_Plan, _Plan] = {}
        self._by_subscriber: dict[int, dict[Subscriber, tuple[SubscriptionId, ...]]] = {}  # long plans, by their `id`
        self._interest = Interest(queues_of, known=lambda queue: group_of(queue) is not None)
        self._first_logs = frozenset(store.logs)  # those that were there from the start
        self._tails: dict[int, Tail] = {}  # by group; empty while there are no subscriptions
        self._subscribers: dict[Subscriber, None] = {}  # each has a lane for every tail
        self._catch_up = CatchUp(ids_of=self._ids_of, queues_of=self._queues, barrier=barrier, live=self._is_live)
        self.behind_count = 0  # subscribers that are, in one log at least

    @property
    def damages_passed(self) -> int:
        """The number of lost ranges of a log that subscribers skipped."""
        return self._catch_up.damages_passed

    @property
    def subscriber_count(self) -> int:
        """Returns how many connections have a subscription."""
        return len(self._subscribers)

    # ---- requests of connections

    def subscribe(
        self,
        subscriber: Subscriber,
        sub: SubscriptionId,
        pattern: str,
        start: Cursor | None,
        *,
        where: str | None = None,
        permissions: Permissions = OPEN,
    ) -> Cursor:
        """Adds a subscription, or replaces the one of that id, and returns where it begins in each log.

        With a start, a log that it says nothing of is read from its beginning. A start beyond a log's end, of another
        log, is now. Messages that `permissions` forbid to read are skipped. Raises `Refusal` for a `where` that is
        no condition.
        """
        condition = compile_where(where) if where is not None else None
        self._listen()
        self._remove(subscriber, sub)
        if not subscriber.patterns:
            self._end_lanes(subscriber)
            self._subscribers[subscriber] = None
        subscriber.patterns[sub] = pattern
        if condition is not None:
            subscriber.conditions[sub] = condition
        if permissions.matters:
            subscriber.permissions[sub] = permissions
        self._trie.add(pattern, (subscriber, sub))
        reach = _reach(pattern)
        before = self._reaches.get(reach, 0)
        self._reaches[reach] = before + 1
        if not before:
            self._interest.forget()
        self._resubscribed()
        starts = None if start is None else by_log(start)
        begun = [self._begin(subscriber, tail, sub, starts) for _, tail in sorted(self._tails.items())]
        self.wake(subscriber)
        return tuple(begun)

    def _begin(
        self, subscriber: Subscriber, tail: Tail, sub: SubscriptionId, starts: dict[int, Position] | None
    ) -> Position:
        """Returns the position where a subscription begins in one log; a lane that has passed it goes back there."""
        lane = subscriber.lanes.get(tail.group)
        if lane is None:
            lane = subscriber.lanes[tail.group] = Lane(subscriber, tail, tail.now)
        begins = tail.now
        if starts is not None:
            begins = min(starts.get(tail.group, beginning_of(tail.group)), begins)
        lane.since[sub] = begins
        lane.cursor = min(begins, lane.reached)
        self._mark(lane, behind=tail.reached and lane.cursor < tail.now)
        return begins

    def unsubscribe(self, subscriber: Subscriber, sub: SubscriptionId) -> None:
        """Ends a subscription."""
        self._remove(subscriber, sub)
        self._resubscribed()

    def restrict(self, permissions_of: Callable[[Receiver, SubscriptionId], Permissions]) -> None:
        """Begins to restrict subscribers; `permissions_of` returns the permissions of a receiver's subscription."""
        for subscriber in self._subscribers:
            for sub in subscriber.patterns:
                permissions = OPEN if sub in subscriber.permissions else permissions_of(subscriber.receiver, sub)
                if permissions is not OPEN:
                    subscriber.permissions[sub] = permissions
        self.changed()

    def leave(self, subscriber: Subscriber) -> None:
        """Ends all of a connection's subscriptions."""
        if not subscriber.patterns:
            return
        for sub in list(subscriber.patterns):
            self._remove(subscriber, sub)
        self._resubscribed()

    def changed(self) -> None:
        """Applies changes of topics, groups and access rules."""
        self._interest.forget()
        self._resubscribed()

    def _resubscribed(self) -> None:
        """Applies changes of subscriptions."""
        self._forget_plans()
        if self._subscribers:
            self._add_logs()
        elif self._tails:
            for tail in self._tails.values():
                tail.stop()
            self._tails.clear()

    def wake(self, subscriber: Subscriber) -> None:
        """Delivers again to a subscriber that may be able to take more now."""
        if subscriber.behind:
            for lane in list(subscriber.lanes.values()):
                if lane.behind and not lane.running:
                    lane.running = True
                    self._spawn(self._run(lane))

    @property
    def subscription_count(self) -> int:
        """Returns how many subscriptions there are."""
        return len(self._trie)

    def reached(self, subscriber: Subscriber) -> Cursor:
        """Returns the first position in each log that has not been handed to a subscriber.

        A log whose end was never known here is left out. A connection without subscriptions has missed nothing.
        """
        if not subscriber.patterns:
            return cursor_of(self._ends())
        return tuple([lane.reached for _, lane in sorted(subscriber.lanes.items()) if lane.behind or lane.tail.reached])

    def now(self) -> Cursor:
        """Returns the position in each log where a subscription begins that is made now."""
        return cursor_of({group: self._unknown_end(group) for group in self._store.logs} | self._ends())

    def _ends(self) -> dict[int, Position]:
        """Returns the ends of the logs, by group, as far as they are known."""
        ends: dict[int, Position] = {}
        for group, one in self._store.logs.items():
            with suppress(StoreError):
                ends[group] = Position(one.log.confirmed, 0)
        return ends

    def _unknown_end(self, group: int) -> Position:
        return end_of(group) if group in self._first_logs else beginning_of(group)

    # ---- the logs and their tails

    def _listen(self) -> None:
        if self._tails:
            self._add_logs()
            return
        for group, one in self._store.logs.items():
            self._follow(group, one)

    def _follow(self, group: int, one: StoreClient) -> Tail:
        tail = self._tails[group] = Tail(group, one.log, self._unknown_end(group).frame)
        tail.stop = one.log.tail(partial(self._on_frames, tail))
        try:
            tail.position, tail.reached = one.log.confirmed, True
        except StoreError:
            self._spawn(self._reach(tail))
        return tail

    async def _reach(self, tail: Tail) -> None:
        """Finds out where a log ends."""
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        wait_s = backoff.next_s()
        while not tail.reached and self._tails.get(tail.group) is tail:
            await asyncio.sleep(wait_s)
            try:
                self._found(tail, tail.log.confirmed)
            except StoreError as error:
                wait_s = backoff.next_s()
                why = str(error)
                log.warning("a log cannot be reached yet", group=tail.group, error=why, retry_s=round(wait_s, 2))

    def _found(self, tail: Tail, position: LogOffset) -> None:
        """Starts subscribers that waited for the log's end, and bounds the catch-up of those behind it."""
        if tail.reached:
            return
        tail.position, tail.reached = position, True
        now = tail.now
        for subscriber in self._subscribers:
            lane = subscriber.lanes[tail.group]
            lane.since = {sub: min(since, now) for sub, since in lane.since.items()}
            lane.cursor = min(lane.cursor, now)
            self._mark(lane, behind=lane.cursor < now)
            self.wake(subscriber)

    def _add_logs(self) -> None:
        """Follows the logs that are new, from their beginnings, and those no longer that are gone."""
        there = self._store.logs
        if self._tails.keys() == there.keys():
            return
        for group in [group for group in self._tails if group not in there]:
            self._tails.pop(group).stop()
            for subscriber in self._subscribers:
                self._mark(subscriber.lanes[group], behind=False)
                del subscriber.lanes[group]
        for group in [group for group in there if group not in self._tails]:
            tail = self._follow(group, there[group])
            for subscriber in self._subscribers:
                lane = subscriber.lanes[group] = Lane(subscriber, tail, beginning_of(group))
                self._mark(lane, behind=tail.reached and lane.cursor < tail.now)
                self.wake(subscriber)

    def _on_frames(self, tail: Tail, frames: Sequence[Frame]) -> None:
        if frames and not tail.reached:
            self._found(tail, frames[0].start)
        for frame in frames:
            if frame.start < tail.position:
                if not tail.is_rewound(frame):
                    continue
                log.error("a log has lost its end", group=tail.group, was=tail.position, goes_on=frame.start)
                rewind(tail, frame.start, self._subscribers)
                self._catch_up.forget()
            elif frame.start > tail.position:
                self._missed(tail)
            tail.position, tail.epoch = frame.end, frame.header.epoch
            if not self._interest.concerns(frame.rows["queue"], self._reaches):
                continue
            batch = Batch.of(frame)
            if batch.messages:
                self._offer(tail.group, batch)

    def _missed(self, tail: Tail) -> None:
        """Makes subscribers read from the log the frames that the tail left out, as when a connection is replaced."""
        log.warning("the tail of a log has a gap", group=tail.group, at=tail.position)
        for subscriber in self._subscribers:
            lane = subscriber.lanes[tail.group]
            lane.cursor = lane.reached
            self._mark(lane, behind=True)
            self.wake(subscriber)

    def _offer(self, group: int, batch: Batch) -> None:
        """Hands a batch to every subscriber that it concerns and that is live in its log."""
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
                lane = subscriber.lanes[group]
                if not lane.behind:
                    self._hand(lane, batch, range(count), [ids] * count)
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
            lane = subscriber.lanes[group]
            if not lane.behind:
                self._hand(lane, batch, picks, subs)

    def _hand(self, lane: Lane, batch: Batch, picks: Sequence[int], subs: Sequence[tuple[SubscriptionId, ...]]) -> None:
        subscriber, cursor = lane.subscriber, lane.cursor
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
            lane.cursor = batch.position(picks[taken])
            self._mark(lane, behind=True)

    def _plan(self, address: str) -> _Plan:
        plan = self._plans.get(address)
        if plan is None:
            grouped: dict[Subscriber, list[SubscriptionId]] = {}
            for subscriber, sub in self._trie.match(address):
                if subscriber.permissions and not subscriber.may_read(sub, address):
                    continue
                grouped.setdefault(subscriber, []).append(sub)
            plan = tuple((subscriber, tuple(sorted(ids))) for subscriber, ids in grouped.items())
            if max(len(self._plans), len(self._same)) >= PLANS_MAX:
                self._forget_plans()
            plan = self._same.setdefault(plan, plan)
            if len(address) <= REMEMBERED_LENGTH_MAX:
                self._plans[address] = plan
        return plan

    def _ids_of(self, subscriber: Subscriber, address: str) -> tuple[SubscriptionId, ...]:
        plan = self._plan(address)
        if len(plan) > LONG_COUNT:  # looked into by each of those who catch up
            found = self._by_subscriber.get(id(plan))
            if found is None:
                found = self._by_subscriber[id(plan)] = dict(plan)
            return found.get(subscriber, ())
        for who, ids in plan:
            if who is subscriber:
                return ids
        return ()

    def _forget_plans(self) -> None:
        self._by_subscriber.clear()  # of plans that are kept in `_same`
        self._plans.clear()
        self._same.clear()

    # ---- lanes

    async def _run(self, lane: Lane) -> None:
        """Catches up. A lane that was served and is not done is served last the next time: every log has its turn."""
        before = lane.cursor
        await self._catch_up.run(lane)
        if lane.behind and lane.current and lane.cursor != before:
            lanes = lane.subscriber.lanes
            lanes[lane.tail.group] = lanes.pop(lane.tail.group)

    def _queues(self, patterns: Iterable[str], group: int) -> Sequence[QueueNumber] | None:
        """Returns the queues of a group that may hold matching messages."""
        queues: dict[QueueNumber, None] = {}
        for pattern in patterns:
            of = self._queues_of(pattern)
            if of is None:
                return None
            queues.update(dict.fromkeys(of))
        return [queue for queue in queues if self._group_of(queue) == group]

    def _is_live(self, lane: Lane) -> None:
        self._mark(lane, behind=False)

    def _mark(self, lane: Lane, *, behind: bool) -> None:
        subscriber = lane.subscriber
        if lane.behind is not behind:
            lane.behind = behind
            before, subscriber.behind = subscriber.behind, subscriber.behind + (1 if behind else -1)
            self.behind_count += bool(subscriber.behind) - bool(before)

    def _remove(self, subscriber: Subscriber, sub: SubscriptionId) -> None:
        pattern = subscriber.patterns.pop(sub, None)
        if pattern is None:
            return
        for lane in subscriber.lanes.values():
            lane.since.pop(sub, None)
        subscriber.conditions.pop(sub, None)
        subscriber.permissions.pop(sub, None)
        reach = _reach(pattern)
        self._reaches[reach] -= 1
        if not self._reaches[reach]:
            del self._reaches[reach]
            self._interest.forget()
        self._trie.discard(pattern, (subscriber, sub))
        if not subscriber.patterns:
            self._end_lanes(subscriber)

    def _end_lanes(self, subscriber: Subscriber) -> None:
        """Ends the lanes of a subscriber: reads in progress for them are discarded."""
        for lane in subscriber.lanes.values():
            self._mark(lane, behind=False)
        subscriber.lanes.clear()
        self._subscribers.pop(subscriber, None)
