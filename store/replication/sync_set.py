"""The SyncStateSet as its master knows it: the one in force, and the one that may be in force already."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from store.replication.pace import ReplicationPace
from store.replication.peer import NEVER_MS


class AlterSet(NamedTuple):
    """The controller is asked to put a set in force, if none other was since `sync_epoch`. Idempotent."""

    group: int
    master: int
    master_epoch: int
    sync_epoch: int
    sync_set: frozenset[int]


class SyncSet:
    """The set in force and the one asked for: until the controller has answered, either may be in force and both count.

    Changes are made one after the other. The question is put again until there is an answer, always the same one, and
    the controller takes it at most once: it names the `epoch` of the set that it replaces.
    """

    def __init__(self, members: Collection[int], epoch: int, pace: ReplicationPace) -> None:
        self.members = frozenset(members)
        self.epoch = epoch
        self.pending: frozenset[int] | None = None
        self._pace = pace
        self._asked_ms = NEVER_MS
        self._not_before_ms = NEVER_MS
        self._contacted_ms = NEVER_MS

    def both(self) -> Sequence[frozenset[int]]:
        """Returns the candidate sets; one is in force."""
        return (self.members,) if self.pending is None else (self.members, self.pending)

    def all(self) -> frozenset[int]:
        """Returns the replicas that are in one of the sets."""
        return self.members | (self.pending or frozenset())

    def may_change(self, *, now_ms: int) -> bool:
        """Returns whether another set can be wanted now."""
        return self.pending is None and now_ms >= self._not_before_ms

    def may_grow(self, *, now_ms: int) -> bool:
        """Returns whether the controller has answered lately.

        While a request has no answer, every acknowledgement waits for the new members as well. A smaller set has no new
        member to wait for.
        """
        return now_ms - self._contacted_ms <= self._pace.fresh_ms

    def want(self, members: Collection[int]) -> None:
        """Begins to ask for another set."""
        assert self.pending is None
        self.pending = frozenset(members)
        self._asked_ms = NEVER_MS

    def due(self, *, now_ms: int) -> frozenset[int] | None:
        """Returns the set to ask the controller for now; None: there is none, or it was asked for a moment ago."""
        if self.pending is None or now_ms - self._asked_ms < self._pace.retry_ms:
            return None
        self._asked_ms = now_ms
        return self.pending

    def contacted(self, *, now_ms: int) -> None:
        """Notes that the controller has answered something."""
        self._contacted_ms = max(now_ms, self._contacted_ms)

    def altered(self, members: Collection[int], epoch: int) -> bool:
        """Notes the set in force, and returns whether it is new. A pending change was this one, or comes too late."""
        if epoch <= self.epoch:
            return False
        self.members, self.epoch, self.pending = frozenset(members), epoch, None
        return True

    def refused(self, epoch: int, *, now_ms: int) -> frozenset[int]:
        """Drops the pending set, which will never be in force, and returns the members that it would have added.

        Where there are none, no other set is wanted for a while.
        """
        if epoch != self.epoch or self.pending is None:
            return frozenset()
        added, self.pending = self.pending - self.members, None
        if not added:
            self._not_before_ms = now_ms + self._pace.refused_ms
        return added
