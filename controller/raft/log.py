"""The log as the core sees it: entries on disk, then entries that are not on disk yet (etcd: raftLog, unstable)."""

from collections.abc import Sequence

from controller.raft.errors import BadMessage, Compacted
from controller.raft.membership import History, decode_change
from controller.raft.messages import Entry, EntryKind, Index, Snapshot, Term, entry_bytes
from controller.raft.ready import Ready
from controller.raft.settings import RaftSettings
from controller.raft.storage import Storage, bounded

_OBJECTS_BYTES = 144  # of the objects of an entry in memory, besides its data


def _memory_bytes(entry: Entry) -> int:
    return entry_bytes(entry) + _OBJECTS_BYTES


class Log:
    """Entries by index. applied <= committed <= last, and stable <= last."""

    def __init__(self, storage: Storage, settings: RaftSettings) -> None:
        snapshot = storage.snapshot()
        self._storage = storage
        self._settings = settings
        self.snapshot_index = snapshot.index  # of the newest snapshot, on disk or on the way there
        self.pending: Snapshot | None = None  # from the leader, not on disk yet
        self.committed: Index = max(storage.hard_state().commit, snapshot.index)
        self.applied: Index = snapshot.index
        self.stable: Index = storage.last_index()  # all up to it is on disk
        self.tail: list[Entry] = []  # the newest entries: all that are not on disk, and some that are
        self._tail_bytes = 0
        self.offset: Index = self.stable + 1  # of the tail's first
        self.history = self._read_history(snapshot)
        assert self.committed <= self.stable

    @property
    def first_index(self) -> Index:
        """The least index of an entry that can be had."""
        return self.pending.index + 1 if self.pending is not None else self._storage.first_index()

    @property
    def last_index(self) -> Index:
        """The greatest index."""
        return self.offset + len(self.tail) - 1

    @property
    def last_term(self) -> Term:
        """The term of the last entry, or of the snapshot."""
        term = self.term(self.last_index)
        assert term is not None
        return term

    @property
    def has_work(self) -> bool:
        """Returns whether anything is to be written or applied."""
        return self.pending is not None or self.stable < self.last_index or self.applied < self.committed

    def term(self, index: Index) -> Term | None:
        """Returns the term of an entry in `first_index - 1` to `last_index`, None for others."""
        if index >= self.offset:
            return self.tail[index - self.offset].term if index <= self.last_index else None
        if self.pending is not None:
            return self.pending.term if index == self.pending.index else None
        try:
            return self._storage.term(index)
        except Compacted:
            return None

    def entries(self, low: Index, high: Index, bytes_max: int) -> Sequence[Entry]:
        """Returns entries from `low` to before `high`, at least one, no more than `bytes_max`. Raises `Compacted`."""
        if low >= self.offset:
            return bounded(self.tail[low - self.offset : high - self.offset], bytes_max)
        if self.pending is not None:
            raise Compacted(f"entry {low} lies before a snapshot")
        return self._storage.entries(low, min(high, self.offset), bytes_max)

    # ---- growing

    def append(self, entries: Sequence[Entry]) -> None:
        """Adds entries, in place of all from the first one's index on. Committed entries are never replaced."""
        first = entries[0].index
        assert self.committed < first <= self.last_index + 1
        if first < self.offset:
            self.tail, self._tail_bytes, self.offset = [], 0, first
        elif first <= self.last_index:
            self._tail_bytes -= sum(map(_memory_bytes, self.tail[first - self.offset :]))
            del self.tail[first - self.offset :]
        self.stable = min(self.stable, first - 1)
        self.history.cut(first)
        self.tail.extend(entries)
        for entry in entries:
            self._tail_bytes += _memory_bytes(entry)
            if entry.kind is EntryKind.CHANGE:
                self.history.append(entry.index, decode_change(entry.data))

    def try_append(self, prev_index: Index, prev_term: Term, entries: Sequence[Entry]) -> Index | None:
        """Takes a leader's entries if ours agrees up to `prev_index` (paper, 5.3): the last index then equal, or None.

        Raises `BadMessage` if that would replace a committed entry, which no correct leader asks for.
        """
        if self.term(prev_index) != prev_term:
            return None
        for at, entry in enumerate(entries):
            if self.term(entry.index) != entry.term:
                if entry.index <= self.committed:
                    raise BadMessage(f"entry {entry.index} is committed, and another is sent in its place")
                self.append(entries[at:])
                break
        return prev_index + len(entries)

    def commit_to(self, index: Index) -> bool:
        """Commits all up to `index`, which must be there. Returns whether that is news."""
        assert index <= self.last_index
        if index <= self.committed:
            return False
        self.committed = index
        return True

    def restore(self, snapshot: Snapshot) -> None:
        """Begins anew after a snapshot of the leader's."""
        assert snapshot.index > self.committed
        self.pending = snapshot
        self.snapshot_index = self.committed = self.stable = snapshot.index
        self.tail, self._tail_bytes, self.offset = [], 0, snapshot.index + 1
        self.history = History(snapshot.index, snapshot.membership)

    def last_not_above(self, index: Index, term: Term) -> tuple[Index, Term]:
        """Returns the greatest index up to `index` whose term is not above `term`, and its term: logs may agree there.

        Terms never fall along a log, so this is a binary search. Below the known entries: that index, and term 0.
        """
        low, high = self.first_index - 1, min(index, self.last_index)
        found = self.term(low)
        if low > high or found is None or found > term:
            return max(min(low, high + 1) - 1, 0), 0
        while low < high:
            middle = (low + high + 1) // 2
            at = self.term(middle)
            if at is None:  # compacted a moment ago
                return middle, 0
            if at <= term:
                low, found = middle, at
            else:
                high = middle - 1
        return low, found

    def is_up_to_date(self, index: Index, term: Term) -> bool:
        """Returns whether a log that ends with this entry is at least as up to date as ours (paper, 5.4.1)."""
        return (term, index) >= (self.last_term, self.last_index)

    # ---- to disk, and to the state machine

    def unstable(self) -> tuple[Entry, ...]:
        """Returns the entries that are not on disk yet."""
        return tuple(self.tail[self.stable + 1 - self.offset :])

    def to_apply(self) -> tuple[Entry, ...]:
        """Returns the entries that are committed and not applied, as many as one `Ready` may hold."""
        low = max(self.applied, self.pending.index if self.pending is not None else 0) + 1
        if low > self.committed:
            return ()
        return tuple(self.entries(low, self.committed + 1, self._settings.apply_bytes_max))

    def saved(self, ready: Ready) -> None:
        """Records that a `Ready` is on disk now. Some of it may have been replaced in the meantime."""
        if ready.compaction is not None:
            self.history.forget(ready.compaction.snapshot.index)
        if ready.snapshot is not None and ready.snapshot is self.pending:
            self.pending = None
        if self.pending is not None:
            return  # it will replace the saved entries
        for entry in reversed(ready.entries):
            if entry.index >= self.offset and self.term(entry.index) == entry.term:
                self.stable = max(self.stable, entry.index)  # logs are equal up to an entry they share
                break

    def applied_to(self, index: Index) -> None:
        """Notes that all up to `index` is applied."""
        assert index <= self.committed
        self.applied = max(self.applied, index)
        if self._tail_bytes > 2 * self._settings.cache_bytes_max:
            self._shrink()

    def _read_history(self, snapshot: Snapshot) -> History:
        """Returns the memberships of the entries on disk."""
        history = History(snapshot.index, snapshot.membership)
        low = snapshot.index + 1
        while low <= self.stable:
            for entry in self._storage.entries(low, self.stable + 1, self._settings.apply_bytes_max):
                if entry.kind is EntryKind.CHANGE:
                    history.append(entry.index, decode_change(entry.data))
                low += 1
        return history

    def _shrink(self) -> None:
        """Forgets the oldest that can be read again."""
        count = 0
        for entry in self.tail[: max(0, min(self.applied, self.stable) + 1 - self.offset)]:
            if self._tail_bytes <= self._settings.cache_bytes_max:
                break
            self._tail_bytes -= _memory_bytes(entry)
            count += 1
        del self.tail[:count]
        self.offset += count
