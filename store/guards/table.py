"""Decides which guards of a frame hold, from the views and from the frames that the views lack."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from store.api.kv_rules import KeySpace, SlotContent, slot
from store.format.frame import FRAME_GUARDED, LogOffset, UnplacedFrame
from store.guards.rows import ONCES, Guard, epoch_in, guards_of, without

ONCE_KEYS_MAX = 1_000_000  # keys of requests that one log remembers; beyond, requests with new ones are not stored
FENCES_SEEN_MAX = 8_192  # epochs kept at hand: a look into the views takes 5 us


class ViewQueries(NamedTuple):
    """The functions that query the views."""

    held: Callable[[bytes], SlotContent | None]  # the content of a slot of the key-value view
    space: Callable[[str], KeySpace]
    dispatched: Callable[[], LogOffset]  # how far they have come


class Admitted(NamedTuple):
    """A frame as it is to be stored, the rows of guards that have failed, and the guards that hold."""

    frame: UnplacedFrame
    failed: Sequence[int]
    holding: Sequence[Guard]


class _UnviewedStatement(NamedTuple):
    """A frame's statement on a name. The views have it once they have come to the frame's end."""

    frame: LogOffset
    row: int
    epoch: int


class GuardTable:
    """Decides for each guard whether the rows that it covers are stored. Belongs to the commit thread.

    The log's own order decides: a guard depends on the content of the frames in front of it.
    """

    def __init__(self, kept: ViewQueries) -> None:
        self._kept = kept
        self._ahead: OrderedDict[tuple[bool, bytes], _UnviewedStatement] = OrderedDict()  # in the order of frames
        self._seen: dict[bytes, int] = {}  # epochs as the views have them; at most FENCES_SEEN_MAX
        self._added: list[
            tuple[tuple[bool, bytes], _UnviewedStatement | None]
        ] = []  # since `keep`, and the values they replaced

    def admit(self, frame: UnplacedFrame, now_ms: int) -> Admitted:
        """Returns a new frame as it is to be stored, and which of its guards hold."""
        guards = guards_of(frame.rows)
        failed = self._failed(guards, None, now_ms)
        if not failed:
            return Admitted(frame, (), guards)
        rows = tuple([guard.row for guard in failed])
        return Admitted(without(frame, failed), rows, [guard for guard in guards if guard.row not in rows])

    def failed(self, frame: UnplacedFrame, stored: LogOffset, now_ms: int) -> Sequence[int]:
        """Returns the rows of the guards that fail in a frame which was stored before and is sent again.

        A fence is compared anew: the sender is not the owner any more, whatever became of the rows.
        """
        return tuple([guard.row for guard in self._failed(guards_of(frame.rows), stored, now_ms)])

    def _failed(self, guards: Sequence[Guard], stored: LogOffset | None, now_ms: int) -> list[Guard]:
        failed: list[Guard] = []
        keys: set[bytes] = set()  # that guards in front of one in the same frame have brought
        for guard in guards:
            if not guard.once:
                holds = guard.epoch >= self._epoch(guard.name)
            elif stored is None:
                holds = guard.name not in keys and self._place_of(guard, now_ms) is None and self._has_room
                keys.add(guard.name)
            else:
                holds = self._place_of(guard, now_ms) == (stored, guard.row)
            if not holds:
                failed.append(guard)
        return failed

    def add(self, guards: Sequence[Guard], start: LogOffset) -> None:
        """Notes the effects of guards that hold, of a frame that was given its place."""
        self._trim()
        for guard in guards:
            if guard.once or guard.epoch > self._epoch(guard.name):
                key = guard.once, guard.name
                self._added.append((key, self._ahead.pop(key, None)))
                self._ahead[key] = _UnviewedStatement(start, guard.row, guard.epoch)

    def follow(self, frame: UnplacedFrame, start: LogOffset) -> None:
        """Notes the guards of a frame that is in the log already."""
        if frame.flags & FRAME_GUARDED:
            self.add(guards_of(frame.rows), start)
            self.keep()

    def keep(self) -> None:
        """Keeps the additions, as they are stored: they are not taken back any more."""
        self._added.clear()

    def take_back(self) -> None:
        """Undoes the additions since the last `keep`: they were not stored after all."""
        for key, before in reversed(self._added):
            self._ahead.pop(key, None)
            if before is not None:
                self._ahead[key] = before
        self._added.clear()
        self._ahead = OrderedDict(sorted(self._ahead.items(), key=lambda item: item[1].frame))

    def _trim(self) -> None:
        dispatched = self._kept.dispatched()
        ahead = self._ahead
        while ahead and (oldest := next(iter(ahead.items())))[1].frame < dispatched and not self._added:
            del ahead[oldest[0]]
            self._seen.pop(oldest[0][1], None)

    def _epoch(self, name: bytes) -> int:
        """Returns the epoch of a name's newest owner, as far as it has raised its fence; 0 when none has."""
        ahead = self._ahead.get((False, name))
        if ahead is not None:
            return ahead.epoch
        seen = self._seen.get(name)
        if seen is None:
            held = self._held(Guard(0, 0, name, 0, once=False))
            seen = 0 if held is None else epoch_in(held.value)
            if len(self._seen) >= FENCES_SEEN_MAX:
                self._seen.clear()
            self._seen[name] = seen
        return seen

    def _place_of(self, guard: Guard, now_ms: int) -> tuple[int, int] | None:
        """Returns the frame and the row that have brought a key, None when it is not there."""
        ahead = self._ahead.get((True, guard.name))
        if ahead is not None:
            return ahead.frame, ahead.row
        held = self._held(guard)
        if held is None or not held.live(now_ms):
            return None
        return (held.revision - 1 - guard.row, guard.row)  # its frame, if it is that of the same row

    def _held(self, guard: Guard) -> SlotContent | None:
        return self._kept.held(slot(*guard.slot))

    @property
    def _has_room(self) -> bool:
        return self._kept.space(ONCES).keys + len(self._ahead) < ONCE_KEYS_MAX
