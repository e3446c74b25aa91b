"""The storage from which the core reads its past, and in which the driver keeps the core's entries and state."""

from collections.abc import Sequence
from typing import Protocol

from controller.raft.errors import Compacted
from controller.raft.membership import Membership
from controller.raft.messages import Entry, HardState, Index, Snapshot, Term, entry_bytes
from controller.raft.ready import Ready


def first_snapshot(membership: Membership, data: bytes = b"") -> Snapshot:
    """Returns the snapshot with which all of a new cluster's first members begin; later ones begin with nothing.

    It stands at index 1, so a node that begins with nothing is sent it (or a newer one) and never has to guess the
    first members. They are named with their incarnations, so one of them has asked all others for these.
    """
    return Snapshot(index=1, term=1, membership=membership, data=data)


class Storage(Protocol):
    """A node's durable state. The core reads; `save` is the driver's, and must be on disk when it returns.

    Entries lie in `first_index()` to `last_index()`, without gaps, and the snapshot's index in `first_index() - 1` to
    `last_index()`. The core never asks for an entry that it has not seen saved, and may ask while `save` runs in
    another thread.
    """

    def incarnation(self) -> str:
        """Returns the name that tells this memory from any other of the same id; made with it, never given again."""

    def legacy(self) -> bool:
        """Returns whether it held something before it had an incarnation: others may not know that one yet."""

    def renew(self, incarnation: str) -> None:
        """Becomes a new incarnation with the same log, unknown to the others. Raises `StorageFailed`."""

    def keep(self) -> None:
        """Keeps this incarnation in a directory that was copied. Raises `StorageFailed`."""

    def hard_state(self) -> HardState:
        """Returns term, vote and commit index."""

    def snapshot(self) -> Snapshot:
        """Returns the newest snapshot; index 0 where there is none."""

    def first_index(self) -> Index:
        """Returns the least index that is held, or would be."""

    def last_index(self) -> Index:
        """Returns the greatest index that is held, or `first_index() - 1`."""

    def term(self, index: Index) -> Term:
        """Returns the term of an entry in `first_index() - 1` to `last_index()`. Raises `Compacted` for others."""

    def entries(self, low: Index, high: Index, bytes_max: int) -> Sequence[Entry]:
        """Returns entries from `low` to before `high`: at least one, no more than `bytes_max`. Raises `Compacted`."""

    def save(self, ready: Ready) -> None:
        """Stores the state of a `Ready`, all of it or nothing. Raises `StorageFailed`.

        In this order: a snapshot takes the place of everything before and after it; a compaction puts its snapshot in
        place and drops entries; entries replace all from their first index on; the hard state.
        """


class MemoryStorage:
    """A `Storage` that forgets with its process."""

    def __init__(self, snapshot: Snapshot | None = None, incarnation: str = "", *, legacy: bool = False) -> None:
        self._incarnation = incarnation
        self._legacy = legacy or not incarnation
        self._snapshot = snapshot or Snapshot()
        self._hard = HardState(term=self._snapshot.term, commit=self._snapshot.index)
        self._base = (self._snapshot.index, self._snapshot.term)  # of the entry before the first
        self._entries: list[Entry] = []

    def incarnation(self) -> str:
        """Returns the name that tells this memory from others of the same id."""
        return self._incarnation

    def legacy(self) -> bool:
        """Returns whether others may not know the incarnation yet."""
        return self._legacy

    def renew(self, incarnation: str) -> None:
        """Becomes a new incarnation, unknown to the others."""
        self._incarnation, self._legacy = incarnation, False

    def keep(self) -> None:
        """Keeps this incarnation."""

    def hard_state(self) -> HardState:
        """Returns term, vote and commit index."""
        return self._hard

    def snapshot(self) -> Snapshot:
        """Returns the newest snapshot."""
        return self._snapshot

    def first_index(self) -> Index:
        """Returns the least index that is held, or would be."""
        return self._base[0] + 1

    def last_index(self) -> Index:
        """Returns the greatest index that is held."""
        return self._base[0] + len(self._entries)

    def term(self, index: Index) -> Term:
        """Returns the term of an entry. Raises `Compacted`."""
        at = index - self._base[0]
        if at == 0:
            return self._base[1]
        if not 0 < at <= len(self._entries):
            raise Compacted(f"entry {index} is not held")
        return self._entries[at - 1].term

    def entries(self, low: Index, high: Index, bytes_max: int) -> Sequence[Entry]:
        """Returns entries from `low` to before `high`. Raises `Compacted`."""
        if not self._base[0] < low < high <= self.last_index() + 1:
            raise Compacted(f"entries {low} to {high} are not held")
        return bounded(self._entries[low - self._base[0] - 1 : high - self._base[0] - 1], bytes_max)

    def save(self, ready: Ready) -> None:
        """Stores the state of a `Ready`."""
        if ready.snapshot is not None:
            self._snapshot = ready.snapshot
            self._base, self._entries = (ready.snapshot.index, ready.snapshot.term), []
        elif ready.compaction is not None:
            self._snapshot = ready.compaction.snapshot
            first = ready.compaction.first_index
            self._base, self._entries = (first - 1, self.term(first - 1)), self._entries[first - self._base[0] - 1 :]
        if ready.entries:
            at = ready.entries[0].index - self._base[0] - 1
            assert 0 <= at <= len(self._entries), "a gap in the log"
            self._entries[at:] = ready.entries
        if ready.hard_state is not None:
            self._hard = ready.hard_state


def bounded(entries: Sequence[Entry], bytes_max: int) -> Sequence[Entry]:
    """Returns the first of these entries that have no more than `bytes_max`, and at least one."""
    total = 0
    for count, entry in enumerate(entries):
        total += entry_bytes(entry)
        if total > bytes_max:
            return entries[: max(1, count)]
    return entries
