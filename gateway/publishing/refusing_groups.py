"""The store groups that take nothing for now: a message for one of them and for others is not stored in part.

A message that goes to two groups is two frames, and only one of them may be stored. That cannot be undone, and a
publisher that is refused sends the message again. So such a message is refused before any of it is stored, as soon
as it is known that one of its groups takes nothing. A group is asked again by a frame without effect whenever a
message is refused for it.
"""

from collections.abc import Iterable
from functools import partial

from gateway.domain.errors import Cause, Refusal
from gateway.publishing.publishing import refusal_of
from store.api.client import StoreClient
from store.api.log import Appended
from store.base.errors import QueueDropped, SequenceOutOfOrder, StoreError
from store.format.frame import ROW, UnplacedFrame
from store.format.records import ADDRESSES_QUEUE, AddressesSeen, encode

RETRY_AFTER_MS = 5_000
_PASSING = frozenset(
    {Cause.OVERLOAD, Cause.UNAVAILABLE, Cause.UNKNOWN}
)  # refusals that are of the group, not the frame
_OF_FRAME = QueueDropped | SequenceOutOfOrder  # refused for the rows of a frame, or of one before it
_NOTHING = encode(AddressesSeen(()))


class RefusingGroups:
    """The groups that have refused the last frame that they were sent."""

    def __init__(self, store: StoreClient) -> None:
        self._store = store
        self._groups: dict[int, Refusal] = {}
        self._asked: set[int] = set()  # groups whose answer to a frame without effect is awaited

    def __bool__(self) -> bool:
        return bool(self._groups)

    def note(self, group: int, result: Appended | StoreError) -> None:
        """Notes the result of a frame."""
        if isinstance(result, StoreError):
            refusal = refusal_of(result)
            if refusal.cause in _PASSING and not isinstance(result, _OF_FRAME):
                self._groups[group] = refusal
        elif self._groups:
            self._groups.pop(group, None)

    def refusal(self, groups: Iterable[int]) -> Refusal | None:
        """Returns why a message that goes to some groups cannot be stored now; None if all of them take it."""
        wanted = set(groups)
        away = sorted(wanted & self._groups.keys()) if len(wanted) > 1 else ()
        for group in away:
            self._ask(group)
        if not away:
            return None
        detail = f"store group {away[0]} takes nothing for now, so nothing is stored: {self._groups[away[0]].detail}"
        return Refusal(Cause.UNAVAILABLE, detail, retry_after_ms=RETRY_AFTER_MS)

    def _ask(self, group: int) -> None:
        store = self._store.logs.get(group)
        if group in self._asked or store is None:
            return
        self._asked.add(group)
        row = ROW.pack(ADDRESSES_QUEUE, 0, len(_NOTHING), 0, 0, 0, 0, 0)
        store.log.append(UnplacedFrame.build(row, _NOTHING), partial(self._answered, group))

    def _answered(self, group: int, result: Appended | StoreError) -> None:
        self._asked.discard(group)
        self.note(group, result)
