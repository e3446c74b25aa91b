"""Reading ranges: the view in one transaction, overlaid with newer changes, so that a page is of one revision."""

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import filterfalse
from typing import Final, NamedTuple

from store.api.keys import HOLD_MS, Entry, Page
from store.api.kv_rules import SlotContent
from store.base.errors import RevisionCompacted, TooManyHolds
from store.views import Views
from store.views.snapshots import ViewsSnapshot

PAGE_BYTES: Final = 4 << 20  # of keys and values in a page; the entry that reaches it is its last
HOLDS_COUNT_MAX: Final = 32  # each keeps the view's pages of its time from being used again


class KeysAtRevision(NamedTuple):
    """All keys at one revision: those of `snapshot`, and over them the changes it lacks (`GONE`: no such key)."""

    snapshot: ViewsSnapshot
    views: Views
    over: Mapping[bytes, SlotContent]
    revision: int
    now_ms: int

    def slots(self, txn: object, first: bytes, end: bytes) -> Iterator[tuple[bytes, SlotContent]]:
        """Yields the slots from one to another that hold something and have not expired."""
        over, now_ms = self.over, self.now_ms
        stored = filterfalse(lambda item: item[0] in over, self.views.kv.slots(txn, first, end))
        added = sorted((at, held) for at, held in over.items() if first <= at < end)
        return (item for item in merge(stored, added) if item[1].live(now_ms))

    def page(self, first: bytes, end: bytes, after: bytes, limit: int) -> Page:
        """Returns a page; may wait for a disk."""
        entries: list[Entry] = []
        size = 0
        with self.snapshot.reading() as txn:
            for at, held in self.slots(txn, max(first, after), end):
                if at == after:
                    continue
                if len(entries) >= limit or size >= PAGE_BYTES:
                    return Page(entries, self.revision, more=True)
                entries.append(held.entry(at))
                size += len(at) + len(held.value)
        return Page(entries, self.revision, more=False)

    def number(self, first: bytes, end: bytes) -> int:
        """Returns how many entries there are; may wait for a disk."""
        with self.snapshot.reading() as txn:
            return sum(1 for _ in self.slots(txn, first, end))


class _Hold:
    """A state, how many asked for it, and when it was last read."""

    __slots__ = ("count", "read_ms", "state")

    def __init__(self, state: KeysAtRevision, now_ms: int) -> None:
        self.state = state
        self.count = 0
        self.read_ms = now_ms


class Holds:
    """The states that pages can be read of. Belongs to the thread of the event loop.

    A revision may be held again after its state was released unread. The first releases are of the holders from before:
    theirs come late, and must not end the holds of others.
    """

    def __init__(self) -> None:
        self._holds: dict[int, _Hold] = {}
        self._late: Counter[int] = Counter()  # by revision: holders of before that have not released it

    def check(self) -> None:
        """Raises `TooManyHolds` where there is no room for one more."""
        if len(self._holds) >= HOLDS_COUNT_MAX:
            raise TooManyHolds(f"{HOLDS_COUNT_MAX} states are held")

    def add(self, state: KeysAtRevision, now_ms: int) -> int:
        """Keeps a state; its revision."""
        hold = self._holds.get(state.revision)
        if hold is not None:
            state.snapshot.close()
        else:
            hold = self._holds[state.revision] = _Hold(state, now_ms)
        hold.count += 1
        hold.read_ms = now_ms
        return state.revision

    def get(self, revision: int, now_ms: int) -> KeysAtRevision:
        """Returns the state at a revision. Raises `RevisionCompacted` when it is not held."""
        hold = self._holds.get(revision)
        if hold is None:
            raise RevisionCompacted(revision, min(self._holds, default=revision + 1))
        hold.read_ms = now_ms
        return hold.state

    def release(self, revision: int) -> None:
        """Counts one holder less."""
        if revision in self._late:
            self._late[revision] -= 1
            if not self._late[revision]:
                del self._late[revision]
            return
        hold = self._holds.get(revision)
        if hold is not None:
            hold.count -= 1
            if hold.count <= 0:
                self._end(revision)

    def _end(self, revision: int) -> None:
        self._holds.pop(revision).state.snapshot.close()

    def tick(self, now_ms: int) -> int | None:
        """Releases holds that are not read, and returns when to look again."""
        for revision, hold in list(self._holds.items()):
            if now_ms - hold.read_ms >= HOLD_MS:
                self._late[revision] += hold.count
                self._end(revision)
        return min((hold.read_ms for hold in self._holds.values()), default=now_ms) + HOLD_MS if self._holds else None

    def close(self) -> None:
        """Releases all of them."""
        for revision in list(self._holds):
            self._end(revision)
