"""A master's knowledge of one other replica."""

from dataclasses import dataclass
from typing import NamedTuple

from store.format.frame import LogOffset

NEVER_MS = -(1 << 62)


@dataclass(slots=True, kw_only=True)
class PeerStream:
    """A replica's stream since its Hello."""

    session: int
    sent: LogOffset  # acked <= sent <= the log's end
    confirmed_sent: LogOffset  # the confirmed offset that it was sent last
    received_ms: int
    ready: bool = False  # it has cut its log and waits for data
    round_sent: int = 0
    confirmed_sent_ms: int = NEVER_MS
    sent_ms: int = NEVER_MS  # when it was sent data last


class _Mark(NamedTuple):
    """The end of the master's log at a time."""

    end: LogOffset
    at_ms: int


class Peer:
    """A replica or learner. Its acknowledgements stay true when its stream ends.

    `caught_up_ms` is the last time at which the replica had the whole log. A replica that always has a batch to go
    never has the whole log of now; so a mark is set, and when it is passed there was nothing more at its time.
    """

    def __init__(self, replica: int, *, learner: bool, now_ms: int) -> None:
        self.replica = replica
        self.learner = learner
        self.stream: PeerStream | None = None
        self.acked = LogOffset(0)  # it has that much on disk
        self.round = 0  # the newest in which it followed this master
        self.lost = False  # it has lost frames that it had acknowledged
        self.damaged = False  # as it said last: its log has damage that is not repaired yet
        self.caught_up_ms = now_ms  # at first the benefit of the doubt
        self._mark = _Mark(LogOffset(0), NEVER_MS)

    @property
    def ready(self) -> bool:
        """Returns whether it can be sent data."""
        return self.stream is not None and self.stream.ready

    def greet(self, session: int, at: LogOffset, *, now_ms: int) -> None:
        """Begins a stream on which the log goes on at an offset; nothing else of the log is behind it."""
        self.stream = PeerStream(session=session, sent=at, confirmed_sent=LogOffset(0), received_ms=now_ms)
        self._mark = _Mark(self._mark.end, NEVER_MS)
        if at < self.acked:
            self.lost = True
            self.acked = at

    def acknowledge(
        self, flushed: LogOffset, round_: int, *, end: LogOffset, confirmed: LogOffset, now_ms: int
    ) -> None:
        """Notes the replica's end on disk, while the log ends at `end`, and the master's round that it answers."""
        assert self.stream is not None
        self.stream.ready = True
        self.acked = max(self.acked, flushed)
        self.round = max(self.round, round_)
        self.lost = self.lost and self.acked < confirmed
        if self.acked >= end:
            self.caught_up_ms = now_ms
        elif self.acked >= self._mark.end:
            self.caught_up_ms = max(self.caught_up_ms, self._mark.at_ms)
        if self.acked >= self._mark.end:
            self._mark = _Mark(end, now_ms)
