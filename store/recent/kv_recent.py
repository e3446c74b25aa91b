"""The key-value store ahead of its view: the changes that are confirmed and may not be in LMDB yet."""

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol

from store.api.kv_rules import GONE, KeySpace, KvRecord, SlotContent, Verdict, apply, changes_of, revision
from store.format.frame import LogOffset, Position
from store.recent.kv_feed import Feeds
from store.recent.pending import Pending
from store.views import Views


class StoredKeys(Protocol):
    """The content of the view."""

    def get(self, at: bytes) -> SlotContent | None:
        """Returns a slot's content."""

    def space(self, namespace: str) -> KeySpace:
        """Returns a namespace's size and limits."""


class Lookups:
    """`StoredKeys` for the time of a `with`: one transaction for all questions, begun at the first."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._state: StoredKeys | None = None
        self._open = ExitStack()

    def __enter__(self) -> "Lookups":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def _begin(self) -> StoredKeys:
        state: StoredKeys = self._views.kv.state(self._open.enter_context(self._views.reading()))
        self._state = state
        return state

    def get(self, at: bytes) -> SlotContent | None:
        """See `StoredKeys.get`."""
        return (self._state or self._begin()).get(at)

    def space(self, namespace: str) -> KeySpace:
        """See `StoredKeys.space`."""
        return (self._state or self._begin()).space(namespace)


class KvRecent:
    """A `store.api.kv_rules.KeyState` that is changed in memory, and tells those who watch."""

    def __init__(self) -> None:
        self.feeds = Feeds()
        self.on_expiry: Callable[[int], Any] = lambda _: None  # told when a key that was put expires
        self._slots: Pending[bytes, SlotContent] = Pending()
        self._spaces: Pending[str, KeySpace] = Pending()
        self._voids: Pending[int, bytes] = Pending()
        self._stored: StoredKeys  # while a record is applied
        self._frame = LogOffset(0)  # likewise

    # ---- following the log

    def add(self, at: Position, record: KvRecord, stored: StoredKeys, stored_at_ms: int) -> Verdict:
        """Applies the next record; `stored` is the view as it is before this run."""
        self._stored, self._frame = stored, at.frame
        number = revision(at)
        verdict = apply(self, number, record, stored_at_ms)
        if verdict.void is not None:
            self._voids.put(at.frame, number, verdict.void)
        if self.feeds:
            for namespace, change in changes_of(number, record, verdict.void):
                self.feeds.add(namespace, change)
        return verdict

    def trim(self, dispatched: LogOffset) -> None:
        """Frees the slots that the view has now."""
        for pending in (self._slots, self._spaces, self._voids):
            pending.trim(dispatched)

    # ---- State

    def get(self, at: bytes) -> SlotContent | None:
        """Returns a slot's content."""
        held = self._slots.get(at)
        if held is None:
            return self._stored.get(at)
        return held if held.revision else None

    def put(self, at: bytes, held: SlotContent, before: SlotContent | None) -> None:
        """Replaces it."""
        self._slots.put(self._frame, at, held)
        if held.expires_at_ms:
            self.on_expiry(held.expires_at_ms)

    def remove(self, at: bytes, before: SlotContent) -> None:
        """Removes it."""
        self._slots.put(self._frame, at, GONE)

    def space(self, namespace: str) -> KeySpace:
        """Returns a namespace's size and limits."""
        space = self._spaces.get(namespace)
        return space if space is not None else self._stored.space(namespace)

    def set_space(self, namespace: str, space: KeySpace) -> None:
        """Sets a namespace's size and limits."""
        self._spaces.put(self._frame, namespace, space)

    # ---- reading

    def slot(self, at: bytes) -> SlotContent | None:
        """Returns the new content of a slot: `GONE` when it was emptied, None when the view has it."""
        return self._slots.get(at)

    def all_slots(self) -> dict[bytes, SlotContent]:
        """Returns the new contents of all slots that the view may not have, `GONE` included."""
        return dict(self._slots.items())

    def next_due_ms(self) -> int | None:
        """Returns when the first of the keys expires that the view may not have."""
        return min((held.expires_at_ms for _, held in self._slots.items() if held.expires_at_ms), default=None)

    def spaces(self) -> dict[str, KeySpace]:
        """Returns the changed namespaces' sizes and limits."""
        return dict(self._spaces.items())

    def voids(self) -> dict[int, bytes]:
        """Returns the records that did less than they say: revision and `Verdict.void`."""
        return dict(self._voids.items())
