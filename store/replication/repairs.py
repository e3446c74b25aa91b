"""The order in which damaged ranges of a log are repaired, and the replicas to ask for them. No input or output.

How to drive it. `look` takes the damages that are open now, as the log knows them, and the other replicas, those to be
asked first in front. `ask` then gives the next request, if one is due: carry it out, write the frames that come, call
`look` with the remaining damage, and `answered` with the outcome. `due_ms` says when to ask again.

A replica that is asked sends all that it has of a range, also the frames behind a part that it lacks. So it lacks the
rest of the range, and the next replica is asked for that. A range that every other replica has answered for, and that
is still not whole, is lost: no reader has to wait for it any more, and it is asked for again now and then, as a replica
may be repaired or come back.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from store.format.frame import LogOffset

RETRY_MIN_MS, RETRY_MAX_MS = 200, 2_000  # between two rounds through the replicas for a range
LOST_AGAIN_MS = 10_000  # for one that none of them has


class FrameRange(NamedTuple):
    """A range of the log, from one boundary of frames to another."""

    start: LogOffset
    end: LogOffset


class AskReplica(NamedTuple):
    """A replica is to be asked for a range."""

    replica: int
    start: LogOffset
    end: LogOffset


class RangeOutcome(Enum):
    """The outcome of a request."""

    ANSWERED = "answered"  # it has sent all that it has of the range, perhaps nothing
    FAILED = "failed"  # it was not reached, did not finish, or sent unusable frames


@dataclass(slots=True)
class _MissingRange:
    """A damaged range. `asked` are the replicas that were asked in this round."""

    range: FrameRange
    since_ms: int
    asked: dict[int, RangeOutcome] = field(default_factory=dict)
    rounds: int = 0  # that have ended without all of it
    due_ms: int = 0
    lost: bool = False  # every other replica has answered, and none has it
    silent: frozenset[int] = frozenset()  # replicas that were not reached in the last round


class Repairs:
    """The repairs of one log. Damages come and go by `look` alone."""

    def __init__(self) -> None:
        self._holes: list[_MissingRange] = []  # by log offset, disjoint
        self._peers: tuple[int, ...] = ()

    def look(self, damages: Iterable[tuple[LogOffset, LogOffset]], peers: Sequence[int], *, now_ms: int) -> None:
        """Takes the damages as they are now, and the other replicas in the order in which to ask them."""
        found = [FrameRange(start, end) for start, end in damages]
        if found != [hole.range for hole in self._holes]:
            self._holes = [self._hole(one, now_ms) for one in found]
        if set(peers) != set(self._peers):
            for hole in self._holes:
                hole.lost = hole.lost and set(peers) <= set(self._peers)
                hole.due_ms = now_ms
        self._peers = tuple(peers)
        for hole in self._holes:
            self._judge(hole, now_ms)

    def _hole(self, one: FrameRange, now_ms: int) -> _MissingRange:
        """Returns the known range, a part of it with its history, or a new one."""
        for hole in self._holes:
            if hole.range == one:
                return hole
            if hole.range.start <= one.start and one.end <= hole.range.end:
                return replace(hole, range=one, asked=dict(hole.asked), rounds=0)
        return _MissingRange(one, now_ms, due_ms=now_ms)

    def ask(self, *, now_ms: int) -> AskReplica | None:
        """Returns the next request: for the first range that is due, to the first replica not asked in this round."""
        for hole in self._holes:
            if hole.due_ms <= now_ms:
                for replica in self._peers:
                    if replica not in hole.asked:
                        return AskReplica(replica, *hole.range)
        return None

    def answered(self, ask: AskReplica, found: RangeOutcome, *, now_ms: int) -> None:
        """Ends a request; `look` has been given the remaining damage since."""
        for hole in self._holes:
            if ask.start <= hole.range.start and hole.range.end <= ask.end:
                hole.asked[ask.replica] = found
                self._judge(hole, now_ms)

    def _judge(self, hole: _MissingRange, now_ms: int) -> None:
        """Ends a round in which everybody was asked."""
        if not all(replica in hole.asked for replica in self._peers):
            return
        hole.silent = frozenset(one for one in self._peers if hole.asked[one] is RangeOutcome.FAILED)
        hole.lost = not hole.silent
        pause_ms = LOST_AGAIN_MS if hole.lost else min(RETRY_MIN_MS << min(hole.rounds, 8), RETRY_MAX_MS)
        hole.rounds += 1
        hole.due_ms = now_ms + pause_ms
        hole.asked = {}

    # ---- how it stands

    @property
    def due_ms(self) -> int | None:
        """Returns when the next request is due; None: never, as things are now."""
        return min((hole.due_ms for hole in self._holes if self._peers), default=None)

    @property
    def lost(self) -> list[FrameRange]:
        """The ranges that no other replica has."""
        return [hole.range for hole in self._holes if hole.lost]

    @property
    def repairable(self) -> bool:
        """Returns whether another replica may have some of the damaged frames."""
        return any(not hole.lost for hole in self._holes)

    def awaited(self, start: LogOffset) -> frozenset[int]:
        """Returns the replicas that were not reached for the damage at a log offset when all were asked last."""
        hole = self._hole_at(start)
        return frozenset() if hole is None else hole.silent

    def since_ms(self, start: LogOffset) -> int | None:
        """Returns since when the damage at a log offset has been known here."""
        hole = self._hole_at(start)
        return None if hole is None else hole.since_ms

    def _hole_at(self, at: LogOffset) -> _MissingRange | None:
        i = bisect_right(self._holes, at, key=lambda hole: hole.range.start) - 1
        return self._holes[i] if i >= 0 and at < self._holes[i].range.end else None
