"""A store group's log in memory, for tests of what reads it: live, behind, and out of reach."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from store.api.message import Message, encode
from store.base.errors import StoreUnreachable
from store.format.frame import ROW, Frame, LogOffset, Position, UnplacedFrame, group_of, origin_of
from tests.support.store.store_kit import placed

FRAMES_READ = 2  # at most, by a scan: so that a catch-up takes several


class MemoryLog:
    """One group's log, confirmed as soon as it is written, and a store that has it alone.

    While it is `down` scans fail and its tail is silent; `hear` makes up for that. While it is `unknown` it cannot tell
    its confirmed offset.
    """

    def __init__(self, group: int = 0) -> None:
        self.group = group
        self.logs = {group: self}
        self.log = self
        self.frames: list[Frame] = []
        self.end = origin_of(group)
        self.listeners: list[Callable[[list[Frame]], None]] = []
        self.down = self.unknown = False
        self.unheard: list[Frame] = []
        self.scanned: list[Sequence[int] | None] = []  # the queues of each scan

    @property
    def confirmed(self) -> LogOffset:
        """The end of the log. Raises `StoreUnreachable`."""
        if self.unknown:
            raise StoreUnreachable("never reached")
        return self.end

    def write(self, *messages: Message, queue: int = 16, epoch: int = 1) -> None:
        """Appends one frame of messages and calls the listeners."""
        records = [encode(message) for message in messages]
        rows, pos = [], 0
        for record in records:
            rows.append(ROW.pack(queue, pos, len(record), 0, 0, 0, 0, 0))
            pos += len(record)
        frame = placed(UnplacedFrame.build(b"".join(rows), b"".join(records)), self.end, epoch=epoch)
        self.frames.append(frame)
        self.end = frame.end
        self.unheard.append(frame)
        if not self.down:
            self.hear()

    def lose(self, count: int) -> None:
        """Removes the last frames, as an unclean election does."""
        self.end = self.frames[-count].start
        del self.frames[-count:]

    def hear(self) -> None:
        """Gives the listeners the frames that they have not been given."""
        frames, self.unheard = self.unheard, []
        for listener in list(self.listeners):
            listener(frames)

    def tail(self, listener: Callable[[list[Frame]], None]) -> Callable[[], None]:
        """Calls the listener with new frames until the returned function is called."""
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    async def scan(self, start: Position, queues: Any, *, max_bytes: int) -> tuple[list[Frame], LogOffset]:
        """Returns some frames from a position on, and their end. Raises `StoreUnreachable`."""
        await asyncio.sleep(0)
        if self.down:
            raise StoreUnreachable("nobody answers")
        self.scanned.append(queues)
        assert group_of(start.frame) == self.group
        found = [frame for frame in self.frames if frame.start >= start.frame][:FRAMES_READ]
        return found, found[-1].end if found else self.end
