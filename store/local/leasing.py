"""Leasing messages of a queue: the leases of `store.leases.leases`, the messages they stand for, and their log."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from store.api.handle import Grant
from store.api.leases import Lease
from store.api.log import OnAppended
from store.base.errors import LeaseLost
from store.base.futures import succeeded
from store.format.frame import ROW, LogOffset, QueueNumber, QueueOffset, UnplacedFrame
from store.format.policy import INVISIBLE_MS_MAX, PASSED_OVER_MAX, LeasePolicy
from store.format.ranges import Range, offsets_of, ranges_of
from store.format.records import LEASES_QUEUE, LeasePolicySet, Settled, encode
from store.leases.leases import LeaseQueue
from store.local.dead_letters import DeadLetters, Locate
from store.local.settling import Recording, Settlements
from store.recent.recent import Recent

PURGE_RANGES = 10_000  # in one settlement record
LOOK_AHEAD = 64  # messages an ordered group looks at, at least, to find one that may be leased
RETRY_MS = 1_000  # until a failed release is tried again
_frame = itemgetter(1)  # of a located record


class StoredLeases(NamedTuple):
    """The views' knowledge of a group and queue."""

    settled: Sequence[Range]
    policy: LeasePolicy
    following: QueueOffset  # the offset that the queue's next record will have
    deleted_at: int  # log offset; leases from before that are lost. -1: never


