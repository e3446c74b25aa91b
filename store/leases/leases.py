"""Leases: the messages of a queue that each owner holds. Soft state; settlements and policies are in the log.

Every offset of a queue is, for each group, in one of six states: available; held by an owner; kept back until a time;
given up; on its way to be settled, or to where dead letters go, or being looked at (`store.leases.in_flight`); settled.
Where a group keeps the order of keys, messages known to `store.leases.ordering` are available only when it says so.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import chain
from typing import TypeAlias

from store.api.handle import Grant
from store.format.frame import QueueNumber
from store.format.policy import DEFAULT, TIMED_LEASES_MAX, LeasePolicy
from store.format.ranges import Range, RangeSet, ranges_of
from store.leases.in_flight import InFlight
from store.leases.ordering import KeyOrder

_NO_QUEUE = QueueNumber(0)
_OFFSET_MAX = 1 << 63

Schedule: TypeAlias = Callable[["LeaseQueue", int, int, int], None]


class HandleClaim(Enum):
    """The outcome of asking for a message by its handle."""

    TAKEN = "taken"  # it is the asker's to settle or give back
    SETTLED = "settled"  # it was settled before
    PENDING = "pending"  # it is being settled: ask again when `in_flight.settled` ends
    LOST = "lost"  # it is another owner's, is kept back, or is on its way to where dead letters go


class LeaseQueue:
    """The leases of one group in one queue."""

    __slots__ = (
        "_deliveries",
        "_given_up",
        "_grants",
        "_held",
        "_kept_back",
        "_leasable",
        "_schedule",
        "_seen",
        "_unmet",
        "_was_blocked",
        "deleted_at",
        "gone",
        "group",
        "in_flight",
        "kept",
        "looking",
        "order",
        "policy",
        "queue",
    )

    def __init__(
        self,
        settled: Iterable[Range] = (),
        *,
        policy: LeasePolicy = DEFAULT,
        queue: QueueNumber = _NO_QUEUE,
        group: str = "",
        schedule: Schedule = lambda leases, at_ms, start, end: None,
        deleted_at: int = -1,
    ) -> None:
        """Begins without leases. Tells `schedule` every deadline; `expire` is to be called when it has come."""
        self.queue, self.group = queue, group
        self.deleted_at = deleted_at  # in the log, the queue or the group before this one; -1: never
        self.kept = False  # a record in flight has to find this object when it is applied
        self._schedule = schedule
        self._leasable = RangeSet([(0, _OFFSET_MAX)])  # also offsets not written yet
        self._seen = 0  # below, messages not settled count as delivered once before
        for start, end in settled:
            self._leasable.remove(start, end)
            self._seen = end
        self._held: dict[int, set[int]] = {}  # by owner
        self._grants: dict[int, Grant] = {}  # of those held that end by themselves
        self._kept_back: dict[int, int] = {}  # when they may be leased again
        self._given_up: list[int] = []  # and not yet fetched by `take_given_up`
        self.in_flight = InFlight()
        self.gone = False  # the queue or the group was deleted, and others keep their later leases
        self._was_blocked = False  # and its owner was not told that it has ended
        self._unmet = RangeSet()  # out since before there was an order, which does not know their keys
        self._deliveries: dict[int, int] = {}  # of offsets not settled, where `_seen` is wrong
        self.order: KeyOrder | None = None
        self.looking = asyncio.Lock()  # held by the one call that looks at messages whose keys are not known
        self.policy = DEFAULT
        self.set_policy(policy)

    def set_policy(self, policy: LeasePolicy) -> None:
        """Leases by this from now on. Leased messages stay leased; others wait behind their key only if they have to.

        Where keys are in order now and were not before, nothing more is leased until the current leases have ended.
        """
        self.policy = policy
        if policy.ordered and self.order is None:
            self.order = KeyOrder()
            for start, end in [*self._out(), *self.in_flight]:
                self._unmet.add(start, end)
            self._was_blocked = len(self._unmet) > 0
        elif not policy.ordered and self.order is not None:
            waiting, self.order = self.order.remove_waiting(), None
            self._unmet = RangeSet()
            self._make_leasable(waiting)

    def _out(self) -> list[Range]:
        return ranges_of(chain(chain.from_iterable(self._held.values()), self._kept_back, self._given_up))

    @property
    def blocked(self) -> bool:
        """Returns whether nothing may be leased for now: messages with unknown keys are in flight."""
        return self.gone or len(self._unmet) > 0

    def take_unblocked(self) -> bool:
        """Returns whether it was blocked and is not any more; True only once."""
        said = self._was_blocked and not self.blocked
        self._was_blocked = self._was_blocked and not said
        return said

    @property
    def known(self) -> int:
        """Returns the value of `Settled.known` for messages of this queue."""
        return self.deleted_at + 1

    @property
    def timed_room(self) -> int:
        """Returns how many more messages may be leased for a time."""
        return max(0, TIMED_LEASES_MAX - len(self._grants) - len(self._kept_back))

    @property
    def untouched(self) -> bool:
        """Returns whether loading the queue again later would give the same."""
        return (
            not (self.kept or self._held or self._kept_back or self._given_up or self._deliveries)
            and self.policy is DEFAULT
            and not self.looking.locked()
            and not self.in_flight.busy
            and list(self._leasable) == [(0, _OFFSET_MAX)]
        )

    def end(self) -> None:
        """Ends all leases, as the queue or the group was deleted: nothing is leased any more."""
        self.gone = True
        self._leasable, self._unmet, self.order = RangeSet(), RangeSet(), None
        for kept in (self._held, self._grants, self._kept_back, self._given_up, self._deliveries):
            kept.clear()
        self.in_flight.end_all()

    # ---- leasing

    def lease(self, owner: int, count: int, below: int, grant: Grant | None = None) -> list[Range]:
        """Gives an owner the lowest leasable offsets under `below`, until the grant's time if there is one."""
        taken = self._leasable.take(count, below)
        self.hold(owner, taken, grant)
        return taken

    def lease_known(self, owner: int, count: int, grant: Grant | None) -> list[Range]:
        """Gives an owner the lowest offsets of known keys that have no message held."""
        assert self.order is not None
        taken = ranges_of(self.order.take(count))
        self.hold(owner, taken, grant)
        return taken

    def look_at(self, count: int, below: int) -> list[Range]:
        """Reserves the lowest offsets under `below` whose keys are not known, until `hold` or `give_up_take`."""
        taken = self._leasable.take(count, below)
        self.in_flight.set_apart(taken)
        return taken

    def give_up_take(self, ranges: Sequence[Range]) -> None:
        """Makes reserved messages available again."""
        self.in_flight.end(ranges)
        if not self.gone:
            for start, end in ranges:
                self._leasable.add(start, end)
                self._unmet.remove(start, end)

    def hold(self, owner: int, ranges: Iterable[Range], grant: Grant | None) -> None:
        """Gives an owner reserved offsets."""
        for start, end in ranges:
            self._held.setdefault(owner, set()).update(range(start, end))
            if grant is not None:
                self._grants.update(dict.fromkeys(range(start, end), grant))
                self._schedule(self, grant.visible_at_ms, start, end)

    def extend(self, owner: int, offsets: Iterable[int], grant: Grant) -> list[int]:
        """Extends, or shortens, an owner's leases of some offsets; returns which these are."""
        mine = sorted(self.held(owner) & set(offsets))
        renewed: dict[int, Grant] = {}
        for offset in mine:
            before = self._grants.get(offset, grant)
            self._grants[offset] = renewed.setdefault(before.lease, before.until(grant.visible_at_ms))
        for start, end in ranges_of(mine):
            self._schedule(self, grant.visible_at_ms, start, end)
        return mine

    def held(self, owner: int) -> frozenset[int] | set[int]:
        """Returns the offsets that an owner holds."""
        return self._held.get(owner, frozenset())

    def untimed(self, owner: int) -> list[int]:
        """Returns the offsets that an owner holds until it is released; others end by their time."""
        return [offset for offset in self.held(owner) if offset not in self._grants]

    def grant(self, offset: int) -> Grant | None:
        """Returns the grant of a message that is leased until a time; None for any other message."""
        return self._grants.get(offset)

    def deliveries(self, offset: int) -> int:
        """Returns how often a message had been leased before and counted."""
        return self._deliveries.get(offset, 1 if offset < self._seen else 0)

    # ---- coming back

    def requeue(
        self, owner: int, offsets: Iterable[int], *, delivered: bool, delay_ms: int | None = None, now_ms: int = 0
    ) -> bool:
        """Takes back an owner's leases of some offsets; returns whether that was anything.

        `delivered` says whether the attempt counts, `delay_ms` how long to keep it back (None: as the policy says).
        """
        mine = self._drop(owner, offsets)
        self._come_back(mine, delivered=delivered, delay_ms=delay_ms, now_ms=now_ms)
        return bool(mine)

    def expire(self, start: int, end: int, *, at_ms: int, now_ms: int) -> bool:
        """Ends the leases of a deadline, and returns whether messages became available."""
        back: list[int] = []
        free: list[int] = []
        for offset in range(start, end):
            grant = self._grants.get(offset)
            if grant is not None:
                if grant.visible_at_ms == at_ms:
                    back += self._drop(grant.owner, (offset,))
            elif self._kept_back.get(offset) == at_ms:
                del self._kept_back[offset]
                free.append(offset)
        self._make_leasable(free)
        return bool(self._come_back(back, delivered=True, delay_ms=None, now_ms=now_ms) or free)

    def _come_back(self, offsets: list[int], *, delivered: bool, delay_ms: int | None, now_ms: int) -> bool:
        """Ends leases; returns whether messages became available."""
        policy = self.policy
        if delivered:
            for offset in offsets:
                self._deliveries[offset] = self.deliveries(offset) + 1
        if not delay_ms and (not delivered or policy is DEFAULT):  # nearly all of them
            self._make_leasable(offsets)
            return bool(offsets)
        free: list[int] = []
        for offset in offsets:
            deliveries = self.deliveries(offset)
            if delivered and policy.exhausted(deliveries):
                self._given_up.append(offset)
                continue
            wait_ms = delay_ms if delay_ms is not None else policy.delay_ms(deliveries) if delivered else 0
            if wait_ms > 0:
                self._kept_back[offset] = now_ms + wait_ms
                self._schedule(self, now_ms + wait_ms, offset, offset + 1)
            else:
                free.append(offset)
        self._make_leasable(free)
        return bool(free)

    def _make_leasable(self, offsets: Iterable[int]) -> None:
        if self.gone:
            return
        if self.order is not None:
            offsets = [offset for offset in offsets if not self.order.come_back(offset)]
        for start, end in ranges_of(offsets):
            self._leasable.add(start, end)
            self._unmet.remove(start, end)

    def take_given_up(self) -> list[Range]:
        """Takes the messages that have come back too often. They have no owner until `settle` or `restore`."""
        given_up, self._given_up = ranges_of(self._given_up), []
        self.in_flight.set_apart(given_up)
        return given_up

    # ---- settling

    def begin_settling(self, owner: int, offsets: Iterable[int]) -> list[Range]:
        """Takes an owner's leases of some offsets. They have no owner until `settle`, or `restore` when that fails."""
        ranges = ranges_of(self._drop(owner, offsets))
        self.in_flight.settle(ranges)
        return ranges

    def set_apart(self, owner: int, offsets: Iterable[int]) -> list[Range]:
        """Sets given up messages apart: an owner that asks for one meanwhile has lost it."""
        ranges = ranges_of(self._drop(owner, offsets))
        self.in_flight.set_apart(ranges)
        return ranges

    def begin_purge(self, below: int) -> list[Range]:
        """Reserves all messages under `below` that are not leased, until `settle` or `restore`."""
        taken = RangeSet(self._leasable.take(_OFFSET_MAX, below))
        others = [*self._kept_back, *(self.order.remove_waiting() if self.order is not None else ())]
        self._kept_back.clear()
        for offset in others:
            taken.add(offset, offset + 1)
        self.in_flight.settle(taken)
        return list(taken)

    def claim(self, offset: int, lease: int) -> HandleClaim:
        """Takes a message from the holder of this lease; also when the lease has ended and no other began since.

        The messages taken are on their way to be settled, as after `begin_settling`.
        """
        found = self._claim(offset, lease)
        if found is HandleClaim.TAKEN:
            self.in_flight.settling.add(offset, offset + 1)
        return found

    def _claim(self, offset: int, lease: int) -> HandleClaim:
        in_flight = self.in_flight
        if offset in in_flight.settling:
            return HandleClaim.PENDING
        if self.gone or offset in in_flight.apart or offset in in_flight.unreadable or offset in self._given_up:
            return HandleClaim.LOST
        grant = self._grants.get(offset)
        if grant is not None:
            if grant.lease != lease:
                return HandleClaim.LOST
            self._drop(grant.owner, (offset,))
            return HandleClaim.TAKEN
        if offset in self._leasable:
            self._leasable.remove(offset, offset + 1)
            return HandleClaim.TAKEN
        if offset in self._kept_back or any(offset in held for held in self._held.values()):
            return HandleClaim.LOST
        return HandleClaim.TAKEN if self.order is not None and self.order.claim(offset) else HandleClaim.SETTLED

    def abandon(self, ranges: Sequence[Range]) -> None:
        """Withholds unreadable messages until the next start; their keys do not wait for them."""
        self.in_flight.abandon(ranges)
        for start, end in ranges:
            self._unmet.remove(start, end)
            for offset in range(start, end):
                self._deliveries.pop(offset, None)
                if self.order is not None:
                    self.order.remove(offset)

    def restore(self, ranges: Sequence[Range], *, delivered: bool) -> None:
        """Makes offsets available again whose settlement has failed; `delivered` says whether they had been delivered.

        Such an attempt has not failed: it counts only so that the message is known to be delivered again, and no limit
        of deliveries is reached by a store that takes no settlements for a while.
        """
        if self.gone:
            return
        self.in_flight.end(ranges)
        for start, end in ranges:
            self._make_leasable(range(start, end))
            if delivered:
                for offset in range(start, end):
                    self._deliveries[offset] = max(self.deliveries(offset), 1)

    def settle(self, ranges: Sequence[Range]) -> None:
        """Removes offsets that are settled in the log."""
        counts = self._deliveries
        self.in_flight.end(ranges)
        for start, end in ranges:
            self._leasable.remove(start, end)
            self._unmet.remove(start, end)
            if end - start < len(counts):
                for offset in range(start, end):
                    counts.pop(offset, None)
            else:
                for offset in [o for o in counts if start <= o < end]:
                    del counts[offset]
            if self.order is not None:
                self.order.settle(((start, end),))

    def waiting(self, below: int) -> int:
        """Returns how many offsets under `below` are neither settled nor leased, those kept back included."""
        known = self.order.waiting if self.order is not None else 0
        return self._leasable.count_below(below) + len(self._kept_back) + known

    @property
    def leased(self) -> int:
        """Returns how many offsets are leased, being settled, or on their way to where dead letters go."""
        held = sum(map(len, self._held.values())) + len(self._given_up)
        return held + sum(end - start for start, end in self.in_flight)

    def first_waiting(self, below: int) -> int | None:
        """Returns the lowest offset under `below` that may be leased now; of an ordered group, not looked at yet."""
        first = self._leasable.first
        return None if first is None or first >= below else first

    def deadlines(self) -> list[tuple[int, int, int]]:
        """Returns every deadline that still means something: when, and for which offsets."""
        found = [(grant.visible_at_ms, offset) for offset, grant in self._grants.items()]
        found += [(at_ms, offset) for offset, at_ms in self._kept_back.items()]
        found.sort()
        merged: list[tuple[int, int, int]] = []
        for at_ms, offset in found:
            if merged and merged[-1][0] == at_ms and merged[-1][2] == offset:
                merged[-1] = (at_ms, merged[-1][1], offset + 1)
            else:
                merged.append((at_ms, offset, offset + 1))
        return merged

    def _drop(self, owner: int, offsets: Iterable[int]) -> list[int]:
        held = self._held.get(owner)
        if held is None:
            return []
        mine = sorted(held.intersection(offsets))
        held.difference_update(mine)
        if not held:
            del self._held[owner]
        if self._grants:
            for offset in mine:
                self._grants.pop(offset, None)
        return mine
