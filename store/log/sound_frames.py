"""Places inside frames that were sound when they were read, by which a log knows that nothing is damaged there."""

from collections.abc import Iterator
from typing import NamedTuple

from store.format.frame import Frame, LogOffset
from store.log.segment import BadRange

KNOWN_COUNT_MAX = 1_000


class SoundFrame(NamedTuple):
    """The place of a frame that was sound when it was read."""

    start: LogOffset
    end: LogOffset


class SoundFrames:
    """The frames around log offsets at which none begins, and where somebody looked for one. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[LogOffset, SoundFrame] = {}  # len <= KNOWN_COUNT_MAX

    def find(self, at: LogOffset, scanned: Iterator[Frame | BadRange]) -> SoundFrame | BadRange:
        """Returns the frame that a log offset is in, or the damage, by a scan that begins at or before it.

        Where there is neither, as retention was faster, the frame is empty. One that begins there is looked at each
        time: it may be damaged later.
        """
        if (known := self._known.get(at)) is not None:
            return known
        found = next((item for item in scanned if item.end > at), None)
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