class Leasing:
    """The leases of all groups and queues. Belongs to the thread of the event loop.

    `locate` finds records by their offsets, `stored` reads the views, `record` stores a record, `append` a frame.
    `key` signs handles. `steady_ms` never goes back. `on_available` is called with queues that have available messages
    again. An earlier master may have leased messages before the log offset `begun`, and none behind it.
    """

    def __init__(
        self,
        recent: Recent,
        *,
        locate: Locate,
        stored: Callable[[QueueNumber, str], Awaitable[StoredLeases]],
        record: Recording,
        append: Callable[[UnplacedFrame, OnAppended], None],
        key: Callable[[], Awaitable[bytes]],
        steady_ms: Callable[[], int],
        on_available: Callable[[Sequence[QueueNumber]], None],
        begun: LogOffset,
    ) -> None:
        self._recent = recent
        self._begun = begun
        self._locate = locate
        self._stored = stored
        self._record = record
        self._key = key
        self._now_ms = steady_ms
        self._on_available = on_available
        self._numbered = steady_ms() << 20  # the newest lease's number; those of an earlier start were lower
        self.settlements = Settlements(record, append, on_available)
        self.dead_letters = DeadLetters(locate, self.settlements)

    async def leases(self, queue: QueueNumber, group: str) -> tuple[LeaseQueue, QueueOffset]:
        """Returns the leases of a group and queue, and the offset that the queue's next record will have."""
        table = self._recent.leases
        while True:
            leases, following = table.get(queue, group), self._recent.next_offset(queue)
            if leases is not None and following is not None:
                return leases, following
            deletions = table.deletions
            settled, policy, known, deleted_at = await self._stored(queue, group)
            if table.deletions == deletions:  # otherwise it may be of a deleted queue or group
                leases = table.get(queue, group) or table.load(queue, settled, group, policy, deleted_at)
                return leases, self._recent.learn_next_offset(queue, known)

    # ---- taking

    async def take(
        self, queue: QueueNumber, owner: int, *, max_count: int, max_bytes: int, group: str, invisible_ms: int | None
    ) -> Sequence[Lease]:
        """See `LeaseCalls.take`. Messages released while this waits for a disk are not leased."""
        while True:
            leases, following = await self.leases(queue, group)
            grant = await self._grant(leases, owner, invisible_ms)
            if grant is not None:
                max_count = min(max_count, leases.timed_room)
            found = await self._take(leases, owner, grant, below=following, max_count=max_count, max_bytes=max_bytes)
            if found or not leases.gone:
                return found

    async def _take(
        self,
        leases: LeaseQueue,
        owner: int,
        grant: Grant | None,
        *,
        below: QueueOffset,
        max_count: int,
        max_bytes: int,
    ) -> Sequence[Lease]:
        if leases.order is not None:
            return await self._take_ordered(leases, owner, grant, below=below, max_count=max_count, max_bytes=max_bytes)
        while leases.order is None and (leased := leases.lease(owner, max_count, below, grant)):
            self._recent.leases.note(owner, leases)
            found, abandoned = await self._found(leases, owner, leased, grant, max_bytes)
            if found or not abandoned:
                return found
        return ()

    async def _grant(self, leases: LeaseQueue, owner: int, invisible_ms: int | None) -> Grant | None:
        """Returns the grant of a take's messages; None: they are leased as long as their owner lives."""
        if invisible_ms is None:
            invisible_ms = leases.policy.invisible_ms
        if not invisible_ms:
            return None
        check_invisible(invisible_ms)
        key = await self._key()
        self._numbered += 1
        return Grant(
            queue=leases.queue,
            group=leases.group,
            owner=owner,
            lease=self._numbered,
            leased_at=self._recent.confirmed,
            visible_at_ms=self._now_ms() + invisible_ms,
            key=key,
        )

    async def _found(
        self, leases: LeaseQueue, owner: int, leased: Sequence[Range], grant: Grant | None, max_bytes: int
    ) -> tuple[list[Lease], bool]:
        """Returns the messages that were leased to an owner, and whether some are damaged or trimmed.

        Messages that do not fit go back.
        """
        try:
            located = await self._locate(leases.queue, leased, max_bytes=max_bytes)
        except BaseException:
            leases.requeue(owner, offsets_of(leased), delivered=False)
            raise
        held, begun, deliveries = leases.held(owner), self._begun, leases.deliveries
        found: list[Lease] = []
        for frame, records in groupby(located.records, key=_frame):
            earlier = frame.start < begun
            found += [
                Lease(offset, deliveries(offset), frame, row, grant, earlier)
                for offset, _, row in records
                if offset in held
            ]
        leases.abandon(leases.set_apart(owner, offsets_of(located.unreadable)))
        if len(found) < sum(end - start for start, end in leased):
            given = {lease.offset for lease in found}
            leases.requeue(owner, [o for o in offsets_of(leased) if o not in given], delivered=False)
        return found, bool(located.unreadable)

    async def _take_ordered(
        self,
        leases: LeaseQueue,
        owner: int,
        grant: Grant | None,
        *,
        below: QueueOffset,
        max_count: int,
        max_bytes: int,
    ) -> list[Lease]:
        """Takes messages of keys that have none out: first of those skipped before, then of new ones."""
        found: list[Lease] = []
        # One at a time: a message must not be leased before all that lie in front of it have been looked at.
        async with leases.looking:
            if leases.blocked:
                return []
            self._recent.leases.note(owner, leases)
            try:
                while leases.order is not None and (leased := leases.lease_known(owner, max_count, grant)):
                    found, abandoned = await self._found(leases, owner, leased, grant, max_bytes)
                    if found or not abandoned:
                        break
                room = max_bytes - sum(int(lease.frame.rows["len"][lease.row]) for lease in found)
                while len(found) < max_count and (room > 0 or not found) and leases.order is not None:
                    ahead = PASSED_OVER_MAX - leases.order.passed_over
                    looked_at = leases.look_at(min(ahead, max(max_count - len(found), LOOK_AHEAD)), below)
                    if not looked_at:
                        break
                    more, seen = await self._look(
                        leases, owner, grant, looked_at, max_count=max_count - len(found), max_bytes=max(room, 1)
                    )
                    found += more
                    room -= sum(int(lease.frame.rows["len"][lease.row]) for lease in more)
                    if not seen:
                        break
            except BaseException:  # the owner does not learn of those found before
                leases.requeue(owner, [lease.offset for lease in found], delivered=False)
                raise
        return found

    async def _look(
        self,
        leases: LeaseQueue,
        owner: int,
        grant: Grant | None,
        ranges: Sequence[Range],
        *,
        max_count: int,
        max_bytes: int,
    ) -> tuple[list[Lease], int]:
        """Looks at new messages and leases up to `max_count` of them. Returns the leases, and how many it looked at."""
        try:
            located = await self._locate(leases.queue, ranges, max_bytes=max_bytes)
        except BaseException:
            leases.give_up_take(ranges)
            raise
        if leases.blocked:  # since this waits: the queue was deleted, or its order was switched off and on
            leases.give_up_take(ranges)
            return [], 0
        found: list[Lease] = []
        seen: list[int] = []
        for offset, frame, row in located.records:
            if len(found) == max_count:
                break
            seen.append(offset)
            if leases.order is None or leases.order.meet(offset, int(frame.rows["key_hash"][row])):
                leases.hold(owner, ((offset, offset + 1),), grant)
                earlier = frame.start < self._begun
                found.append(Lease(offset, leases.deliveries(offset), frame, row, grant, earlier))
        leases.in_flight.end(ranges_of(seen))
        leases.abandon(located.unreadable)
        done = {*seen, *offsets_of(located.unreadable)}
        leases.give_up_take(ranges_of(offset for offset in offsets_of(ranges) if offset not in done))
        return found, len(done)

    # ---- settling

    async def settle(self, queue: QueueNumber, owner: int, offsets: Iterable[int], group: str) -> None:
        """See `LeaseCalls.settle`. When it raises, the messages will be leased again."""
        leases = self._recent.leases.get(queue, group)
        if leases is not None:
            ranges = leases.begin_settling(owner, offsets)
            if ranges:
                await self.settlements.settle(leases, ranges, delivered=True)

    def settle_soon(self, queue: QueueNumber, owner: int, offsets: Iterable[int], group: str) -> "asyncio.Future[None]":
        """See `LeaseCalls.settle_soon`. When it fails, the messages will be leased again."""
        leases = self._recent.leases.get(queue, group)
        ranges = leases.begin_settling(owner, offsets) if leases is not None else ()
        if leases is None or not ranges:
            return succeeded()
        # Of an ordered group the next messages of the same keys wait for it.
        return self.settlements.settling(leases, ranges, delivered=True, urgent=leases.order is not None)

    async def forward(
        self, queue: QueueNumber, owner: int, offsets: Sequence[QueueOffset], rows: bytes, payload: bytes, *, group: str
    ) -> None:
        """See `LeaseCalls.forward`. When it raises, the messages will be leased again."""
        await self.commit(owner, [(queue, offsets)], rows, payload, group=group)

    async def commit(
        self,
        owner: int,
        settled: Sequence[tuple[QueueNumber, Sequence[QueueOffset]]],
        rows: bytes,
        payload: bytes,
        *,
        group: str = "",
    ) -> None:
        """See `LeaseCalls.commit`. When it raises, the messages will be leased again."""
        found: list[tuple[LeaseQueue, Sequence[QueueOffset]]] = []
        for queue, offsets in settled:
            leases = self._recent.leases.get(queue, group)
            if leases is None or not leases.held(owner).issuperset(offsets):
                raise LeaseLost(f"some messages of queue {queue} are not held any more")
            found.append((leases, offsets))
        taken = [(leases, leases.begin_settling(owner, offsets)) for leases, offsets in found]
        for leases, ranges in taken:
            record = encode(Settled(leases.queue, tuple(ranges), group, leases.known))
            rows += ROW.pack(LEASES_QUEUE, len(payload), len(record), 0, 0, 0, 0, 0)
            payload += record
        await self.settlements.append(taken, UnplacedFrame.build(rows, payload))

    # ---- giving back

    def requeue(
        self,
        queue: QueueNumber,
        owner: int,
        offsets: Iterable[int],
        *,
        delivered: bool,
        delay_ms: int | None,
        group: str,
    ) -> None:
        """See `LeaseCalls.requeue`."""
        leases = self._recent.leases.get(queue, group)
        if leases is not None:
            leases.requeue(owner, offsets, delivered=delivered, delay_ms=delay_ms, now_ms=self._now_ms())
            self.dead_letters.give_up(leases)

    def release(self, owner: int) -> Sequence[QueueNumber]:
        """See `LeaseCalls.release`."""
        released = self._recent.leases.release(owner, now_ms=self._now_ms())
        for leases in released:
            self.dead_letters.give_up(leases)
        return list(dict.fromkeys(leases.queue for leases in released))

    def extend(
        self, queue: QueueNumber, owner: int, offsets: Iterable[int], *, invisible_ms: int, group: str, key: bytes
    ) -> Sequence[QueueOffset]:
        """See `LeaseCalls.extend`."""
        check_invisible(invisible_ms)
        leases = self._recent.leases.get(queue, group)
        if leases is None:
            return ()
        self._numbered += 1
        until_ms = self._now_ms() + invisible_ms
        grant = Grant(
            queue=queue,
            group=group,
            owner=owner,
            lease=self._numbered,
            leased_at=self._recent.confirmed,
            visible_at_ms=until_ms,
            key=key,
        )
        return [QueueOffset(offset) for offset in leases.extend(owner, offsets, grant)]

    async def reject(self, queue: QueueNumber, owner: int, offsets: Iterable[int], *, reason: str, group: str) -> None:
        """See `LeaseCalls.reject`. When it raises, the messages will be leased again."""
        leases = self._recent.leases.get(queue, group)
        if leases is not None:
            ranges = leases.set_apart(owner, offsets)
            if ranges:
                await self.dead_letters.move(leases, ranges, reason)

    # ---- the others

    async def set_policy(self, queue: QueueNumber, policy: LeasePolicy, group: str) -> None:
        """See `LeaseCalls.set_policy`."""
        leases, _ = await self.leases(queue, group)
        leases.kept = True  # so that there is something that takes it when the record is applied
        await self._record(LeasePolicySet(queue, group, policy))

    async def policy(self, queue: QueueNumber, group: str) -> LeasePolicy:
        """See `LeaseCalls.policy`."""
        leases, _ = await self.leases(queue, group)
        return leases.policy

    async def waiting(self, queue: QueueNumber, group: str) -> int:
        """See `LeaseCalls.waiting`."""
        leases, following = await self.leases(queue, group)
        return leases.waiting(following)

    async def unsettled(self, queue: QueueNumber, group: str) -> int:
        """See `LeaseCalls.unsettled`."""
        leases, following = await self.leases(queue, group)
        return leases.waiting(following) + leases.leased

    async def first_waiting(self, queue: QueueNumber, group: str) -> QueueOffset | None:
        """See `LeaseCalls.first_waiting`."""
        leases, following = await self.leases(queue, group)
        first = leases.first_waiting(following)
        return None if first is None else QueueOffset(first)

    async def purge(self, queue: QueueNumber, group: str) -> int:
        """See `LeaseCalls.purge`."""
        leases, following = await self.leases(queue, group)
        ranges = leases.begin_purge(following)
        parts = [ranges[i : i + PURGE_RANGES] for i in range(0, len(ranges), PURGE_RANGES)]
        settling = [self.settlements.settling(leases, part, delivered=False) for part in parts]
        await asyncio.gather(*map(asyncio.shield, settling))
        return sum(end - start for start, end in ranges)

    def expire(self) -> int | None:
        """Ends the leases and delays whose time has come; in how many milliseconds the next one ends."""
        now_ms = self._now_ms()
        table = self._recent.leases
        more, seen = table.expire(now_ms)
        for leases in seen:
            self.dead_letters.give_up(leases)
        if more:
            self._on_available(list(dict.fromkeys(leases.queue for leases in more)))
        following = table.next_deadline_ms
        return None if following is None else max(following - now_ms, 1)

    async def close(self) -> None:
        """Waits for the dead letters that are being moved."""
        await self.dead_letters.close()


def check_invisible(invisible_ms: int) -> None:
    """Raises ValueError for an invalid lease time."""
    if not 0 < invisible_ms <= INVISIBLE_MS_MAX:
        raise ValueError(f"a lease lasts 1 to {INVISIBLE_MS_MAX} ms, not {invisible_ms}")
