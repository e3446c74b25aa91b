"""Linearizable reads without entries in the log (thesis, 6.4: read-index).

A read's index is the commit index when it was asked for. It holds once a majority has answered a heartbeat sent after
that: until then no other leader had been elected. Heartbeats are numbered, one number for all reads asked for since the
last one, so a thousand reads cost what one does. A new leader's commit index may be behind its predecessor's until an
entry of its own term is committed; reads wait for that first.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from controller.raft.messages import Index
from controller.raft.quorum import majority_index


class Read(NamedTuple):
    """A read asked for by a node."""

    node: int
    context: bytes


class Reads:
    """The reads of a leader's term."""

    def __init__(self) -> None:
        self.number = 0  # of the newest heartbeat
        self._early: list[Read] = []  # before the term's first commit
        self._waiting: deque[tuple[int, Index, Read]] = deque()  # by the number that confirms them, ascending
        self._answered: dict[int, int] = {}  # node -> the greatest number it has answered

    def __len__(self) -> int:
        return len(self._early) + len(self._waiting)

    def add(self, read: Read, commit: Index | None) -> None:
        """Adds a read; `commit` is None as long as the term has committed nothing."""
        if commit is None:
            self._early.append(read)
        else:
            self._waiting.append((self.number + 1, commit, read))

    def term_committed(self, commit: Index) -> None:
        """Notes that the term has committed an entry."""
        for read in self._early:
            self.add(read, commit)
        self._early.clear()

    def next_number(self) -> int | None:
        """Returns the number of a heartbeat that has to be sent now for reads, or None."""
        if not self._waiting or self._waiting[-1][0] <= self.number:
            return None
        self.number += 1
        return self.number

    def answered(self, node: int, number: int) -> None:
        """Notes that a node has answered a heartbeat."""
        self._answered[node] = max(self._answered.get(node, 0), min(number, self.number))

    def forget(self, node: int) -> None:
        """Forgets the answers of a node that has become another incarnation."""
        self._answered.pop(node, None)

    def confirmed(self, voters: Sequence[int], leader: int) -> list[tuple[Index, Read]]:
        """Returns the reads that a majority has confirmed, and forgets them."""
        if not self._waiting:
            return []
        number = majority_index([self.number if voter == leader else self._answered.get(voter, 0) for voter in voters])
        found = []
        while self._waiting and self._waiting[0][0] <= number:
            _, index, read = self._waiting.popleft()
            found.append((index, read))
        return found

    def lost(self, node: int) -> list[bytes]:
        """Returns the contexts of a node's reads that were not confirmed, when the leadership ends."""
        reads = [*self._early, *(read for _, _, read in self._waiting)]
        return [read.context for read in reads if read.node == node]
