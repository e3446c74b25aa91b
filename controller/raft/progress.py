"""A leader's knowledge of one follower, and how much it may send it."""

import enum
from collections import deque

import msgspec

from controller.raft.messages import Index
from controller.raft.settings import RaftSettings


class ProgressState(enum.Enum):
    """The ways to send entries to a follower."""

    PROBE = "probe"  # where its log ends is not known: one message at a time
    REPLICATE = "replicate"  # as fast as it takes them (thesis, 10.2.2)
    SNAPSHOT = "snapshot"  # no entries until it has installed one


class ProgressStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader sees it."""

    state: ProgressState
    match: Index
    next: Index
    inflight: int
    active: bool  # it has answered in this election timeout or in the one before


class Progress:
    """A follower's progress. match < next, and the entries between them are in flight."""

    __slots__ = (
        "_inflight_bytes", "_match_answered", "_settings", "_snapshot_ticks", "active", "commit_sent",
        "incarnation", "inflight",
        "match", "next", "nudge", "paused", "state", "was_active",
    )  # fmt: skip

    def __init__(self, settings: RaftSettings, *, next_index: Index) -> None:
        self._settings = settings
        self.incarnation = ""  # of the node whose progress this is; empty: it is not known
        self.match: Index = 0  # the last entry on its disk that equals ours
        self.next: Index = next_index  # the first entry that it is sent next
        self.state = ProgressState.PROBE
        self.active = False  # it has answered since the last look (check-quorum)
        self.was_active = False  # the same of the time before: right after a check no node has answered yet
        self.paused = False  # probing, and the probe is in flight
        self.nudge = False  # it answers, and stands still: an empty message finds the lost entries
        self.commit_sent: Index = 0
        self.inflight: deque[tuple[Index, int]] = deque()  # last index and bytes of each message not answered
        self._inflight_bytes = 0
        self._match_answered: Index = -1  # `match` at its last answer to a heartbeat
        self._snapshot_ticks = 0  # since one was sent

    @property
    def full(self) -> bool:
        """Returns whether as much is in flight as may be."""
        settings = self._settings
        return len(self.inflight) >= settings.inflight_max or self._inflight_bytes >= settings.inflight_bytes_max

    def holds(self, last_index: Index) -> bool:
        """Returns whether the follower is known to have the whole log, which ends at `last_index`."""
        return self.state is ProgressState.REPLICATE and self.match == last_index

    def status(self) -> ProgressStatus:
        """Returns the follower's state for operators and for changes of the membership."""
        return ProgressStatus(
            state=self.state,
            match=self.match,
            next=self.next,
            inflight=len(self.inflight),
            active=self.active or self.was_active,
        )

    def begin_look(self) -> None:
        """Begins the time of the next check-quorum."""
        self.was_active, self.active = self.active, False

    def sent(self, last: Index, size_bytes: int) -> None:
        """Records that entries up to `last` are in flight; none of them when `last` is before `next`."""
        if self.state is ProgressState.PROBE:
            self.paused = True
        elif last >= self.next:
            self.inflight.append((last, size_bytes))
            self._inflight_bytes += size_bytes
            self.next = last + 1

    def acknowledged(self, index: Index, first_index: Index) -> bool:
        """Records all up to `index` as held; the leader's log begins at `first_index`. Returns whether that is news."""
        news = index > self.match
        self.match = max(self.match, index)
        if self.state is ProgressState.REPLICATE:
            self.next = max(self.next, self.match + 1)
            while self.inflight and self.inflight[0][0] <= index:
                self._inflight_bytes -= self.inflight.popleft()[1]
        elif index >= self.match and (self.state is ProgressState.PROBE or self.match + 1 >= first_index):
            self._become(ProgressState.REPLICATE, self.match + 1)
        elif self.state is ProgressState.SNAPSHOT and self.match >= self.next - 1:
            self.become_probe()  # it has the snapshot, and the log has been compacted further
        return news

    def refused(self, index: Index, hint: Index) -> None:
        """Notes that the follower lacks the entry of `index`, and all of ours after `hint`."""
        if self.state is ProgressState.REPLICATE:
            if index > self.match:
                self.become_probe()
        elif self.state is ProgressState.PROBE and index == self.next - 1:
            back = max(min(index, hint + 1), self.match + 1)
            # A follower that lacks entries that it has acknowledged is asked again with the next heartbeat, not in a
            # tight loop.
            self.paused = back == self.next
            self.next = back
            self.commit_sent = min(self.commit_sent, back - 1)

    def heartbeat_answered(self, last_index: Index) -> None:
        """Notes an answer to a heartbeat. Entries unacknowledged since the answer before may have been lost."""
        self.paused = False
        self.nudge = self.match < last_index and self.match == self._match_answered
        self._match_answered = self.match

    def become_probe(self) -> None:
        """Finds out where its log ends: something was lost, or a snapshot did not arrive."""
        self._become(ProgressState.PROBE, self.match + 1)

    def become_snapshot(self, index: Index) -> None:
        """Records that a snapshot is in flight to it."""
        self._become(ProgressState.SNAPSHOT, index + 1)

    def tick(self, count: int = 1) -> None:
        """Gives up a snapshot that has not arrived for too long."""
        if self.state is ProgressState.SNAPSHOT:
            self._snapshot_ticks += count
            if self._snapshot_ticks >= self._settings.snapshot_ticks:
                self.become_probe()

    def _become(self, state: ProgressState, next_index: Index) -> None:
        self.state = state
        self.next = next_index
        self.paused = self.nudge = False
        self.commit_sent = min(self.commit_sent, next_index - 1)
        self.inflight.clear()
        self._inflight_bytes = self._snapshot_ticks = 0
