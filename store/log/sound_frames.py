"""Places inside frames that were sound when they were read, by which a log knows that nothing is damaged there."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from store.format.frame import Frame, LogOffset
from store.log.segment import BadRange

KNOWN_COUNT_MAX = 1_000
MARK_BYTES = 1 << 20  # from one boundary that is known to the next: so much is read to look at a place again
MARKS_COUNT_MAX = 1 << 16


class SoundFrame(NamedTuple):
    """The place of a frame that was sound when it was read."""

    start: LogOffset
    end: LogOffset


class SoundFrames:
    """The frames around log offsets at which none begins, and where somebody looked for one. Any thread may use it.

    Where frames begin is known for some of each segment that was looked at: clients may name many places.
    """

    def __init__(self) -> None:
        self._known: dict[LogOffset, SoundFrame] = {}  # len <= KNOWN_COUNT_MAX
        self._marks: dict[LogOffset, tuple[LogOffset, ...]] = {}  # ascending, by segment; replaced, never changed

    def find(
        self, at: LogOffset, segment: LogOffset, scanned: Callable[[LogOffset], Iterator[Frame | BadRange]]
    ) -> SoundFrame | BadRange:
        """Returns the frame that a log offset is in, or the damage, by a scan from a frame of its segment.

        Where there is neither, as retention was faster, the frame is empty. One that begins there is looked at each
        time: it may be damaged later.
        """
        if (known := self._known.get(at)) is not None:
            return known
        found = self._look(at, segment, scanned)
        if found is None or found.start > at:
            return SoundFrame(at, at)
        if isinstance(found, BadRange):
            return found
        sound = SoundFrame(found.start, found.end)
        if sound.start < at:
            if len(self._known) >= KNOWN_COUNT_MAX:
                self._known.clear()
            self._known[at] = sound
        return sound

    def _look(
        self, at: LogOffset, segment: LogOffset, scanned: Callable[[LogOffset], Iterator[Frame | BadRange]]
    ) -> Frame | BadRange | None:
        marks = [*self._marks.get(segment, (segment,))]
        before, found = len(marks), None
        for item in scanned(marks[bisect_right(marks, at) - 1]):
            if isinstance(item, Frame) and marks[-1] + MARK_BYTES <= item.start <= at:
                marks.append(item.start)
            if item.end > at:
                found = item
                break
        if len(marks) > before:
            others = sum(len(one) for start, one in list(self._marks.items()) if start != segment)
            if others + len(marks) > MARKS_COUNT_MAX:
                self._marks = {}
            self._marks[segment] = tuple(marks)
        return found
