"""The leases of all groups and queues, kept in step with the log, and the time at which the next of them ends."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from store.format.frame import QueueNumber
from store.format.policy import DEFAULT, LeasePolicy
from store.format.ranges import Range, ranges_of
from store.format.records import DeadLettered, GroupDeleted, LeasePolicySet, QueueDeleted, Settled
from store.leases.leases import LeaseQueue

_COMPACT_MIN = 1_024  # deadlines: with fewer there is nothing to tidy up


class LeaseTable:
    """The leases of all groups and queues that had any since the start, and when the next of them ends.

    `on_deadline` is called when something ends earlier than anything before.
    """

    def __init__(self) -> None:
        self.of_queues: dict[tuple[str, QueueNumber], LeaseQueue] = {}
        self.groups: dict[QueueNumber, dict[str, None]] = {}  # the groups that were leased messages of a queue
        self.owners: dict[int, dict[LeaseQueue, None]] = {}  # in which an owner may hold something
        self._deadlines: list[tuple[int, int, LeaseQueue, int, int]] = []  # a heap; some of them mean nothing any more
        self._compact_at = _COMPACT_MIN
        self._numbers = count()
        self._anew: deque[tuple[int, str, QueueNumber]] = deque()  # (position, group, queue) that begin again
        self.deletions = 0  # of queues and groups, followed
        self.on_deadline: Callable[[int], None] = lambda at_ms: None

    def get(self, queue: QueueNumber, group: str = "") -> LeaseQueue | None:
        """Returns the leases of a group and queue, None before `load`."""
        return self.of_queues.get((group, queue))

    def load(
        self,
        queue: QueueNumber,
        settled: Iterable[Range],
        group: str = "",
        policy: LeasePolicy = DEFAULT,
        deleted_at: int = -1,
    ) -> LeaseQueue:
        """Begins to keep the leases of a group and queues."""
        assert (group, queue) not in self.of_queues
        return self._add(queue, group, settled, policy, deleted_at)

    def _add(
        self, queue: QueueNumber, group: str, settled: Iterable[Range], policy: LeasePolicy, deleted_at: int
    ) -> LeaseQueue:
        found = LeaseQueue(
            settled, policy=policy, queue=queue, group=group, schedule=self._schedule, deleted_at=deleted_at
        )
        before = self.of_queues.get((group, queue))
        if before is not None:
            before.end()
        self.of_queues[group, queue] = found
        self.groups.setdefault(queue, {})[group] = None
        return found

    @property
    def queues(self) -> list[QueueNumber]:
        """The queues with leases."""
        return list(self.groups)

    def trim(self, queue: QueueNumber, first: int) -> None:
        """Settles what lies in front of an offset: it is gone from the log, so no owner holds it any more."""
        for group in self.groups.get(queue, ()):
            self.of_queues[group, queue].settle([(0, first)])

    def note(self, owner: int, leases: LeaseQueue) -> None:
        """Notes that an owner may hold something now."""
        self.owners.setdefault(owner, {})[leases] = None

    def release(self, owner: int, *, now_ms: int = 0) -> Sequence[LeaseQueue]:
        """Takes back from an owner all that it was not leased for a time; returns the queues in which that was any."""
        return [
            leases
            for leases in self.owners.pop(owner, {})
            if leases.requeue(owner, leases.untimed(owner), delivered=True, now_ms=now_ms)
        ]

    def follow(
        self, record: Settled | DeadLettered | LeasePolicySet | QueueDeleted | GroupDeleted, at: int = 0
    ) -> None:
        """Applies the log's records at an offset. A deleted queue or group has no leases and no settlements."""
        match record:
            case Settled(queue=queue, ranges=ranges, group=group, known=known):
                leases = self.of_queues.get((group, QueueNumber(queue)))
                if leases is not None and leases.deleted_at < known:
                    leases.settle(ranges)
            case DeadLettered(queue=queue, letters=letters, group=group, known=known):
                leases = self.of_queues.get((group, QueueNumber(queue)))
                if leases is not None and leases.deleted_at < known:
                    leases.settle(ranges_of(letter.offset for letter in letters))
            case LeasePolicySet(queue=queue, group=group, policy=policy):
                leases = self.of_queues.get((group, QueueNumber(queue)))
                if leases is not None:
                    leases.set_policy(policy)
            case QueueDeleted(queue=queue):
                number = QueueNumber(queue)
                self.deletions += 1
                for group in self.groups.get(number, ()):
                    self._begin_anew(number, group, at)
            case GroupDeleted(group=group):
                self.deletions += 1
                for name, number in list(self.of_queues):
                    if name == group != "":  # the group without a name is everybody's
                        self._begin_anew(number, group, at)

    def _begin_anew(self, queue: QueueNumber, group: str, at: int) -> None:
        self._add(queue, group, (), DEFAULT, at)
        self._anew.append((at, group, queue))

    def forget(self, dispatched: int) -> None:
        """Forgets deleted queues without leases since; the views are this far, so these can be loaded again."""
        while self._anew and self._anew[0][0] < dispatched:
            _, group, queue = self._anew.popleft()
            leases = self.of_queues.get((group, queue))
            if leases is not None and leases.untouched:
                leases.end()
                del self.of_queues[group, queue], self.groups[queue][group]
                if not self.groups[queue]:
                    del self.groups[queue]

    # ---- deadlines

    @property
    def next_deadline_ms(self) -> int | None:
        """Returns the time before which no lease ends by itself; None when none does."""
        return self._deadlines[0][0] if self._deadlines else None

    def _schedule(self, leases: LeaseQueue, at_ms: int, start: int, end: int) -> None:
        earlier = not self._deadlines or at_ms < self._deadlines[0][0]
        heappush(self._deadlines, (at_ms, next(self._numbers), leases, start, end))
        if len(self._deadlines) >= self._compact_at:
            self._compact()
        if earlier:
            self.on_deadline(at_ms)

    def _compact(self) -> None:
        """Drops the deadlines of leases that were settled or extended in time, so that there are never many of them."""
        self._deadlines = [
            (at_ms, next(self._numbers), leases, start, end)
            for leases in self.of_queues.values()
            for at_ms, start, end in leases.deadlines()
        ]
        heapify(self._deadlines)
        self._compact_at = max(_COMPACT_MIN, 2 * len(self._deadlines))

    def expire(self, now_ms: int) -> tuple[list[LeaseQueue], list[LeaseQueue]]:
        """Ends the leases whose time is over. Returns queues with newly available messages, and all that had such."""
        more: dict[LeaseQueue, None] = {}
        seen: dict[LeaseQueue, None] = {}
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            at_ms, _, leases, start, end = heappop(self._deadlines)
            seen[leases] = None
            if leases.expire(start, end, at_ms=at_ms, now_ms=now_ms):
                more[leases] = None
        return list(more), list(seen)
